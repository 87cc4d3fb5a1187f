"""The quality of outputs as estimates: of each way to decode, of two ways paired, of each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from distillspec.studies.estimates import Estimate, estimate
from distillspec.tasks.metrics import Scored, difference

OF_CORPUS = ("bleu",)
"""Figures that are no means over prompts, so that a single output has none."""


def figures(scored: Scored) -> dict[str, Estimate]:
    """Estimate every figure of some outputs, in points from 0 to 100."""
    return {
        name: estimate(statistic, scored.columns) for name, statistic in scored.statistics.items()
    }


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
