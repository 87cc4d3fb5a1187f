"""How many target calls a speculative engine needs, and what that is worth, without running it.

The exact part: a lossless engine's output y has the target's law, and given y, position i is
accepted, when a drafted token is judged there, with probability r_i = min(1, q_i(y_i) / p_i(y_i)),
independently over positions, because P(accepted and y_i) = min(p, q)(y_i) and P(y_i) = p(y_i).
One teacher-forced pass of both models over target outputs thus gives the expected number of
target calls for every γ, by a recursion from the end; no token needs to be drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats: TypeAlias = npt.NDArray[np.float64]


def acceptance_ratios(p_of_y: Tensor, q_of_y: Tensor) -> Tensor:
    """Return r = min(1, q(y) / p(y)) of tokens y that the target emitted.

    This is not the acceptance probability min(1, p / q) of a drafted token: here y is given.
    For an argmax draft q(y) is 1 or 0, and so is r.

    Args:
        p_of_y: [...] target probabilities of the emitted tokens, above 0.
        q_of_y: [...] draft probabilities of the same tokens.

    Returns:
        [...] float64 in [0, 1].

    Raises:
        ValueError: If a p(y) is not positive: then y is not the target's output.
    """
    if not bool((p_of_y > 0).all()):
        raise ValueError(
            "an emitted token has target probability 0: these are not the target's outputs "
            "under its sampling settings"
        )
    return (q_of_y.double() / p_of_y.double()).clamp(max=1)


class Calls(NamedTuple):
    """The number of target calls for one sequence, as a random variable given its tokens."""

    mean: float
    """Expected target calls, prefill not counted."""
    variance: float
    """Variance of the target calls; 0 exactly where every ratio is 0 or 1."""


def expected_calls(ratios: Tensor, gamma: int) -> Calls:
    """Return mean and variance of the target calls needed for one sequence.

    With N[s] the calls from position s on, g = min(γ, L−s−1) and N[s] = 0 for s ≥ L:
    E[s] = 1 + Σ_{k<g} (Π_{j<k} r_{s+j}) (1 − r_{s+k}) E[s+k+1] + (Π_{j<g} r_{s+j}) E[s+g+1].
    The variance follows from the same weights by the law of total variance.

    Args:
        ratios: [L] in [0, 1], from `acceptance_ratios`, the stop token included.
        gamma: γ ≥ 0 drafted tokens per block; 0 is autoregressive decoding.

    Returns:
        The mean and variance. τ over prompts is Σ L / Σ mean.

    Raises:
        ValueError: If a ratio lies outside [0, 1] or γ is negative.

    Example:
        >>> expected_calls(torch.tensor([0.5, 1.0]), gamma=1)
        Calls(mean=1.5, variance=0.25)
    """
    outcomes = _outcomes(ratios, gamma)
    L, width = outcomes.weights.shape
    mean = _from_the_end(outcomes.weights, np.ones(L))
    spread = 1 + _windows(mean, width)[1:] - mean[:L, None]  # [L, γ+1]
    variance = _from_the_end(outcomes.weights, (outcomes.weights * spread**2).sum(axis=1))
    return Calls(mean=float(mean[0]), variance=float(variance[0]))


def expected_blocks(ratios: Tensor, gamma: int, limit: int | None = None) -> Floats:
    """Return how many blocks of one sequence draft 0, 1, …, γ tokens: their sum is the calls.

    By the same weights as `expected_calls`, forward: blocks begin at s as often as v[s], with
    v[0] = 1 and v[s+k+1] += v[s]·P(the block from s ends with k accepted). A block that begins at
    s drafts min(γ, limit−s−1) tokens: near the length limit fewer, which costs less.

    Args:
        ratios: [L] in [0, 1], from `acceptance_ratios`, the stop token included.
        gamma: γ ≥ 0 drafted tokens per block.
        limit: Tokens after which the sequence would have been cut, L or more; None for never.

    Returns:
        [γ+1] expected counts.

    Raises:
        ValueError: If a ratio lies outside [0, 1], γ is negative, or the limit is below L.
    """
    outcomes = _outcomes(ratios, gamma)
    L = len(outcomes.weights)
    if limit is not None and limit < L:
        raise ValueError(f"limit is {limit}, below the {L} tokens of the sequence")
    drafted = np.full(L, gamma)
    if limit is not None:
        drafted = np.minimum(gamma, limit - 1 - np.arange(L))
    blocks = np.zeros(gamma + 1)
    np.add.at(blocks, drafted, _begins(outcomes))
    return blocks


class Positions(NamedTuple):
    """Expected counts by position in the block, the first drafted token first."""

    judged: Floats
    """[γ] how often a drafted token is judged there."""
    accepted: Floats
    """[γ] how often it is accepted."""


def expected_positions(ratios: Tensor, gamma: int) -> Positions:
    """Return how often the drafted token at each position of a block is judged and accepted.

    By the same weights as `expected_calls`, forward, as in `expected_blocks`. The last token of
    the sequence is left out: whether it is judged depends on why the sequence ended.

    Args:
        ratios: [L] in [0, 1], from `acceptance_ratios`, the stop token included.
        gamma: γ ≥ 1 drafted tokens per block.

    Returns:
        Expected counts for one sequence.

    Raises:
        ValueError: If a ratio lies outside [0, 1] or γ is negative.
    """
    outcomes = _outcomes(ratios, gamma)
    L = len(outcomes.weights)
    inside = np.arange(L)[:, None] + np.arange(gamma) < L - 1  # [L, γ]
    judged = _begins(outcomes)[:, None] * outcomes.reached[:, :gamma] * inside
    return Positions(judged.sum(axis=0), (judged * outcomes.judged).sum(axis=0))


class _Outcomes(NamedTuple):
    """How a block that begins at each position s may go."""

    judged: Floats
    """[L, γ] the ratios of the tokens it may judge."""
    reached: Floats
    """[L, γ+1] the chance that the k tokens before are accepted."""
    weights: Floats
    """[L, γ+1] the chance that exactly k are: then the next block begins at s+k+1."""


def _outcomes(ratios: Tensor, gamma: int) -> _Outcomes:
    _check_gamma(gamma)
    r = ratios.detach().to("cpu", torch.float64).numpy()
    if r.ndim != 1 or not ((r >= 0) & (r <= 1)).all():
        raise ValueError(f"ratios must be one row of numbers in [0, 1], got shape {r.shape}")
    L = len(r)
    # Padding stands in for g = min(γ, L−s−1): wherever a block ends beyond L−1, nothing is left
    # to emit, so all those ends are one outcome, whatever the padding holds.
    judged = _windows(np.append(r, np.zeros(gamma + 1)), gamma + 1)[:L, :gamma]
    reached = np.hstack([np.ones((L, 1)), judged.cumprod(axis=1)])
    return _Outcomes(judged, reached, reached * np.hstack([1 - judged, np.ones((L, 1))]))


def _begins(outcomes: _Outcomes) -> Floats:
    """Return [L]: how often a block begins at each position."""
    L, width = outcomes.weights.shape
    begins = np.zeros(L + width)
    begins[:1] = 1
    for s in range(L):
        begins[s + 1 : s + 1 + width] += begins[s] * outcomes.weights[s]
    return begins[:L]


def _windows(row: Floats, width: int) -> Floats:
    """Return every window of `width` neighbours, one a row (a view)."""
    return np.lib.stride_tricks.sliding_window_view(row, width)


def _from_the_end(weights: Floats, constants: Floats) -> Floats:
    """Solve x[s] = constants[s] + Σ_k weights[s, k] x[s+k+1], with x = 0 past the end.

    Returns:
        [L + width], the last `width` entries 0.
    """
    L, width = weights.shape
    x = np.zeros(L + width)
    for s in range(L - 1, -1, -1):
        x[s] = constants[s] + weights[s] @ x[s + 1 : s + 1 + width]
    return x


def block_efficiency_iid(alpha: float, gamma: int) -> float:
    """Return τ = (1 − α^(γ+1)) / (1 − α), which holds if acceptance is i.i.d. over positions.

    Written as the sum 1 + α + … + α^γ, which is γ+1 at α = 1.

    Args:
        alpha: Acceptance rate in [0, 1].
        gamma: γ ≥ 0 drafted tokens per block.

    Returns:
        Tokens per target call, 1…γ+1. Source: DistillSpec, section 3.

    Raises:
        ValueError: If α lies outside [0, 1] or γ is negative.
    """
    _check_gamma(gamma)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}, expected a rate in [0, 1]")
    return float(sum(alpha**k for k in range(gamma + 1)))


@dataclass(frozen=True)
class Cost:
    """What decoding costs on one machine, in seconds, measured or fitted, never assumed."""

    target: tuple[float, ...]
    """Seconds of one target pass over 1, 2, 3, … tokens."""
    draft: float
    """Seconds of one draft pass over one token."""
    overhead: float = 0.0
    """Seconds a block spends outside both models."""
    overhead_plain: float | None = None
    """The same for a block without drafted tokens, which verifies nothing; None if it is equal."""

    def __post_init__(self) -> None:
        """Refuse costs that no clock gives."""
        if not self.target or not all(seconds > 0 for seconds in self.target):
            raise ValueError(f"target is {self.target}, expected positive seconds per pass")
        for name in ("draft", "overhead", "overhead_plain"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds >= 0:
                raise ValueError(f"{name} is {seconds}, expected seconds ≥ 0")

    @property
    def c(self) -> float:
        """Draft pass over target pass, each of one token: the paper's c."""
        return self.draft / self.target[0]

    def block(self, gamma: int) -> float:
        """Return t_target(γ+1) + γ·t_draft + o, the seconds of one block of γ drafted tokens.

        γ = 0 is autoregressive decoding by the same engine, with its overhead.

        Raises:
            ValueError: If γ is negative or the target was not timed over γ+1 tokens.
        """
        _check_gamma(gamma)
        if gamma >= len(self.target):
            raise ValueError(
                f"gamma {gamma} needs the target's time for {gamma + 1} tokens, "
                f"known up to {len(self.target)}"
            )
        plain = gamma == 0 and self.overhead_plain is not None
        overhead = self.overhead_plain if plain else self.overhead
        return self.target[gamma] + gamma * self.draft + (overhead or 0.0)


