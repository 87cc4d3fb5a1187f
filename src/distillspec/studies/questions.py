"""What an audit asks of every emitted token: functions whose law under the target is known.

A question may depend on the past alone, never on the token it is about, so that its excess is a
martingale difference (see `distillspec.math.audit`). Place in a block is such a past: whether a
block goes on was decided before the next token was drawn. That a token was accepted is not: an
accepted token follows min(p, q), whatever the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distillspec.math.audit import Excess, excess, excess_of_events, ranks, times
from distillspec.models.vocabulary import Vocabulary

LIKELIHOOD, STOP, DRAFT = "likelihood", "stop token", "toward the draft"
FIRST, REJECTED, WHOLE = "token 1", "after a rejection", "after a whole block"
SEEN, REPEAT, CARRIED = "seen before", "same as the last", "carried over"
BANDS = (0.5, 0.1, 0.01, 0.001)
"""Where the bands of probability begin, from above."""
RANKS = (1, 3, 10, 100)
"""Where the bands of rank end."""
PLACES = (1, 4, 16, 64, 256, 1024)
"""Where the groups of positions in an answer end, counted from 1."""
LONGEST = 16
"""Places of a block that are asked about apart, at most."""
_FAINT = 1e-12
"""A variance below this is rounding's: nothing could have come out otherwise."""


@dataclass(frozen=True)
class Asked:
    """One question's answers over the tokens of an output that it is about."""

    kind: str
    """What kind of question: likelihood, position, block, probability, rank, stop, ids, …"""
    counts: bool
    """Whether it counts events; otherwise it sums nats (or what the kind says)."""
    excess: Excess
    """[n] each: of the tokens it is about."""
    expected: Tensor
    """[n] float64 E_p f."""


@dataclass(frozen=True)
class Place:
    """Some tokens of one output, with all that was known before them."""

    p: Tensor
    """[n, V] float64: the target's law at the sampler."""
    y: Tensor
    """[n] int64 emitted tokens."""
    first: int
    """Index of the first of them in the output."""
    before: Tensor
    """1-D int64 ids of the prompt and of the output before them."""
    blocks: Sequence[int] | None
    """Tokens of every block of the output, in order; None where the engine does not tell."""
    widest: int
    """Tokens of a whole block, γ + 1."""
    surprise: Excess | None
    """[1] the likelihood's excess of the token before; None at the beginning of the output."""
    q: Tensor | None
    """[n, V] the draft's law, where a draft is at hand."""


def answers(place: Place, stop: Sequence[int], classes: Mapping[str, Tensor]) -> dict[str, Asked]:
    """Ask every question of some tokens.

    Args:
        place: The tokens.
        stop: Ids that end an output.
        classes: [V] bool masks of kinds of ids, by name.

    Returns:
        By question; those that are about none of the tokens are left out.
    """
    p, y = place.p, place.y
    log_p = _log(p)
    surprise = excess(p, log_p, y)
    mean = (p * log_p).sum(-1)
    found = {LIKELIHOOD: Asked("likelihood", False, surprise, mean)}
    for name, rows in _groups(place).items():
        kind = "position" if name.startswith("token") else "block"
        found[name] = Asked(kind, False, _part(surprise, rows), mean[rows])
    found |= _probability_bands(p, y) | _rank_bands(p, y)
    if stop:
        ends = torch.zeros(p.shape[-1], dtype=torch.bool, device=p.device)
        ends[torch.tensor(sorted(stop), device=p.device)] = True
        found[STOP] = _event("stop", p[:, ends].sum(-1), ends[y])
    if classes:
        masks = torch.stack(list(classes.values()), dim=1).to(p)  # [V, C]
        mass, hit = p @ masks, masks[y] > 0
        for i, name in enumerate(classes):
            found[name] = _event("ids", mass[:, i], hit[:, i])
    found |= _memory(place, surprise)
    if place.q is not None:
        # Bounded whatever p and q are; a mixture of p with some q raises it whichever they are.
        lean = place.q / (p + place.q).clamp(min=1e-300)
        found[DRAFT] = Asked("draft", False, excess(p, lean, y), (p * lean).sum(-1))
    return {name: one for name, one in found.items() if len(one.expected)}


def kinds_of_ids(vocabulary: Vocabulary) -> dict[str, Tensor]:
    """Sort ids by the look of their strings: [V] bool masks by name, none of them empty."""
    kinds = [_kind(piece) for piece in vocabulary.pieces]
    names = dict.fromkeys(kind for kind in kinds if kind is not None)
    return {name: torch.tensor([kind == name for kind in kinds]) for name in names}


def _kind(piece: str | None) -> str | None:
    if piece is None:
        return None
    bare = piece.lstrip(" \u0120\u2581")  # how byte-level and SentencePiece tokenizers write blanks
    if not bare.isascii():
        return "ids: not ASCII"
    if any(c.isdigit() for c in bare):
        return "ids: digits"
    if not any(c.isalpha() for c in bare) or bare.startswith("<"):
        return "ids: signs"
    return "ids: words" if len(bare) < len(piece) else "ids: parts of words"


