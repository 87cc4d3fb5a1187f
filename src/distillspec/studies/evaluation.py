"""The answer of `evaluate`: its shape as JSON, its estimates, and the sentence that sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from distillspec.decoding import Output
from distillspec.studies import quality
from distillspec.studies.answer import ONE_PROMPT, shown
from distillspec.studies.breakdown import calls, kinds
from distillspec.studies.counts import block_efficiency
from distillspec.studies.estimates import Estimate, ratio
from distillspec.studies.evaluate import Evaluated, Plan
from distillspec.studies.measure import rate_ratio
from distillspec.studies.sameness import Difference, SameOutput, counted
from distillspec.tasks.metrics import Scored


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
    drafted = [pair.drafted for pair in found.pairs]
    result = Evaluation(
        prompts=len(drafted),
        tokens=_tokens(drafted),
        quality={} if judged is None else quality.figures(judged[1]),
        quality_target={} if judged is None else quality.figures(judged[0]),
        quality_difference={} if judged is None else quality.differences(judged[1], judged[0]),
        alpha=None if scores is None else ratio(scores.alpha_sums, scores.lengths),
        tau=block_efficiency(drafted),
        tau_forecast=None
        if scores is None
        else ratio(scores.lengths, calls(scores, plan.gamma)[0]),
        latency=_latency(found, plan),
        throughput=_throughput(found, plan),
        same_output=counted(found.differences) if found.must_agree else None,
        by_domain=_by_domain(found, judged, domains),
        verdict="",
        unmet=_unmet(found.differences),
    )
    result["verdict"] = verdict(result)
    return result


def _tokens(outputs: Sequence[Output]) -> int:
    return sum(len(output.ids) for output in outputs)


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
    alone = _tokens([pair.plain for pair in found.pairs]) / found.seconds[0]
    with_draft = _tokens([pair.drafted for pair in found.pairs]) / found.seconds[1]
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
    return [
        DomainRow(
            domain=domain,
            prompts=len(inside),
            quality={} if judged is None else quality.figures(quality.part(judged[1], inside)),
            tau=block_efficiency([found.pairs[i].drafted for i in inside]),
        )
        for domain, inside in kinds(domains)
    ]


def _unmet(differences: Sequence[Difference | None]) -> list[str]:
    """Return the complaint about greedy outputs that are not the target's own, if there are any."""
    wrong = [one for one in differences if one is not None and not one.near_tie]
    if not wrong:
        return []
    return [
        f"{len(wrong)} of {len(differences)} greedy outputs are not the target's own: {wrong[0]}"
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
        clocked = "" if timed is None else ", those on the clock included,"
        said += f"; {same['identical']} of {same['checked']} outputs{clocked} are the target's own"
        if same["near_ties"]:
            said += f", {same['near_ties']} differ from it at a near tie"
        if same["different"]:
            said += f", {same['different']} are not"
    return f"{said}." if result["prompts"] > 1 else f"{said}. {ONE_PROMPT}"
