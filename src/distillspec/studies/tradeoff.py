"""Quality against latency under lenient rules (paper, Fig. 5b and C.25 to C.28), and what to pick.

Every point is taken on the very outputs that were on the clock, next to those of the target alone
on the same prompts, all of them run in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from distillspec.decoding import Counts, Output
from distillspec.math.rules import Rule
from distillspec.studies.answer import ONE_PROMPT
from distillspec.studies.clock import Lane, Race, Run
from distillspec.studies.counts import block_efficiency
from distillspec.studies.estimates import Estimate, estimate, ratio
from distillspec.studies.quality import figures
from distillspec.tasks.metrics import Scored, difference

LOSSLESS = "lossless"
"""The lenience of a draft's point that changes nothing."""


@dataclass(frozen=True)
class Setting:
    """One way to decode with a draft."""

    draft: str
    """The draft's name."""
    lenience: str
    """`lossless`, or a lenience's name."""
    epsilon: float | None
    """Its ε; None where it is lossless."""
    rule: Rule
    """What that makes of the sampling settings."""

    @property
    def name(self) -> str:
        """Name it among the settings of a run."""
        # In full: two ε that round alike are two settings.
        shown = self.lenience if self.epsilon is None else f"{self.lenience} {self.epsilon}"
        return f"{self.draft} · {shown}"


class Point(TypedDict):
    """What one setting brings; quality in points from 0 to 100."""

    draft: str
    lenience: str
    epsilon: float | None
    quality: Estimate
    quality_difference: Estimate
    relative_latency: Estimate
    relative_latency_per_token: Estimate
    tau: Estimate
    empirical_acceptance: float | None
    tokens: int


class Baseline(TypedDict):
    """The target alone."""

    quality: Estimate
    seconds_per_prompt: Estimate
    tokens: int


class Pick(TypedDict):
    """The fastest setting within the loss that was allowed; None where there is none."""

    max_loss: float
    point: int | None


class Tradeoff(TypedDict):
    """What `tradeoff` answers; docs/tradeoff.md explains every field."""

    metric: str
    prompts: int
    baseline: Baseline
    points: list[Point]
    pick: Pick
    verdict: str


def lanes(settings: Sequence[Setting], gamma: int) -> dict[str, Lane]:
    """Return what races against the target alone, by name."""
    return {one.name: Lane(one.draft, gamma, one.rule) for one in settings}


def tradeoff(
    races: Sequence[Race],
    settings: Sequence[Setting],
    judge: Callable[[Sequence[Output]], Scored],
    metric: str,
    max_loss: float,
) -> Tradeoff:
    """Put the runs of all settings together.

    Args:
        races: One a prompt, of the lanes of all settings.
        settings: The settings.
        judge: Scores one output a prompt.
        metric: The figure of it that counts.
        max_loss: Quality that may be lost, in per cent of the target's alone.
    """
    plain = [race.plain for race in races]
    alone = judge([run.output for run in plain])
    baseline = Baseline(
        quality=figures(alone)[metric],
        seconds_per_prompt=ratio([run.seconds for run in plain], [1.0] * len(plain)),
        tokens=sum(len(run.output.ids) for run in plain),
    )
    points = []
    for one in settings:
        runs = [race.runs[one.name] for race in races]
        points.append(_point(one, runs, plain, judge([run.output for run in runs]), alone, metric))
    picked = pick(points, baseline["quality"]["value"], max_loss)
    said = verdict(points, baseline["quality"]["value"], max_loss, picked, metric)
    return Tradeoff(
        metric=metric,
        prompts=len(races),
        baseline=baseline,
        points=points,
        pick=Pick(max_loss=max_loss, point=picked),
        verdict=said if len(races) > 1 else f"{said} {ONE_PROMPT}",
    )


def _point(
    setting: Setting,
    runs: Sequence[Run],
    plain: Sequence[Run],
    scored: Scored,
    alone: Scored,
    metric: str,
) -> Point:
    counts = sum((run.output.counts for run in runs), Counts())
    columns = np.array(
        [
            [run.seconds, len(run.output.ids), own.seconds, len(own.output.ids)]
            for run, own in zip(runs, plain, strict=True)
        ]
    )
    return Point(
        draft=setting.draft,
        lenience=setting.lenience,
        epsilon=setting.epsilon,
        quality=figures(scored)[metric],
        quality_difference=estimate(*difference(metric, scored, alone)),
        relative_latency=estimate(lambda s: s[:, 0] / s[:, 2], columns),
        relative_latency_per_token=estimate(
            lambda s: (s[:, 0] / s[:, 1]) / (s[:, 2] / s[:, 3]), columns
        ),
        tau=block_efficiency([run.output for run in runs]),
        empirical_acceptance=counts.empirical_acceptance if counts.judged else None,
        tokens=counts.tokens,
    )


def pick(points: Sequence[Point], quality: float, max_loss: float) -> int | None:
    """Choose the fastest point that loses at most `max_loss` per cent of the target's quality.

    Point values decide. None where the target alone has no quality to lose, where no point keeps
    within the loss, and where none of those that do is faster than the target alone.
    """
    if quality <= 0:
        return None
    within = [i for i, point in enumerate(points) if loss(point, quality) <= max_loss]
    faster = [i for i in within if points[i]["relative_latency"]["value"] < 1]
    return min(faster, key=lambda i: points[i]["relative_latency"]["value"], default=None)


def loss(point: Point, quality: float) -> float:
    """Return what a point loses of the target's quality, in per cent; negative for a gain."""
    return -100.0 * point["quality_difference"]["value"] / quality


def verdict(
    points: Sequence[Point], quality: float, max_loss: float, picked: int | None, metric: str
) -> str:
    """Say in one sentence what to use."""
    if quality <= 0:
        return f"Nothing can be picked: the {metric} of the target alone is 0."
    if picked is None:
        within = [point for point in points if loss(point, quality) <= max_loss]
        if not within:
            return f"Nothing to pick: every setting loses more than {max_loss:g} % of {metric}."
        best = min(point["relative_latency"]["value"] for point in within)
        return (
            f"Use the target alone: the fastest setting that loses at most {max_loss:g} % of "
            f"{metric} takes {best:.2f} of its time."
        )
    point = points[picked]
    time, change = point["relative_latency"], point["quality_difference"]
    how = point["lenience"] if point["epsilon"] is None else (
        f"{point['lenience']} lenience, ε = {point['epsilon']:g}"
    )  # fmt: skip
    return (
        f"Use {point['draft']} with {how}: {time['value']:.2f} [{time['low']:.2f}, "
        f"{time['high']:.2f}] of the target's time, {metric} changed by {change['value']:+.1f} "
        f"[{change['low']:+.1f}, {change['high']:+.1f}] of {quality:.1f} points (a loss of at most "
        f"{max_loss:g} % was allowed)."
    )
