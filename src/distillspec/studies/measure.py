"""Will this draft pay off? Acceptance, the exact forecast, the cost, the clock, one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from distillspec.math.forecast import (
    Cost,
    best_gamma,
    block_efficiency_iid,
    break_even_alpha,
    expected_calls,
    headroom,
    speedup,
)
from distillspec.math.sampling import Sampling
from distillspec.models.protocol import LanguageModel
from distillspec.studies.answer import CostRow, GammaRow, Measurement, Overview, Ran, verdict
from distillspec.studies.clock import Run, Timer, fit_cost
from distillspec.studies.estimates import Estimate, estimate, ratio, ratio_difference
from distillspec.studies.outputs import Report, Scores, TargetOutputs, score

TABLE_PROMPTS = 3
"""Prompts on which passes of every width are timed; more change the medians little."""


@dataclass(frozen=True)
class Plan:
    """How a pair is measured."""

    gammas: tuple[int, ...]
    """The γ to forecast, each ≥ 1; the best is chosen among them."""
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
    draft_sampling: Sampling | None = None
    """The draft's settings in serving; None for the target's."""

    def for_draft(self, sampling: Sampling) -> Sampling:
        """Return the draft's settings beside a target served at `sampling`."""
        return sampling if self.draft_sampling is None else self.draft_sampling


@dataclass(frozen=True)
class Finding:
    """A measurement with the scores of every prompt that it was made from."""

    result: Measurement
    """Estimates, ready for JSON."""
    scores: Scores
    """One entry a prompt; comparisons between drafts are paired by them."""


def measure(
    target: LanguageModel,
    drafts: Mapping[str, LanguageModel],
    outputs: TargetOutputs,
    plan: Plan,
    report: Report,
) -> dict[str, Finding]:
    """Measure each draft on the same target outputs and race them against the target alone.

    Args:
        target: The large model.
        drafts: One or more small ones by name; they are timed in turn in one run.
        outputs: The target's answers to held-out prompts, at the sampler that is served.
        plan: How to measure.
        report: Called after each clocked prompt.

    Returns:
        One finding per draft.
    """
    timer = Timer(
        target=target,
        drafts=drafts,
        sampling=outputs.sampling,
        draft_sampling=plan.for_draft(outputs.sampling),
        max_new_tokens=plan.max_new_tokens,
        repetitions=plan.repetitions,
        seed=plan.seed,
    )
    scores = {
        name: score(
            target,
            draft,
            outputs,
            draft_sampling=plan.for_draft(outputs.sampling),
            batch_size=plan.batch_size,
        )
        for name, draft in drafts.items()
    }
    widths = range(1, max(plan.gammas) + 2)
    table = [timer.passes(prompt, widths) for prompt in outputs.prompts[:TABLE_PROMPTS]]
    chosen = {
        name: best_gamma(_taus(scores[name], plan.gammas), fit_cost(table, [], name, 0))
        for name in drafts
    }
    races = (
        timer.race(outputs.prompts[: plan.clock_prompts], chosen, report)
        if plan.clock_prompts
        else []
    )
    found = {}
    for name, draft in drafts.items():
        cost = fit_cost(table, races, name, chosen[name])
        gamma, pairs = chosen[name], [(race.plain, race.runs[name]) for race in races]
        ran = {gamma: _ran(target, draft, pairs, outputs, gamma, plan)} if pairs else {}
        found[name] = Finding(_measurement(scores[name], outputs, plan, cost, ran), scores[name])
    return found


class Comparison(TypedDict):
    """One draft against another on the same target outputs, first minus second."""

    alpha_difference: Estimate
    tau_difference: Estimate
    gamma: int


def compare(first: Scores, second: Scores, gamma: int) -> Comparison:
    """Estimate the paired differences in α and in τ at γ of two drafts."""
    lengths = (first.lengths, second.lengths)
    return Comparison(
        alpha_difference=ratio_difference((first.acceptance, second.acceptance), lengths),
        tau_difference=ratio_difference(lengths, (calls(first, gamma)[0], calls(second, gamma)[0])),
        gamma=gamma,
    )


def rule(sampling: Sampling, draft_sampling: Sampling) -> str:
    """Name the lossless rule that a pair of settings amounts to."""
    if draft_sampling.temperature > 0:
        return "ratio"
    return "argmax draft" if sampling.temperature > 0 else "greedy"


