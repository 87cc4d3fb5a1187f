"""Measurements of a run directory, sorted for drawing. Nothing is computed here.

A missing measurement stays missing: it is not drawn, and the page says "not measured".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from distillspec.errors import UserError
from distillspec.report.reading import Interval, interval, maybe, number, reading, text_or_none
from distillspec.studies.store import StoredRun

STAGES = ("before", "control", "after")


@dataclass(frozen=True)
class GammaPoint:
    """A pair at one γ."""

    gamma: int
    """Drafted tokens per block."""
    tau_forecast: Interval
    """Block efficiency by the exact recursion."""
    tau_iid: float
    """Block efficiency by the i.i.d. formula."""
    speedup_forecast: Interval
    """Speed-up by the recursion and the fitted cost."""
    tau_counted: Interval | None
    """Block efficiency the engine counted; None where it was not run."""
    speedup_measured: Interval | None
    """Speed-up on the clock; None where the engine was not run."""
    forecast_z: float | None
    """How far the engine's counts are from their forecast, in standard deviations."""


class Position(NamedTuple):
    """Acceptance at one place of the block."""

    position: int
    """1 is the first drafted token."""
    judged: float
    """Expected number of tokens judged there."""
    rate: Interval | None
    """Accepted among judged."""


class Context(NamedTuple):
    """Acceptance at one span of context lengths."""

    start: int
    """Least tokens before the judged one."""
    end: int
    """Most of them."""
    tokens: int
    """Tokens the rate was taken on."""
    alpha: Interval | None
    """Expected acceptance rate."""


class Domain(NamedTuple):
    """Acceptance on the prompts of one domain."""

    name: str
    """The domain."""
    prompts: int
    """Its prompts."""
    tokens: int
    """Target tokens on them."""
    alpha: Interval
    """Expected acceptance rate."""
    tau: Interval
    """Block efficiency at the best γ."""


class BatchGamma(NamedTuple):
    """One γ at one batch size."""

    gamma: int
    """Drafted tokens per block."""
    forecast: Interval
    """Forecast speed-up."""


class Batch(NamedTuple):
    """The forecast at one batch size."""

    size: int
    """Sequences decoded at once."""
    c: float
    """Cost of a drafted token in target calls."""
    gammas: tuple[BatchGamma, ...]
    """By γ, ascending."""
    best_gamma: int
    """The γ of the greatest forecast speed-up."""
    break_even_alpha: float | None
    """The α below which this draft cannot pay; None if no α pays."""
    headroom: float
    """Speed-up of a perfect draft of this cost."""


class Needed(NamedTuple):
    """What a draft of this cost would need."""

    speedup: float
    """The speed-up asked for."""
    alpha: float | None
    """The α that brings it; None if none does."""


@dataclass(frozen=True)
class Measured:
    """One measurement of a pair."""

    name: str
    """"before", "control" or "after" in a demo; otherwise the draft, or the run's folder."""
    temperature: float
    """Of the target's sampling."""
    prompts: int
    """Held-out prompts."""
    tokens: int
    """Target tokens on which α was taken."""
    alpha: Interval
    """Acceptance rate by `estimator`."""
    estimator: str
    """"expected" (both distributions whole) or "ratio" (two probabilities a token)."""
    alpha_ratio: Interval | None
    """Acceptance rate by the "ratio" estimator."""
    rule: str
    """Acceptance rule."""
    suits: str | None
    """Which divergence suits the rule, where the result says so."""
    points: tuple[GammaPoint, ...]
    """By γ, ascending."""
    cost: Mapping[str, float | None]
    """Milliseconds of a target pass, of a drafted token, of the rest of a block; and c."""
    best_gamma: int
    """The γ of the greatest forecast speed-up."""
    break_even_alpha: float | None
    """The α below which this draft cannot pay; None if no α pays at its cost."""
    headroom: float
    """Speed-up of a perfect draft of this cost."""
    verdict: str
    """One sentence."""
    unmet: tuple[str, ...]
    """Demands that were not met, a sentence each."""
    needed: tuple[Needed, ...]
    """What α a draft of this cost would need."""
    positions: tuple[Position, ...]
    """Acceptance by position in the block, at `position_gamma`."""
    position_gamma: int | None
    """The γ of `positions`."""
    contexts: tuple[Context, ...]
    """Acceptance by context length."""
    domains: tuple[Domain, ...]
    """Acceptance by domain; empty where there is one or none."""
    batches: tuple[Batch, ...]
    """Forecasts by batch size; empty where batch 1 alone was timed by an earlier version."""

    @property
    def best(self) -> GammaPoint:
        """The point at the best γ."""
        return self.at(self.best_gamma)

    def at(self, gamma: int) -> GammaPoint:
        """Return the point at γ."""
        return next(point for point in self.points if point.gamma == gamma)


