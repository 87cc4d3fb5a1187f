"""Are these the target's outputs? Asked of any engine's answers, with nothing but the target.

Every question is a sum of martingale differences with exactly known variance
(`distillspec.math.audit`), so that there is no second sample and no model of the engine. What a
sampler cannot draw is counted apart, and so is how outputs end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillspec.math.audit import Excess
from distillspec.math.sampling import Sampling
from distillspec.models.protocol import LanguageModel
from distillspec.studies import questions
from distillspec.studies.outputs import Report, each_forced
from distillspec.studies.questions import Asked, Place
from distillspec.studies.sameness import near_tie

ROWS = 64
"""Positions whose [V] laws are in memory at once, in float64: 25 MB each at V = 49,152."""


@dataclass(frozen=True)
class Written:
    """One output of an engine."""

    id: str
    """Names its prompt."""
    prompt: Tensor
    """1-D int64 ids, as the engine was given them."""
    ids: Tensor
    """1-D int64 ids that it put out, the stop token included."""
    blocks: tuple[int, ...] | None = None
    """Tokens of every block, in order; None where the engine does not tell."""
    reason: str | None = None
    """Why it ended, `stop` or `length`; None where the engine does not tell."""


@dataclass(frozen=True)
class Impossible:
    """A token that the sampler never draws there."""

    id: str
    """The prompt's."""
    token: int
    """Its index in the output."""
    emitted: int
    """The id."""
    gap: float | None
    """How far its logit lies below the last one kept; None where no logit counts (an id that
    stands for nothing)."""
    near: bool
    """Whether rounding explains it: the gap, or what top-p is off by, is a near tie's."""


@dataclass
class Tally:
    """Sums by question, one row an output."""

    kinds: dict[str, Asked] = field(default_factory=dict)
    """By question, one answer as an example of its kind."""
    sums: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """By question: [outputs, 5] tokens, excess, variance, third moment, expected."""
    impossible: list[Impossible] = field(default_factory=list)
    """What the sampler never draws. Under greedy: what is not the argmax."""
    scored: int = 0
    """Tokens that were looked at."""


@torch.inference_mode()
def tally(
    target: LanguageModel,
    outputs: Sequence[Written],
    sampling: Sampling,
    *,
    stop: Sequence[int],
    batch_size: int,
    dtype: torch.dtype,
    report: Report,
    draft: tuple[LanguageModel, Sampling] | None = None,
) -> Tally:
    """Put every question to every token.

    Where a log lost stop tokens, what it has is drawn from the target's law given that it is no
    stop token, and is held against that; stop tokens that are there after all are passed over.

    Args:
        target: The model whose outputs they are said to be.
        outputs: What the engine wrote.
        sampling: The settings it is said to have sampled at.
        stop: Ids that end an output.
        batch_size: Rows per teacher-forced pass.
        dtype: The coarser of the engine's and the target's number format, for near ties.
        report: Called after each output.
        draft: A draft and its sampler, to ask whether tokens lean toward it.
    """
    found = Tally()
    stops = set(stop)
    random = sampling.temperature > 0
    lost = random and bool(stops) and any(_lost_its_stop(one, stops) for one in outputs)
    known = [_known(target, one, found, stops if lost else set()) for one in outputs]
    models = (target,) if draft is None else (target, draft[0])
    classes = questions.kinds_of_ids(target.vocabulary) if random else {}
    widest = max((max(one.blocks) for one in outputs if one.blocks), default=1)
    states = each_forced(models, [one.prompt for one in outputs], known, batch_size=batch_size)
    for i, (one, ids, laws) in enumerate(zip(outputs, known, states, strict=True)):
        surprise: Excess | None = None
        # None where the first id has no string: an empty range would be split into itself
        for rows in torch.split(torch.arange(len(ids)), ROWS) if len(ids) else ():
            logits = target.head(laws[0][rows]).double()  # [n, V]
            y = ids[rows].to(logits.device)
            found.scored += len(y)
            p = sampling.probabilities(logits)
            found.impossible += _impossible(one.id, int(rows[0]), logits, p, y, sampling, dtype)
            if not random:
                continue
            if lost:
                p = _given_no_stop(p, stop)
            q = None
            if draft is not None:
                q = draft[1].probabilities(draft[0].head(laws[1][rows]).double())
            before = torch.cat([one.prompt, ids[: int(rows[0])]])
            place = Place(p, y, int(rows[0]), before, one.blocks, widest, surprise, q)
            asked = questions.answers(place, () if lost else stop, classes)
            _add(found, asked, i, len(outputs))
            last = asked[questions.LIKELIHOOD].excess
            surprise = Excess(last.value[-1:], last.variance[-1:], last.third[-1:])
        report(i + 1, len(outputs))
    return found


