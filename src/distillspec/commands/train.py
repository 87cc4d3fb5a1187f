"""`sft` and `distill`: one run directory, checkpoints, and the trained draft in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from distillspec.commands.cached import offline_target
from distillspec.commands.held_out import GAMMA, evaluate, evaluation_row
from distillspec.commands.metrics import Totals, figures, metrics_row
from distillspec.commands.pairs import (
    answer_all,
    at_least,
    check_fit,
    examples,
    load_both,
    load_model,
    prompt_ids,
    rows_of,
    training_rows,
)
from distillspec.commands.progress import training_bar
from distillspec.commands.settings import Distill, Sft, Train
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.settings import as_dict
from distillspec.studies.comparison import compare
from distillspec.studies.estimates import ratio
from distillspec.studies.outputs import TargetOutputs
from distillspec.studies.store import RESULT, Run, read_run
from distillspec.tasks import Row, overlap
from distillspec.training import checkpoint
from distillspec.training.cache import HiddenCache
from distillspec.training.data import Batches
from distillspec.training.distill import Step, check_reference, distill
from distillspec.training.offline import OfflineTarget
from distillspec.training.offline_loss import check_offline
from distillspec.training.optimization import Adafactor, AdamW, Schedule
from distillspec.training.recipes import SEQKD, Divergence, Mixture, Recipe, named
from distillspec.training.state import State, check_run

CHECKPOINTS = "checkpoints"
"""The folder of checkpoints within a run directory."""


def run_sft(settings: Sft) -> dict[str, Any]:
    """Fine-tune a draft on hard labels."""
    at_least(1, settings, "keep")
    recipe = _fit(replace(SEQKD, mixture=Mixture(fixed=1), reference="SFT"), settings)
    return _without_target("sft", recipe, settings, None)


def _without_target(
    verb: str, recipe: Recipe, settings: Train, offline: OfflineTarget | None
) -> dict[str, Any]:
    """Train a draft on fixed data, with no target but the one in a cache."""
    rows = training_rows(settings)
    draft = load_model(settings.draft, device=settings.device)
    data = examples(draft.tokenizer, rows)
    check_fit(draft, rows, data)
    batches = Batches(data, recipe.batch_size)
    state = State(draft, batches, recipe, seed=settings.seed)
    if offline is None:
        check_run(None, draft, batches, recipe, state)
    else:
        check_offline(offline, draft, batches, recipe)
    run = _open(verb, draft, state, settings)
    _go_back(run, draft, state, settings)
    steps = distill(None, draft, batches, recipe, state=state, offline=offline)
    return _train(steps, draft, state, run, settings, lambda _: None)


def run_distill(settings: Distill) -> dict[str, Any]:
    """Distil a draft toward its target; with --held-out, say whether it changed anything."""
    at_least(1, settings, "keep")
    recipe = _fit(_recipe(settings), settings)
    if settings.cache is not None:
        return _without_target("distill", recipe, settings, offline_target(settings))
    if settings.target is None:
        raise UserError("--target is missing: give a model, or --cache with what one said")
    rows = training_rows(settings)
    held_rows = _held_out(rows, settings.held_out)
    target, draft = load_both(settings.target, settings.draft, device=settings.device)
    data = examples(draft.tokenizer, rows)
    for model in (target, draft):
        check_fit(model, rows, data)
    batches = Batches(data, recipe.batch_size)
    state = State(draft, batches, recipe, seed=settings.seed)
    check_run(target, draft, batches, recipe, state)
    reference = None
    if settings.reference is not None:
        reference = load_model(settings.reference, device=settings.device)
    check_reference(recipe, draft, reference)
    run = _open("distill", draft, state, settings)
    held = _answers(target, held_rows, settings)
    # Before --resume puts the trained weights back: a change is one since the run began.
    first = None if held is None else evaluate(target, draft, held)
    _go_back(run, draft, state, settings)
    steps = distill(
        target, draft, batches, recipe, state=state, cache=HiddenCache(), reference=reference
    )
    if held is None or first is None:
        return _train(steps, draft, state, run, settings, lambda _: None)
    if not settings.resume:
        run.log(evaluation_row(first, state.step, state.seconds))
    last = state.seconds

    def judge(step: Step) -> None:
        nonlocal last
        if state.seconds - last >= 60 * settings.evaluate_every:
            last = state.seconds
            run.log(evaluation_row(evaluate(target, draft, held), step.step, last))

    result = _train(steps, draft, state, run, settings, judge)
    final = evaluate(target, draft, held)
    run.log(evaluation_row(final, state.step, state.seconds))
    change = compare(final, first, GAMMA)
    result |= {
        "alpha": ratio(final.alpha_sums, final.lengths),
        "alpha_change": change["alpha_difference"],
        "tau_change": change["tau_difference"],
    }
    run.write_json(RESULT, result)
    return result


def _held_out(rows: Sequence[Row], held_out: str | None) -> list[Row]:
    """Read the held-out prompts and refuse those that are trained on."""
    if held_out is None:
        return []
    held = rows_of(held_out, None, skip_invalid=False)
    if len(held) < 2:
        raise UserError(
            f"--held-out {held_out} has one prompt, which gives no interval; give more of them"
        )
    shared = overlap(rows, held)
    if shared:
        raise UserError(
            f"{shared} of {len(held)} prompts of --held-out {held_out} are in --prompts too: "
            "what the draft was trained on cannot say what it learned; take them out of one"
        )
    return held


def _answers(
    target: TransformersModel, rows: Sequence[Row], settings: Distill
) -> TargetOutputs | None:
    """Let the target answer the held-out prompts at temperature 1; None if there are none."""
    if not rows:
        return None
    prompts = prompt_ids(target.tokenizer, rows, context=target.context)
    outputs = answer_all(target, prompts, settings, sampling=Sampling(), what="held-out answers")
    return TargetOutputs.of(prompts, outputs, Sampling())


def _open(verb: str, draft: TransformersModel, state: State, settings: Train) -> Run:
    """Make the run directory, or check that it can be resumed."""
    if settings.resume:
        if checkpoint.newest(settings.out / CHECKPOINTS) is None:
            raise UserError(f"{settings.out}: no checkpoint to resume from; leave out --resume")
        _check_same_run(settings)
    return Run.create(
        settings.out,
        verb=verb,
        config={**as_dict(settings), "resolved_recipe": state.recipe.to_dict()},
        seed=settings.seed,
        device=str(draft.device),
        exists="continue" if settings.resume else "refuse",
    )


def _go_back(run: Run, draft: TransformersModel, state: State, settings: Train) -> None:
    """With --resume, go back to the newest checkpoint."""
    newest = checkpoint.newest(settings.out / CHECKPOINTS) if settings.resume else None
    if newest is not None:
        checkpoint.load(newest, draft, state)
        run.rewind(state.step)


def _check_same_run(settings: Train) -> None:
    """Refuse to resume with settings that the run was not started with and that no one would see.

    The recipe and the data are the checkpoint's own to compare.
    """
    recorded, now = read_run(settings.out).record["config"], as_dict(settings)
    for key in ("draft", "target", "held_out", "seed"):
        if recorded.get(key) != now.get(key):
            flag = key.replace("_", "-")
            raise UserError(
                f"{settings.out}: was started with --{flag} {recorded.get(key)}, not "
                f"{now.get(key)}; give the same to --resume it, or --out a new folder"
            )


def _train(
    steps: Iterator[Step],
    draft: TransformersModel,
    state: State,
    run: Run,
    settings: Train,
    judge: Callable[[Step], None],
) -> dict[str, Any]:
    """Train until the budget is spent; Ctrl-C ends the run as the budget would."""
    checkpoints = settings.out / CHECKPOINTS
    first, totals, interrupted = state.step, Totals(), False
    saved = time.monotonic()
    try:
        with training_bar("training") as show:
            for step in _within(steps, state, settings):
                totals.add(step)
                run.log(metrics_row(step, state.seconds))
                show(_share(state, settings), figures(step))
                judge(step)
                if time.monotonic() - saved > 60 * settings.save_every:
                    checkpoint.save(checkpoints, draft, state, keep=settings.keep)
                    saved = time.monotonic()
    except KeyboardInterrupt:
        interrupted = True
    if state.step == first:
        raise UserError(
            "no update was made: the budget was spent, or interrupted, before the first"
        )
    if checkpoint.newest(checkpoints) != checkpoints / f"step-{state.step}":
        checkpoint.save(checkpoints, draft, state, keep=settings.keep)
    draft.save(settings.out / "draft")
    result = {
        "steps": state.step,
        "loss": totals.loss,
        "out": str(settings.out / "draft"),
        "seconds": totals.seconds,
        "tokens": totals.tokens,
        "training_acceptance": totals.acceptance,
        "interrupted": interrupted,
    }
    run.write_json(RESULT, result)
    return result


def _recipe(settings: Distill) -> Recipe:
    """Return the named recipe with the parts that the flags override."""
    recipe = named(settings.recipe)
    if settings.divergence is not None:
        recipe = replace(recipe, divergence=Divergence.parse(settings.divergence))
    shares = (settings.fixed, settings.on_policy, settings.target_data)
    if any(share is not None for share in shares):
        fixed, draft, target = (share or 0.0 for share in shares)
        recipe = replace(recipe, mixture=Mixture(fixed=fixed, draft=draft, target=target))
    return replace(recipe, max_new_tokens=settings.max_new_tokens)


def _fit(recipe: Recipe, settings: Train) -> Recipe:
    """Fit a recipe to the run: its optimizer, and a schedule over the run's length."""
    if settings.steps is None and settings.minutes is None:
        raise UserError("give --steps, --minutes, or both: a run needs an end")
    for name, value in (("--steps", settings.steps), ("--minutes", settings.minutes)):
        if value is not None and value <= 0:
            raise UserError(f"{name} {value}: expected more than 0")
    if settings.steps is not None:
        length, unit = float(settings.steps), "steps"
    else:
        length, unit = 60 * (settings.minutes or 0.0), "seconds"
    return replace(
        recipe,
        optimizer=Adafactor() if settings.optimizer == "adafactor" else AdamW(),
        schedule=Schedule(
            warmup=settings.warmup * length,
            decay_from=settings.decay_from * length,
            decay_to=length,
            unit="steps" if unit == "steps" else "seconds",
        ),
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        clip=settings.clip,
        precision=settings.dtype,
        frozen=settings.freeze,
    )


