"""`evaluate`: a task with a target and a draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from distillspec.commands.benchmarks import (
    Asked,
    Benchmark,
    ask,
    benchmark,
    check_tokens,
    clocked_rows,
    judge,
    judged_rows,
)
from distillspec.commands.pairs import at_least, device_of, load_both, names_of
from distillspec.commands.progress import bar
from distillspec.commands.rules import rule_of
from distillspec.commands.tables import interval
from distillspec.commands.task_settings import Evaluate
from distillspec.decoding import Output
from distillspec.math.rules import Rule
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.text import Tokenizer
from distillspec.settings import as_dict
from distillspec.studies.clock import Lane, Race
from distillspec.studies.evaluate import Evaluated, Pair, Plan, evaluate
from distillspec.studies.evaluation import evaluation
from distillspec.studies.store import OUTPUTS, RESULT, Run
from distillspec.studies.transcripts import ALONE
from distillspec.tasks.metrics import Metric, Scored

CLOCKED = ", on the clock"
"""What is added to the name of a setting whose outputs come from the clocked runs."""


def run(settings: Evaluate) -> dict[str, Any]:
    """Evaluate the pair, store every output, and return what `--json` prints."""
    at_least(1, settings, "gamma", "repetitions", "batch_size")
    at_least(0, settings, "clock_prompts", "shots")
    rule, bench = _asked_for(settings)
    (name,) = names_of("--draft", [settings.draft])
    device = device_of(settings.device)
    check_tokens([settings.target], [settings.draft])
    store = Run.create(
        settings.out,
        verb="evaluate",
        config=as_dict(settings),
        seed=settings.seed,
        device=device,
    )
    target, draft = load_both(
        settings.target, settings.draft, dtype=settings.dtype, device=settings.device
    )
    asked = ask(bench, target)
    plan = Plan(
        gamma=settings.gamma,
        max_new_tokens=bench.max_new_tokens,
        batch_size=settings.batch_size,
        clock_prompts=settings.clock_prompts,
        repetitions=settings.repetitions,
        seed=settings.seed,
    )
    outputs = _Outputs(store, asked, bench.metric, target.tokenizer)
    with bar(f"{settings.task}, with and without the draft") as report:
        found = evaluate(
            target,
            (name, draft),
            asked.prompts,
            [row.id for row in asked.rows],
            rule,
            plan,
            report,
            outputs,
        )
    outputs.finish(found)
    domains = [row.domain for row in asked.rows]
    result = {
        **_about(settings, rule, plan, asked, target),
        **evaluation(found, plan, outputs.judged(found), domains),
    }
    store.write_json(RESULT, result)
    return result


def _asked_for(settings: Evaluate) -> tuple[Rule, Benchmark]:
    """Read what the flags ask for, before any model is."""
    rule = rule_of(
        settings.rule,
        Sampling(settings.temperature, settings.top_k, settings.top_p),
        draft_temperature=settings.draft_temperature,
        epsilon=settings.epsilon,
    )
    bench = benchmark(settings, shots=settings.shots, shots_data=settings.shots_data)
    return rule, bench


def _about(
    settings: Evaluate, rule: Rule, plan: Plan, asked: Asked, target: TransformersModel
) -> dict[str, Any]:
    """Say what was evaluated and how."""
    return {
        "task": settings.task,
        "target": settings.target,
        "draft": settings.draft,
        "rule": rule.name,
        "suits": rule.suits,
        "gamma": settings.gamma,
        "temperature": settings.temperature,
        "dtype": str(target.dtype).removeprefix("torch."),
        "max_new_tokens": plan.max_new_tokens,
        "shots": settings.shots,
        "truncated": asked.truncated,
    }


@dataclass(frozen=True)
class _Outputs:
    """What becomes of the outputs: rows of outputs.jsonl, and scores. A `Keeper`."""

    store: Run
    """Where rows go."""
    asked: Asked
    """The prompts."""
    metric: Metric | None
    """How outputs are judged, if they are."""
    tokenizer: Tokenizer
    """The target's."""

    def pairs(self, lane: Lane, rows: Sequence[int], pairs: Sequence[Pair]) -> None:
        """Append the rows of one batch."""
        self._append(self._whole(lane, rows, pairs))

    def race(self, lane: Lane, row: int, race: Race) -> None:
        """Append the rows of one prompt on the clock."""
        self._append(self._clocked(lane, [row], [race]))

    def finish(self, found: Evaluated) -> None:
        """Put all rows in order: the whole set both ways, then the clocked runs both ways."""
        whole = self._whole(found.lane, range(len(found.pairs)), found.pairs)
        clocked = self._clocked(found.lane, found.clocked, found.races)
        self.store.write_rows(OUTPUTS, chain(whole, clocked if found.races else ()))

    def judged(self, found: Evaluated) -> tuple[Scored, Scored] | None:
        """Score the outputs of the target alone and those with the draft."""
        if self.metric is None:
            return None
        plain, drafted = _both(found.pairs)
        return (
            judge(self.metric, self.asked.rows, plain, self.tokenizer),
            judge(self.metric, self.asked.rows, drafted, self.tokenizer),
        )

    def _append(self, rows: Iterator[dict[str, Any]]) -> None:
        for row in rows:
            self.store.append(OUTPUTS, row)

    def _whole(
        self, lane: Lane, indices: Sequence[int], pairs: Sequence[Pair]
    ) -> Iterator[dict[str, Any]]:
        rows = [self.asked.rows[i] for i in indices]
        for (name, way), outputs in zip(_ways(lane), _both(pairs), strict=True):
            yield from judged_rows(self.metric, name, way, rows, outputs, self.tokenizer)

    def _clocked(
        self, lane: Lane, indices: Sequence[int], races: Sequence[Race]
    ) -> Iterator[dict[str, Any]]:
        rows = [self.asked.rows[i] for i in indices]
        for name, way in _ways(lane):
            runs = [race.plain if way is None else race.runs[str(way.draft)] for race in races]
            yield from clocked_rows(
                self.metric, f"{name}{CLOCKED}", way, rows, runs, self.tokenizer
            )


