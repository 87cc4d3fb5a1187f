"""The shape of what `measure` answers, as JSON, and the sentence that sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from distillspec.studies.estimates import Estimate


class Overview(TypedDict):
    """What one γ is forecast to bring."""

    gamma: int
    tau_forecast: Estimate
    tau_iid: float
    speedup_forecast: Estimate


class Ran(TypedDict, total=False):
    """What one γ brought where the engine was run."""

    tau_counted: Estimate
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


class Measurement(TypedDict):
    """The answer of `measure`; docs/measure.md explains every field."""

    alpha: Estimate
    rule: str
    temperature: float
    prompts: int
    tokens: int
    gammas: list[GammaRow]
    cost: CostRow
    best_gamma: int
    break_even_alpha: float | None
    headroom: float
    verdict: str


def verdict(
    rows: Sequence[GammaRow], best: int, alpha: float, break_even: float | None, *, prompts: int
) -> str:
    """Say in one sentence whether to use the draft.

    What the clock measured decides, at the γ the engine ran at; where it ran nowhere, the forecast
    at its best γ.

    Args:
        rows: What is known of each γ.
        best: The γ of the best forecast, one of the rows'.
        alpha: The pair's acceptance rate.
        break_even: The least that pays; None if none does.
        prompts: Behind the deciding figure; a single one spans no interval and decides nothing.
    """
    row = next(
        (row for row in rows if "speedup_measured" in row),
        next(row for row in rows if row["gamma"] == best),
    )
    gamma = row["gamma"]
    gain, how = (
        (row["speedup_measured"], "measured")
        if "speedup_measured" in row
        else (row["speedup_forecast"], "forecast")
    )
    figures = f"{gain['value']:.2f}× [{gain['low']:.2f}, {gain['high']:.2f}] {how}"
    if gamma != best:
        figures += f" (the forecast puts γ = {best} first)"
    if prompts < 2:
        return (
            f"Undecided: {gain['value']:.2f}× {how} at γ = {gamma}, on one prompt, which gives no "
            "interval. Measure on more prompts."
        )
    if gain["low"] > 1:
        return f"Use this draft with γ = {gamma}: {figures}."
    known = (
        "at this cost even a draft that is always right would be slower"
        if break_even is None
        else f"break-even α is {break_even:.2f}, this pair has {alpha:.2f}"
    )
    if gain["high"] < 1:
        return f"Do not use this draft: {figures} at its best γ = {gamma}; {known}."
    return f"Undecided: {figures} at γ = {gamma}; {known}. Measure on more prompts."
