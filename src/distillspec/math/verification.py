"""The verification step of speculative decoding, pure: the randomness is an argument.

p is the target's distribution and q the draft's, after their sampling settings, in that order
always. Source: DistillSpec, Algorithm A.1 and section 4; Leviathan et al. (2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from distillspec.errors import UserError
from distillspec.math.precision import at_least_float32
from distillspec.math.sampling import Sampling, draw

Lenience: TypeAlias = Callable[[Tensor], Tensor]
"""f in min(1, f(p) / q): maps rows of target probabilities to what takes their place. All but the
rules with a threshold look at each probability alone, so that single ones will do."""


def lossless(p: Tensor) -> Tensor:
    """Return p itself: the output keeps the target's law."""
    return p


@dataclass(frozen=True)
class linear:
    """f(p) = p / ε. A class, so that it prints and compares; used as a function."""

    eps: float
    """ε in (0, 1]; 1 is lossless, less accepts more."""

    def __post_init__(self) -> None:
        """Check ε."""
        _check_eps("linear", self.eps)

    def __call__(self, p: Tensor) -> Tensor:
        """Return p / ε, which may exceed 1."""
        return p / self.eps


@dataclass(frozen=True)
class squared:
    """f(p) = p / ε². A class, so that it prints and compares; used as a function."""

    eps: float
    """ε in (0, 1]; 1 is lossless, less accepts more."""

    def __post_init__(self) -> None:
        """Check ε."""
        _check_eps("squared", self.eps)

    def __call__(self, p: Tensor) -> Tensor:
        """Return p / ε², which may exceed 1."""
        return p / self.eps / self.eps  # ε² alone would underflow to 0 in float32


@dataclass(frozen=True)
class exponential:
    """f(p) = p^ε. A class, so that it prints and compares; used as a function."""

    eps: float
    """ε in (0, 1]; 1 is lossless, less accepts more."""

    def __post_init__(self) -> None:
        """Check ε."""
        _check_eps("exponential", self.eps)

    def __call__(self, p: Tensor) -> Tensor:
        """Return p^ε."""
        return p**self.eps


@dataclass(frozen=True)
class threshold:
    """f(p) = 1 where p ≥ ε, else p: what the target finds likely enough is accepted at sight.

    A class, so that it prints and compares; used as a function.
    """

    eps: float
    """ε in (0, 1]; 1 is lossless, less accepts more."""

    def __post_init__(self) -> None:
        """Check ε."""
        _check_eps("threshold", self.eps)

    def __call__(self, p: Tensor) -> Tensor:
        """Return 1 or p."""
        return torch.where(p >= self.eps, torch.ones_like(p), p)


@dataclass(frozen=True)
class typical:
    """f(p) = 1 where p > min(ε, √ε · exp(−H(p))), else 0: typical acceptance, by entropy alone.

    A class, so that it prints and compares; used as a function. No ε makes it lossless. What is
    refused is replaced by a draw from the residual, as in every rule here. Source: Cai et al.
    (2024), Medusa, section 2.3.1, with their δ = √ε.
    """

    eps: float
    """ε in (0, 1]; less accepts more."""

    def __post_init__(self) -> None:
        """Check ε."""
        _check_eps("typical", self.eps)

    def __call__(self, p: Tensor) -> Tensor:
        """Return 1 or 0, of whole rows [..., V]."""
        entropy = -torch.xlogy(p, p).sum(-1, keepdim=True)
        least = (math.sqrt(self.eps) * torch.exp(-entropy)).clamp(max=self.eps)
        return (p > least).to(p.dtype)


def _check_eps(name: str, eps: float) -> None:
    if not 1e-30 <= eps <= 1:  # float32 has no room for smaller divisors
        raise UserError(
            f"the eps of lenience {name} is {eps}: give a number above 0 (at least 1e-30) and at "
            "most 1; 1 is lossless"
        )


def acceptance_probability(p: Tensor, q: Tensor, lenience: Lenience = lossless) -> Tensor:
    """Return min(1, f(p) / q), elementwise: how likely a drafted token is accepted.

    Where f(p) = 0 it is 0, and where q = 0 < f(p) it is 1; no 0/0 is ever seen.

    Args:
        p: [...] target probabilities, f(p) of a token or of the whole row.
        q: [...] draft probabilities of the same tokens.
        lenience: f; lossless by default.

    Returns:
        [...] in [0, 1], float32 or wider.

    Example:
        >>> acceptance_probability(torch.tensor([0.5, 0.1, 0.0]), torch.tensor([0.25, 0.4, 0.0]))
        tensor([1.0000, 0.2500, 0.0000])
    """
    score, q = lenience(at_least_float32(p)), at_least_float32(q)
    return torch.where(score >= q, (score > 0).to(score.dtype), score / q)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return norm(max(0, p − q)), what the token in place of a rejected one is drawn from.

    Where nothing is left (p = q, or p nowhere above q by rounding) a rejection has probability 0
    and p itself is returned: finite, and still the target's law.

    Args:
        p: [..., V] target probabilities.
        q: [..., V] draft probabilities.

    Returns:
        [..., V] probabilities in float32 or wider; positive only where p is.

    Example:
        >>> residual(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.1, 0.6, 0.3]))
        tensor([1., 0., 0.])
    """
    p, q = at_least_float32(p), at_least_float32(q)
    excess = (p - q).clamp_(min=0)
    total = excess.sum(-1, keepdim=True)
    return torch.where(total > 0, excess / total, p)


def expected_acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Return β = Σ_v min(p, q) = 1 − TVD(p, q), the chance that a token drawn from q is accepted.

    Args:
        p: [..., V] target probabilities.
        q: [..., V] draft probabilities.

    Returns:
        [...] in [0, 1] within rounding, float32 or wider. Source: DistillSpec, section 3.
    """
    return torch.minimum(at_least_float32(p), at_least_float32(q)).sum(-1)


