"""A task with a target and a draft: quality, acceptance, latency at batch 1, throughput beyond.

The whole set is decoded twice, by the target alone and with the draft, batch by batch in
alternating order, so that a machine whose speed drifts treats both alike. Latency follows the
paper's protocol: batch 1, some random prompts, the median of repetitions (Appendix B).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch

from distillspec.decoding import Output
from distillspec.math.rules import Rule
from distillspec.models.protocol import LanguageModel
from distillspec.studies import quality, sameness
from distillspec.studies.answer import shown
from distillspec.studies.breakdown import calls
from distillspec.studies.clock import Lane, Race, Timer
from distillspec.studies.estimates import Estimate, ratio
from distillspec.studies.measure import rate_ratio
from distillspec.studies.outputs import Report, Scores, TargetOutputs, batches, score
from distillspec.studies.sameness import Difference, SameOutput
from distillspec.tasks.metrics import Scored

WARM_UP = 8
"""Tokens decoded before the first timed batch."""


@dataclass(frozen=True)
class Plan:
    """How a pair is evaluated."""

    gamma: int
    """Drafted tokens per block, at least 1."""
    max_new_tokens: int
    """Tokens per output, at most."""
    batch_size: int
    """Prompts decoded at once where the whole set is decoded."""
    clock_prompts: int
    """Random prompts on the clock at batch 1; 0 for none."""
    repetitions: int
    """Timed runs of a kind per such prompt, of which the median counts."""
    seed: int
    """Of the sampling and of the choice of prompts."""


@dataclass(frozen=True)
class Pass:
    """The whole set decoded in one way. The outputs' states are dropped."""

    outputs: tuple[Output, ...]
    """One a prompt."""
    seconds: float
    """Of all batches, prefill included."""

    @property
    def tokens_per_second(self) -> float:
        """Throughput."""
        return sum(len(output.ids) for output in self.outputs) / self.seconds


@dataclass(frozen=True)
class Evaluated:
    """What was decoded."""

    lane: Lane
    """The way with the draft."""
    plain: Pass
    """By the target alone."""
    drafted: Pass
    """With the draft."""
    scores: Scores | None
    """Of the draft on the target's own outputs; None for a rule that changes the output's law."""
    clocked: tuple[int, ...]
    """Indices of the prompts on the clock."""
    races: tuple[Race, ...]
    """Their runs; those with the draft are called by its name."""
    differences: tuple[Difference | None, ...] | None
    """What holding each greedy output against the target's own found, first of the whole set and
    then of the clocked runs; None where outputs need not be the same."""

    @property
    def name(self) -> str:
        """The draft's name."""
        return str(self.lane.draft)


def evaluate(
    target: LanguageModel,
    draft: tuple[str, LanguageModel],
    prompts: Sequence[torch.Tensor],
    ids: Sequence[str],
    rule: Rule,
    plan: Plan,
    reports: tuple[Report, Report],
) -> Evaluated:
    """Decode the whole set with and without the draft, and some prompts on the clock.

    Args:
        target: The large model.
        draft: Name and model of the small one.
        prompts: One 1-D int64 tensor each.
        ids: What the prompts are called.
        rule: That is served; a lenient one has neither α nor forecast.
        plan: How to evaluate.
        reports: Called as batches and as clocked prompts are done.
    """
    name, model = draft
    timer = Timer(
        target=target,
        drafts={name: model},
        rule=rule,
        max_new_tokens=plan.max_new_tokens,
        repetitions=plan.repetitions,
        seed=plan.seed,
    )
    lane = Lane(name, plan.gamma, rule)
    plain, drafted, scores, differences = _whole_set(
        timer, lane, prompts, ids, plan.batch_size, reports[0]
    )
    count = min(plan.clock_prompts, len(prompts))
    clocked = sorted(random.Random(plan.seed).sample(range(len(prompts)), count))
    races = timer.race([prompts[i] for i in clocked], {name: lane}, reports[1]) if clocked else []
    if differences is not None:
        differences += [
            sameness.first_difference(target, race.plain.output, race.runs[name].output, ids[i])
            for i, race in zip(clocked, races, strict=True)
        ]
    return Evaluated(
        lane=lane,
        plain=plain,
        drafted=drafted,
        scores=scores,
        clocked=tuple(clocked),
        races=tuple(races),
        differences=None if differences is None else tuple(differences),
    )


