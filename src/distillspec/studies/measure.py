"""Will this draft pay off? Acceptance, the exact forecast, the cost, the clock, one sentence."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distillspec.math.forecast import Cost, best_gamma
from distillspec.math.rules import Rule
from distillspec.models.protocol import LanguageModel
from distillspec.studies.answer import Measurement, PrefillRow, Ran
from distillspec.studies.breakdown import agree, blocks, calls, deviation
from distillspec.studies.clock import Lane, Race, Run, Timer, Timings
from distillspec.studies.cost import fit_cost
from distillspec.studies.estimates import Estimate, estimate, ratio
from distillspec.studies.forecast import Prompts, forecast, gain
from distillspec.studies.outputs import Report, Scores, TargetOutputs, score

TABLE_PROMPTS = 3
"""Prompts on which passes of every width are timed; more change the medians little."""


@dataclass(frozen=True)
class Plan:
    """How a pair is measured."""

    gammas: tuple[int, ...]
    """The γ to forecast, each ≥ 1 and ascending; the best is chosen among them."""
    max_new_tokens: int
    """Tokens per clocked run, at most."""
    batch_size: int
    """Rows per teacher-forced pass."""
    clock_prompts: int
    """Prompts on which the engine runs on the clock; 0 runs it nowhere."""
    repetitions: int
    """Timed runs of each kind per prompt, of which the median counts."""
    seed: int
    """Of the clocked runs."""
    batch_sizes: tuple[int, ...] = (1,)
    """Batch sizes to forecast, 1 among them."""
    clock_gammas: tuple[int, ...] | None = None
    """The γ that run on the clock, of `gammas`; None for each draft's best by forecast."""


@dataclass(frozen=True)
class Finding:
    """A measurement with what it was made from."""

    result: Measurement
    """Estimates, ready for JSON."""
    scores: Scores
    """One entry a prompt; comparisons between drafts are paired by them."""
    lanes: tuple[str, ...] = ()
    """The names of its runs in the races."""


@dataclass(frozen=True)
class Measured:
    """What one measuring found."""

    findings: Mapping[str, Finding]
    """By draft."""
    lanes: Mapping[str, Lane]
    """What ran on the clock, by name."""
    races: tuple[Race, ...]
    """The runs, one race per clocked prompt."""


def measure(
    target: LanguageModel,
    drafts: Mapping[str, LanguageModel],
    outputs: TargetOutputs,
    rule: Rule,
    plan: Plan,
    report: Report,
    *,
    domains: Sequence[str | None] | None = None,
) -> Measured:
    """Measure each draft on the same target outputs and race them against the target alone.

    Args:
        target: The large model.
        drafts: One or more small ones by name; they are timed in turn in one run.
        outputs: The target's answers to held-out prompts, at the rule's target sampler.
        rule: The lossless rule that is served.
        plan: How to measure.
        report: Called after each clocked prompt.
        domains: What kind of prompt each is; None where that is not known.
    """
    timer = Timer(
        target=target,
        drafts=drafts,
        rule=rule,
        max_new_tokens=plan.max_new_tokens,
        repetitions=plan.repetitions,
        seed=plan.seed,
    )
    scores = {
        name: score(target, draft, outputs, rule, batch_size=plan.batch_size)
        for name, draft in drafts.items()
    }
    timings = {size: _timings(timer, outputs, plan, size) for size in plan.batch_sizes}
    costs = {
        name: {size: fit_cost(of_size, name) for size, of_size in timings.items()}
        for name in drafts
    }
    lanes = {
        f"{name} · γ {gamma}": Lane(name, gamma, rule)
        for name in drafts
        for gamma in _gammas_to_run(scores[name], costs[name][1], plan)
    }
    races = list(timer.race(outputs.prompts[: plan.clock_prompts], lanes, report))
    prompts = Prompts(
        tuple(map(len, outputs.prompts)),
        tuple(domains) if domains is not None else (None,) * len(outputs.prompts),
    )
    found = {}
    for name in drafts:
        own = {key: lane for key, lane in lanes.items() if lane.draft == name} if races else {}
        ran = {
            lane.gamma: _ran(timer, key, lane, races, outputs, costs[name][1], plan.batch_size)
            for key, lane in own.items()
        }
        result = forecast(
            scores[name], prompts, rule, costs[name], plan.gammas, ran=ran, clocked=len(races)
        )
        result["prefill"] = _prefill(timings[1], name)
        found[name] = Finding(result, scores[name], tuple(own))
    return Measured(found, lanes if races else {}, tuple(races))


