"""`transfer`: drafts on several tasks and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distillspec.commands.benchmarks import (
    Asked,
    Benchmark,
    ask,
    benchmark,
    check_tokens,
)
from distillspec.commands.pairs import ascending, at_least, device_of, load_together, names_of
from distillspec.commands.progress import bar
from distillspec.commands.rules import rule_of
from distillspec.commands.tables import difference, interval
from distillspec.commands.task_settings import OnTask, Transfer
from distillspec.errors import UserError
from distillspec.math.rules import Rule
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.settings import as_dict
from distillspec.studies import transfer as study
from distillspec.studies.answer import at_gamma
from distillspec.studies.comparison import PromptName
from distillspec.studies.measure import Measured, Plan, measure
from distillspec.studies.outputs import TargetOutputs, complete_all, seeded
from distillspec.studies.store import EXAMPLES, OUTPUTS, RESULT, Run
from distillspec.studies.transcripts import examples, transcripts


def run(settings: Transfer) -> dict[str, Any]:
    """Measure all drafts on every target and task, and return what `--json` prints."""
    at_least(1, settings, "limit", "repetitions", "batch_size")
    at_least(0, settings, "clock_prompts")
    gammas = ascending("--gamma", settings.gamma)
    rule = rule_of(
        settings.rule,
        Sampling(settings.temperature, settings.top_k, settings.top_p),
        draft_temperature=settings.draft_temperature,
        epsilon=None,
    )
    targets = names_of("--target", settings.target)
    drafts = names_of("--draft", settings.draft)
    benches = _benchmarks(settings)
    device = device_of(settings.device)
    check_tokens(settings.target, settings.draft)
    store = Run.create(
        settings.out,
        verb="transfer",
        config=as_dict(settings),
        seed=settings.seed,
        device=device,
    )
    cells = []
    for target_name, path in targets.items():
        target, *loaded = load_together(
            path, settings.draft, dtype=settings.dtype, device=settings.device
        )
        models = dict(zip(drafts, loaded, strict=True))
        for task, bench in benches.items():
            asked = ask(bench, target)
            label = f"{target_name}, {task}"
            measured = _measured(settings, rule, gammas, bench, asked, target, models, label)
            place = {"target": target_name, "task": task}
            for row in transcripts(measured, asked.rows, target.tokenizer):
                store.append(OUTPUTS, {**row, **place})
            for row in examples(measured, asked.rows, [len(prompt) for prompt in asked.prompts]):
                store.append(EXAMPLES, {**row, **place})
            prompts = [PromptName(id=row.id, domain=row.domain) for row in asked.rows]
            cells.append(study.cell(target_name, task, measured, prompts))
    result = {
        "drafts": list(drafts),
        "temperature": settings.temperature,
        "cells": cells,
        "verdict": study.verdict(list(drafts), cells),
    }
    store.write_json(RESULT, result)
    return result


def _benchmarks(settings: Transfer) -> dict[str, Benchmark]:
    """Read every task, by its name.

    Raises:
        UserError: a task is given twice, or cannot be read.
    """
    found: dict[str, Benchmark] = {}
    for item in settings.tasks:
        name, _, file = item.partition("=")
        if name in found:
            raise UserError(f"--tasks {item}: the task {name} is given twice")
        found[name] = benchmark(
            OnTask(
                task=name,
                data=Path(file) if file else None,
                limit=settings.limit,
                max_new_tokens=settings.max_new_tokens,
                seed=settings.seed,
            )
        )
    return found


def _measured(
    settings: Transfer,
    rule: Rule,
    gammas: tuple[int, ...],
    bench: Benchmark,
    asked: Asked,
    target: TransformersModel,
    drafts: dict[str, TransformersModel],
    label: str,
) -> Measured:
    """Let one target answer one task, and measure all drafts on the answers."""
    with bar(f"{label}: target outputs") as report:
        answers = complete_all(
            target,
            asked.prompts,
            sampling=rule.sampling,
            max_new_tokens=bench.max_new_tokens,
            batch_size=settings.batch_size,
            generators=seeded(settings.seed, len(asked.prompts)),
            report=report,
        )
    plan = Plan(
        gammas=gammas,
        max_new_tokens=bench.max_new_tokens,
        batch_size=settings.batch_size,
        clock_prompts=settings.clock_prompts,
        repetitions=settings.repetitions,
        seed=settings.seed,
    )
    outputs = TargetOutputs.of(asked.prompts, answers, rule.sampling)
    domains = [row.domain for row in asked.rows]
    with bar(f"{label}: on the clock") as report:
        return measure(target, drafts, outputs, rule, plan, report, domains=domains)


def tell(result: dict[str, Any]) -> str:
    """Show a line per target, task and draft, the differences, and the verdict."""
    lines = [
        f"{'target':<18} {'task':<26} {'draft':<14} {'α':<20} {'γ':>2}  {'τ forecast':<20} speed-up"
    ]
    for cell in result["cells"]:
        for one in cell["measurements"]:
            best = at_gamma(one["gammas"], one["best_gamma"])
            gain = best.get("speedup_measured", best["speedup_forecast"])
            how = "measured" if "speedup_measured" in best else "forecast"
            lines.append(
                f"{cell['target']:<18} {cell['task']:<26} {one['draft']:<14} "
                f"{interval(one['alpha']):<20} {best['gamma']:>2}  "
                f"{interval(best['tau_forecast']):<20} {interval(gain)} {how}"
            )
    for cell in result["cells"]:
        lines += [
            f"{cell['target']}, {cell['task']}: {difference(one)}" for one in cell["comparison"]
        ]
    return "\n".join([*lines, "", result["verdict"]])
