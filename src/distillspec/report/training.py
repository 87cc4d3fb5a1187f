"""The metrics of training runs, sorted for drawing. Counts are summed and divided; that is all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillspec.errors import UserError
from distillspec.studies.store import StoredRun

_POINTS = 60  # more than a figure of a phone's width can show


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


def _training(name: str, rows: Sequence[Mapping[str, Any]], path: Path) -> Training:
    try:
        steps = [row for row in rows if "evaluation" not in row]
        taught = [row for row in steps if row.get("left_out", 0) < row["tokens"]]
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
            loss=_binned(taught, [(float(row["loss"]), 1.0) for row in taught]),
            held_out_alpha=_curve(tests, "alpha_sum", "alpha_count"),
            held_out_tau=_curve(timed, "tokens", "calls"),
            gamma=gammas.pop() if len(gammas) == 1 else None,
            steps=max(int(row["step"]) for row in rows),
            tokens=sum(int(row["tokens"]) for row in steps),
            duration=seconds[-1],
            parts=parts,
        )
    except KeyError as error:
        raise UserError(
            f"{path}: a row lacks {error.args[0]!r}, which sft and distill write"
        ) from error
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
