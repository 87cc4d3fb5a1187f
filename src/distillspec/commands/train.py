"""`sft` and `distill`: one run directory, checkpoints, and the trained draft in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
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
    own_device,
    training_rows,
)
from distillspec.commands.plans import distill_recipe, sft_recipe
from distillspec.commands.progress import console, training_bar
from distillspec.commands.resuming import CHECKPOINTS, Earlier, earlier_run, go_back, load_newest
from distillspec.commands.settings import Distill, Sft, Train
from distillspec.commands.trackers import check_tracker, tracked
from distillspec.errors import UserError
from distillspec.models.adapter import TransformersModel
from distillspec.models.lora import add_lora, check_lora
from distillspec.settings import as_dict
from distillspec.studies.store import RESULT, Run, read_run
from distillspec.tasks import Row
from distillspec.training import checkpoint
from distillspec.training.cache import HiddenCache
from distillspec.training.checks import NotFiniteError
from distillspec.training.data import Batches
from distillspec.training.distill import Step, check_cut, check_reference, distill
from distillspec.training.interrupts import handled
from distillspec.training.offline import OfflineTarget
from distillspec.training.offline_loss import check_offline
from distillspec.training.processes import Main, Processes, launched
from distillspec.training.randomness import derived
from distillspec.training.recipes import Recipe
from distillspec.training.state import State, check_run


def run_sft(settings: Sft) -> dict[str, Any]:
    """Fine-tune a draft on hard labels."""
    with launched() as processes:
        with processes.together():
            _check(settings)
            recipe = sft_recipe(settings)
        return _without_target("sft", recipe, settings, None, processes)


def run_distill(settings: Distill) -> dict[str, Any]:
    """Distil a draft toward its target; with --held-out, say whether it changed anything."""
    with launched() as processes:
        with processes.together():
            _check(settings)
            at_least(1, settings, "gamma")
            if settings.patience is not None:
                at_least(1, settings, "patience")
                if settings.held_out is None:
                    raise UserError(
                        "--patience needs --held-out: prompts on which something could move"
                    )
            recipe = distill_recipe(settings)
            offline = None if settings.cache is None else offline_target(settings)
            if offline is None and settings.target is None:
                raise UserError("--target is missing: give a model, or --cache with what one said")
        if offline is None:
            return _with_target(recipe, settings, processes)
        return _without_target("distill", recipe, settings, offline, processes)


def _with_target(recipe: Recipe, settings: Distill, processes: Processes) -> dict[str, Any]:
    """Train a draft toward a target that is here."""
    with processes.together():
        serving = served(settings)
        rows = training_rows(settings)
        held_rows = held_out_rows(rows, settings.held_out)
        device = own_device(processes, settings.device)
        target, draft = load_both(str(settings.target), settings.draft, device=device)
        data = examples(draft.tokenizer, rows)
        for model in (target, draft):
            check_fit(model, rows, data)
        _adapt(draft, settings)
        batches = Batches(data, recipe.batch_size)
        reference = None
        if settings.reference is not None:
            reference = load_model(settings.reference, device=device)
        state = State(
            draft, batches, recipe, seed=settings.seed, target=target, reference=reference
        )
        check_run(target, draft, batches, recipe, state)
        check_reference(recipe, draft, reference)
        check_cut(recipe, settings.rows_at_once, processes)
        earlier = earlier_run(state, settings)

    def begin() -> Record:
        run = _open("distill", draft, state, settings)
        judge = judge_of(target, draft, held_rows, serving, run, settings, earlier)
        return Record(run, judge)

    record = Main.of(processes, begin)
    steps = distill(
        target,
        draft,
        batches,
        recipe,
        state=state,
        cache=HiddenCache(),
        reference=reference,
        rows_at_once=settings.rows_at_once,
        recompute=settings.gradient_checkpointing,
        processes=processes,
    )
    return _train(steps, draft, state, record, rows, settings, earlier)


def _without_target(
    verb: str,
    recipe: Recipe,
    settings: Train,
    offline: OfflineTarget | None,
    processes: Processes,
) -> dict[str, Any]:
    """Train a draft on fixed data, with no target but what one said."""
    with processes.together():
        rows = training_rows(settings)
        draft = load_model(settings.draft, device=own_device(processes, settings.device))
        data = examples(draft.tokenizer, rows)
        check_fit(draft, rows, data)
        _adapt(draft, settings)
        batches = Batches(data, recipe.batch_size)
        state = State(draft, batches, recipe, seed=settings.seed, target=offline)
        if offline is None:
            check_run(None, draft, batches, recipe, state)
        else:
            check_offline(offline, draft, batches, recipe)
        check_cut(recipe, settings.rows_at_once, processes)
        earlier = earlier_run(state, settings)
    record = Main.of(processes, lambda: Record(_open(verb, draft, state, settings), None))
    steps = distill(
        None,
        draft,
        batches,
        recipe,
        state=state,
        offline=offline,
        rows_at_once=settings.rows_at_once,
        recompute=settings.gradient_checkpointing,
        processes=processes,
    )
    return _train(steps, draft, state, record, rows, settings, earlier)


def _check(settings: Train) -> None:
    """Refuse what cannot work before anything is loaded."""
    at_least(1, settings, "keep")
    if settings.lora is not None:
        at_least(1, settings, "lora")
        check_lora()
    check_tracker(settings)


def _adapt(draft: TransformersModel, settings: Train) -> None:
    """Put the adapters of --lora into the draft."""
    if settings.lora is not None:
        add_lora(draft.module, settings.lora, seed=derived(settings.seed, "lora"))


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


class Record:
    """What the main process keeps of a run."""

    def __init__(self, run: Run, judge: Judge | None) -> None:
        """Take the open run directory, and who evaluates the draft, if anyone does."""
        self.run = run
        self.judge = judge
        self.totals = Totals()
        self.saved = time.monotonic()
        """When the last checkpoint was due, or the run began."""

    @property
    def best(self) -> tuple[int, ...]:
        """The step of the best draft so far, if anyone can tell."""
        return () if self.judge is None else (self.judge.best.step,)


def _train(
    steps: Iterator[Step],
    draft: TransformersModel,
    state: State,
    record: Main[Record],
    rows: Sequence[Row],
    settings: Train,
    earlier: Earlier | None,
) -> dict[str, Any]:
    """Train until the budget is spent, nothing moves or Ctrl-C, and write what came of it."""
    try:
        if earlier is not None:
            with record.processes.together():
                load_newest(draft, state, settings)
            record.told(lambda r: go_back(r.run, state, earlier, r.judge))
        record.told(lambda r: r.totals.take(read_run(settings.out).metrics))
        with ExitStack() as following:
            record.told(lambda r: following.enter_context(tracked(r.run, settings, state.run)))
            stopped = _loop(steps, draft, state, record, settings)
            if state.step == 0:
                raise UserError(
                    "no update was made: the budget was spent, or interrupted, before the first"
                )
            last = settings.out / CHECKPOINTS / f"step-{state.step}"
            if record.told(lambda _: checkpoint.newest(last.parent) != last):
                _save(draft, state, record, settings)
            return record.told(
                lambda r: _finish(draft, state, r, settings, stopped, record.processes)
            )
    except NotFiniteError as error:
        names = ", ".join(rows[i].id for i in error.indices)
        raise UserError(f"{error}; in --prompts they are {names}; {_left(settings)}") from error
    except OSError as error:
        reason = f"cannot write {error.filename or settings.out}: {error.strerror or error}"
        raise UserError(f"{settings.out}: {reason}; {_left(settings)}") from error


def _finish(
    draft: TransformersModel,
    state: State,
    record: Record,
    settings: Train,
    stopped: str,
    processes: Processes,
) -> dict[str, Any]:
    """Write the draft and the result."""
    totals = record.totals
    result = {
        "steps": state.step,
        "loss": totals.loss,
        "out": _write_draft(draft, state, settings),
        "seconds": totals.seconds,
        "tokens": totals.tokens,
        "training_acceptance": totals.acceptance,
        "sources": totals.sources,
        "processes": processes.count,
        "interrupted": stopped == "interrupted",
        "stopped": stopped,
    }
    record.run.write_json(RESULT, result)
    if record.judge is not None:
        result |= _judged(record.judge, draft, state, settings)
        record.run.write_json(RESULT, result)
    return result


def _loop(
    steps: Iterator[Step],
    draft: TransformersModel,
    state: State,
    record: Main[Record],
    settings: Train,
) -> str:
    """Make the steps; return why they ended: budget, patience, or interrupted."""
    asked = _Stop()
    with training_bar("training") as show, handled(asked):
        while True:
            # A scheduler may tell one process only.
            (wishes,) = record.processes.sums(asked.stop)
            ended = record.told(partial(_ended, state, settings, wishes > 0))
            if ended is not None:
                return ended
            step = next(steps)
            if record.told(partial(_note, step, state, settings, show)):
                _save(draft, state, record, settings)


def _ended(state: State, settings: Train, wished: bool, record: Record) -> str | None:
    """Say why the run is at its end, None if it is not."""
    if _share(state, settings) >= 1:
        return "budget"
    if wished:
        return "interrupted"
    return "patience" if record.judge is not None and record.judge.tired else None


def _note(
    step: Step, state: State, settings: Train, show: Callable[[float, str], None], record: Record
) -> bool:
    """Log a step, evaluate the draft where that is due; say whether to save it."""
    row = metrics_row(step, state.seconds)
    record.run.log(row)
    record.totals.add(row)
    show(_share(state, settings), figures(step))
    judge = record.judge
    better = (
        judge is not None and judge.due(state.seconds) and judge.look(state.step, state.seconds)
    )
    if better or time.monotonic() - record.saved > 60 * settings.save_every:
        record.saved = time.monotonic()
        return True
    return False


class _Stop:
    """Takes the first Ctrl-C (or SIGTERM) as a wish to end after this step; the second ends all."""

    def __init__(self) -> None:
        self.stop = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True
        console().print("ending after this step; once more ends at once, without saving")


def _save(draft: TransformersModel, state: State, record: Main[Record], settings: Train) -> None:
    """Write a checkpoint; the best by evaluation stays beside the newest."""
    checkpoint.save(
        settings.out / CHECKPOINTS,
        draft,
        state,
        keep=settings.keep,
        spare=record.told(lambda r: r.best),
        processes=record.processes,
    )


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
