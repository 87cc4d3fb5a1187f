"""Whether tokens were drawn from the distributions they are said to come from.

Whatever an engine does, if it is exact then token y_t, given all before it, is a draw from the
target's p_t. So for any function f that may depend on the past, f(y_t) − E_p f is a martingale
difference: its sum over all tokens has mean 0, and its variance is the sum of Var_p f, which is
known exactly from p alone, as is the third moment. No second sample and no independence of tokens
is needed, and an answer that ends at a stop token is an optional stopping, which changes nothing.

The sum is held against a gamma distribution of the same three moments (Pearson's type III), which
is close for skewed sums, counts of rare tokens among them, where a normal one is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

_STRAIGHT = 1e-3
"""A skewness below this is none: the gamma distribution's shape would pass 4 million."""


@dataclass(frozen=True)
class Excess:
    """f(y) − E_p f at some positions, with what is known of it before y is drawn."""

    value: Tensor
    """[n] float64: f(y) − E_p f."""
    variance: Tensor
    """[n] float64: Var_p f."""
    third: Tensor
    """[n] float64: E_p (f − E_p f)³."""


def excess(p: Tensor, f: Tensor, y: Tensor) -> Excess:
    """Hold f of the tokens emitted against its law under p.

    Args:
        p: [n, V] float64 probabilities.
        f: [n, V] or [V] values; whatever they are where p is 0, they must be finite.
        y: [n] int64 emitted tokens.
    """
    f = f.expand_as(p)
    centred = f - (p * f).sum(-1, keepdim=True)  # [n, V]
    weighted = p * centred.square()
    return Excess(
        centred.gather(-1, y[:, None])[:, 0], weighted.sum(-1), (weighted * centred).sum(-1)
    )


def excess_of_events(mass: Tensor, hit: Tensor) -> Excess:
    """Hold events against their probabilities: f is 1 where the event happens, else 0.

    Args:
        mass: [...] the event's probability under p.
        hit: [...] bool, whether it happened.
    """
    m = mass.double().clamp(0, 1)
    spread = m * (1 - m)
    return Excess(hit.double() - m, spread, spread * (1 - 2 * m))


def times(weight: Tensor, one: Excess) -> Excess:
    """Return the excess of weight · f, for an [n] weight that the past determines."""
    return Excess(weight * one.value, weight.square() * one.variance, weight.pow(3) * one.third)


def p_value(
    total: float, variance: float, third: float, *, counts: bool, tolerance: float = 0.0
) -> float:
    """Return the two-sided p-value of a sum of excesses.

    Args:
        total: Σ f(y) − E_p f.
        variance: Σ Var_p f, above 0.
        third: Σ third moments.
        counts: Whether f counts events, so that the sum moves in steps of 1.
        tolerance: How far the sum may lie from 0 whatever chance does: an engine that rounds
            otherwise is not told from one that is wrong by less than this.
    """
    deviation = math.sqrt(variance)
    skew = third / variance**1.5
    distance = max(0.0, abs(total) - tolerance - (0.5 if counts else 0.0))
    size, skew = distance / deviation, skew if total > 0 else -skew
    return min(1.0, 2 * _upper_tail(size, skew))


def _upper_tail(z: float, skew: float) -> float:
    """Return P(Z ≥ z ≥ 0) for a variable of mean 0, variance 1 and this skewness."""
    if skew < _STRAIGHT:  # the short tail is shorter than the normal one: stay on the safe side
        return float(special.ndtr(-z))
    shape = 4 / skew**2
    return float(special.gammaincc(shape, shape + z * math.sqrt(shape)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979).

    Rejecting what is at most α keeps the chance of any false rejection at α or below, however the
    tests depend on one another.
    """
    order = np.argsort(p_values, kind="stable")
    remaining = len(p_values) - np.arange(len(p_values))
    raised = np.maximum.accumulate(np.asarray(p_values)[order] * remaining)
    corrected: NDArray[np.float64] = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, raised)
    return [float(one) for one in corrected]


def detectable(variance: float, *, level: float, power: float) -> float:
    """Return the shift of a sum that a two-sided test finds with the given power.

    Args:
        variance: Of the sum.
        level: Chance of a false alarm.
        power: Chance that the shift is found.
    """
    return float(math.sqrt(variance) * (special.ndtri(1 - level / 2) + special.ndtri(power)))


def ranks(p: Tensor, y: Tensor) -> Tensor:
    """Return [n] int64 ranks of y under [n, V] p, 0 the likeliest; of equal ones the lower id."""
    of_y = p.gather(-1, y[:, None])
    ids = torch.arange(p.shape[-1], device=p.device)
    return ((p > of_y) | ((p == of_y) & (ids < y[:, None]))).sum(-1)
