"""What a run directory holds, sorted for drawing. Counts are summed and divided; nothing is added.

A missing measurement stays missing: it is not drawn, and the page says "not measured".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from distillspec.errors import UserError
from distillspec.studies.store import StoredRun

STAGES = ("before", "control", "after")
_POINTS = 60  # more than a figure of a phone's width can show


class Interval(NamedTuple):
    """An estimate with its 95 % interval over prompts."""

    value: float
    """The estimate."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""


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


@dataclass(frozen=True)
class Measured:
    """One measurement of a pair."""

    stage: str
    """"before", "control" or "after" in a demo; otherwise the run's folder."""
    temperature: float
    """Of the target's sampling."""
    prompts: int
    """Held-out prompts."""
    tokens: int
    """Target tokens on which α was taken."""
    alpha: Interval
    """Expected acceptance rate."""
    rule: str
    """Acceptance rule."""
    points: tuple[GammaPoint, ...]
    """By γ, ascending."""
    c: float
    """Cost of a drafted token in target calls."""
    best_gamma: int
    """The γ of the greatest forecast speed-up."""
    break_even_alpha: float | None
    """The α below which this draft cannot pay; None if no α pays at its cost."""
    headroom: float
    """Speed-up of a perfect draft of this cost."""
    verdict: str
    """One sentence."""

    @property
    def best(self) -> GammaPoint:
        """The point at the best γ."""
        return next(point for point in self.points if point.gamma == self.best_gamma)


@dataclass(frozen=True)
class Curve:
    """One quantity over a training run, its points in order."""

    step: tuple[float, ...]
    """Optimizer steps."""
    seconds: tuple[float, ...]
    """Seconds since the run began."""
    value: tuple[float, ...]
    """The quantity."""


@dataclass(frozen=True)
class Training:
    """The metrics of one training run."""

    name: str
    """Its folder, or the stage its rows name."""
    alpha: Curve
    """Expected acceptance on the batches of the steps; empty where no target was asked."""
    loss: Curve
    """Loss in nats."""
    held_out_alpha: Curve
    """Expected acceptance on held-out prompts, where it was evaluated."""
    held_out_tau: Curve
    """Block efficiency on held-out prompts, where it was evaluated."""
    gamma: int | None
    """The γ of `held_out_tau`."""
    steps: int
    """The last step."""
    tokens: int
    """Completion tokens trained on."""
    duration: float
    """Seconds."""
    parts: Mapping[str, float]
    """Seconds by part, summed."""


def measurements(run: StoredRun) -> list[Measured]:
    """Read every measurement of a run: the one of `measure`, or a demo's lists.

    Raises:
        UserError: a field that a measurement must have is missing or of another form.
    """
    result = run.result or {}
    path = run.folder / "result.json"
    if "gammas" in result:
        return [_measured(run.folder.name, result, path, "")]
    return [
        _measured(stage, one, path, f"{stage}.{index}.")
        for stage in STAGES
        for index, one in enumerate(result.get(stage, []))
    ]


def trainings(run: StoredRun) -> list[Training]:
    """Read the training metrics of a run and of the runs within it.

    Raises:
        UserError: a row lacks a field, or its time goes backwards.
    """
    found = []
    for one in (run, *run.children):
        stages: dict[str, list[Mapping[str, Any]]] = {}
        for row in one.metrics:
            stages.setdefault(str(row.get("stage", one.folder.name)), []).append(row)
        path = one.folder / "metrics.jsonl"
        found += [_training(name, rows, path) for name, rows in stages.items()]
    return found


