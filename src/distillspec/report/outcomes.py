"""What `evaluate`, `tradeoff` and `transfer` found, sorted for drawing; nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from distillspec.report.drafts import Comparison, comparison
from distillspec.report.reading import Interval, interval, maybe, number, reading, text_or_none
from distillspec.report.results import Measured, measurement
from distillspec.studies.store import StoredRun

LOSSLESS = "lossless"
_FACTS = {
    "target": "target",
    "draft": "draft",
    "acceptance rule": "rule",
    "γ": "gamma",
    "temperature": "temperature",
    "dtype": "dtype",
    "prompts": "prompts",
    "tokens": "tokens",
}


class Quality(NamedTuple):
    """One metric of a task."""

    metric: str
    """Its name."""
    draft: Interval
    """With the draft."""
    target: Interval | None
    """The target alone, on the same prompts."""
    difference: Interval | None
    """With the draft minus without, paired."""


class DomainQuality(NamedTuple):
    """The prompts of one domain."""

    name: str
    """The domain."""
    prompts: int
    """Its prompts."""
    quality: Mapping[str, Interval]
    """By metric."""
    tau: Interval | None
    """Block efficiency the engine counted."""


class Latency(NamedTuple):
    """Seconds per prompt at batch size 1."""

    prompts: int
    """Prompts clocked."""
    repetitions: int
    """Runs of each, of which the median counts."""
    draft: Interval
    """With the draft."""
    target: Interval
    """The target alone."""
    speedup: Interval
    """Speed-up, decoding alone."""
    end_to_end: Interval | None
    """Speed-up with the prefill, where it was taken."""


@dataclass(frozen=True)
class Evaluated:
    """A task with a target, a draft and settings."""

    task: str
    """The task's name."""
    rule: str
    """Acceptance rule."""
    suits: str | None
    """Which divergence suits the rule, where the result says so."""
    facts: Mapping[str, Any]
    """γ, temperature, dtype, prompts and tokens."""
    qualities: tuple[Quality, ...]
    """By metric."""
    alpha: Interval | None
    """Expected acceptance on the target's own outputs."""
    tau: Interval | None
    """Block efficiency the engine counted."""
    tau_forecast: Interval | None
    """Block efficiency by the exact recursion; lenient rules have none."""
    latency: Latency | None
    """None where nothing was clocked."""
    throughput: Mapping[str, float | None]
    """Tokens per second at a batch size; empty where it was not taken."""
    same_output: Mapping[str, int]
    """How many outputs are the target's own; empty but in the greedy lossless case."""
    domains: tuple[DomainQuality, ...]
    """By domain."""
    verdict: str
    """One sentence."""
    unmet: tuple[str, ...]
    """Demands that were not met."""


class Point(NamedTuple):
    """One lenience on one draft."""

    draft: str
    """The draft."""
    lenience: str
    """One of "lossless", "linear", "squared" or "exponential"."""
    epsilon: float | None
    """ε; the lossless rule needs none."""
    quality: Interval
    """Of the outputs."""
    difference: Interval
    """Quality minus the target's, paired."""
    latency: Interval
    """Decoding seconds over those of the target alone, on the same prompts."""
    latency_per_token: Interval | None
    """The same for each token, where it was taken."""
    tau: Interval
    """Block efficiency the engine counted."""
    acceptance: float | None
    """Accepted over judged, as counted."""


@dataclass(frozen=True)
class TradeOff:
    """Quality against relative latency."""

    task: str
    """The task's name."""
    metric: str
    """What quality is."""
    gamma: int
    """Drafted tokens per block."""
    temperature: float
    """Of the target's sampling."""
    prompts: int
    """Evaluated prompts."""
    quality: Interval
    """Of the target alone."""
    seconds: Interval | None
    """Seconds per prompt of the target alone."""
    suits: str | None
    """Which divergence suits the rule, where the result says so."""
    points: tuple[Point, ...]
    """In the order they were run."""
    max_loss: float
    """Loss of quality that is accepted, in per cent."""
    pick: int | None
    """Index into `points` of the fastest that loses no more; None if none does."""
    verdict: str
    """One sentence."""


class Cell(NamedTuple):
    """The drafts of a transfer on one task of one target."""

    target: str
    """The target."""
    task: str
    """The task."""
    measured: tuple[Measured, ...]
    """One per draft, the baseline first."""
    comparisons: tuple[Comparison, ...]
    """Each further draft against the baseline."""


class Transfer(NamedTuple):
    """Drafts on other tasks and other targets than they were distilled for."""

    cells: tuple[Cell, ...]
    """One per target and task."""
    verdict: str
    """One sentence."""


