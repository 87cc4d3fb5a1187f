"""One value: from the text a user wrote to the type a settings field has, or one clear error."""

from __future__ import annotations

import math
import re
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from distillspec.errors import UserError, nearest

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NONE = ("none", "null", "~", "")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_LONGEST_RANGE = 4096  # a slip of the keyboard must not fill the memory


def convert(text: str | list[str], hint: Any, where: str) -> Any:
    """Read a value as the type `hint`.

    Args:
        text: what was written; a list where a YAML file gave one.
        hint: str, int, float, bool, Path, Literal of str, tuple[one of these, ...], or one of
            them `| None`. Whole-number tuples take ranges: "1..8", "1,3,5", "1..4,8".
        where: the name of the key with the place it stands, for the message.

    Raises:
        UserError: the text is not of that type.
        TypeError: the hint is not one of the above.
    """
    hint, optional = _without_none(hint)
    if optional and isinstance(text, str) and text.lower() in _NONE:
        return None
    if get_origin(hint) is tuple:
        item, ellipsis = get_args(hint)
        if ellipsis is not ...:
            raise TypeError(f"a settings tuple is tuple[type, ...], not {hint}")
        parts = text.split(",") if isinstance(text, str) else text
        values = [value for part in parts for value in _items(part.strip(), item, where)]
        if not values:
            raise UserError(f"{where}: the list is empty; expected {_wanted(hint)}")
        return tuple(values)
    if isinstance(text, list):
        raise UserError(f"{where}: a list; expected one value, {_wanted(hint)}")
    return _scalar(text, hint, where)


def kind(hint: Any) -> str:
    """Name the values of a type in a word or two, for the column of a help text."""
    hint, _ = _without_none(hint)
    if get_origin(hint) is tuple:
        return f"{kind(get_args(hint)[0])},…"
    if get_origin(hint) is Literal:
        return "|".join(get_args(hint))
    return {bool: "true|false", int: "N", float: "X", Path: "PATH", str: "TEXT"}[hint]


def show(value: object) -> str:
    """Write a default as a user would type it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        steps = len(value) > 2 and all(isinstance(item, int) for item in value)
        if steps and value == tuple(range(value[0], value[-1] + 1)):
            return f"{value[0]}..{value[-1]}"
        return ",".join(show(item) for item in value)
    return str(value)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        others = [choice for choice in get_args(hint) if choice is not type(None)]
        if len(others) != 1:
            raise TypeError(f"a settings field has one type, or one and None, not {hint}")
        return others[0], True
    return hint, False


def _items(part: str, item: Any, where: str) -> list[Any]:
    found = _RANGE.fullmatch(part) if item is int else None
    if found is None:
        return [_scalar(part, item, where)]
    try:
        first, last = int(found[1]), int(found[2])
    except ValueError as error:  # more digits than Python reads
        raise UserError(f"{where}: {_quote(part)} is too large a range") from error
    if not first <= last < first + _LONGEST_RANGE:
        raise UserError(
            f"{where}: {_quote(part)} is not a range; expected first..last, upwards, of at most "
            f"{_LONGEST_RANGE} values"
        )
    return list(range(first, last + 1))


def _scalar(text: str, hint: Any, where: str) -> Any:
    wrong = UserError(f"{where}: {_quote(text)} is not {_wanted(hint)}")
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise UserError(
                f"{where}: unknown value {_quote(text)}; {nearest(text, get_args(hint))}"
            )
        return text
    if hint is str:
        return text
    if hint is bool:
        if text.lower() not in _BOOLEANS:
            raise wrong
        return _BOOLEANS[text.lower()]
    if hint is Path:
        if not text or "\0" in text:
            raise wrong
        return Path(text)
    if hint not in (int, float):
        raise TypeError(f"settings fields cannot have the type {hint}")
    try:
        number = hint(text)
    except ValueError as error:
        raise wrong from error
    if not math.isfinite(number):
        raise wrong
    return number


def _wanted(hint: Any) -> str:
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return "numbers such as 1..8 or 1,3,5" if item is int else "values separated by commas"
    return {
        bool: "a boolean (true, false, yes, no, 1 or 0)",
        int: "a whole number",
        float: "a finite number",
        Path: "a path",
        str: "text",
    }.get(hint, kind(hint))


def _quote(text: str) -> str:
    """Quote a user's text in a message: escaped, so that it stays one line, and cut if long."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
