"""The recipes that `tune` tries, each as texts for the flags of `distill`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from distillspec.commands.plans import distill_recipe
from distillspec.commands.settings import Distill
from distillspec.commands.study_settings import Tune
from distillspec.errors import UserError, nearest
from distillspec.settings import build
from distillspec.training.recipes import Recipe

Texts = Mapping[str, str]
"""Flags of `distill`, dashes as underscores, and their values as text."""
_SHARES = {"fixed": "fixed", "draft": "on_policy", "target": "target_data"}
_COMMON = (
    "target", "draft", "prompts", "limit", "held_out", "optimizer", "batch_size", "max_new_tokens",
    "gamma", "rule", "temperature", "top_k", "top_p", "draft_temperature", "device", "seed",
)  # fmt: skip
_TRIED = (
    "batch_size", "clip", "dtype", "freeze", "max_new_tokens", "optimizer", "recipe",
    "target_gamma",
)  # fmt: skip
"""Flags that an extra may give: what a candidate trains with, but for the lists of the grid."""


def candidates(settings: Tune) -> tuple[dict[str, Texts], dict[str, str]]:
    """List the candidates by name, and why some combinations were left out.

    Raises:
        UserError: a mixture or an extra that cannot be read, or no combination that can train.
    """
    found: dict[str, Texts] = {}
    left_out: dict[str, str] = {}
    for divergence, mixture, rate, extra in itertools.product(
        settings.divergences, settings.mixtures, settings.learning_rates, settings.extras
    ):
        own = {"divergence": divergence, "learning_rate": f"{rate!r}"} | _mixture(mixture)
        name = f"{divergence} · {mixture} · {rate:g}" + ("" if extra == "none" else f" · {extra}")
        texts = {**common(settings), **own, **_extra(extra)}
        try:
            _recipe(texts, settings)
        except UserError as error:  # such as a path on data that is not the target's
            left_out[name] = str(error)
            continue
        found[name] = texts
    if not found:
        raise UserError(f"no candidate is left: {next(iter(left_out.values()), 'none was named')}")
    return found, left_out


def baseline(settings: Tune) -> Texts:
    """Return the recipe that the winner is held against.

    Raises:
        UserError: there is none of that name, or it cannot be trained here.
    """
    texts = {**common(settings), "recipe": settings.against}
    try:
        _recipe(texts, settings)
    except UserError as error:
        raise UserError(f"--against {settings.against}: {error}") from error
    return texts


def _recipe(texts: Texts, settings: Tune) -> Recipe:
    """Read texts as a recipe.

    Raises:
        UserError: they cannot be read, or want what no candidate has.
    """
    recipe = distill_recipe(distill_settings(texts, settings))
    if recipe.divergence.fraction is not None:
        raise UserError(
            f"{recipe.divergence} needs a draft distilled before, and tune has none: train it by "
            "distill --reference"
        )
    return recipe


def common(settings: Tune) -> dict[str, str]:
    """Return what all candidates share."""
    given = {name: getattr(settings, name) for name in _COMMON}
    return {name: str(value) for name, value in given.items() if value is not None}


def distill_settings(texts: Texts, settings: Tune) -> Distill:
    """Make the settings of `distill` of some texts, for all of tune's minutes."""
    own = {"minutes": str(settings.minutes), "out": str(Path(settings.out) / "draft")}
    return build(Distill, {**texts, **own}, "tune")


def _mixture(text: str) -> dict[str, str]:
    parts = text.split("+")
    for part in parts:
        if part not in _SHARES or parts.count(part) > 1:
            raise UserError(f"--mixtures {text}: {part}: {nearest(part, _SHARES)}")
    return {flag: str(parts.count(part) / len(parts)) for part, flag in _SHARES.items()}


def _extra(text: str) -> dict[str, str]:
    if text == "none":
        return {}
    found = {}
    for part in text.split("+"):
        name, equals, value = part.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise UserError(f"--extras {text}: {part}: expected NAME=VALUE, as in clip=1")
        if name not in _TRIED:
            raise UserError(
                f"--extras {text}: {name}: no flag that an extra can try; {nearest(name, _TRIED)}"
            )
        found[name] = value
    build(Distill, {"draft": "d", "prompts": "p", "out": "o", **found}, f"--extras {text}")
    return found