def evaluated(run: StoredRun) -> Evaluated | None:
    """Read the result of `evaluate`; None where the run is of another verb.

    Raises:
        UserError: a field is missing or of another form.
    """
    result = run.result or {}
    if "quality" not in result or "same_output" not in result:
        return None
    with reading(run.folder / "result.json", "", "of `evaluate`", "evaluate again"):
        targets, differences = result["quality_target"] or {}, result["quality_difference"] or {}
        return Evaluated(
            task=str(result["task"]),
            rule=str(result["rule"]),
            suits=text_or_none(result.get("suits")),
            facts={name: result[key] for name, key in _FACTS.items()},
            qualities=tuple(
                Quality(
                    metric=str(metric),
                    draft=interval(value),
                    target=maybe(targets.get(metric)),
                    difference=maybe(differences.get(metric)),
                )
                for metric, value in (result["quality"] or {}).items()
            ),
            alpha=maybe(result["alpha"]),
            tau=maybe(result["tau"]),
            tau_forecast=maybe(result["tau_forecast"]),
            latency=None if result["latency"] is None else _latency(result["latency"]),
            throughput={key: number(one) for key, one in (result["throughput"] or {}).items()},
            same_output={key: int(one) for key, one in (result["same_output"] or {}).items()},
            domains=tuple(
                DomainQuality(
                    name=str(one["domain"]),
                    prompts=int(one["prompts"]),
                    quality={str(m): interval(v) for m, v in (one["quality"] or {}).items()},
                    tau=maybe(one.get("tau")),
                )
                for one in result.get("by_domain") or []
            ),
            verdict=str(result["verdict"]),
            unmet=tuple(str(sentence) for sentence in result.get("unmet", [])),
        )


def tradeoff(run: StoredRun) -> TradeOff | None:
    """Read the result of `tradeoff`; None where the run is of another verb.

    Raises:
        UserError: a field is missing or of another form.
    """
    result = run.result or {}
    if "points" not in result or "baseline" not in result:
        return None
    with reading(run.folder / "result.json", "", "of `tradeoff`", "run it again"):
        points = tuple(_point(one) for one in result["points"])
        pick = result["pick"]["point"]
        if pick is not None and not 0 <= pick < len(points):
            raise ValueError(f"pick.point is {pick}, and there are {len(points)} points")
        return TradeOff(
            task=str(result["task"]),
            metric=str(result["metric"]),
            gamma=int(result["gamma"]),
            temperature=float(result["temperature"]),
            prompts=int(result["prompts"]),
            quality=interval(result["baseline"]["quality"]),
            seconds=maybe(result["baseline"].get("seconds_per_prompt")),
            suits=text_or_none(result.get("suits")),
            points=points,
            max_loss=float(result["pick"]["max_loss"]),
            pick=pick,
            verdict=str(result["verdict"]),
        )


def transfer(run: StoredRun) -> Transfer | None:
    """Read the result of `transfer`; None where the run is of another verb.

    Raises:
        UserError: a field is missing or of another form.
    """
    result = run.result or {}
    if "cells" not in result:
        return None
    path = run.folder / "result.json"
    with reading(path, "", "of `transfer`", "run it again"):
        cells = tuple(_cell(one, path, f"cells.{i}.") for i, one in enumerate(result["cells"]))
        return Transfer(cells, str(result["verdict"]))


def _point(row: Mapping[str, Any]) -> Point:
    return Point(
        draft=str(row["draft"]),
        lenience=str(row["lenience"]),
        epsilon=number(row["epsilon"]),
        quality=interval(row["quality"]),
        difference=interval(row["quality_difference"]),
        latency=interval(row["relative_latency"]),
        latency_per_token=maybe(row.get("relative_latency_per_token")),
        tau=interval(row["tau"]),
        acceptance=number(row["empirical_acceptance"]),
    )


def _latency(row: Mapping[str, Any]) -> Latency:
    return Latency(
        prompts=int(row["prompts"]),
        repetitions=int(row["repetitions"]),
        draft=interval(row["seconds_per_prompt"]),
        target=interval(row["seconds_per_prompt_target"]),
        speedup=interval(row["speedup"]),
        end_to_end=maybe(row.get("speedup_end_to_end")),
    )


def _cell(value: Mapping[str, Any], path: Path, prefix: str) -> Cell:
    measured = tuple(
        measurement(str(one["draft"]), one, path, f"{prefix}measurements.{index}.")
        for index, one in enumerate(value["measurements"])
    )
    gamma = measured[0].best_gamma
    for one in measured:
        if gamma not in [point.gamma for point in one.points]:
            raise ValueError(f"{one.name!r} was not measured at the baseline's best γ, {gamma}")
    return Cell(
        target=str(value["target"]),
        task=str(value["task"]),
        measured=measured,
        comparisons=tuple(
            comparison(one, path, f"{prefix}comparison.{index}.")
            for index, one in enumerate(value.get("comparison") or [])
        ),
    )
