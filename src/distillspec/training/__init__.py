"""Training: recipes as data, a loop as a generator of steps, checkpoints written whole.

What a training script needs beside `distillspec.training.distill.distill` is here by name, imported
when first used, so that recipes come without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distillspec.training.data import Batches, Example
    from distillspec.training.optimization import Adafactor, AdamW, Schedule
    from distillspec.training.recipes import Divergence, Mixture, Recipe, named
    from distillspec.training.state import State

__all__ = [
    "Adafactor",
    "AdamW",
    "Batches",
    "Divergence",
    "Example",
    "Mixture",
    "Recipe",
    "Schedule",
    "State",
    "named",
]

_HOMES = {
    "Adafactor": "optimization",
    "AdamW": "optimization",
    "Batches": "data",
    "Divergence": "recipes",
    "Example": "data",
    "Mixture": "recipes",
    "Recipe": "recipes",
    "Schedule": "optimization",
    "State": "state",
    "named": "recipes",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
