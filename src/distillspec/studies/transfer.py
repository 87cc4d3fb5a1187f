"""Drafts on tasks, and beside targets, that they were not distilled for (paper, Fig. 1, C.1–C.5).

Every cell is one target on one task: all drafts are measured on the same target outputs, and each
is held against the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from distillspec.studies.answer import Measurement, at_gamma
from distillspec.studies.comparison import Against, PromptName, held_against
from distillspec.studies.estimates import Estimate
from distillspec.studies.measure import Measured

_OPEN = Estimate(value=0.0, low=-math.inf, high=math.inf)


class DraftMeasurement(Measurement):
    """A measurement with the draft's name."""

    draft: str


class Cell(TypedDict):
    """One target on one task."""

    target: str
    task: str
    prompts: int
    measurements: list[DraftMeasurement]
    comparison: list[Against]


def cell(target: str, task: str, measured: Measured, prompts: Sequence[PromptName]) -> Cell:
    """Put together what one measuring found; its first draft is what the others are held against.

    Args:
        target: The target's name.
        task: The task's.
        measured: All drafts on the same outputs.
        prompts: What the prompts are called.
    """
    first, *others = measured.findings
    return Cell(
        target=target,
        task=task,
        prompts=len(prompts),
        measurements=[
            DraftMeasurement(**finding.result, draft=name)
            for name, finding in measured.findings.items()
        ],
        comparison=[held_against(measured, name, first, prompts) for name in others],
    )


def verdict(drafts: Sequence[str], cells: Sequence[Cell]) -> str:
    """Say in one sentence where each further draft is better than the first; or where one pays.

    A single prompt spans no interval: it leaves open which draft is better, and does not pay.
    """
    first, *others = drafts
    if not others:
        pays = sum(one["prompts"] > 1 and _pays(one["measurements"][0]) for one in cells)
        return f"{first} is forecast to pay on {pays} of {len(cells)} targets and tasks."
    said = []
    for name in others:
        found = [
            one["tau_difference"] if row["prompts"] > 1 else _OPEN
            for row in cells
            for one in row["comparison"]
            if one["draft"] == name
        ]
        better = sum(one["low"] > 0 for one in found)
        worse = sum(one["high"] < 0 for one in found)
        said.append(
            f"{name} has a higher τ than {first} on {better} of {len(found)} targets and tasks and "
            f"a lower one on {worse}; on {len(found) - better - worse} the interval leaves it open"
        )
    return f"{'; '.join(said)}."


def _pays(measurement: DraftMeasurement) -> bool:
    row = at_gamma(measurement["gammas"], measurement["best_gamma"])
    return row["speedup_forecast"]["low"] > 1
