"""`garden`: several models and pairs on one task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from distillspec.commands.benchmarks import (
    Asked,
    Benchmark,
    ask,
    clocked_rows,
    judge,
    judged_benchmark,
)
from distillspec.commands.pairs import at_least, device_of, load_model
from distillspec.commands.progress import bar
from distillspec.commands.rules import rule_of
from distillspec.commands.study_settings import Garden
from distillspec.commands.tables import interval
from distillspec.decoding import Output
from distillspec.errors import UserError
from distillspec.math.rules import Rule
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.loading import check_kinds
from distillspec.models.vocabulary import check_same
from distillspec.settings import as_dict
from distillspec.studies import garden as study
from distillspec.studies.clock import Lane, Run, Timer
from distillspec.studies.store import OUTPUTS, RESULT
from distillspec.studies.store import Run as Store
from distillspec.tasks import Row
from distillspec.tasks.metrics import Metric, Scored


class _Pair(NamedTuple):
    target: str
    draft: str | None


def run(settings: Garden) -> dict[str, Any]:
    """Race every way on every prompt, store every output, and return what `--json` prints."""
    at_least(1, settings, "gamma", "repetitions", "limit")
    pairs = _pairs(settings.ways)
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    rule = rule_of("ratio", sampling, draft_temperature=None, epsilon=None)
    bench, metric = judged_benchmark(settings)
    models = _models(pairs, settings)
    asked = {path: ask(bench, models[path]) for path in {pair.target for pair in pairs.values()}}
    store = Store.create(
        settings.out,
        verb="garden",
        config=as_dict(settings),
        seed=settings.seed,
        device=device_of(settings.device),
    )
    ways = _ways(pairs, models, asked, rule, bench, settings)
    races = []
    with bar(f"{len(ways)} ways on the clock") as report:
        for i, race in enumerate(study.race(ways, settings.repetitions, report)):
            races.append(race)
            # As they come, so that an interrupt keeps them; at the end way by way
            of_prompt = {path: one.rows[i : i + 1] for path, one in asked.items()}
            for row in _rows([race], ways, pairs, models, of_prompt, metric):
                store.append(OUTPUTS, row)
    rows = {path: one.rows for path, one in asked.items()}
    store.write_rows(OUTPUTS, _rows(races, ways, pairs, models, rows, metric))

    def judged(name: str, outputs: Sequence[Output]) -> Scored:
        path = pairs[name].target
        return judge(metric, rows[path], outputs, models[path].tokenizer)

    result = {
        "task": settings.task,
        "temperature": settings.temperature,
        "max_new_tokens": bench.max_new_tokens,
        **study.garden(
            races,
            {name: (*pair, ways[name].lane.gamma) for name, pair in pairs.items()},
            judged,
            metric.figures[0],
            _budgets(settings),
        ),
    }
    store.write_json(RESULT, result)
    return result


def _pairs(ways: Sequence[str]) -> dict[str, _Pair]:
    """Read `NAME=MODEL` and `NAME=MODEL+DRAFT`; without a name it is called by its models.

    Raises:
        UserError: one is neither, or a name is given twice.
    """
    found: dict[str, _Pair] = {}
    for way in ways:
        name, equals, paths = way.partition("=")
        target, plus, draft = (paths if equals else way).partition("+")
        if not name or not target or (plus and not draft):
            raise UserError(f"--ways {way}: expected NAME=MODEL or NAME=MODEL+DRAFT")
        if name in found:
            raise UserError(f"--ways {way}: the name {name} is given twice")
        found[name] = _Pair(target, draft or None)
    return found


def _models(pairs: Mapping[str, _Pair], settings: Garden) -> dict[str, TransformersModel]:
    """Load every model once, and check that every draft is of its target's kind and tokens."""
    paths = dict.fromkeys(path for pair in pairs.values() for path in pair if path is not None)
    models = {
        path: load_model(path, dtype=settings.dtype, device=settings.device) for path in paths
    }
    for pair in pairs.values():
        if pair.draft is not None:
            target, draft = models[pair.target], models[pair.draft]
            names = (target.name, draft.name)
            check_same(target.vocabulary, draft.vocabulary, names=names)
            kinds = [model.tokenizer.encoder_decoder for model in (target, draft)]
            check_kinds(kinds[0], kinds[1], names=names)
    return models


def _ways(
    pairs: Mapping[str, _Pair],
    models: Mapping[str, TransformersModel],
    asked: Mapping[str, Asked],
    rule: Rule,
    bench: Benchmark,
    settings: Garden,
) -> dict[str, study.Way]:
    found = {}
    for name, pair in pairs.items():
        timer = Timer(
            target=models[pair.target],
            drafts={} if pair.draft is None else {name: models[pair.draft]},
            rule=rule,
            max_new_tokens=bench.max_new_tokens,
            repetitions=settings.repetitions,
            seed=settings.seed,
        )
        drafted = pair.draft is not None
        lane = Lane(name if drafted else None, settings.gamma if drafted else 0, rule)
        found[name] = study.Way(timer, lane, asked[pair.target].prompts)
    return found


def _budgets(settings: Garden) -> list[tuple[float | None, float | None]]:
    latency, quality = settings.max_latency, settings.min_quality
    return ([] if latency is None else [(latency, None)]) + (
        [] if quality is None else [(None, quality)]
    )


def _rows(
    races: Sequence[Mapping[str, Run]],
    ways: Mapping[str, study.Way],
    pairs: Mapping[str, _Pair],
    models: Mapping[str, TransformersModel],
    rows: Mapping[str, Sequence[Row]],
    metric: Metric,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of outputs.jsonl, way by way."""
    for name, pair in pairs.items():
        lane = ways[name].lane if pair.draft is not None else None
        runs = [race[name] for race in races]
        tokenizer = models[pair.target].tokenizer
        yield from clocked_rows(metric, name, lane, rows[pair.target], runs, tokenizer)


def tell(result: dict[str, Any]) -> str:
    """Show a line per way, the fastest first, and the verdict."""
    metric = result["metric"]
    lines = [
        f"{result['task']}: {result['prompts']} prompts, T = {result['temperature']:g}, speed-ups "
        f"over {result['reference']}",
        f"{'way':<24} {metric:<20} {'seconds a prompt':<24} {'speed-up':<22} τ",
    ]
    for one in sorted(result["points"], key=lambda point: point["latency"]["value"]):
        tau = "" if one["tau"] is None else f"{one['tau']['value']:.2f}"
        beaten = f"beaten by {one['dominated_by']}" if one["dominated_by"] else ""
        cells = (
            f"{one['way']:<24} {interval(one['quality'], 1):<20}",
            f"{interval(one['latency'], 4):<24} {interval(one['speedup'], 2):<22}",
            f"{tau:<6} {'front' if one['front'] else beaten}",
        )
        lines.append(" ".join(cells).rstrip())
    return "\n".join([*lines, "", result["verdict"]])
