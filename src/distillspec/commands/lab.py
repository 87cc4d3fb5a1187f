"""Where the demo's drafts are trained: by seconds, logged, judged on held-out answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from distillspec.commands.held_out import Serving, evaluate
from distillspec.commands.metrics import metrics_row
from distillspec.commands.progress import training_bar
from distillspec.math.rules import ratio_test
from distillspec.models.adapter import TransformersModel
from distillspec.models.widths import widen
from distillspec.studies.outputs import TargetOutputs
from distillspec.studies.store import Run
from distillspec.training.cache import HiddenCache
from distillspec.training.data import Batches
from distillspec.training.distill import distill
from distillspec.training.optimization import Schedule
from distillspec.training.recipes import Recipe
from distillspec.training.state import State

EVALUATIONS = 6
"""Times per stage that α and τ are taken on the held-out answers, beside its start."""


@dataclass
class Budget:
    """Seconds to spend, and where they went."""

    seconds: float
    """In all."""
    parts: dict[str, float] = field(default_factory=dict)
    """Spent so far, by part."""
    start: float = field(default_factory=time.monotonic)
    """When it began."""

    @property
    def left(self) -> float:
        """Seconds not yet spent; negative once the budget is overdrawn."""
        return self.seconds - (time.monotonic() - self.start)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the seconds of some work under a name."""
        start = time.monotonic()
        yield
        self.parts[name] = self.parts.get(name, 0.0) + time.monotonic() - start


@dataclass
class Lab:
    """What every stage of the demo's training shares."""

    target: TransformersModel
    """The large model, frozen."""
    batches: Batches
    """Training prompts with the target's answers."""
    cache: HiddenCache
    """The target's states on those answers."""
    held: TargetOutputs
    """Its answers to held-out prompts."""
    store: Run
    """Where metrics go."""
    budget: Budget
    """Where the time goes."""
    seed: int
    """Of data order and rollouts."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Completion tokens trained on, by stage."""

    def train(self, stage: str, draft: TransformersModel, recipe: Recipe, seconds: float) -> None:
        """Train a draft in place for some seconds of steps; evaluations do not count."""
        widen(draft.module)
        recipe = replace(
            recipe,
            schedule=Schedule(
                warmup=0.05 * seconds, decay_from=0.3 * seconds, decay_to=seconds, unit="seconds"
            ),
        )
        state = State(draft, self.batches, recipe, seed=self.seed)
        steps = distill(self.target, draft, self.batches, recipe, state=state, cache=self.cache)
        self.tokens[stage] = 0
        evaluated = 0
        with self.budget.part(stage), training_bar(stage) as show:
            alpha = self._evaluate(stage, draft, state)
            while state.seconds < seconds:
                step = next(steps)
                self.tokens[stage] += step.tokens
                self.store.log({"stage": stage, **metrics_row(step, state.seconds)})
                if state.seconds >= seconds * (evaluated + 1) / EVALUATIONS:
                    evaluated = int(EVALUATIONS * state.seconds / seconds)
                    alpha = self._evaluate(stage, draft, state)
                show(
                    min(1.0, state.seconds / seconds),
                    f"loss {step.loss:.3f}, held-out α {alpha:.3f}",
                )

    def _evaluate(self, stage: str, draft: TransformersModel, state: State) -> float:
        """Take α and τ on the held-out answers, log their counts, and return α."""
        found = evaluate(
            self.target,
            draft,
            self.held,
            Serving(ratio_test(self.held.sampling)),
            step=state.step,
            seconds=state.seconds,
        )
        self.store.log({"stage": stage, **found.row()})
        return float(found.alpha_sums.sum() / found.lengths.sum())
