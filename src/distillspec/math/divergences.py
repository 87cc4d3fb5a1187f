"""How far the draft's distribution is from the target's: logits in, nats per position out.

Nothing here reduces over positions except `sequence_mean` and `token_mean`. P is the target, Q
the draft, in that order always; computed in float32 or wider. Source: DistillSpec, appendix A.1.

Infinities: −inf marks an id that a model cannot emit. At the same ids on both sides values and
gradients stay finite. On one side only, the KL that is infinite returns +inf, never nan, and
JSD and TVD stay finite. Probabilities that underflow to 0 count as 0. A row that is −inf
throughout has no distribution and gives nan.

A draft whose head keeps only a set K of the V ids is compared with `kept`: the target's logits
are [..., V], the draft's [..., K], and Q is 0 outside K.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from distillspec.errors import UserError
from distillspec.math.precision import at_least_float32, wide_dtype
from distillspec.math.verification import expected_acceptance


def forward_kl(
    target_logits: Tensor, draft_logits: Tensor, *, kept: Tensor | None = None
) -> Tensor:
    """Return KL(P‖Q) = Σ P log(P / Q).

    With `kept` that would be infinite, so the objective is Σ_K P log(P̃ / Q) with
    P̃ = P / P(K): the target's mass outside K, which no draft with this head can reach, is left
    out, and positions count by the mass P(K) inside.

    Args:
        target_logits: [..., V].
        draft_logits: [..., V], or [..., K] with `kept`.
        kept: [K] ids of a trimmed draft head, None for a whole one.

    Returns:
        [...] in nats, not negative within rounding.

    Raises:
        ValueError: If the shapes disagree.
    """
    pair = _compare(target_logits, draft_logits, kept)
    if kept is None:
        return _kl(pair.log_p, pair.log_q)
    inside = pair.log_p.logsumexp(-1, keepdim=True)
    # Where no mass is inside, P(K) = 0 makes the value 0; the fill keeps −inf − −inf out.
    log_renormalised = pair.log_p - inside.masked_fill(inside == -math.inf, 0.0)
    return inside.exp().squeeze(-1) * _kl(log_renormalised, pair.log_q)


def reverse_kl(
    target_logits: Tensor, draft_logits: Tensor, *, kept: Tensor | None = None
) -> Tensor:
    """Return KL(Q‖P) = Σ Q log(Q / P); P is the target's over all V ids, with `kept` too.

    Args:
        target_logits: [..., V].
        draft_logits: [..., V], or [..., K] with `kept`.
        kept: [K] ids of a trimmed draft head, None for a whole one.

    Returns:
        [...] in nats, not negative within rounding.

    Raises:
        ValueError: If the shapes disagree.
    """
    pair = _compare(target_logits, draft_logits, kept)
    # Outside K the draft has nothing, and the terms of `_kl` there are the target's mass.
    return _kl(pair.log_q, pair.log_p) + pair.outside


def jsd(
    target_logits: Tensor,
    draft_logits: Tensor,
    *,
    beta: float = 0.5,
    kept: Tensor | None = None,
) -> Tensor:
    """Return JSD[β] = β KL(P‖M) + (1−β) KL(Q‖M) with M = βP + (1−β)Q.

    β = ½ is the Jensen-Shannon divergence; JSD[β] / β tends to KL(P‖Q) as β tends to 0. With
    `kept`, the mass outside K enters exactly: there M = βP, which adds β P(outside) log(1/β).

    Args:
        target_logits: [..., V].
        draft_logits: [..., V], or [..., K] with `kept`.
        beta: β in (0, 1), the weight of the target in M.
        kept: [K] ids of a trimmed draft head, None for a whole one.

    Returns:
        [...] in nats, from 0 to the entropy of (β, 1−β), log 2 at most.

    Raises:
        UserError: If β lies outside (0, 1).
        ValueError: If the shapes disagree.
    """
    if not 0 < beta < 1:
        raise UserError(
            f"beta is {beta}: JSD needs a number between 0 and 1, both excluded (at the ends it "
            "is 0 whatever the draft does); use forward_kl for the limit at 0, reverse_kl at 1"
        )
    pair = _compare(target_logits, draft_logits, kept)
    p, q = pair.log_p.exp(), pair.log_q.exp()
    log_m = _log(torch.lerp(q, p, beta))  # exactly log P where P = Q, so the value there is 0
    inside = (beta * p * (_log(p) - log_m) + (1 - beta) * q * (_log(q) - log_m)).sum(-1)
    return inside - beta * math.log(beta) * pair.outside


def total_variation(
    target_logits: Tensor, draft_logits: Tensor, *, kept: Tensor | None = None
) -> Tensor:
    """Return TVD = ½ Σ |P − Q|; with `kept`, the target's mass outside K counts in full.

    Args:
        target_logits: [..., V].
        draft_logits: [..., V], or [..., K] with `kept`.
        kept: [K] ids of a trimmed draft head, None for a whole one.

    Returns:
        [...] in [0, 1] within rounding: 1 minus the acceptance rate.

    Raises:
        ValueError: If the shapes disagree.
    """
    pair = _compare(target_logits, draft_logits, kept)
    return 0.5 * ((pair.log_p.exp() - pair.log_q.exp()).abs().sum(-1) + pair.outside)


def acceptance(
    target_logits: Tensor, draft_logits: Tensor, *, kept: Tensor | None = None
) -> Tensor:
    """Return β = Σ min(P, Q) = 1 − TVD: the expected acceptance of a token drawn from Q.

    Args:
        target_logits: [..., V].
        draft_logits: [..., V], or [..., K] with `kept`.
        kept: [K] ids of a trimmed draft head, None for a whole one.

    Returns:
        [...] in [0, 1] within rounding.

    Raises:
        ValueError: If the shapes disagree.
    """
    pair = _compare(target_logits, draft_logits, kept)
    return expected_acceptance(pair.log_p.exp(), pair.log_q.exp())


def cross_entropy(draft_logits: Tensor, targets: Tensor, *, kept: Tensor | None = None) -> Tensor:
    """Return −log Q(y), the hard-label objective of SeqKD and of supervised fine-tuning.

    A label that the draft cannot emit (outside `kept`, or its logit −inf) costs +inf, which is
    what −log 0 is; its gradient is finite. Mask such positions to train on the others.

    Args:
        draft_logits: [..., V], or [..., K] with `kept`.
        targets: [...] int64 ids among the V.
        kept: [K] ascending ids of a trimmed draft head, None for a whole one.

    Returns:
        [...] in nats.

    Raises:
        ValueError: If the shapes disagree.
    """
    if draft_logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"draft logits {tuple(draft_logits.shape)} need targets "
            f"{tuple(draft_logits.shape[:-1])}, got {tuple(targets.shape)}"
        )
    log_q = at_least_float32(draft_logits).log_softmax(-1)
    if kept is None:
        return -log_q.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    _check_kept(draft_logits, kept)
    column = torch.searchsorted(kept, targets).clamp(max=len(kept) - 1)
    nats = -log_q.gather(-1, column.unsqueeze(-1)).squeeze(-1)
    return nats.masked_fill(kept[column] != targets, math.inf)


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over each sequence, then over the batch (DistillSpec, Eq. 2).

    Short sequences weigh as much as long ones. What is masked may be nan or inf: it reaches
    neither the value nor the gradient.

    Args:
        values: [B, T] per position.
        mask: [B, T] bool, true where a position counts.

    Returns:
        A scalar in float32 or wider, in the unit of `values`.

    Raises:
        ValueError: If a sequence has no position that counts, or there is no sequence.
    """
    values = _masked(values, mask)
    lengths = mask.sum(-1)  # [B]
    if len(lengths) == 0 or bool((lengths == 0).any()):
        empty = (lengths == 0).nonzero().squeeze(-1).tolist()
        raise ValueError(f"no position counts in sequences {empty} of {len(lengths)}: no mean")
    return (values.sum(-1) / lengths).mean()


