"""The divergences of a pair of log-probabilities, which logits are brought to once.

`divergences.py` has them from logits, with what they mean and how they treat infinities.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

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
    inside = pair.log_p.logsumexp(-1, keepdim=True)
    # Where no mass is inside, P(K) = 0 makes the value 0; the fill keeps −inf − −inf out.
    log_renormalised = pair.log_p - inside.masked_fill(inside == -math.inf, 0.0)
    whole = _kl(log_renormalised, log_renormalised.exp(), pair.log_q, pair.q)
    return inside.exp().squeeze(-1) * whole


def reverse_kl_of(pair: Pair) -> Tensor:
    """Return `reverse_kl` of a pair."""
    inside = _kl(pair.log_q, pair.q, pair.log_p, pair.p)
    # Outside K the draft has nothing, and the terms of `_kl` there are the target's mass.
    return inside if pair.outside is None else inside + pair.outside


def jsd_of(pair: Pair, beta: float) -> Tensor:
    """Return `jsd` of a pair, β in (0, 1)."""
    p, q = pair.p, pair.q
    log_m = _log(torch.lerp(q, p, beta))  # exactly log P where P = Q, so the value there is 0
    inside = (beta * p * (_log(p) - log_m) + (1 - beta) * q * (_log(q) - log_m)).sum(-1)
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
    return -torch.minimum(pair.log_p, pair.log_q).logsumexp(-1)


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
    # The difference is masked, not the product: 0 · (−inf − −inf) is nan in the gradient even
    # where the product is masked away.
    return (a * (log_a - log_b).masked_fill(a == 0, 0.0) + (b - a)).sum(-1)


def _log(x: Tensor) -> Tensor:
    """Return log x, finite with gradient 0 at x = 0."""
    return x.clamp(min=torch.finfo(x.dtype).tiny).log()
