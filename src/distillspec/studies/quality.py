"""The quality of outputs as estimates: of each way to decode, of two ways paired, of each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.stats import binomtest

from distillspec.studies.estimates import Estimate, estimate
from distillspec.tasks.metrics import Scored, difference

OF_CORPUS = ("bleu",)
"""Figures that are no means over prompts, so that a single output has none."""


def figures(scored: Scored) -> dict[str, Estimate]:
    """Estimate every figure of some outputs, in points from 0 to 100."""
    return {
        name: _share(scored, name) or estimate(statistic, scored.columns)
        for name, statistic in scored.statistics.items()
    }


def _share(scored: Scored, name: str) -> Estimate | None:
    """Estimate a share of right answers by Wilson's interval; None for any other figure.

    Resampling a handful of answers that are all wrong, or all right, gives an interval without
    width, as if nothing could be learnt from more of them.
    """
    if name in OF_CORPUS:
        return None
    each = scored.statistics[name](scored.columns)
    value = scored.value(name)
    if not np.isin(each, (0.0, 100.0)).all() or not np.isclose(each.mean(), value):
        return None
    interval = binomtest(int((each > 0).sum()), len(each)).proportion_ci(method="wilson")
    return Estimate(value=value, low=100 * float(interval.low), high=100 * float(interval.high))


def differences(first: Scored, second: Scored) -> dict[str, Estimate]:
    """Estimate what the first has more than the second, in points, paired by prompt."""
    return {name: estimate(*difference(name, first, second)) for name in first.statistics}


def rows(scored: Scored) -> list[dict[str, float]]:
    """Return the figures of each output alone; a figure of the corpus has none."""
    found: list[dict[str, float]] = [{} for _ in scored.columns]
    for name, statistic in scored.statistics.items():
        if name not in OF_CORPUS:
            for row, value in zip(found, statistic(scored.columns), strict=True):
                row[name] = float(value)
    return found


def part(scored: Scored, indices: Sequence[int]) -> Scored:
    """Keep some of the prompts."""
    return dataclasses.replace(scored, columns=scored.columns[np.asarray(indices)])