def _ways(lane: Lane) -> tuple[tuple[str, Lane | None], tuple[str, Lane | None]]:
    """Name the target alone, and it with the draft."""
    return (ALONE, None), (f"{lane.draft} · γ {lane.gamma}", lane)


def _both(pairs: Sequence[Pair]) -> tuple[list[Output], list[Output]]:
    return [pair.plain for pair in pairs], [pair.drafted for pair in pairs]


def tell(result: dict[str, Any]) -> str:
    """Show the figures with and without the draft, and the verdict."""
    lines = [
        f"{result['task']}: {result['prompts']} prompts ({result['truncated']} truncated), "
        f"{result['tokens']} tokens, rule: {result['rule']}, γ = {result['gamma']}, "
        f"T = {result['temperature']:g}, {result['dtype']}",
        f"{'':<26} {'target alone':<24} {'with the draft':<24} difference",
    ]
    for name, value in result["quality"].items():
        alone, gain = result["quality_target"][name], result["quality_difference"][name]
        lines.append(
            _line(name, interval(alone, 1), interval(value, 1), interval(gain, 1, sign="+"))
        )
    timed, flow = result["latency"], result["throughput"]
    if timed is not None:
        lines.append(
            _line(
                "seconds a prompt",
                interval(timed["seconds_per_prompt_target"], 2),
                interval(timed["seconds_per_prompt"], 2),
                f"speed-up {interval(timed['speedup'], 2)}",
            )
        )
    lines.append(
        _line(
            f"tokens a second, batch {flow['batch_size']}",
            f"{flow['tokens_per_second_target']:.1f}",
            f"{flow['tokens_per_second']:.1f}",
            f"{flow['ratio']:.2f}×",
        )
    )
    tau = f"τ {interval(result['tau'], 2)} counted"
    if result["alpha"] is not None:
        tau = (
            f"α {interval(result['alpha'], 3)} expected, {tau}, "
            f"{interval(result['tau_forecast'], 2)} forecast on the target's own outputs"
        )
    for one in result["by_domain"]:
        figures = [f"{name} {interval(value, 1)}" for name, value in one["quality"].items()]
        lines.append(", ".join([f"{one['domain']} ({one['prompts']} prompts)", *figures]))
    return "\n".join([*lines, tau, "", result["verdict"], *result["unmet"]])


def _line(name: str, alone: str, drafted: str, between: str) -> str:
    return f"{name:<26} {alone:<24} {drafted:<24} {between}".rstrip()