def _whole_set(
    timer: Timer,
    lane: Lane,
    prompts: Sequence[torch.Tensor],
    ids: Sequence[str],
    batch_size: int,
    report: Report,
) -> tuple[Pass, Pass, Scores | None, list[Difference | None] | None]:
    """Decode all prompts both ways; score and compare batch by batch, so that no states pile up."""
    rule, name = timer.rule, str(lane.draft)
    ways = (Lane(None, 0, rule), lane)
    grouped = list(batches([len(prompt) for prompt in prompts], batch_size))
    warm = dataclasses.replace(timer, max_new_tokens=min(WARM_UP, timer.max_new_tokens))
    for way in ways:
        warm.run([prompts[i] for i in grouped[0]], way, timer.seed)
    found: tuple[dict[int, Output], dict[int, Output]] = ({}, {})
    seconds = [0.0, 0.0]
    scored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    different: dict[int, Difference | None] = {}
    for number, rows in enumerate(grouped):
        asked = [prompts[i] for i in rows]
        runs = {}
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            runs[which] = timer.run(asked, ways[which], timer.seed + number)
            seconds[which] += runs[which].prefill + runs[which].seconds
        if rule.lossless:
            own = TargetOutputs.of(asked, runs[0].outputs, rule.sampling)
            scores = score(
                timer.target, timer.drafts[name], own, rule, batch_size=batch_size
            )
            scored.update(zip(rows, zip(scores.by_token, scores.ratios, strict=True), strict=True))
        for i, own_output, output in zip(rows, runs[0].outputs, runs[1].outputs, strict=True):
            if _must_agree(rule):
                different[i] = sameness.first_difference(
                    timer.target, own_output, output, ids[i]
                )
            found[0][i], found[1][i] = _bare(own_output), _bare(output)
        report(len(found[0]), len(prompts))
    order = range(len(prompts))
    plain, drafted = (
        Pass(tuple(of[i] for i in order), spent)
        for of, spent in zip(found, seconds, strict=True)
    )
    return (
        plain,
        drafted,
        Scores(tuple(scored[i][0] for i in order), tuple(scored[i][1] for i in order))
        if scored
        else None,
        [different[i] for i in order] if different else None,
    )


def _must_agree(rule: Rule) -> bool:
    return rule.lossless and rule.sampling.temperature == 0


def _bare(output: Output) -> Output:
    """Drop the states, which for thousands of outputs would fill the memory."""
    return dataclasses.replace(output, states=output.states[:0].clone())


class LatencyRow(TypedDict):
    """Decoding at batch 1; seconds without prefill."""

    prompts: int
    repetitions: int
    gamma: int
    seconds_per_prompt: Estimate
    seconds_per_prompt_target: Estimate
    speedup: Estimate
    speedup_end_to_end: Estimate


class ThroughputRow(TypedDict):
    """Tokens per second of the whole set in batches, prefill included."""

    batch_size: int
    tokens_per_second: float
    tokens_per_second_target: float
    ratio: float


class DomainRow(TypedDict):
    """One kind of prompt."""

    domain: str
    prompts: int
    quality: dict[str, Estimate]
    tau: Estimate


class Evaluation(TypedDict):
    """What `evaluate` answers of a pair on a task; docs/evaluate.md explains every field."""

    prompts: int
    tokens: int
    quality: dict[str, Estimate]
    quality_target: dict[str, Estimate]
    quality_difference: dict[str, Estimate]
    alpha: Estimate | None
    tau: Estimate
    tau_forecast: Estimate | None
    latency: LatencyRow | None
    throughput: ThroughputRow
    same_output: SameOutput | None
    by_domain: list[DomainRow]
    verdict: str
    unmet: list[str]