def _within(steps: Iterator[Step], state: State, settings: Train) -> Iterator[Step]:
    """Yield steps until the first of the two budgets is spent."""
    while _share(state, settings) < 1:
        yield next(steps)


def _share(state: State, settings: Train) -> float:
    """Return how much of the run is done: 1 where a budget is spent."""
    shares = []
    if settings.steps is not None:
        shares.append(state.step / settings.steps)
    if settings.minutes is not None:
        shares.append(state.seconds / (60 * settings.minutes))
    return min(1.0, max(shares))


def tell(result: dict[str, Any]) -> str:
    """Say where the draft is and where the time went."""
    parts = ", ".join(f"{part} {spent:.0f} s" for part, spent in result["seconds"].items())
    ended = "interrupted; " if result["interrupted"] else ""
    loss = "" if result["loss"] is None else f"loss {result['loss']:.3f} "
    lines = [
        f"{ended}{result['out']}: {result['steps']} steps, {result['tokens']} tokens, "
        f"{loss}({parts})"
    ]
    if "alpha" in result:
        alpha, change = result["alpha"], result["alpha_change"]
        moved = change["low"] > 0 or change["high"] < 0
        lines.append(
            f"held-out α {alpha['value']:.3f}, changed by {change['value']:+.3f} "
            f"[{change['low']:+.3f}, {change['high']:+.3f}]"
            + ("" if moved else ": no change that these prompts can show")
        )
    return "\n".join(lines)