def calls(scores: Scores, gamma: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return [prompts] expected target calls and their variances at γ, by the exact recursion."""
    found = [expected_calls(ratios, gamma) for ratios in scores.ratios]
    return np.array([one.mean for one in found]), np.array([one.variance for one in found])


def _taus(scores: Scores, gammas: Sequence[int]) -> dict[int, float]:
    total = float(scores.lengths.sum())
    return {gamma: total / float(calls(scores, gamma)[0].sum()) for gamma in gammas}


def _ran(
    target: LanguageModel,
    draft: LanguageModel,
    pairs: Sequence[tuple[Run, Run]],
    outputs: TargetOutputs,
    gamma: int,
    plan: Plan,
) -> Ran:
    """Say what the clocked runs of one draft brought, and hold them against their own forecast.

    Args:
        target: The large model.
        draft: The small one.
        pairs: (plain, speculative) run of each of the first prompts of `outputs`.
        outputs: Where the prompts and the sampling settings come from.
        gamma: The γ of the speculative runs.
        plan: How to measure.
    """
    runs = [run for _, run in pairs]
    counted = np.array([run.output.counts.target_calls for run in runs], dtype=np.float64)
    own = TargetOutputs.of(
        outputs.prompts[: len(runs)], [run.output for run in runs], outputs.sampling
    )
    scores = score(
        target,
        draft,
        own,
        draft_sampling=plan.for_draft(outputs.sampling),
        batch_size=plan.batch_size,
    )
    mean, variance = calls(scores, gamma)
    return Ran(
        tau_counted=ratio(own.lengths, counted),
        speedup_measured=_rate_ratio(pairs, lambda run: run.seconds),
        speedup_spread=_spread(pairs),
        speedup_end_to_end=_rate_ratio(pairs, lambda run: run.prefill + run.seconds),
        forecast_z=_z(counted - mean, variance),
        forecast_exact=bool(np.abs(counted - mean).max() < 1e-6),
    )


def _z(difference: NDArray[np.float64], variance: NDArray[np.float64]) -> float | None:
    """Return Σ difference / √Σ variance; 0 or None (no law to hold it against) without variance."""
    if variance.sum() > 0:
        return float(difference.sum() / np.sqrt(variance.sum()))
    return 0.0 if not difference.any() else None


def _rate_ratio(pairs: Sequence[tuple[Run, Run]], seconds: Callable[[Run], float]) -> Estimate:
    """Estimate tokens per second with the draft over tokens per second without it."""
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


def _measurement(
    scores: Scores, outputs: TargetOutputs, plan: Plan, cost: Cost, ran: Mapping[int, Ran]
) -> Measurement:
    """Put the scores, the cost and the runs of one draft together."""
    alpha = ratio(scores.acceptance, scores.lengths)
    expected = {gamma: calls(scores, gamma)[0] for gamma in plan.gammas}
    rows = [
        _gamma_row(gamma, alpha["value"], scores, expected[gamma], cost, ran.get(gamma))
        for gamma in plan.gammas
    ]
    best = best_gamma({row["gamma"]: row["tau_forecast"]["value"] for row in rows}, cost)
    break_even = break_even_alpha(cost, plan.gammas)
    return Measurement(
        alpha=alpha,
        rule=rule(outputs.sampling, plan.for_draft(outputs.sampling)),
        temperature=outputs.sampling.temperature,
        prompts=len(scores.lengths),
        tokens=int(scores.lengths.sum()),
        gammas=rows,
        cost=CostRow(
            target_ms=1e3 * cost.target[0],
            draft_ms=1e3 * cost.draft,
            overhead_ms=1e3 * cost.overhead,
            overhead_plain_ms=1e3 * (cost.block(0) - cost.target[0]),
            c=cost.c,
            target_ms_by_tokens=[1e3 * seconds for seconds in cost.target],
        ),
        best_gamma=best,
        break_even_alpha=break_even,
        headroom=headroom(cost, plan.gammas),
        verdict=verdict(
            rows,
            best,
            alpha["value"],
            break_even,
            prompts=min(plan.clock_prompts, len(scores.lengths)) if ran else len(scores.lengths),
        ),
    )


def _gamma_row(
    gamma: int,
    alpha: float,
    scores: Scores,
    expected: NDArray[np.float64],
    cost: Cost,
    ran: Ran | None,
) -> GammaRow:
    columns = np.stack([scores.lengths, expected], axis=1)
    factor = speedup(1.0, gamma, cost)
    forecast = Overview(
        gamma=gamma,
        tau_forecast=ratio(scores.lengths, expected),
        tau_iid=block_efficiency_iid(alpha, gamma),
        speedup_forecast=estimate(lambda s: factor * s[:, 0] / s[:, 1], columns),
    )
    return GammaRow(**forecast, **(ran or Ran()))
