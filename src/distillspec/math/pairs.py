"""The divergences of a pair of log-probabilities, which logits are brought to once.

`divergences.py` has them from logits, with what they mean and how they treat infinities.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distillspec.math.precision import wide_dtype
from distillspec.math.verification import expected_acceptance


class Pair(NamedTuple):
    """What every divergence is made of, each pass over the vocabulary made once; see `pair_of`."""

    log_p: Tensor
    """[..., K] log P, normalised over all V ids."""
    log_q: Tensor
    """[..., K] log Q, normalised over the K."""
    p: Tensor
    """[..., K] P."""
    q: Tensor
    """[..., K] Q."""
    outside: Tensor | None
    """[...] the target's probability outside K; None for a whole head."""


def pair_of(log_p: Tensor, log_q: Tensor, outside: Tensor | None) -> Pair:
    """Make a pair of the logarithms."""
    return Pair(log_p, log_q, log_p.exp(), log_q.exp(), outside)


def compare(target_logits: Tensor, draft_logits: Tensor, kept: Tensor | None = None) -> Pair:
    """Bring logits to the one form every divergence is written in, in float32 or wider.

    Raises:
        ValueError: If the shapes disagree.
    """
    wanted = tuple(target_logits.shape)
    if kept is not None:
        check_kept(draft_logits, kept)
        wanted = (*wanted[:-1], len(kept))
    if draft_logits.shape != wanted:
        raise ValueError(
            f"target logits {tuple(target_logits.shape)} need draft logits {wanted}, "
            f"got {tuple(draft_logits.shape)}"
        )
    dtype = wide_dtype(target_logits, draft_logits)
    log_p = target_logits.log_softmax(-1, dtype=dtype)
    log_q = draft_logits.log_softmax(-1, dtype=dtype)
    if kept is None:
        return pair_of(log_p, log_q, None)
    return _with_outside(log_p.index_select(-1, kept), log_q)


def compare_kept(log_p: Tensor, draft_logits: Tensor, kept: Tensor) -> Pair:
    """Do the same where the target's log-probabilities of the kept ids are known already.

    Args:
        log_p: [..., K] normalised over all V ids.
        draft_logits: [..., K].
        kept: [K] ids of the trimmed draft head.

    Raises:
        ValueError: If the shapes disagree.
    """
    check_kept(draft_logits, kept)
    if log_p.shape != draft_logits.shape:
        raise ValueError(
            f"target log-probabilities {tuple(log_p.shape)} and draft logits "
            f"{tuple(draft_logits.shape)} must have one shape"
        )
    dtype = wide_dtype(log_p, draft_logits)
    return _with_outside(log_p.to(dtype), draft_logits.log_softmax(-1, dtype=dtype))


def _with_outside(log_p: Tensor, log_q: Tensor) -> Pair:
    pair = pair_of(log_p, log_q, None)
    # Rounding may leave 1 − P(K) a hair below 0 where K holds everything.
    return pair._replace(outside=(1 - pair.p.sum(-1)).clamp(min=0))


def forward_kl_of(pair: Pair) -> Tensor:
    """Return `forward_kl` of a pair."""
    if pair.outside is None:
        return _kl(pair.log_p, pair.p, pair.log_q, pair.q)
    mass = pair.p.sum(-1, keepdim=True)
    # Where no mass is inside, P(K) = 0 makes the value 0; _log and the clamp keep nan out.
    renormalised = pair.p / mass.clamp(min=torch.finfo(mass.dtype).tiny)
    whole = _kl(pair.log_p - _log(mass), renormalised, pair.log_q, pair.q)
    return mass.squeeze(-1) * whole


def reverse_kl_of(pair: Pair) -> Tensor:
    """Return `reverse_kl` of a pair."""
    inside = _kl(pair.log_q, pair.q, pair.log_p, pair.p)
    # Outside K the draft has nothing, and the terms of `_kl` there are the target's mass.
    return inside if pair.outside is None else inside + pair.outside


