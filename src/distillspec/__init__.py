"""Make speculative decoding pay off: measure a pair, distil the draft, prove the gain, ship it."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distillspec.api import generate, stream
    from distillspec.studies.quick import measure_cost

__all__ = ["generate", "measure_cost", "stream"]
__version__ = version("distillspec")

_HOMES = {"generate": "api", "stream": "api", "measure_cost": "studies.quick"}


def __getattr__(name: str) -> object:
    """Import a public function when it is first used: torch takes seconds to import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
