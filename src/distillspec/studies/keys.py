"""A cell's key: the hash of what it does and of everything that it does it to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from distillspec.studies.grid import Cell, Written

LENGTH = 12
"""Hexadecimal digits of a key: two of ten thousand cells collide once in five million studies."""
_FORMAT = 1


def keys_of(
    cells: Sequence[Cell],
    digest: Callable[[str], str],
    resolve: Callable[[Cell, Mapping[str, Written]], Mapping[str, Any]],
) -> dict[Cell, str]:
    """Return the key of every cell.

    Args:
        cells: In order: a cell after those it needs.
        digest: The content of data or a model, by name.
        resolve: From a cell and its written settings to all its settings, defaults too, ready for
            JSON, without those that leave the result as it is.
    """
    found: dict[Cell, str] = {}
    for cell in cells:
        written = cell.written(
            lambda name: f"content:{digest(name)}", lambda one: f"cell:{found[one]}"
        )
        content = {"format": _FORMAT, "verb": cell.verb, "settings": resolve(cell, written)}
        text = json.dumps(content, sort_keys=True, ensure_ascii=False)
        found[cell] = sha256(text.encode()).hexdigest()[:LENGTH]
    return found
