"""`tradeoff`: lenient rules, their ε and several drafts, quality against latency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distillspec.commands.benchmarks import (
    ask,
    check_tokens,
    clocked_rows,
    judge,
    judged_benchmark,
)
from distillspec.commands.pairs import at_least, device_of, load_together, names_of
from distillspec.commands.progress import bar
from distillspec.commands.rules import rule_of
from distillspec.commands.tables import interval
from distillspec.commands.task_settings import Tradeoff
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.text import Tokenizer
from distillspec.settings import as_dict
from distillspec.studies import tradeoff as study
from distillspec.studies.clock import Lane, Race, Timer
from distillspec.studies.store import OUTPUTS, RESULT, Run
from distillspec.studies.transcripts import ALONE
from distillspec.tasks import Row
from distillspec.tasks.metrics import Metric


def run(settings: Tradeoff) -> dict[str, Any]:
    """Race every setting on every prompt, store every output, and return what `--json` prints."""
    at_least(1, settings, "gamma", "repetitions", "limit")
    at_least(0, settings, "max_loss")
    drafts = names_of("--draft", settings.draft)
    chosen = _settings(settings, list(drafts))
    bench, metric = judged_benchmark(settings)
    device = device_of(settings.device)
    check_tokens([settings.target], settings.draft)
    store = Run.create(
        settings.out,
        verb="tradeoff",
        config=as_dict(settings),
        seed=settings.seed,
        device=device,
    )
    target, *models = load_together(
        settings.target, settings.draft, dtype=settings.dtype, device=settings.device
    )
    asked = ask(bench, target)
    timer = Timer(
        target=target,
        drafts=dict(zip(drafts, models, strict=True)),
        rule=chosen[0].rule,
        max_new_tokens=bench.max_new_tokens,
        repetitions=settings.repetitions,
        seed=settings.seed,
    )
    lanes = study.lanes(chosen, settings.gamma)
    with bar(f"{len(lanes)} settings on the clock") as report:
        races = []
        for row, race in zip(asked.rows, timer.race(asked.prompts, lanes, report), strict=True):
            races.append(race.bare())
            # As they come, so that an interrupt keeps them; at the end setting by setting
            for one in _rows(races[-1:], lanes, [row], metric, target.tokenizer):
                store.append(OUTPUTS, one)
    store.write_rows(OUTPUTS, _rows(races, lanes, asked.rows, metric, target.tokenizer))
    found = study.tradeoff(
        races,
        chosen,
        lambda outputs: judge(metric, asked.rows, outputs, target.tokenizer),
        metric.figures[0],
        settings.max_loss,
    )
    result = {
        "task": settings.task,
        "target": settings.target,
        "gamma": settings.gamma,
        "temperature": settings.temperature,
        "dtype": str(target.dtype).removeprefix("torch."),
        "max_new_tokens": bench.max_new_tokens,
        "truncated": asked.truncated,
        **found,
    }
    store.write_json(RESULT, result)
    return result


def _settings(settings: Tradeoff, drafts: Sequence[str]) -> list[study.Setting]:
    """List the lossless rule and every lenience with every ε, for each draft.

    Raises:
        UserError: an ε is out of range.
    """
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    if not settings.leniences or not settings.epsilons:
        raise UserError("--leniences and --epsilons: expected at least one of each")
    found = []
    for draft in drafts:
        rule = rule_of("ratio", sampling, draft_temperature=None, epsilon=None)
        found.append(study.Setting(draft, study.LOSSLESS, None, rule))
        for lenience in dict.fromkeys(settings.leniences):
            for epsilon in dict.fromkeys(settings.epsilons):
                rule = rule_of(lenience, sampling, draft_temperature=None, epsilon=epsilon)
                found.append(study.Setting(draft, lenience, epsilon, rule))
    return found


def _rows(
    races: Sequence[Race],
    lanes: Mapping[str, Lane],
    rows: Sequence[Row],
    metric: Metric,
    tokenizer: Tokenizer,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of outputs.jsonl, setting by setting."""
    for name in (None, *lanes):
        runs = [race.plain if name is None else race.runs[name] for race in races]
        lane = None if name is None else lanes[name]
        yield from clocked_rows(metric, name or ALONE, lane, rows, runs, tokenizer)


def tell(result: dict[str, Any]) -> str:
    """Show a line per setting, and the verdict."""
    metric, baseline = result["metric"], result["baseline"]
    width = max(8, len(metric))
    lines = [
        f"{result['task']}: {result['prompts']} prompts ({result['truncated']} truncated), "
        f"γ = {result['gamma']}, T = {result['temperature']:g}; target alone: {metric} "
        f"{baseline['quality']['value']:.1f}, "
        f"{baseline['seconds_per_prompt']['value']:.2f} s a prompt",
        f"{'setting':<36} {metric:<{width}} {'difference':<20} {'time':<20} "
        f"{'a token':>7} {'τ':>6}",
    ]
    for index, one in enumerate(result["points"]):
        epsilon = "" if one["epsilon"] is None else f" {one['epsilon']:g}"
        cells = [
            f"{one['draft']} · {one['lenience']}{epsilon}".ljust(36),
            f"{one['quality']['value']:<{width}.1f}",
            interval(one["quality_difference"], 1, "+").ljust(20),
            interval(one["relative_latency"]).ljust(20),
            f"{one['relative_latency_per_token']['value']:7.2f}",
            f"{one['tau']['value']:6.2f}",
            "← picked" if index == result["pick"]["point"] else "",
        ]
        lines.append(" ".join(cells).rstrip())
    return "\n".join([*lines, "", result["verdict"]])