def _log(p: Tensor) -> Tensor:
    """Return log p; where p is 0, that of the least likely token that can be drawn."""
    least = p.masked_fill(p == 0, torch.inf).amin(-1, keepdim=True)
    return torch.maximum(p, least).log()


def _part(one: Excess, rows: Tensor) -> Excess:
    return Excess(one.value[rows], one.variance[rows], one.third[rows])


def _event(kind: str, mass: Tensor, hit: Tensor) -> Asked:
    return Asked(kind, True, excess_of_events(mass, hit), mass.double())


def _groups(place: Place) -> dict[str, Tensor]:
    """Group tokens by where they stand: [n] bool masks by name."""
    at = torch.arange(place.first, place.first + len(place.y)) + 1
    found = {}
    start = 1
    for end in (*PLACES, 1 << 40):
        name = f"token {start}" if end == start else f"tokens {start}–{end}"
        found[name if end < 1 << 40 else f"tokens {start}–"] = (at >= start) & (at <= end)
        start = end + 1
    if place.blocks is not None:
        within, previous = _in_blocks(place)
        for i in range(1, min(place.widest, LONGEST) + 1):
            found[f"block, token {i}"] = within == i
        opening = within == 1
        found[REJECTED] = opening & (previous > 0) & (previous < place.widest)
        found[WHOLE] = opening & (previous == place.widest)
    return {name: mask.to(place.y.device) for name, mask in found.items()}


def _in_blocks(place: Place) -> tuple[Tensor, Tensor]:
    """Return each token's number in its block, from 1, and the length of the block before it."""
    numbers: list[int] = []
    lengths: list[int] = []
    last = 0
    for block in place.blocks or ():
        numbers += range(1, block + 1)
        lengths += [last] * block
        last = block
    part = slice(place.first, place.first + len(place.y))
    return torch.tensor(numbers[part]), torch.tensor(lengths[part])


def _probability_bands(p: Tensor, y: Tensor) -> dict[str, Asked]:
    least = p.masked_fill(p == 0, torch.inf).amin(-1)
    of_y = torch.maximum(p.gather(1, y[:, None])[:, 0], least)
    found, upper = {}, torch.inf
    for edge in (*BANDS, 0.0):
        name = f"p ≥ {edge:g}" if upper == torch.inf else f"p < {upper:g}"
        if 0 < edge < BANDS[0]:
            name = f"p {edge:g}–{upper:g}"
        mass = p.masked_fill(~((p >= edge) & (p < upper)), 0.0).sum(-1)
        found[name] = _event("probability", mass, (of_y >= edge) & (of_y < upper))
        upper = edge
    return found


def _rank_bands(p: Tensor, y: Tensor) -> dict[str, Asked]:
    most = min(RANKS[-1], p.shape[-1])
    mass = torch.nn.functional.pad(p.topk(most, dim=-1).values.cumsum(-1), (1, 0))  # [n, most+1]
    possible = (p > 0).sum(-1) - 1
    rank = torch.minimum(ranks(p, y), possible)
    found, start = {}, 0
    for end in RANKS:
        name = f"rank {end}" if end == start + 1 else f"rank {start + 1}–{end}"
        between = mass[:, min(end, most)] - mass[:, min(start, most)]
        found[name] = _event("rank", between, (rank >= start) & (rank < end))
        start = end
    found[f"rank > {start}"] = _event("rank", 1 - mass[:, most], rank >= start)
    return found


def _memory(place: Place, surprise: Excess) -> dict[str, Asked]:
    """Ask whether a token depends on what came before in a way that p does not tell."""
    p, y, n = place.p, place.y, len(place.y)
    tokens = torch.cat([place.before.to(y.device), y])
    order = torch.arange(len(tokens), device=y.device)
    never = torch.full((p.shape[-1],), len(tokens), device=y.device)
    first = never.scatter_reduce(0, tokens, order, "amin")  # [V] where each id stands first
    mass = p.masked_fill(first >= order[-n:, None], 0.0).sum(-1)
    found = {SEEN: _event("memory", mass, first[y] < order[-n:])}
    last = tokens[-n - 1 : -1]  # a prompt has at least one token
    if place.first > 0 or n > 1:
        rows = slice(0 if place.first > 0 else 1, None)
        of_last = p.gather(1, last[:, None])[:, 0]
        found[REPEAT] = _event("memory", of_last[rows], (y == last)[rows])
        earlier = place.surprise
        values = surprise.value if earlier is None else torch.cat([earlier.value, surprise.value])
        spread = (
            surprise.variance
            if earlier is None
            else torch.cat([earlier.variance, surprise.variance])
        )
        weight = (values / spread.clamp(min=_FAINT).sqrt())[:-1].clamp(-3, 3)
        carried = times(weight, _part(surprise, torch.arange(n, device=y.device)[rows]))
        found[CARRIED] = Asked("memory", False, carried, torch.zeros_like(carried.value))
    return found
