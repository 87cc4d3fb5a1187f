"""`sft` and `distill`: one run directory, checkpoints, and the trained draft in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from distillspec.commands import held_out
from distillspec.commands.cached import offline_target
from distillspec.commands.held_out import Judge
from distillspec.commands.judging import held_out_rows, judge_of, served
from distillspec.commands.metrics import Totals, figures, metrics_row
from distillspec.commands.pairs import (
    at_least,
    check_fit,
    examples,
    load_both,
    load_model,
    training_rows,
)
from distillspec.commands.plans import distill_recipe, sft_recipe
from distillspec.commands.progress import console, training_bar
from distillspec.commands.resuming import CHECKPOINTS, earlier_run, go_back
from distillspec.commands.settings import Distill, Sft, Train
from distillspec.errors import UserError
from distillspec.models.adapter import TransformersModel
from distillspec.settings import as_dict
from distillspec.studies.store import RESULT, Run, read_run
from distillspec.tasks import Row
from distillspec.training import checkpoint
from distillspec.training.cache import HiddenCache
from distillspec.training.checks import NotFiniteError
from distillspec.training.data import Batches
from distillspec.training.distill import Step, check_reference, distill
from distillspec.training.interrupts import handled
from distillspec.training.offline import OfflineTarget
from distillspec.training.offline_loss import check_offline
from distillspec.training.recipes import Recipe
from distillspec.training.state import State, check_run


def run_sft(settings: Sft) -> dict[str, Any]:
    """Fine-tune a draft on hard labels."""
    at_least(1, settings, "keep")
    return _without_target("sft", sft_recipe(settings), settings, None)


def run_distill(settings: Distill) -> dict[str, Any]:
    """Distil a draft toward its target; with --held-out, say whether it changed anything."""
    at_least(1, settings, "keep", "gamma")
    if settings.patience is not None:
        at_least(1, settings, "patience")
        if settings.held_out is None:
            raise UserError("--patience needs --held-out: prompts on which something could move")
    recipe = distill_recipe(settings)
    if settings.cache is not None:
        return _without_target("distill", recipe, settings, offline_target(settings))
    if settings.target is None:
        raise UserError("--target is missing: give a model, or --cache with what one said")
    serving = served(settings)
    rows = training_rows(settings)
    held_rows = held_out_rows(rows, settings.held_out)
    target, draft = load_both(settings.target, settings.draft, device=settings.device)
    data = examples(draft.tokenizer, rows)
    for model in (target, draft):
        check_fit(model, rows, data)
    batches = Batches(data, recipe.batch_size)
    state = State(draft, batches, recipe, seed=settings.seed, target=target)
    check_run(target, draft, batches, recipe, state)
    reference = None
    if settings.reference is not None:
        reference = load_model(settings.reference, device=settings.device)
    check_reference(recipe, draft, reference)
    earlier = earlier_run(state, settings)
    run = _open("distill", draft, state, settings)
    judge = judge_of(target, draft, held_rows, serving, run, settings, earlier)
    if earlier is not None:
        go_back(run, draft, state, settings, earlier, judge)
    steps = distill(
        target, draft, batches, recipe, state=state, cache=HiddenCache(), reference=reference
    )
    return _train(steps, draft, state, run, rows, settings, judge)


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
    earlier = earlier_run(state, settings)
    run = _open(verb, draft, state, settings)
    if earlier is not None:
        go_back(run, draft, state, settings, earlier, None)
    steps = distill(None, draft, batches, recipe, state=state, offline=offline)
    return _train(steps, draft, state, run, rows, settings, None)


def _open(verb: str, draft: TransformersModel, state: State, settings: Train) -> Run:
    """Make the run directory, or go on with the one that --resume names."""
    return Run.create(
        settings.out,
        verb=verb,
        config={
            **as_dict(settings),
            "resolved_recipe": state.recipe.to_dict(),
            "rollout_sampling": {"temperature": 1.0, "top_k": None, "top_p": 1.0},
        },
        seed=settings.seed,
        device=str(draft.device),
        exists="continue" if settings.resume else "refuse",
    )


def _train(
    steps: Iterator[Step],
    draft: TransformersModel,
    state: State,
    run: Run,
    rows: Sequence[Row],
    settings: Train,
    judge: Judge | None,
) -> dict[str, Any]:
    """Train until the budget is spent, nothing moves or Ctrl-C, and write what came of it."""
    checkpoints = settings.out / CHECKPOINTS
    totals = Totals(read_run(settings.out).metrics)
    try:
        stopped = _loop(steps, draft, state, run, totals, settings, judge)
        if state.step == 0:
            raise UserError(
                "no update was made: the budget was spent, or interrupted, before the first"
            )
        if checkpoint.newest(checkpoints) != checkpoints / f"step-{state.step}":
            _save(draft, state, settings, judge)
        result = {
            "steps": state.step,
            "loss": totals.loss,
            "out": _write_draft(draft, state, settings),
            "seconds": totals.seconds,
            "tokens": totals.tokens,
            "training_acceptance": totals.acceptance,
            "sources": totals.sources,
            "interrupted": stopped == "interrupted",
            "stopped": stopped,
        }
        run.write_json(RESULT, result)
        if judge is not None:
            result |= _judged(judge, draft, state, settings)
            run.write_json(RESULT, result)
    except NotFiniteError as error:
        names = ", ".join(rows[i].id for i in error.indices)
        raise UserError(f"{error}; in --prompts they are {names}; {_left(settings)}") from error
    except OSError as error:
        reason = f"cannot write {error.filename or settings.out}: {error.strerror or error}"
        raise UserError(f"{settings.out}: {reason}; {_left(settings)}") from error
    return result


def _loop(
    steps: Iterator[Step],
    draft: TransformersModel,
    state: State,
    run: Run,
    totals: Totals,
    settings: Train,
    judge: Judge | None,
) -> str:
    """Make the steps; return why they ended: budget, patience, or interrupted."""
    saved = time.monotonic()
    asked = _Stop()
    with training_bar("training") as show, handled(asked):
        while _share(state, settings) < 1 and not asked.stop:
            if judge is not None and judge.tired:
                return "patience"
            step = next(steps)
            row = metrics_row(step, state.seconds)
            run.log(row)
            totals.add(row)
            show(_share(state, settings), figures(step))
            better = (
                judge is not None
                and judge.due(state.seconds)
                and judge.look(state.step, state.seconds)
            )
            if better or time.monotonic() - saved > 60 * settings.save_every:
                _save(draft, state, settings, judge)
                saved = time.monotonic()
    return "interrupted" if _share(state, settings) < 1 else "budget"


class _Stop:
    """Takes the first Ctrl-C (or SIGTERM) as a wish to end after this step; the second ends all."""

    def __init__(self) -> None:
        self.stop = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True
        console().print("ending after this step; once more ends at once, without saving")


def _save(draft: TransformersModel, state: State, settings: Train, judge: Judge | None) -> None:
    """Write a checkpoint; the best by evaluation stays beside the newest."""
    best = () if judge is None else (judge.best.step,)
    folder = settings.out / CHECKPOINTS
    checkpoint.save(folder, draft, state, keep=settings.keep, spare=best)


def _write_draft(draft: TransformersModel, state: State, settings: Train) -> str:
    """Write the draft as a folder to load, whole or not at all; return its name."""
    folder, new = settings.out / "draft", settings.out / "draft.new"
    if new.exists():
        checkpoint.remove(new, state.run)
    with checkpoint.whole(new, state.run) as partial:
        draft.save(partial)
    if folder.exists():
        checkpoint.remove(folder, state.run)
    new.rename(folder)
    return str(folder)


def _judged(
    judge: Judge, draft: TransformersModel, state: State, settings: Train
) -> dict[str, Any]:
    """Say whether distillation changed anything, and keep the better of last and best."""
    if judge.last.step != state.step:
        judge.look(state.step, state.seconds)
    step = judge.kept.step
    if step != state.step:
        checkpoint.load_weights(settings.out / CHECKPOINTS / f"step-{step}", draft)
        _write_draft(draft, state, settings)
    return held_out.verdict(judge)


def _left(settings: Train) -> str:
    newest = checkpoint.newest(settings.out / CHECKPOINTS)
    return "no checkpoint was written yet" if newest is None else f"--resume goes on from {newest}"


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
    ended = {
        "interrupted": "interrupted; ",
        "patience": "stopped early, nothing moved; ",
        "budget": "",
    }[result["stopped"]]
    loss = "" if result["loss"] is None else f"loss {result['loss']:.3f} "
    lines = [
        f"{ended}{result['out']}: {result['steps']} steps, {result['tokens']} tokens, "
        f"{loss}({parts})"
    ]
    return "\n".join([*lines, *(held_out.tell(result) if "alpha" in result else ())])