def _measured(stage: str, value: Mapping[str, Any], path: Path, prefix: str) -> Measured:
    try:
        points = sorted(map(_point, value["gammas"]), key=lambda point: point.gamma)
        break_even = value["break_even_alpha"]
        measured = Measured(
            stage=stage,
            temperature=float(value["temperature"]),
            prompts=int(value["prompts"]),
            tokens=int(value["tokens"]),
            alpha=_interval(value["alpha"]),
            rule=str(value["rule"]),
            points=tuple(points),
            c=float(value["cost"]["c"]),
            best_gamma=int(value["best_gamma"]),
            break_even_alpha=None if break_even is None else float(break_even),
            headroom=float(value["headroom"]),
            verdict=str(value["verdict"]),
        )
    except KeyError as error:
        raise UserError(f"{path}: {prefix}{error.args[0]} is missing; measure again") from error
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{path}: {prefix or 'the result'} is not a measurement: {error}"
        ) from error
    if measured.best_gamma not in [point.gamma for point in measured.points]:
        raise UserError(f"{path}: {prefix}best_gamma is not among the gammas; measure again")
    return measured


def _point(row: Mapping[str, Any]) -> GammaPoint:
    z = row.get("forecast_z")
    return GammaPoint(
        gamma=int(row["gamma"]),
        tau_forecast=_interval(row["tau_forecast"]),
        tau_iid=float(row["tau_iid"]),
        speedup_forecast=_interval(row["speedup_forecast"]),
        tau_counted=_interval(row["tau_counted"]) if "tau_counted" in row else None,
        speedup_measured=_interval(row["speedup_measured"]) if "speedup_measured" in row else None,
        forecast_z=None if z is None else float(z),
    )


def _interval(value: Mapping[str, Any]) -> Interval:
    return Interval(float(value["value"]), float(value["low"]), float(value["high"]))


def _training(name: str, rows: Sequence[Mapping[str, Any]], path: Path) -> Training:
    try:
        steps = [row for row in rows if "evaluation" not in row]
        asked = [row for row in steps if row.get("alpha_count")]
        tests = [row for row in rows if "evaluation" in row]
        timed = [row for row in tests if "calls" in row["evaluation"]]
        gammas = {int(row["evaluation"]["gamma"]) for row in timed}
        seconds = [float(row["seconds"]) for row in rows]
        parts: dict[str, float] = {}
        for row in steps:
            for part, spent in row.get("seconds_by_part", {}).items():
                parts[part] = parts.get(part, 0.0) + float(spent)
        training = Training(
            name=name,
            alpha=_binned(asked, [(float(r["alpha_sum"]), float(r["alpha_count"])) for r in asked]),
            loss=_binned(steps, [(float(row["loss"]), 1.0) for row in steps]),
            held_out_alpha=_curve(tests, "alpha_sum", "alpha_count"),
            held_out_tau=_curve(timed, "tokens", "calls"),
            gamma=gammas.pop() if len(gammas) == 1 else None,
            steps=max(int(row["step"]) for row in rows),
            tokens=sum(int(row["tokens"]) for row in steps),
            duration=seconds[-1],
            parts=parts,
        )
    except KeyError as error:
        raise UserError(f"{path}: a row lacks {error.args[0]!r}; see distillspec train") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: a row is not of a training run: {error}") from error
    if gammas or seconds != sorted(seconds):
        cause = "τ is given at several γ" if gammas else "the seconds go backwards"
        raise UserError(f"{path}: {cause}; the rows are not of one run")
    return training


def _curve(rows: Sequence[Mapping[str, Any]], numerator: str, denominator: str) -> Curve:
    evaluations = [row["evaluation"] for row in rows]
    return Curve(
        tuple(float(row["step"]) for row in rows),
        tuple(float(row["seconds"]) for row in rows),
        tuple(float(one[numerator]) / float(one[denominator]) for one in evaluations),
    )


def _binned(rows: Sequence[Mapping[str, Any]], fractions: Sequence[tuple[float, float]]) -> Curve:
    """Join consecutive steps to at most `_POINTS` points, each a ratio of sums at its last step."""
    ends, values = [], []
    for part in _slices(len(rows)):
        ends.append(rows[part.stop - 1])
        numerators, denominators = zip(*fractions[part], strict=True)
        values.append(sum(numerators) / sum(denominators))
    return Curve(
        tuple(float(row["step"]) for row in ends),
        tuple(float(row["seconds"]) for row in ends),
        tuple(values),
    )


def _slices(count: int) -> Iterator[slice]:
    points = min(count, _POINTS)
    for index in range(points):
        yield slice(index * count // points, (index + 1) * count // points)
