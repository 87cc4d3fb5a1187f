"""`measure`: will this draft pay off?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distillspec.commands.costs import cost_of
from distillspec.commands.logs import check_drafts, read_log
from distillspec.commands.measure_settings import Measure, timed
from distillspec.commands.pairs import (
    answer_all,
    ascending,
    at_least,
    compiled,
    device_of,
    load_model,
    load_together,
    names_of,
    prompt_ids,
    rows_of,
)
from distillspec.commands.progress import bar
from distillspec.commands.rules import rule_of
from distillspec.commands.tables import difference, table
from distillspec.errors import UserError
from distillspec.math.forecast import Cost, headroom
from distillspec.math.rules import Rule
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.settings import as_dict
from distillspec.studies.answer import deciding, shown
from distillspec.studies.comparison import PromptName, held_against
from distillspec.studies.forecast import Prompts, forecast, needed
from distillspec.studies.logged import score_logged
from distillspec.studies.measure import Finding, Measured, Plan, measure
from distillspec.studies.outputs import TargetOutputs, score
from distillspec.studies.store import EXAMPLES, OUTPUTS, RESULT, Run, check_place
from distillspec.studies.transcripts import examples, transcripts
from distillspec.tasks import Row


def run(settings: Measure) -> dict[str, Any]:
    """Measure the draft or drafts and return what `--json` prints."""
    at_least(1, settings, "limit", "max_new_tokens", "repetitions", "batch_size")
    at_least(0, settings, "clock_prompts")
    gammas = ascending("--gamma", settings.gamma)
    for name in timed(settings) if settings.cost is not None else ():
        flag = f"--{name.replace('_', '-')}"
        raise UserError(f"{flag} and --cost: with --cost nothing is timed; leave one out")
    cost = None if settings.cost is None else cost_of(settings.cost, widest=gammas[-1] + 1)
    if not settings.draft:
        return _needed(settings, cost, gammas)
    if settings.outputs is not None:
        return _logged(settings, cost, gammas)
    return _measured(settings, cost, gammas)


def _needed(settings: Measure, cost: Cost | None, gammas: tuple[int, ...]) -> dict[str, Any]:
    """Say what a draft of a given cost would need; there is none to measure."""
    if cost is None:
        raise UserError("--draft is missing; give it, or --cost to learn what a draft would need")
    for name in ("target", "prompts", "outputs", "out"):
        if getattr(settings, name) is not None:
            raise UserError(
                f"--{name} without --draft: there is nothing to measure; give --draft, or leave "
                f"--{name} out to learn what a draft of that cost would need"
            )
    rows = needed(cost, gammas)
    most = headroom(cost, gammas)
    said = [
        f"{row['speedup']:g}× needs α ≥ {row['alpha']:.2f}"
        if row["alpha"] is not None
        else f"{row['speedup']:g}× is out of reach"
        for row in rows
    ]
    return {
        "cost": settings.cost,
        "alpha_needed": rows,
        "headroom": most,
        "verdict": f"A draft of this cost: {', '.join(said)}; at most {most:.2f}×.",
        "unmet": _unmet(settings, most, "even with a perfect draft"),
    }


def _logged(settings: Measure, cost: Cost | None, gammas: tuple[int, ...]) -> dict[str, Any]:
    """Judge drafts on a log, at a given cost."""
    for flag, value in (("--target", settings.target), ("--prompts", settings.prompts)):
        if value is not None:
            raise UserError(f"{flag} and --outputs: the log takes its place; leave one out")
    if cost is None:
        raise UserError(
            "--outputs needs --cost: a log tells no times; give "
            "target=…,draft=…,overhead=… in milliseconds of the engine that serves"
        )
    rule = _rule(settings)
    rows = rows_of(settings.outputs or "", settings.limit, skip_invalid=settings.skip_invalid)
    names = names_of("--draft", settings.draft)
    check_drafts(settings.draft)
    store = _store(settings, device_of(settings.device))
    found: dict[str, Finding] = {}
    for name, path in names.items():
        draft = load_model(path, dtype=settings.dtype, device=settings.device)
        logged = read_log(draft.tokenizer, rows, rule, raw=settings.raw)
        scores = score_logged(draft, logged, rule, batch_size=settings.batch_size)
        prompts = Prompts(tuple(map(len, logged.prompts)), tuple(row.domain for row in rows))
        found[name] = Finding(forecast(scores, prompts, rule, {1: cost}, gammas), scores)
    measured = Measured(found, {}, ())
    about = {"outputs": settings.outputs, "cost_given": settings.cost}
    return _finish(settings, store, names, rows, measured, about, prompts.lengths)


def _measured(settings: Measure, cost: Cost | None, gammas: tuple[int, ...]) -> dict[str, Any]:
    """Measure drafts beside their target."""
    if settings.target is None or settings.prompts is None:
        missing = "--target" if settings.target is None else "--prompts"
        raise UserError(f"{missing} is missing; or give --outputs, the log of a server")
    rule = _rule(settings)
    plan = Plan(
        gammas=gammas,
        max_new_tokens=settings.max_new_tokens,
        batch_size=settings.batch_size,
        clock_prompts=settings.clock_prompts,
        repetitions=settings.repetitions,
        seed=settings.seed,
        batch_sizes=ascending("--batch-sizes", (1, *settings.batch_sizes)),
        clock_gammas=_clocked(settings, gammas),
    )
    rows = rows_of(
        settings.prompts,
        settings.limit,
        skip_invalid=settings.skip_invalid,
        seed=settings.seed,
    )
    names = names_of("--draft", settings.draft)
    if settings.out is not None:
        check_place(settings.out, "measure")
    target, *loaded = load_together(
        settings.target, list(names.values()), dtype=settings.dtype, device=settings.device
    )
    if settings.compiled:
        target, *loaded = compiled(target, *loaded)
    drafts = dict(zip(names, loaded, strict=True))
    prompts = prompt_ids(target.tokenizer, rows, context=target.context, raw=settings.raw)
    store = _store(settings, str(target.device))
    answers = answer_all(target, prompts, settings, sampling=rule.sampling, what="target outputs")
    outputs = TargetOutputs.of(prompts, answers, rule.sampling)
    domains = [row.domain for row in rows]
    about: dict[str, Any] = {"target": settings.target}
    if cost is None:
        with bar("on the clock") as report:
            measured = measure(target, drafts, outputs, rule, plan, report, domains=domains)
    else:
        about["cost_given"] = settings.cost
        measured = _forecast(target, drafts, outputs, rule, cost, plan, domains)
    if store is not None:
        store.write_rows(OUTPUTS, transcripts(measured, rows, target.tokenizer))
    lengths = tuple(map(len, prompts))
    return _finish(settings, store, names, rows, measured, about, lengths)


def _forecast(
    target: TransformersModel,
    drafts: Mapping[str, TransformersModel],
    outputs: TargetOutputs,
    rule: Rule,
    cost: Cost,
    plan: Plan,
    domains: Sequence[str | None],
) -> Measured:
    """Score the drafts and forecast at a given cost; nothing runs on the clock."""
    prompts = Prompts(tuple(map(len, outputs.prompts)), tuple(domains))
    found = {}
    for name, draft in drafts.items():
        scores = score(target, draft, outputs, rule, batch_size=plan.batch_size)
        found[name] = Finding(forecast(scores, prompts, rule, {1: cost}, plan.gammas), scores)
    return Measured(found, {}, ())


def _finish(
    settings: Measure,
    store: Run | None,
    names: Mapping[str, str],
    rows: Sequence[Row],
    measured: Measured,
    about: Mapping[str, Any],
    prompt_lengths: Sequence[int],
) -> dict[str, Any]:
    """Put the drafts' measurements together, hold the others against the first, and store all."""
    first, *others = measured.findings
    leading = measured.findings[first].result
    row = deciding(leading["gammas"], leading["best_gamma"])
    gain = row.get("speedup_measured", row["speedup_forecast"])
    result: dict[str, Any] = {
        **about,
        "draft": names[first],
        **leading,
        "unmet": _unmet(settings, gain["value"], f"{shown(gain)} at γ = {row['gamma']}"),
    }
    if others:
        result["drafts"] = [
            {"draft": name, **finding.result} for name, finding in measured.findings.items()
        ]
        asked = [PromptName(id=one.id, domain=one.domain) for one in rows]
        result["comparison"] = [held_against(measured, name, first, asked) for name in others]
    if store is not None:
        store.write_rows(EXAMPLES, examples(measured, rows, prompt_lengths))
        store.write_json(RESULT, result)
    return result


