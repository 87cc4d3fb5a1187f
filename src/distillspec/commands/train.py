"""`sft` and `distill`: one run directory, checkpoints, and the trained draft in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from distillspec.commands.pairs import device_of, examples
from distillspec.commands.progress import training_bar
from distillspec.commands.settings import Distill, Sft, Train
from distillspec.errors import UserError
from distillspec.models import load, load_pair
from distillspec.models.adapter import TransformersModel
from distillspec.settings import as_dict
from distillspec.studies.store import RESULT, Run
from distillspec.tasks import read_prompts
from distillspec.training import checkpoint
from distillspec.training.cache import HiddenCache
from distillspec.training.data import Batches
from distillspec.training.distill import Step, distill, sft
from distillspec.training.optimization import Adafactor, AdamW, Schedule
from distillspec.training.recipes import SEQKD, Divergence, Mixture, Recipe, named
from distillspec.training.state import State


def run_sft(settings: Sft) -> dict[str, Any]:
    """Fine-tune a draft on hard labels."""
    recipe = _fit(replace(SEQKD, mixture=Mixture(fixed=1), reference="SFT"), settings)
    draft = load(settings.draft, device=device_of(settings.device))
    return _train("sft", None, draft, recipe, settings)


def run_distill(settings: Distill) -> dict[str, Any]:
    """Distil a draft toward its target."""
    recipe = _fit(_recipe(settings), settings)
    target, draft = load_pair(settings.target, settings.draft, device=device_of(settings.device))
    return _train("distill", target, draft, recipe, settings)


def _train(
    verb: str,
    target: TransformersModel | None,
    draft: TransformersModel,
    recipe: Recipe,
    settings: Train,
) -> dict[str, Any]:
    """Train until the budget is spent; Ctrl-C ends the run as the budget would."""
    rows = read_prompts(settings.prompts, limit=settings.limit)
    batches = Batches(examples(draft.tokenizer, rows), recipe.batch_size)
    state = State(draft, batches, recipe, seed=settings.seed)
    run = Run.create(
        settings.out,
        verb=verb,
        config={**as_dict(settings), "resolved_recipe": recipe.to_dict()},
        seed=settings.seed,
        device=str(draft.device),
        exists="continue" if settings.resume else "refuse",
    )
    checkpoints = settings.out / "checkpoints"
    if settings.resume:
        newest = checkpoint.newest(checkpoints)
        if newest is None:
            raise UserError(f"{checkpoints}: no checkpoint to resume from; leave out --resume")
        checkpoint.load(newest, draft, state)
    first = state.step
    steps = (
        sft(draft, batches, recipe, state=state)
        if target is None
        else distill(target, draft, batches, recipe, state=state, cache=HiddenCache())
    )
    totals = _Totals()
    saved = time.monotonic()
    interrupted = False
    try:
        with training_bar(verb) as show:
            for step in _within(steps, state, settings):
                totals.add(step)
                run.log(metrics_row(step, state.seconds))
                show(_share(state, settings), _figures(step))
                if time.monotonic() - saved > 60 * settings.save_every:
                    checkpoint.save(checkpoints, draft, state, keep=settings.keep)
                    saved = time.monotonic()
    except KeyboardInterrupt:
        interrupted = True
    if state.step == first:
        raise UserError("no update was made: the budget was spent or interrupted before the first")
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


def metrics_row(step: Step, seconds: float) -> dict[str, Any]:
    """Return a step as a row of metrics.jsonl: counts, not ratios."""
    return {
        "step": step.step,
        "seconds": seconds,
        "loss": step.loss,
        "grad_norm": step.gradient_norm,
        "learning_rate": step.learning_rate,
        "tokens": step.tokens,
        "source": step.source,
        "seconds_by_part": asdict(step.seconds),
        **(
            {}
            if step.accepted is None
            else {"alpha_sum": step.accepted, "alpha_count": step.tokens}
        ),
    }


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


def _figures(step: Step) -> str:
    alpha = step.expected_acceptance
    told = "" if alpha is None else f" α {alpha:.3f} ({step.source})"
    return f"loss {step.loss:.3f}{told}"


class _Totals:
    """Sums over the steps of this process."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds: dict[str, float] = {}
        self._losses: list[float] = []
        self._accepted = self._judged = 0.0

    def add(self, step: Step) -> None:
        self.tokens += step.tokens
        self._losses.append(step.loss)
        for part, spent in asdict(step.seconds).items():
            self.seconds[part] = self.seconds.get(part, 0.0) + spent
        if step.accepted is not None:
            self._accepted += step.accepted
            self._judged += step.tokens

    @property
    def loss(self) -> float:
        """The mean loss of the last tenth of the steps."""
        last = self._losses[-max(1, len(self._losses) // 10) :]
        return sum(last) / len(last)

    @property
    def acceptance(self) -> float | None:
        """Expected acceptance over all steps; None where no target was asked."""
        return self._accepted / self._judged if self._judged else None


def tell(result: dict[str, Any]) -> str:
    """Say where the draft is and where the time went."""
    parts = ", ".join(f"{part} {spent:.0f} s" for part, spent in result["seconds"].items())
    ended = "interrupted; " if result["interrupted"] else ""
    return (
        f"{ended}{result['out']}: {result['steps']} steps, {result['tokens']} tokens, "
        f"loss {result['loss']:.3f} ({parts})"
    )
