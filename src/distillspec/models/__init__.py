"""Models behind one protocol: the only room that knows transformers.

`load` and `wrap` are imported when first used, so that the protocol, the vocabulary and the toy
come without the seconds that transformers takes to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distillspec.models.loading import load, load_pair, load_together, load_tokenizer
    from distillspec.models.wrapping import wrap

__all__ = ["load", "load_pair", "load_together", "load_tokenizer", "wrap"]

_HOMES = {
    "load": "loading",
    "load_pair": "loading",
    "load_together": "loading",
    "load_tokenizer": "loading",
    "wrap": "wrapping",
}


def __getattr__(name: str) -> object:
    """Import a public function from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