def _rule(settings: Measure) -> Rule:
    return rule_of(
        settings.rule,
        Sampling(settings.temperature, settings.top_k, settings.top_p),
        draft_temperature=settings.draft_temperature,
        epsilon=None,
    )


def _store(settings: Measure, device: str) -> Run | None:
    if settings.out is None:
        return None
    return Run.create(
        settings.out,
        verb="measure",
        config=as_dict(settings),
        seed=settings.seed,
        device=device,
    )


def _unmet(settings: Measure, factor: float, found: str) -> list[str]:
    """Return the demand that is not met, if one was made."""
    if settings.min_speedup is None or factor >= settings.min_speedup:
        return []
    return [f"--min-speedup {settings.min_speedup:g} is not met: {found}"]


def _clocked(settings: Measure, gammas: tuple[int, ...]) -> tuple[int, ...] | None:
    if settings.clock_gamma is None:
        return None
    clocked = ascending("--clock-gamma", settings.clock_gamma)
    if not set(clocked) <= set(gammas):
        raise UserError(f"--clock-gamma {clocked}: each must be among --gamma {gammas}")
    return clocked


def tell(result: dict[str, Any]) -> str:
    """Show the table of γ and the verdict; of several drafts every one's, and the differences."""
    lines: list[str] = []
    for one in result.get("drafts", []):
        lines += [one["draft"], table(one), "", one["verdict"], ""]
    lines += [difference(other) for other in result.get("comparison", [])]
    if not lines:
        lines += [table(result), ""] if "gammas" in result else []
        lines.append(result["verdict"])
    return "\n".join([*lines, *result["unmet"]])