def _known(target: LanguageModel, one: Written, found: Tally, passed: set[int]) -> Tensor:
    """Return the ids up to the first that the target has no string for, and note that one.

    A last id among those `passed` over is left out.
    """
    size = target.vocabulary.size
    unknown = torch.nonzero(one.ids >= size)
    if not len(unknown):
        return one.ids[:-1] if int(one.ids[-1]) in passed else one.ids
    at = int(unknown[0])
    found.impossible.append(Impossible(one.id, at, int(one.ids[at]), None, False))
    return one.ids[:at]


def _given_no_stop(p: Tensor, stop: Sequence[int]) -> Tensor:
    """Return [n, V] p given that no stop token is drawn; as it is where nothing else can be."""
    going_on = p.index_fill(-1, torch.tensor(sorted(stop), device=p.device), 0.0)
    rest = going_on.sum(-1, keepdim=True)
    return torch.where(rest > 0, going_on / rest, p)


def _impossible(
    id: str,
    first: int,
    logits: Tensor,
    p: Tensor,
    y: Tensor,
    sampling: Sampling,
    dtype: torch.dtype,
) -> list[Impossible]:
    """List the tokens that have no probability, and say which of them rounding explains."""
    of_y = p.gather(1, y[:, None])[:, 0]
    found = []
    for row in torch.nonzero(of_y == 0)[:, 0].tolist():
        own = float(logits[row, y[row]])
        if own == -torch.inf:
            found.append(Impossible(id, first + row, int(y[row]), None, False))
            continue
        kept = logits[row][p[row] > 0]
        gap, bound = float(kept.min()) - own, near_tie(float(logits[row].max()), dtype)
        near = gap <= bound
        if sampling.top_p < 1 and sampling.temperature > 0 and not near:  # greedy needs no top-p
            near = _at_the_edge(logits[row], own, sampling, bound)
        found.append(Impossible(id, first + row, int(y[row]), max(0.0, gap), near))
    return found


def _at_the_edge(logits: Tensor, own: float, sampling: Sampling, bound: float) -> bool:
    """Say whether top-p would keep a token if logits were off by as much as a near tie's are.

    A mass m grows with a logit by m · (1 − m) / T, at most a quarter of a T-th.
    """
    if sampling.top_k is not None and int((logits > own).sum()) >= sampling.top_k:
        return False
    whole = Sampling(sampling.temperature, sampling.top_k).probabilities(logits)
    ahead = float(whole[logits > own].sum())
    return ahead - sampling.top_p <= bound / (4 * sampling.temperature)


def _add(found: Tally, asked: Mapping[str, Asked], i: int, outputs: int) -> None:
    for name, one in asked.items():
        found.kinds.setdefault(name, one)
        table = found.sums.setdefault(name, np.zeros((outputs, 5)))
        columns = (one.excess.value, one.excess.variance, one.excess.third, one.expected)
        table[i] += [len(one.expected), *(float(column.sum()) for column in columns)]


def ends(
    outputs: Sequence[Written], stop: Sequence[int], limit: int | None
) -> tuple[dict[str, int], list[str]]:
    """Count how outputs end, and name what cannot be.

    Args:
        outputs: What the engine wrote.
        stop: Ids that end an output.
        limit: The length limit it was given; None where that is not known.

    Returns:
        Counts, and one line for each fault.
    """
    stops = set(stop)
    counts = {"stop": 0, "length": 0, "lost_stop": 0, "early": 0, "past_stop": 0, "too_long": 0}
    examples: dict[str, str] = {}
    for one in outputs:
        way = _end(one, stops, limit)
        counts[way] += 1
        examples.setdefault(way, one.id)
    said: dict[str, Callable[[int], str]] = {
        "past_stop": lambda n: f"{n} outputs go on after a stop token",
        "early": lambda n: f"{n} outputs end before the length limit without a stop token",
        "too_long": lambda n: f"{n} outputs are longer than the length limit",
    }
    return counts, [
        f"{say(counts[way])} ({examples[way]} the first)"
        for way, say in said.items()
        if counts[way]
    ]


def _lost_its_stop(one: Written, stops: set[int]) -> bool:
    """Say whether an output ended by a stop token that is not there."""
    return one.reason == "stop" and int(one.ids[-1]) not in stops


def _end(one: Written, stops: set[int], limit: int | None) -> str:
    ids = one.ids.tolist()
    if stops & set(ids[:-1]):
        return "past_stop"
    if limit is not None and len(ids) > limit:
        return "too_long"
    if ids[-1] in stops:
        return "stop"
    if _lost_its_stop(one, stops):
        return "lost_stop"
    return "early" if limit is not None and len(ids) < limit else "length"
