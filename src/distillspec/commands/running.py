"""A training run from its open directory to its end: steps, saving, evaluating, and the draft."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import Any

from distillspec.commands import held_out
from distillspec.commands.held_out import Judge
from distillspec.commands.metrics import Totals, figures, metrics_row
from distillspec.commands.progress import console, training_bar
from distillspec.commands.resuming import Earlier, go_back, load_newest
from distillspec.commands.settings import Train
from distillspec.commands.trackers import tracked
from distillspec.errors import UserError
from distillspec.models.adapter import TransformersModel
from distillspec.studies.store import CHECKPOINTS, RESULT, Run, UnwritableError, read_run
from distillspec.tasks import Row
from distillspec.training import checkpoint
from distillspec.training.checks import StepNotFiniteError
from distillspec.training.distill import Step
from distillspec.training.interrupts import handled
from distillspec.training.processes import Main, Processes
from distillspec.training.state import State


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


def train(
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
    except StepNotFiniteError as error:
        names = ", ".join(rows[i].id for i in error.indices)
        raise UserError(f"{error}; in --prompts they are {names}; {_left(settings)}") from error
    except UnwritableError as error:
        raise UserError(f"{error}; {_left(settings)}") from error
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
        "left_out": totals.left_out,
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