def token_mean(values: Tensor, mask: Tensor, *, count: float | None = None) -> Tensor:
    """Return the sum over the positions that count, divided by `count` tokens.

    For steps split over micro-batches or devices, pass the count of the whole step: the parts
    then add up to the mean, which means of means do not.

    Args:
        values: [...] per position; what is masked may be nan or inf without harm.
        mask: [...] bool, true where a position counts.
        count: Tokens to divide by; by default those that `mask` counts.

    Returns:
        A scalar in float32 or wider, in the unit of `values`.

    Raises:
        ValueError: If the count is not positive.
    """
    values = _masked(values, mask)
    tokens = float(mask.sum()) if count is None else count
    if not tokens > 0:
        raise ValueError(f"the count of tokens is {tokens}: a mean needs at least one")
    return values.sum() / tokens


class _Pair(NamedTuple):
    log_p: Tensor  # [..., K], normalised over all V ids
    log_q: Tensor  # [..., K], normalised over the K
    outside: Tensor  # [...], the target's probability outside K; a plain 0 for a whole head


def _compare(target_logits: Tensor, draft_logits: Tensor, kept: Tensor | None) -> _Pair:
    """Bring logits to the one form every divergence is written in."""
    wanted = tuple(target_logits.shape)
    if kept is not None:
        _check_kept(draft_logits, kept)
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
        return _Pair(log_p, log_q, log_p.new_zeros(()))
    log_p = log_p.index_select(-1, kept)
    # Rounding may leave 1 − P(K) a hair below 0 where K holds everything.
    return _Pair(log_p, log_q, (1 - log_p.exp().sum(-1)).clamp(min=0))


def _check_kept(draft_logits: Tensor, kept: Tensor) -> None:
    if kept.dim() != 1 or draft_logits.shape[-1] != len(kept):
        raise ValueError(
            f"draft logits {tuple(draft_logits.shape)} do not fit kept ids {tuple(kept.shape)}: "
            "one column for each kept id"
        )


def _kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Return Σ A (log A − log B) + (B − A) over the last dimension.

    Σ (B − A) is 0, but keeps every term from going below 0 and takes out, to first order, the
    rounding of the two normalisers, which is as large as the divergence of a well-trained draft.
    """
    a, b = log_a.exp(), log_b.exp()
    # The difference is masked, not the product: 0 · (−inf − −inf) is nan in the gradient even
    # where the product is masked away.
    return (a * (log_a - log_b).masked_fill(a == 0, 0.0) + (b - a)).sum(-1)


def _log(x: Tensor) -> Tensor:
    """Return log x, finite with gradient 0 at x = 0."""
    return x.clamp(min=torch.finfo(x.dtype).tiny).log()


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    """Return `values` with exact zeros where the mask is false, in float32 or wider."""
    if values.shape != mask.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"values {tuple(values.shape)} need a bool mask of that shape, "
            f"got {mask.dtype} {tuple(mask.shape)}"
        )
    return at_least_float32(values).masked_fill(~mask, 0.0)