def lenient_score(logits: Tensor, sampling: Sampling, lenience: Lenience) -> Tensor:
    """Return what takes the place of p in the acceptance ratio of `verify`.

    Above temperature 0 it is f(p). At temperature 0 the paper leaves lenience open, since f of a
    one-hot p does nothing. Leviathan et al. (2023) compare with the target's largest
    probability: a drafted x is accepted iff f(P(x)) ≥ max_v P(v), P the untempered softmax. That
    is 1 or 0 here, which in min(1, score / q) accepts or rejects whatever q is. Where f leaves P
    as it is (ε = 1) only the greedy token counts, so that equal logits stay lossless too.

    Args:
        logits: [..., V] of the target.
        sampling: The target's settings.
        lenience: f.

    Returns:
        [..., V] float32 or wider, not negative.
    """
    p = sampling.probabilities(logits)
    if sampling.temperature > 0:
        return lenience(p)
    untempered = Sampling().probabilities(logits)
    raised = lenience(untempered)
    near = raised >= untempered.amax(-1, keepdim=True)
    return torch.where(raised > untempered, near.to(p.dtype), p)


class Verdict(NamedTuple):
    """What one target call decided, per row: `accepted + 1` tokens are emitted."""

    accepted: Tensor
    """[B] int64: how many leading drafted tokens are accepted, 0…lengths."""
    token: Tensor
    """[B] int64: the token after them, from the residual or, if all were accepted, from p."""


def verify(
    p: Tensor,
    q: Tensor,
    drafted: Tensor,
    *,
    lengths: Tensor,
    uniforms: Tensor,
    score: Tensor | None = None,
) -> Verdict:
    """Judge the drafted tokens of B rows and draw the token that follows the accepted ones.

    Position i is accepted iff u_i < min(1, p(x_i) / q(x_i)). The paper writes u ≤ r; with u in
    [0, 1), where 0 can happen and 1 cannot, only < accepts with probability exactly r: never a
    token with p(x) = 0, and always one with r = 1. Judging stops at the first rejection, whose
    place is taken by a draw from `residual`. If all `lengths[row]` tokens are accepted, one more
    is drawn from p[row, lengths[row]]; a row of length 0 draws from p[row, 0]. Lenient scores
    keep the same residual (Algorithm A.1).

    Args:
        p: [B, γ+1, V] target probabilities.
        q: [B, γ, V] draft probabilities: the very tensors the tokens were drawn from.
        drafted: [B, γ] int64; what lies past a row's length is any valid id.
        lengths: [B] int64 in 0…γ, drafted tokens per row; on the CPU nothing waits for them.
        uniforms: [B, γ+1] in [0, 1): γ to judge with, the last one to draw the final token.
        score: [B, γ or γ+1, V], what replaces p in the ratio; see `lenient_score`. Default p.

    Returns:
        The verdict. No input is changed; no temporary is larger than [B, V].

    Raises:
        ValueError: If shapes disagree or a length lies outside 0…γ.

    Source: DistillSpec, Algorithm A.1.
    """
    if score is None:
        score = p
    _check_shapes(p, q, drafted, lengths, uniforms, score)
    lengths = lengths.to(drafted.device)
    gamma = drafted.shape[1]
    column = drafted.unsqueeze(-1)  # [B, γ, 1]
    score_of_drafted = score[:, :gamma].gather(-1, column).squeeze(-1)
    q_of_drafted = q.gather(-1, column).squeeze(-1)
    passed = uniforms[:, :gamma] < acceptance_probability(score_of_drafted, q_of_drafted)
    judged = torch.arange(gamma, device=drafted.device) < lengths.unsqueeze(-1)
    # The running product ends the count at the first rejection: [1, 0, 1, 1] accepts one.
    accepted = (passed & judged).long().cumprod(-1).sum(-1)  # [B]
    rows = torch.arange(len(drafted), device=drafted.device)
    final = p[rows, accepted]  # [B, V]
    if gamma:
        # Where nothing was refused there is nothing to take off. A mask keeps this free of waits.
        refused = (accepted < lengths)[:, None]
        final = residual(final, q[rows, accepted.clamp(max=gamma - 1)] * refused)
    return Verdict(accepted=accepted, token=draw(final, uniforms[:, gamma]))


def _check_shapes(
    p: Tensor, q: Tensor, drafted: Tensor, lengths: Tensor, uniforms: Tensor, score: Tensor
) -> None:
    B, gamma = drafted.shape
    V = p.shape[-1]
    expected: dict[str, tuple[Tensor, list[tuple[int, ...]]]] = {
        "p": (p, [(B, gamma + 1, V)]),
        "q": (q, [(B, gamma, V)]),
        "lengths": (lengths, [(B,)]),
        "uniforms": (uniforms, [(B, gamma + 1)]),
        "score": (score, [(B, gamma, V), (B, gamma + 1, V)]),
    }
    for name, (tensor, shapes) in expected.items():
        if tuple(tensor.shape) not in shapes:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, expected {shapes[0]} "
                f"beside drafted {tuple(drafted.shape)}"
            )
    if bool(((lengths < 0) | (lengths > gamma)).any()):
        raise ValueError(f"lengths are {lengths.tolist()}, expected 0…{gamma}")
