"""From the rows of a study to a verdict: paired counts, differences with intervals, a judgement.

A claim holds where every difference it is about lies above 0 with its whole interval, does not hold
where one lies below 0 with its whole interval, and is undecided otherwise. Where nothing was run
there is no verdict. Seeds of training are pooled by prompt: the intervals cover prompts, not seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy.stats import spearmanr

from distillspec.errors import UserError
from distillspec.studies.counts import Counts
from distillspec.studies.estimates import Estimate, ratio

Outcome = Literal["holds", "does not hold", "undecided", "not run"]
Row = Mapping[str, Any]
"""A row of results.jsonl."""


def counts_of(row: Row, step: str, **labels: str) -> Counts | None:
    """Return what a `measure` row says of the drafts of a step with some labels, pooled.

    Returns:
        None where it says nothing of such a draft.

    Raises:
        UserError: the drafts of the row are at different γ, or are not called by their cells.
    """
    gammas = {str(one.get("gamma")) for one in row.get("examples", ())}
    if len(gammas) > 1:
        raise UserError(
            f"{title(row)}: its drafts are at γ {', '.join(sorted(gammas))}, and a τ of one cannot "
            "be held against that of another; give the step one gamma"
        )
    keys = _keys(row, step, labels)
    pooled: Counts | None = None
    for key in keys:
        mine = [one for one in row.get("examples", ()) if key in one["draft"]]
        if mine:
            names = ("tokens", "alpha_sum", "calls")
            found = [np.array([one[name] for one in mine], dtype=np.float64) for name in names]
            if pooled is not None:
                found = [
                    mine + theirs
                    for mine, theirs in zip(
                        found, (pooled.lengths, pooled.alpha_sums, pooled.calls), strict=True
                    )
                ]
            pooled = Counts(*found)
    if keys and row.get("examples") and pooled is None:
        raise UserError(
            f"{title(row)}: no draft's name tells that it is of {step}; measure a further draft of "
            "that step, so that names are longer"
        )
    return pooled


def speedup_changes(row: Row, step: str, against: str, **labels: str) -> list[Estimate]:
    """List by how much drafts of a step with some labels are faster on the clock, paired.

    Args:
        row: Of `measure`, whose first draft is the one that the others are held against.
        step: Of the drafts.
        against: The step of the first draft.
        labels: Of the drafts.

    Returns:
        Differences in measured speed-up; none where nothing ran on the clock.
    """
    after, before = _keys(row, step, labels), _keys(row, against, {})
    return [
        one["speedup_difference"]
        for one in row["result"].get("comparison", ())
        if one["speedup_difference"] is not None
        and any(key in one["draft"] for key in after)
        and any(key in one["against"] for key in before)
    ]


def _keys(row: Row, step: str, labels: Mapping[str, str]) -> list[str]:
    return [
        key
        for key, source in row["sources"].items()
        if source["step"] == step
        and all(source["axes"].get(axis) == label for axis, label in labels.items())
    ]


def labels_of(row: Row, step: str, axis: str) -> list[str]:
    """List the labels on an axis of the cells of a step that a row took something from."""
    found = [
        source["axes"][axis]
        for source in row["sources"].values()
        if source["step"] == step and axis in source["axes"]
    ]
    return list(dict.fromkeys(found))


def measurements(row: Row) -> dict[str, Row]:
    """Return the measurements in a `measure` row, by the title of the draft's cell."""
    drafts = row["result"].get("drafts", [])
    found = {}
    for key, source in row["sources"].items():
        for one in drafts:
            if key in one["draft"]:
                found[title(source)] = one
    return found


def title(cell: Row) -> str:
    """Name a cell by its step and labels."""
    return " ".join([cell["step"], *map(str, cell["axes"].values())])


def place(axes: Mapping[str, str]) -> str:
    """Name the place of a cell in a study by its labels, T and γ with their signs."""
    signs = {"temperature": "T=", "gamma": "γ="}
    return " ".join(f"{signs.get(axis, '')}{label}" for axis, label in axes.items())


def evaluations(row: Row) -> list[tuple[int, float, Counts]]:
    """Return a training row's evaluations: the step, the seconds trained, the counts."""
    found = []
    for one in row.get("evaluations", ()):
        by = one["evaluation"]["by_prompt"]
        names = ("lengths", "alpha_sums", "calls")
        counts = Counts(*(np.array(by[name], dtype=np.float64) for name in names))
        found.append((int(one["step"]), float(one["seconds"]), counts))
    return found


def outcome(differences: Sequence[Estimate]) -> Outcome:
    """Judge a claim by the differences that it says are above 0."""
    if not differences:
        return "not run"
    if any(one["high"] < 0 for one in differences):
        return "does not hold"
    return "holds" if all(one["low"] > 0 for one in differences) else "undecided"


def unpaired(first: Estimate, second: Estimate) -> Estimate:
    """Return first less second as if they were unpaired, which can only widen the interval."""
    return Estimate(
        value=first["value"] - second["value"],
        low=first["low"] - second["high"],
        high=first["high"] - second["low"],
    )


def tally(differences: Sequence[Estimate]) -> str:
    """Say how many differences are above 0, below it, and open."""
    above = sum(one["low"] > 0 for one in differences)
    below = sum(one["high"] < 0 for one in differences)
    return (
        f"above 0 in {above} of {len(differences)}, below in {below}, open in "
        f"{len(differences) - above - below}"
    )


def said(change: Estimate, digits: int = 3) -> str:
    """Write a difference with its interval."""
    value, low, high = (f"{change[key]:+.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def mean_rank_correlation(cells: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Estimate:
    """Estimate the mean of Spearman's rank correlations within cells, bootstrapped over cells.

    Within, because values that differ between cells for another reason (γ, the temperature) would
    agree in rank whatever those within a cell do.

    Args:
        cells: Two sides of each, of at least three values, neither constant.

    Raises:
        ValueError: there are fewer than two cells.
    """
    if len(cells) < 2:
        raise ValueError(f"no interval over {len(cells)} cells")
    found = [float(spearmanr(first, second).statistic) for first, second in cells]
    return ratio(found, np.ones(len(found)))


def rank_correlation(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Estimate:
    """Estimate Spearman's rank correlation with a bootstrap interval over the pairs.

    Raises:
        ValueError: there are fewer than three pairs, or one side is constant.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(x) != len(y) or len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        raise ValueError(f"no rank correlation of {len(x)} and {len(y)} values")
    rows = np.random.default_rng(seed).integers(len(x), size=(1000, len(x)))
    drawn = [float(spearmanr(x[i], y[i]).statistic) for i in rows if np.ptp(x[i]) and np.ptp(y[i])]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value=float(spearmanr(x, y).statistic), low=float(low), high=float(high))
