"""Estimates with 95 % bootstrap intervals over prompts, all of them ratios of sums.

A prompt is the unit of resampling: tokens of one output are not independent, prompts are.
Comparisons are paired: both sides see the same resampled prompts. Of few prompts a plain percentile
interval is too narrow; its levels are moved out so that for a mean of normal values it would be
Student's (the expanded percentile interval of Hesterberg 2015, The American Statistician 69).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

RESAMPLES = 2000
"""Enough for the ends of a 95 % interval to be stable to about a twentieth of its width."""

Floats = NDArray[np.float64]


class Estimate(TypedDict):
    """A value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@cache
def _tail(prompts: int) -> float:
    """Return the share of resamples to leave out at either end: 0.025 for many, less for few."""
    if prompts == 1:
        return 0.0
    reach = stats.t.ppf(0.975, prompts - 1) * np.sqrt(prompts / (prompts - 1))
    return float(stats.norm.sf(reach))


def _resampled_sums(columns: Floats, seed: int) -> Floats:
    """Sums of each column over resampled prompts: [prompts, k] -> [RESAMPLES, k]."""
    prompts = len(columns)
    counts = np.random.default_rng(seed).multinomial(
        prompts, np.full(prompts, 1.0 / prompts), size=RESAMPLES
    )
    sums: Floats = counts @ columns
    return sums


def estimate(
    statistic: Callable[[Floats], Floats], columns: ArrayLike, *, seed: int = 0
) -> Estimate:
    """Estimate a function of sums over prompts, with its expanded percentile interval.

    Args:
        statistic: maps [n, k] sums to [n] values, for example `lambda s: s[:, 0] / s[:, 1]`.
        columns: [prompts, k] counts or seconds of each prompt.
        seed: of the resampling; the same seed resamples the same prompts, which pairs estimates.

    Raises:
        ValueError: there is no prompt, or the statistic is not finite on the whole sample.
    """
    table = np.asarray(columns, dtype=np.float64)
    if table.ndim != 2 or len(table) == 0:
        raise ValueError(f"expected [prompts, k] with at least one prompt, got {table.shape}")
    value = float(statistic(table.sum(axis=0, keepdims=True))[0])
    if not np.isfinite(value):
        raise ValueError(f"the statistic of the whole sample is {value}: nothing was measured")
    tail = _tail(len(table))
    low, high = np.quantile(statistic(_resampled_sums(table, seed)), [tail, 1 - tail])
    return Estimate(value=value, low=float(low), high=float(high))


def ratio(numerators: ArrayLike, denominators: ArrayLike, *, seed: int = 0) -> Estimate:
    """Estimate Σ numerators / Σ denominators over prompts (paper Eq. 1 is such a ratio)."""
    columns = np.stack([np.asarray(numerators), np.asarray(denominators)], axis=1)
    return estimate(lambda sums: sums[:, 0] / sums[:, 1], columns, seed=seed)


def ratio_where_any(numerators: Floats, denominators: NDArray[Any]) -> Estimate:
    """Estimate the same over those prompts that have anything to count.

    Of the others alone a sample may consist, and its ratio would be 0 / 0.
    """
    some = denominators > 0
    return ratio(numerators[some], denominators[some])


def ratio_difference(
    numerators: tuple[ArrayLike, ArrayLike],
    denominators: tuple[ArrayLike, ArrayLike],
    *,
    seed: int = 0,
) -> Estimate:
    """Estimate the paired difference of two ratios of sums, first minus second."""
    columns = np.stack([np.asarray(column) for column in (*numerators, *denominators)], axis=1)
    return estimate(lambda s: s[:, 0] / s[:, 2] - s[:, 1] / s[:, 3], columns, seed=seed)
