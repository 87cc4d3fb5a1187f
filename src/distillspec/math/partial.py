"""A target known in part: its k most likely ids at every position, and the mass of all others.

The definition of every divergence here: **the tail is one event**. Both models are compared on
k + 1 events, the k ids and "any other id", to which the draft gives all of its own mass outside
the k. What that means, for P and Q on V ids and their lumped P', Q' on k + 1 events:

- D(P'‖Q') ≤ D(P‖Q) for forward and reverse KL, JSD and TVD alike, since lumping events never raises
  an f-divergence (data processing). It never falls as k grows, and at k = V it is D(P‖Q) itself.
- It is the divergence from the P that spreads its tail in the shape of the draft's own, which is
  the nearest of all P with these k probabilities. So the draft is taught how much mass to leave to
  the tail and nothing about how to spread it there: what is not known exerts no pull.
- Σ min(P', Q') is an upper bound of the acceptance rate, by at most the smaller of the two tails.

Renormalising the k ids, a common alternative, teaches a draft that the tail has probability 0.
Spreading the tail evenly over the V − k ids gives no bound: its forward KL has the larger error of
gradient, its JSD and TVD the smaller one (`benchmarks/offline.py` prints both).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from distillspec.math.pairs import Pair, check_kept, pair_of
from distillspec.math.precision import at_least_float32


@dataclass(frozen=True)
class Known:
    """What is known of the target's distributions, at temperature 1."""

    ids: Tensor
    """[..., k] int64, the most likely ids, likeliest first."""
    logprobs: Tensor
    """[..., k] their log-probabilities, in nats."""
    tail: Tensor
    """[...] the log-probability of all other ids together; −inf where there are none."""


def known_of(logits: Tensor, k: int) -> Known:
    """Reduce logits to their k largest and the tail.

    The tail is summed itself: 1 minus the others would lose all its digits where it is small.

    Args:
        logits: [..., V].
        k: How many ids to keep; at most V are there.

    Raises:
        ValueError: if k is below 1.
    """
    if k < 1:
        raise ValueError(f"k is {k}: at least one id must be kept")
    log_p = at_least_float32(logits).log_softmax(-1)
    logprobs, ids = log_p.topk(min(k, log_p.shape[-1]), -1)
    return Known(ids, logprobs, _rest(log_p, ids))


def lumped(known: Known, draft_logits: Tensor, *, kept: Tensor | None = None) -> Pair:
    """Bring both models to the k + 1 events, in the form every divergence is written in.

    Args:
        known: [..., k] of the target. Its numbers may be rounded: they are normalised here.
        draft_logits: [..., V], or [..., K] with `kept`.
        kept: [K] ascending ids of a trimmed draft head, None for a whole one.

    Returns:
        [..., k + 1] of each, the tail last, with gradient to the draft's logits. With `kept`, what
        the head lacks of the k ids is the target's mass outside, and the tail counts as inside.
    """
    logits, columns = at_least_float32(draft_logits), known.ids
    if kept is not None:
        check_kept(draft_logits, kept)
        columns = torch.searchsorted(kept, known.ids).clamp(max=len(kept) - 1)
        # One column more, of −inf, stands for whatever the head lacks.
        columns = columns.masked_fill(kept[columns] != known.ids, len(kept))
        logits = pad(logits, (0, 1), value=-math.inf)
    draft = torch.cat([logits.gather(-1, columns), _rest(logits, columns)[..., None]], -1)
    target = torch.cat([known.logprobs, known.tail[..., None].to(known.logprobs)], -1)
    log_p, log_q = target.to(draft.dtype).log_softmax(-1), draft.log_softmax(-1)
    if kept is None:
        return pair_of(log_p, log_q, None)
    lacking = draft.detach() == -math.inf
    outside = log_p.exp().masked_fill(~lacking, 0.0).sum(-1)
    return pair_of(log_p.masked_fill(lacking, -math.inf), log_q, outside)


def _rest(logits: Tensor, columns: Tensor) -> Tensor:
    """Return [...]: logsumexp of [..., V] without [..., k] columns; −inf where none is left.

    torch's own logsumexp of nothing but −inf has a gradient of nan.
    """
    others = logits.scatter(-1, columns, -math.inf)
    largest = others.detach().amax(-1)
    largest = largest.masked_fill(largest == -math.inf, 0.0)
    total = (others - largest[..., None]).exp().sum(-1)
    tiny = torch.finfo(total.dtype).tiny
    return (total.clamp(min=tiny).log() + largest).masked_fill(total == 0, -math.inf)
