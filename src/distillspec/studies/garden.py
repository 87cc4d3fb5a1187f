"""A family of models as ways to answer: quality against latency, the front, and which way to pick.

A way is a model alone, or a model with a draft (paper, Fig. 6, C.29, C.30: the model garden). All
ways answer every prompt in turn, because a machine's speed drifts by more than the differences that
matter. Latency is end to end: prefill and decoding of one prompt at batch 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from distillspec.decoding import Output
from distillspec.studies.clock import Lane, Run, Timer, median_run
from distillspec.studies.counts import block_efficiency
from distillspec.studies.estimates import Estimate, estimate, ratio
from distillspec.studies.outputs import Report, seeded
from distillspec.studies.quality import figures
from distillspec.tasks.metrics import Scored, difference


@dataclass(frozen=True)
class Way:
    """A way to answer, ready to run."""

    timer: Timer
    """With its model, and its draft if it has one."""
    lane: Lane
    """With or without the draft."""
    prompts: tuple[Tensor, ...]
    """The prompts in its model's tokens."""


class Point(TypedDict):
    """What one way brings; quality in points from 0 to 100, latency in seconds a prompt."""

    way: str
    target: str
    draft: str | None
    gamma: int
    quality: Estimate
    quality_difference: Estimate
    latency: Estimate
    speedup: Estimate
    tau: Estimate | None
    tokens: int
    front: bool
    dominated_by: str | None


class Pick(TypedDict):
    """The way to use within a budget; None where no way keeps it."""

    max_latency: float | None
    min_quality: float | None
    way: str | None
    said: str


class Garden(TypedDict):
    """What `garden` answers; docs/garden.md explains every field."""

    metric: str
    prompts: int
    reference: str
    points: list[Point]
    picks: list[Pick]
    verdict: str


def race(ways: Mapping[str, Way], repetitions: int, report: Report) -> Iterator[dict[str, Run]]:
    """Let every way answer every prompt, in alternating order, after a warm-up.

    Yields one mapping a prompt: the median run of every way, without states.

    Args:
        ways: By name, with equally many prompts.
        repetitions: Runs of every way per prompt.
        report: Called after each prompt.
    """
    running = list(ways.items())
    count = len(running[0][1].prompts)
    for _, way in running:
        way.timer.run(way.prompts[:1], way.lane, seeded(way.timer.seed, 1))
    for i in range(count):
        runs: dict[str, list[Run]] = {name: [] for name in ways}
        for repetition in range(repetitions):
            shift = (i + repetition) % len(running)
            for name, way in running[shift:] + running[:shift]:
                generators = seeded(way.timer.seed + i, 1)
                run = way.timer.run([way.prompts[i]], way.lane, generators)
                runs[name].append(run.bare())
        report(i + 1, count)
        yield {name: median_run(of_way) for name, of_way in runs.items()}


def garden(
    races: Sequence[Mapping[str, Run]],
    models: Mapping[str, tuple[str, str | None, int]],
    judge: Callable[[str, Sequence[Output]], Scored],
    metric: str,
    budgets: Sequence[tuple[float | None, float | None]],
) -> Garden:
    """Put the runs of all ways together.

    Args:
        races: One a prompt.
        models: By way: the model, its draft or None, and γ. The first way is the reference.
        judge: Scores one output a prompt of a way.
        metric: The figure of it that counts.
        budgets: For each pick the most seconds a prompt and the least quality, one of them None.
    """
    runs = {name: [one[name] for one in races] for name in models}
    outputs = {name: [run.output for run in own] for name, own in runs.items()}
    scored = {name: judge(name, own) for name, own in outputs.items()}
    seconds = {name: np.array([r.prefill + r.seconds for r in own]) for name, own in runs.items()}
    reference = next(iter(models))
    points = []
    for name, (target, draft, gamma) in models.items():
        points.append(
            Point(
                way=name,
                target=target,
                draft=draft,
                gamma=gamma,
                quality=figures(scored[name])[metric],
                quality_difference=estimate(*difference(metric, scored[name], scored[reference])),
                latency=ratio(seconds[name], np.ones(len(races))),
                speedup=ratio(seconds[reference], seconds[name]),
                tau=None if draft is None else block_efficiency(outputs[name]),
                tokens=sum(len(output.ids) for output in outputs[name]),
                front=False,
                dominated_by=None,
            )
        )
    for one in points:
        one["front"] = not any(_dominates(other, one) for other in points)
        one["dominated_by"] = _beaten(one, points, scored, seconds, metric)
    picks = [pick(points, *budget, metric) for budget in budgets]
    return Garden(
        metric=metric,
        prompts=len(races),
        reference=reference,
        points=points,
        picks=picks,
        verdict=verdict(points, picks, metric),
    )


def _dominates(one: Point, other: Point) -> bool:
    """Tell whether a way is at least as good in both respects and better in one, by its values."""
    quality = one["quality"]["value"] - other["quality"]["value"]
    latency = other["latency"]["value"] - one["latency"]["value"]
    return min(quality, latency) >= 0 and max(quality, latency) > 0


def _beaten(
    one: Point,
    points: Sequence[Point],
    scored: Mapping[str, Scored],
    seconds: Mapping[str, NDArray[np.float64]],
    metric: str,
) -> str | None:
    """Name a way that is beyond chance faster and not worse, the fastest first.

    By paired 95 % intervals over prompts: all of that of the seconds saved lies above 0, and none
    of that of the quality gained below 0.
    """
    name = one["way"]
    for other in sorted(points, key=lambda point: point["latency"]["value"]):
        if other["way"] == name or not _dominates(other, one):
            continue
        saved = estimate(
            lambda s: s[:, 0] - s[:, 1], np.stack([seconds[name], seconds[other["way"]]], axis=1)
        )
        gained = estimate(*difference(metric, scored[other["way"]], scored[name]))
        if saved["low"] > 0 and gained["low"] >= 0:
            return other["way"]
    return None


def pick(
    points: Sequence[Point], max_latency: float | None, min_quality: float | None, metric: str
) -> Pick:
    """Choose the best way within a latency, or the fastest with a quality. Point values decide."""
    if max_latency is not None:
        within = [one for one in points if one["latency"]["value"] <= max_latency]
        order = sorted(within, key=lambda p: (-p["quality"]["value"], p["latency"]["value"]))
        asked = f"within {max_latency:g} s a prompt"
    else:
        least = 0.0 if min_quality is None else min_quality
        within = [one for one in points if one["quality"]["value"] >= least]
        order = sorted(within, key=lambda p: (p["latency"]["value"], -p["quality"]["value"]))
        asked = f"with {metric} of at least {least:g}"
    chosen = order[0] if order else None
    said = (
        f"No way answers {asked}."
        if chosen is None
        else f"Use {chosen['way']} {asked}: {chosen['latency']['value']:.3f} s a prompt, "
        f"{metric} {chosen['quality']['value']:.1f}."
    )
    way = None if chosen is None else chosen["way"]
    return Pick(max_latency=max_latency, min_quality=min_quality, way=way, said=said)


def verdict(points: Sequence[Point], picks: Sequence[Pick], metric: str) -> str:
    """Say in one or two sentences what is on the front, and what to pick."""
    front = sorted((p for p in points if p["front"]), key=lambda p: p["latency"]["value"])
    names = ", ".join(
        f"{p['way']} ({p['latency']['value']:.3f} s, {metric} {p['quality']['value']:.1f})"
        for p in front
    )
    return " ".join([f"On the front: {names}.", *(one["said"] for one in picks)])