def speedup(tau: float, gamma: int, cost: Cost) -> float:
    """Return how much faster than autoregressive decoding: τ · block(0) / block(γ).

    Args:
        tau: Block efficiency in tokens per target call.
        gamma: γ that gives this τ.
        cost: The seconds of this machine.

    Returns:
        A factor; above 1 is faster. With a flat target time and no overhead it is the paper's
        τ / (cγ + 1).
    """
    return tau * cost.block(0) / cost.block(gamma)


def best_gamma(speedups: Mapping[int, float]) -> int:
    """Return the γ of the largest speed-up, the smallest of equal ones.

    Raises:
        ValueError: If there is none.
    """
    if not speedups:
        raise ValueError("no gamma to choose from")
    return max(sorted(speedups), key=lambda gamma: speedups[gamma])


def needed_alpha(cost: Cost, gammas: Sequence[int], factor: float) -> float | None:
    """Return the i.i.d. acceptance rate that a draft of this cost needs for a speed-up.

    Args:
        cost: The seconds of this machine.
        gammas: The γ to choose from, each 1 or more; the best one counts.
        factor: The speed-up wanted, above 0.

    Returns:
        The smallest α in [0, 1] with a speed-up of `factor` or more, to 1e-12; None if even a
        perfect draft of this cost falls short.

    Raises:
        ValueError: If `gammas` is empty.
    """
    if not gammas:
        raise ValueError("no gamma to choose from")

    def reaches(alpha: float) -> bool:
        return factor <= max(
            speedup(block_efficiency_iid(alpha, gamma), gamma, cost) for gamma in gammas
        )

    if not reaches(1.0):
        return None
    low, high = 0.0, 1.0
    if reaches(low):
        return low
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def break_even_alpha(cost: Cost, gammas: Sequence[int]) -> float | None:
    """Return the i.i.d. acceptance rate at which speculation, at its best γ, stops losing."""
    return needed_alpha(cost, gammas, 1.0)


def headroom(cost: Cost, gammas: Sequence[int]) -> float:
    """Return the speed-up of a perfect draft of this cost (τ = γ+1) at its best γ.

    Args:
        cost: The seconds of this machine.
        gammas: The γ to choose from.

    Raises:
        ValueError: If `gammas` is empty.
    """
    if not gammas:
        raise ValueError("no gamma to choose from")
    return max(speedup(gamma + 1, gamma, cost) for gamma in gammas)


def _check_gamma(gamma: int) -> None:
    if gamma < 0:
        raise ValueError(f"gamma is {gamma}, expected 0 or more drafted tokens per block")
