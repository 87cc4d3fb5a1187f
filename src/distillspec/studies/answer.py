"""The shape of what `measure` answers, as JSON, and the sentence that sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, TypeVar

from distillspec.studies.estimates import Estimate

ONE_PROMPT = "All of this is of one prompt, which gives no interval: take more prompts."


class Overview(TypedDict):
    """What one γ is forecast to bring."""

    gamma: int
    tau_forecast: Estimate
    tau_iid: float
    speedup_forecast: Estimate


class Ran(TypedDict, total=False):
    """What one γ brought where the engine was run."""

    tau_counted: Estimate
    tau_expected: Estimate
    speedup_expected: Estimate
    speedup_measured: Estimate
    speedup_spread: list[float]
    speedup_end_to_end: Estimate
    forecast_z: float | None
    forecast_exact: bool


class GammaRow(Overview, Ran):
    """One γ: forecast, and measured where the engine was run."""


class CostRow(TypedDict):
    """The cost model in milliseconds."""

    target_ms: float
    draft_ms: float
    overhead_ms: float
    overhead_plain_ms: float
    c: float
    target_ms_by_tokens: list[float]


class PrefillRow(TypedDict):
    """Reading the prompts that were timed, in milliseconds at batch 1."""

    target_ms: float
    draft_ms: float


class NeededRow(TypedDict):
    """What α a draft of this cost would need; None where no α is enough."""

    speedup: float
    alpha: float | None


class PositionRow(TypedDict):
    """A position in the block, 1 for the first drafted token."""

    position: int
    judged: float
    rate: Estimate


class Positions(TypedDict):
    """Acceptance by position in the block."""

    gamma: int
    positions: list[PositionRow]


ContextRow = TypedDict("ContextRow", {"from": int, "to": int, "tokens": int, "alpha": Estimate})
"""Acceptance where `from` to `to` tokens, prompt and answer, came before."""


class DomainRow(TypedDict):
    """One kind of prompt."""

    domain: str
    prompts: int
    tokens: int
    alpha: Estimate
    tau: Estimate


class BatchGammaRow(TypedDict):
    """One γ at one batch size."""

    gamma: int
    speedup_forecast: Estimate


Row = TypeVar("Row", GammaRow, BatchGammaRow)


class BatchRow(TypedDict):
    """The forecast of a batch that is kept full."""

    batch_size: int
    cost: CostRow
    gammas: list[BatchGammaRow]
    best_gamma: int
    break_even_alpha: float | None
    headroom: float


class Measured(TypedDict):
    """The answer of `measure`; docs/measure.md explains every field."""

    alpha: Estimate
    alpha_estimator: str
    alpha_ratio: Estimate
    rule: str
    suits: str
    temperature: float
    prompts: int
    tokens: int
    gammas: list[GammaRow]
    cost: CostRow
    alpha_needed: list[NeededRow]
    best_gamma: int
    break_even_alpha: float | None
    headroom: float
    by_position: Positions
    by_context: list[ContextRow]
    by_domain: list[DomainRow]
    batches: list[BatchRow]
    verdict: str


class Measurement(Measured, total=False):
    """With what only a clock here can tell."""

    prefill: PrefillRow


def verdict(
    rows: Sequence[GammaRow],
    best: int,
    alpha: float,
    break_even: float | None,
    *,
    prompts: int,
    batches: Sequence[BatchRow] = (),
) -> str:
    """Say in one sentence, or two, whether to use the draft.

    What the clock measured decides, at the γ the engine ran at; where it ran nowhere, the forecast
    at its best γ. A loss at one γ does not speak against another that is forecast to gain.

    Args:
        rows: What is known of each γ.
        best: The γ of the best forecast, one of the rows'.
        alpha: The pair's acceptance rate.
        break_even: The least that pays; None if none does.
        prompts: Behind the deciding figure; a single one spans no interval and decides nothing.
        batches: Larger batches, of which the second sentence tells.
    """
    row = deciding(rows, best)
    gamma = row["gamma"]
    hoped = at_gamma(rows, best)["speedup_forecast"]
    raced = "speedup_measured" in row
    how = "measured" if raced else "forecast"
    more = f"Measure on more prompts ({'--limit, --clock-prompts' if raced else '--limit'})."
    gain = row.get("speedup_measured", row["speedup_forecast"])
    figures = f"{shown(gain)} {how}"
    if gamma != best:
        figures += f" (the forecast puts γ = {best} first)"
    known = _known(break_even, alpha)
    if prompts < 2:
        said = (
            f"Undecided: {gain['value']:.2f}× {how} at γ = {gamma}, on one prompt, which gives no "
            f"interval. {more}"
        )
    elif gain["low"] > 1:
        said = f"Use this draft with γ = {gamma}: {figures}."
    elif gain["high"] < 1 <= hoped["high"] and gamma != best:
        said = (
            f"Undecided: {gain['value']:.2f}× {how} at γ = {gamma}, but {shown(hoped)} forecast at "
            f"γ = {best}, which did not run. Measure with --clock-gamma {best}."
        )
    elif gain["high"] < 1:
        at = "at its best" if gamma == best else "at"
        said = f"Do not use this draft: {figures} {at} γ = {gamma}; {known}."
    else:
        said = f"Undecided: {figures} at γ = {gamma}; {known}. {more}"
    return " ".join([said, *map(_at_batch, batches)])


def deciding(rows: Sequence[GammaRow], best: int) -> GammaRow:
    """Return the row a decision rests on: of those that ran the best forecast's, else the best."""
    ran = [row for row in rows if "speedup_measured" in row]
    if ran:
        return max(ran, key=lambda row: row["speedup_forecast"]["value"])
    return at_gamma(rows, best)


def at_gamma(rows: Sequence[Row], gamma: int) -> Row:
    """Return the row of a γ that is among them."""
    return next(row for row in rows if row["gamma"] == gamma)


def _known(break_even: float | None, alpha: float) -> str:
    if break_even is None:
        return "at this cost even a draft that is always right would be slower"
    return f"break-even α is {break_even:.2f}, this pair has {alpha:.2f}"


def shown(gain: Estimate) -> str:
    """Write a factor with its interval; one without width, as a single prompt's, says nothing."""
    if gain["low"] == gain["high"]:
        return f"{gain['value']:.2f}×"
    return f"{gain['value']:.2f}× [{gain['low']:.2f}, {gain['high']:.2f}]"


def _at_batch(row: BatchRow) -> str:
    best = at_gamma(row["gammas"], row["best_gamma"])
    gain = best["speedup_forecast"]
    what = "pays" if gain["low"] > 1 else "does not pay" if gain["high"] < 1 else "is undecided"
    return f"At batch {row['batch_size']} it {what}: {shown(gain)} forecast at γ = {best['gamma']}."