def _timings(timer: Timer, outputs: TargetOutputs, plan: Plan, size: int) -> list[Timings]:
    """Time passes and blocks at one batch size: on some single prompts, or on one batch of them."""
    groups = (
        [[prompt] for prompt in outputs.prompts[:TABLE_PROMPTS]]
        if size == 1
        else [list(itertools.islice(itertools.cycle(outputs.prompts), size))]
    )
    widths = range(1, max(plan.gammas) + 2)
    return [timer.timings(group, widths, timed_gammas(plan.gammas)) for group in groups]


def timed_gammas(gammas: Sequence[int]) -> list[int]:
    """Return the γ whose blocks are timed: three show how blocks grow."""
    return sorted({gammas[0], gammas[len(gammas) // 4], gammas[-1]})


def _gammas_to_run(scores: Scores, cost: Cost, plan: Plan) -> tuple[int, ...]:
    if plan.clock_gammas is not None:
        return plan.clock_gammas
    return (
        best_gamma(
            {gamma: gain(scores, blocks(scores, gamma), cost)["value"] for gamma in plan.gammas}
        ),
    )


def _ran(
    timer: Timer,
    name: str,
    lane: Lane,
    races: Sequence[Race],
    outputs: TargetOutputs,
    cost: Cost,
    batch_size: int,
) -> Ran:
    """Say what the clocked runs of one lane brought, and hold them against their own forecast.

    Args:
        timer: What was timed.
        name: The lane's.
        lane: The way of the runs.
        races: One for each of the first prompts of `outputs`.
        outputs: Where the prompts come from.
        cost: Of this draft, at batch 1.
        batch_size: Rows per teacher-forced pass.
    """
    pairs = [(race.plain, race.runs[name]) for race in races]
    runs = [run for _, run in pairs]
    counted = np.array([run.output.counts.target_calls for run in runs], dtype=np.float64)
    prompts = outputs.prompts[: len(runs)]
    own = TargetOutputs.of(prompts, [run.output for run in runs], lane.rule.sampling)
    draft = timer.drafts[str(lane.draft)]
    scores = score(timer.target, draft, own, lane.rule, batch_size=batch_size)
    mean, variance = calls(scores, lane.gamma)
    return Ran(
        tau_counted=ratio(own.lengths, counted),
        tau_expected=ratio(own.lengths, mean),
        speedup_expected=gain(scores, blocks(scores, lane.gamma), cost),
        speedup_measured=rate_ratio(pairs, lambda run: run.seconds),
        speedup_spread=_spread(pairs),
        speedup_end_to_end=rate_ratio(pairs, lambda run: run.prefill + run.seconds),
        forecast_z=deviation(counted, mean, variance),
        forecast_exact=agree(counted, mean),
    )


def rate_ratio(pairs: Sequence[tuple[Run, Run]], seconds: Callable[[Run], float]) -> Estimate:
    """Estimate tokens per second of second runs over tokens per second of first ones."""
    columns = [
        (seconds(plain), len(plain.output.ids), seconds(run), len(run.output.ids))
        for plain, run in pairs
    ]
    return estimate(lambda s: (s[:, 3] / s[:, 2]) / (s[:, 1] / s[:, 0]), columns)


def _spread(pairs: Sequence[tuple[Run, Run]]) -> list[float]:
    """Return the smallest, the median and the largest speed-up of a single prompt."""
    each = [
        (len(run.output.ids) / run.seconds) / (len(plain.output.ids) / plain.seconds)
        for plain, run in pairs
    ]
    return [min(each), statistics.median(each), max(each)]


def _prefill(timings: Sequence[Timings], name: str) -> PrefillRow:
    """Return what reading a prompt takes; the draft's is what it adds to the target's."""
    target = statistics.median(one.prefill[None] for one in timings)
    both = statistics.median(one.prefill[name] for one in timings)
    return PrefillRow(target_ms=1e3 * target, draft_ms=1e3 * max(0.0, both - target))
