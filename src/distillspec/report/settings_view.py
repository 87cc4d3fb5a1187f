"""Settings as nested lists that a reader can follow, whatever they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from markupsafe import Markup

from distillspec.report.text import visible


class Setting(NamedTuple):
    """One setting, or a group of them."""

    name: str
    """Its name."""
    value: Markup | None
    """Its value in words; None for a group."""
    inner: tuple[Setting, ...]
    """The group's settings."""


def settings_view(value: object) -> tuple[Setting, ...]:
    """Read settings, mappings within mappings, for the page.

    A list of plain values is one value; what a list of mappings holds is numbered from 1.
    """
    if isinstance(value, Mapping):
        return tuple(_setting(str(name), item) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_setting(str(index), item) for index, item in enumerate(value, start=1))
    raise TypeError(f"expected settings by name, not {value!r}")


def _setting(name: str, value: object) -> Setting:
    nested = isinstance(value, Mapping) or (
        isinstance(value, (list, tuple)) and any(isinstance(i, (Mapping, list)) for i in value)
    )
    if nested and value:
        return Setting(name, None, settings_view(value))
    return Setting(name, _words(value), ())


def _words(value: object) -> Markup:
    if value is None:
        return Markup('<span class="soft">not given</span>')
    if isinstance(value, bool):
        return Markup("yes" if value else "no")
    if isinstance(value, (list, tuple, Mapping)):
        return Markup(", ").join(map(_words, value)) or Markup('<span class="soft">none</span>')
    return visible(f"{value:g}" if isinstance(value, float) else str(value))
