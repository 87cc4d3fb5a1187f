"""From the flags of `sft` and `distill` to a recipe."""

from __future__ import annotations

from dataclasses import replace

from distillspec.commands.settings import Distill, Sft, Train
from distillspec.errors import UserError
from distillspec.training.optimization import Adafactor, AdamW, Schedule
from distillspec.training.recipes import SEQKD, Divergence, Mixture, Recipe, named


def sft_recipe(settings: Sft) -> Recipe:
    """Return hard labels on the file's own targets, fitted to the run.

    Raises:
        UserError: as `distill_recipe`.
    """
    return _fit(replace(SEQKD, mixture=Mixture(fixed=1), reference="SFT"), settings)


def distill_recipe(settings: Distill) -> Recipe:
    """Return the named recipe with the parts that the flags override, fitted to the run.

    Raises:
        UserError: a flag means nothing, or the run has no end.
    """
    recipe = named(settings.recipe)
    if settings.divergence is not None:
        recipe = replace(recipe, divergence=Divergence.parse(settings.divergence))
    shares = (settings.fixed, settings.on_policy, settings.target_data)
    if any(share is not None for share in shares):
        fixed, draft, target = (share or 0.0 for share in shares)
        recipe = replace(recipe, mixture=Mixture(fixed=fixed, draft=draft, target=target))
    sampled = replace(
        recipe, max_new_tokens=settings.max_new_tokens, target_gamma=settings.target_gamma
    )
    return _fit(sampled, settings)


def _fit(recipe: Recipe, settings: Train) -> Recipe:
    """Fit a recipe to the run: its optimizer, and a schedule over the run's length."""
    if settings.steps is None and settings.minutes is None:
        raise UserError("give --steps, --minutes, or both: a run needs an end")
    for name, value in (("--steps", settings.steps), ("--minutes", settings.minutes)):
        if value is not None and value <= 0:
            raise UserError(f"{name} {value}: expected more than 0")
    if settings.lora is not None and settings.optimizer == "adafactor":
        raise UserError(
            f"--lora {settings.lora} with --optimizer adafactor would hardly train: its steps are "
            "in proportion to the weights, and half of an adapter's begin at 0; give --optimizer "
            "adamw"
        )
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