def measurements(run: StoredRun) -> list[Measured]:
    """Read every measurement of a run: those of `measure`, or a demo's lists.

    Raises:
        UserError: a field that a measurement must have is missing or of another form.
    """
    result = run.result or {}
    path = run.folder / "result.json"
    if "drafts" in result and "gammas" in result:
        return _drafts(result, path)
    if "gammas" in result:
        return [measurement(str(result.get("draft") or run.folder.name), result, path, "")]
    return [
        measurement(stage, one, path, f"{stage}.{index}.")
        for stage in STAGES
        for index, one in enumerate(result.get(stage, []))
    ]


def measurement(name: str, value: Mapping[str, Any], path: Path, prefix: str) -> Measured:
    """Read one stored measurement.

    Args:
        name: What to call the pair.
        value: As `measure` stored it.
        path: The file it is from, for errors.
        prefix: Where in that file, such as "after.0.", or "".

    Raises:
        UserError: a field that a measurement must have is missing or of another form.
    """
    with reading(path, prefix, "a measurement", "measure again"):
        places = value.get("by_position") or {"gamma": None, "positions": []}
        measured = Measured(
            name=name,
            temperature=float(value["temperature"]),
            prompts=int(value["prompts"]),
            tokens=int(value["tokens"]),
            alpha=interval(value["alpha"]),
            estimator=str(value.get("alpha_estimator", "expected")),
            alpha_ratio=maybe(value.get("alpha_ratio")),
            rule=str(value["rule"]),
            suits=text_or_none(value.get("suits")),
            points=tuple(sorted(map(_point, value["gammas"]), key=lambda point: point.gamma)),
            cost=_cost(value["cost"]),
            best_gamma=int(value["best_gamma"]),
            break_even_alpha=number(value["break_even_alpha"]),
            headroom=float(value["headroom"]),
            verdict=str(value["verdict"]),
            unmet=tuple(str(sentence) for sentence in value.get("unmet", [])),
            needed=tuple(
                Needed(float(one["speedup"]), number(one["alpha"]))
                for one in value.get("alpha_needed", [])
            ),
            positions=tuple(
                Position(int(one["position"]), float(one["judged"]), maybe(one["rate"]))
                for one in places["positions"]
            ),
            position_gamma=None if places["gamma"] is None else int(places["gamma"]),
            contexts=tuple(
                Context(int(one["from"]), int(one["to"]), int(one["tokens"]), maybe(one["alpha"]))
                for one in value.get("by_context") or []
            ),
            domains=tuple(_domain(one) for one in value.get("by_domain") or []),
            batches=tuple(_batch(one) for one in value.get("batches") or []),
        )
    if measured.best_gamma not in [point.gamma for point in measured.points]:
        raise UserError(f"{path}: {prefix}best_gamma is not among the gammas; measure again")
    return measured


def _drafts(result: Mapping[str, Any], path: Path) -> list[Measured]:
    """Read the measurements of several drafts; what is demanded of all stands with the first."""
    with reading(path, "drafts.", "a list of measurements", "measure again"):
        named = [(str(one["draft"]), one) for one in result["drafts"]]
        if not named:
            raise ValueError("it is empty")
        demands = tuple(str(sentence) for sentence in result.get("unmet", []))
    found = [
        measurement(name, one, path, f"drafts.{index}.") for index, (name, one) in enumerate(named)
    ]
    own = {sentence for one in found for sentence in one.unmet}
    others = tuple(sentence for sentence in demands if sentence not in own)
    return [replace(found[0], unmet=(*found[0].unmet, *others)), *found[1:]]


def rules(measured: Sequence[Measured]) -> str:
    """Name the acceptance rules of these measurements, for a caption."""
    return " / ".join(dict.fromkeys(one.rule for one in measured))


def _point(row: Mapping[str, Any]) -> GammaPoint:
    return GammaPoint(
        gamma=int(row["gamma"]),
        tau_forecast=interval(row["tau_forecast"]),
        tau_iid=float(row["tau_iid"]),
        speedup_forecast=interval(row["speedup_forecast"]),
        tau_counted=maybe(row.get("tau_counted")),
        speedup_measured=maybe(row.get("speedup_measured")),
        forecast_z=number(row.get("forecast_z")),
    )


def _cost(row: Mapping[str, Any]) -> dict[str, float | None]:
    times = {key: number(row.get(key)) for key in ("target_ms", "draft_ms", "overhead_ms")}
    return {**times, "c": float(row["c"])}


def _domain(row: Mapping[str, Any]) -> Domain:
    alpha, tau = interval(row["alpha"]), interval(row["tau"])
    return Domain(str(row["domain"]), int(row["prompts"]), int(row["tokens"]), alpha, tau)


def _batch(row: Mapping[str, Any]) -> Batch:
    gammas = [BatchGamma(int(o["gamma"]), interval(o["speedup_forecast"])) for o in row["gammas"]]
    return Batch(
        size=int(row["batch_size"]),
        c=float(row["cost"]["c"]),
        gammas=tuple(sorted(gammas, key=lambda one: one.gamma)),
        best_gamma=int(row["best_gamma"]),
        break_even_alpha=number(row["break_even_alpha"]),
        headroom=float(row["headroom"]),
    )