def jsd_of(pair: Pair, beta: float) -> Tensor:
    """Return `jsd` of a pair, β in (0, 1)."""
    with torch.no_grad():
        p, q = pair.p, pair.q
        log_m = _log(torch.lerp(q, p, beta))  # exactly log P where P = Q, so the value there is 0
        of_p = _log(p).sub_(log_m).mul_(p).mul_(beta)
        of_q = _log(q).sub_(log_m).mul_(q).mul_(1 - beta)
        value = (of_p + of_q).sum(-1)
    inside = _sloped(value, (pair.log_p, of_p), (pair.log_q, of_q))
    return inside if pair.outside is None else inside - beta * math.log(beta) * pair.outside


def total_variation_of(pair: Pair) -> Tensor:
    """Return `total_variation` of a pair."""
    inside = (pair.p - pair.q).abs().sum(-1)
    return 0.5 * (inside if pair.outside is None else inside + pair.outside)


def acceptance_of(pair: Pair) -> Tensor:
    """Return `acceptance` of a pair."""
    return expected_acceptance(pair.p, pair.q)


def negative_log_acceptance_of(pair: Pair) -> Tensor:
    """Return `negative_log_acceptance` of a pair.

    In the logarithm throughout: the sum of two far distributions' minima may underflow, and 1 − TVD
    loses what is left of it to rounding.
    """
    with torch.no_grad():
        least = torch.minimum(pair.log_p, pair.log_q)
        value = -least.logsumexp(-1)
        share = least.add_(value[..., None]).exp_().nan_to_num_(nan=0.0).neg_()
        # 1 where Q is the smaller, ½ where both are equal, be it −inf.
        side = (pair.log_p - pair.log_q).sign_().nan_to_num_(nan=0.0).add_(1).mul_(0.5)
        of_q = side.mul_(share)
    return _sloped(value, (pair.log_p, share - of_q), (pair.log_q, of_q))


def check_kept(draft_logits: Tensor, kept: Tensor) -> None:
    """Check that a trimmed head has one column for each kept id.

    Raises:
        ValueError: If it has not.
    """
    if kept.dim() != 1 or draft_logits.shape[-1] != len(kept):
        raise ValueError(
            f"draft logits {tuple(draft_logits.shape)} do not fit kept ids {tuple(kept.shape)}: "
            "one column for each kept id"
        )


def _kl(log_a: Tensor, a: Tensor, log_b: Tensor, b: Tensor) -> Tensor:
    """Return Σ A (log A − log B) + (B − A) over the last dimension.

    Σ (B − A) is 0, but keeps every term from going below 0 and takes out, to first order, the
    rounding of the two normalisers, which is as large as the divergence of a well-trained draft.
    """
    with torch.no_grad():
        terms = (log_a - log_b).mul_(a)
        # nan where A is 0 and a logarithm is not finite. A mask would take a CPU ten times as long.
        terms.nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf)
        surplus = b - a
        value = (terms + surplus).sum(-1)
    return _sloped(value, (log_a, terms), (log_b, surplus))


def _log(x: Tensor) -> Tensor:
    """Return log x, finite at x = 0."""
    return x.clamp(min=torch.finfo(x.dtype).tiny).log_()


def _sloped(value: Tensor, *slopes: tuple[Tensor, Tensor]) -> Tensor:
    """Give a value [...] its gradient, from tensors [..., K] and its known slopes in them.

    The terms that make up a divergence are its slopes in the logarithms, so that autograd has
    nothing to look for.
    """
    apply: Callable[..., Tensor] = _Sloped.apply
    return apply(value, *itertools.chain.from_iterable(slopes))


class _Sloped(torch.autograd.Function):
    """See `_sloped`."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *slopes: Tensor) -> Tensor:
        ctx.save_for_backward(*slopes[1::2])
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = [None]
        for slope, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1::2], strict=True):
            found += [_scaled(slope, d_value) if needed else None, None]
        return tuple(found)


def _scaled(slope: Tensor, d_value: Tensor) -> Tensor:
    """Return slope · d_value, 0 where d_value is: also where the slope is not finite."""
    found = slope * d_value[..., None]
    idle = d_value == 0
    # Only then, as a mask takes a CPU ten times as long as the product
    return found.masked_fill_(idle[..., None], 0.0) if bool(idle.any()) else found
