"""A candidate's turn: one draft for all, with the weights and moments of whose turn it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from distillspec.commands.candidates import Texts, distill_settings
from distillspec.commands.held_out import Evaluation, Serving, evaluate
from distillspec.commands.plans import distill_recipe
from distillspec.commands.study_settings import Tune
from distillspec.models.adapter import TransformersModel
from distillspec.studies.outputs import TargetOutputs
from distillspec.studies.store import Run
from distillspec.training import checkpoint
from distillspec.training.cache import HiddenCache
from distillspec.training.data import Batches, Example
from distillspec.training.distill import distill
from distillspec.training.optimization import Schedule
from distillspec.training.recipes import Recipe
from distillspec.training.state import State, check_run

WAITING = "waiting"
"""The folder of the candidates whose turn it is not; gone at the end."""
_WARMUP = 0.1  # of the first rung


@dataclass(frozen=True)
class Runner:
    """A candidate in training."""

    recipe: Recipe
    batches: Batches
    state: State
    """Of the draft that all share; without moments while it waits."""
    folder: Path
    """Where its weights and moments wait for its next turn."""
    tests: list[Evaluation]
    """One a rung."""


@dataclass(frozen=True)
class Lab:
    """What all candidates share."""

    target: TransformersModel
    draft: TransformersModel
    """The one that is trained, with the weights of whose turn it is."""
    start: Path
    """The weights that all begin with."""
    cache: HiddenCache
    data: Sequence[Example]
    held: TargetOutputs
    serving: Serving
    store: Run


def prepared(lab: Lab, texts: Texts, settings: Tune, first: float) -> Runner:
    """Prepare a candidate, with a rate that stays after the warm-up."""
    recipe = dataclasses.replace(
        distill_recipe(distill_settings(texts, settings)),
        schedule=Schedule(warmup=_WARMUP * first, unit="seconds"),
    )
    batches = Batches(lab.data, recipe.batch_size)
    state = State(lab.draft, batches, recipe, seed=settings.seed, target=lab.target)
    check_run(lab.target, lab.draft, batches, recipe, state)
    return Runner(recipe, batches, state, settings.out / WAITING / state.run, [])


def turn(lab: Lab, one: Runner, until: float) -> Evaluation:
    """Train a candidate until it has trained for so many seconds in all, and evaluate it.

    Before and after, its weights and moments are on the disk: it goes on bit for bit as if it had
    never been away, and one candidate at a time takes memory.

    Raises:
        NotFiniteError: it has left the numbers.
    """
    waited = checkpoint.newest(one.folder)
    try:
        if waited is None:
            checkpoint.load_weights(lab.start, lab.draft)
        else:
            checkpoint.load(waited, lab.draft, one.state)
        steps = distill(
            lab.target, lab.draft, one.batches, one.recipe, state=one.state, cache=lab.cache
        )
        with closing(steps):
            while one.state.seconds < until:
                next(steps)
        if waited is None or waited.name != f"step-{one.state.step}":
            checkpoint.save(one.folder, lab.draft, one.state, keep=1)
    finally:
        one.state.optimizer.state.clear()
    return evaluate(
        lab.target,
        lab.draft,
        lab.held,
        lab.serving,
        step=one.state.step,
        seconds=one.state.seconds,
    )