def evaluation(
    found: Evaluated,
    plan: Plan,
    judged: tuple[Scored, Scored] | None,
    domains: Sequence[str | None],
) -> Evaluation:
    """Put together what was decoded and how it was judged.

    Args:
        found: What was decoded.
        plan: How.
        judged: The outputs of the target alone, and those with the draft; None for a task without
            a metric.
        domains: What kind of prompt each is.
    """
    scores = found.scores
    same = None if found.differences is None else sameness.counted(found.differences)
    result = Evaluation(
        prompts=len(found.drafted.outputs),
        tokens=sum(len(output.ids) for output in found.drafted.outputs),
        quality={} if judged is None else quality.figures(judged[1]),
        quality_target={} if judged is None else quality.figures(judged[0]),
        quality_difference={} if judged is None else quality.differences(judged[1], judged[0]),
        alpha=None if scores is None else ratio(scores.alpha_sums, scores.lengths),
        tau=block_efficiency(found.drafted.outputs),
        tau_forecast=None
        if scores is None
        else ratio(scores.lengths, calls(scores, plan.gamma)[0]),
        latency=_latency(found, plan),
        throughput=_throughput(found, plan),
        same_output=same,
        by_domain=_by_domain(found, judged, domains),
        verdict="",
        unmet=_unmet(found.differences),
    )
    result["verdict"] = verdict(result)
    return result


def block_efficiency(outputs: Sequence[Output]) -> Estimate:
    """Estimate τ as counted: tokens over target calls."""
    counts = [output.counts for output in outputs]
    return ratio([one.tokens for one in counts], [one.target_calls for one in counts])


def _latency(found: Evaluated, plan: Plan) -> LatencyRow | None:
    if not found.races:
        return None
    pairs = [(race.plain, race.runs[found.name]) for race in found.races]
    ones = [1.0] * len(pairs)
    return LatencyRow(
        prompts=len(pairs),
        repetitions=plan.repetitions,
        gamma=plan.gamma,
        seconds_per_prompt=ratio([run.seconds for _, run in pairs], ones),
        seconds_per_prompt_target=ratio([plain.seconds for plain, _ in pairs], ones),
        speedup=rate_ratio(pairs, lambda run: run.seconds),
        speedup_end_to_end=rate_ratio(pairs, lambda run: run.prefill + run.seconds),
    )


def _throughput(found: Evaluated, plan: Plan) -> ThroughputRow:
    with_draft, alone = found.drafted.tokens_per_second, found.plain.tokens_per_second
    return ThroughputRow(
        batch_size=plan.batch_size,
        tokens_per_second=with_draft,
        tokens_per_second_target=alone,
        ratio=with_draft / alone,
    )


def _by_domain(
    found: Evaluated, judged: tuple[Scored, Scored] | None, domains: Sequence[str | None]
) -> list[DomainRow]:
    """Say quality and τ of every kind of prompt; nothing where there are not two kinds."""
    named = sorted({domain for domain in domains if domain is not None})
    rows = []
    for domain in named if len(named) > 1 else []:
        inside = [i for i, one in enumerate(domains) if one == domain]
        rows.append(
            DomainRow(
                domain=domain,
                prompts=len(inside),
                quality={}
                if judged is None
                else quality.figures(quality.part(judged[1], inside)),
                tau=block_efficiency([found.drafted.outputs[i] for i in inside]),
            )
        )
    return rows


def _unmet(differences: Sequence[Difference | None] | None) -> list[str]:
    """Return the complaint about greedy outputs that are not the target's own, if there are any."""
    wrong = [one for one in differences or () if one is not None and not one.near_tie]
    if not wrong:
        return []
    return [
        f"{len(wrong)} of {len(differences or ())} greedy outputs are not the target's own: "
        f"{wrong[0]}"
    ]


def verdict(result: Evaluation) -> str:
    """Sum an evaluation up in one sentence."""
    timed, flow = result["latency"], result["throughput"]
    parts = []
    if timed is not None:
        parts.append(f"{shown(timed['speedup'])} at batch 1 with γ = {timed['gamma']}")
    parts.append(f"{flow['ratio']:.2f}× at batch {flow['batch_size']}")
    said = f"With the draft {', '.join(parts)}"
    for name, value in list(result["quality"].items())[:1]:
        alone, gain = result["quality_target"][name], result["quality_difference"][name]
        said += (
            f"; {name} {value['value']:.1f} against {alone['value']:.1f} of the target alone, "
            f"difference {gain['value']:+.1f} [{gain['low']:+.1f}, {gain['high']:+.1f}]"
        )
    same = result["same_output"]
    if same is not None:
        said += f"; {same['identical']} of {same['checked']} outputs are the target's own"
        if same["near_ties"]:
            said += f", {same['near_ties']} differ from it at a near tie"
        if same["different"]:
            said += f", {same['different']} are not"
    return said + "."
