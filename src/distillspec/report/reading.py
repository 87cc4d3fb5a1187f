"""Stored values read with care: an interval, a name for a figure, an error that says where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from distillspec.errors import UserError

_NAME = 30  # characters of a name that a figure of a phone's width has room for


class Interval(NamedTuple):
    """An estimate with its 95 % interval over prompts."""

    value: float
    """The estimate."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""


def interval(value: Mapping[str, Any]) -> Interval:
    """Read a stored estimate."""
    return Interval(float(value["value"]), float(value["low"]), float(value["high"]))


def maybe(value: Mapping[str, Any] | None) -> Interval | None:
    """Read an estimate that may not have been made."""
    return None if value is None else interval(value)


def number(value: Any) -> float | None:
    """Read a number that may not have been made."""
    return None if value is None else float(value)


def text_or_none(value: Any) -> str | None:
    """Read a name that may be missing."""
    return None if value is None else str(value)


@contextmanager
def reading(path: Path, prefix: str, what: str, remedy: str) -> Iterator[None]:
    """Turn a missing or misshapen field met inside into a user's error.

    Args:
        path: The file that is read.
        prefix: Where in it, such as "after.0.", or "".
        what: What the value should have been, such as "a measurement".
        remedy: What to do about a missing field.

    Raises:
        UserError: a field is missing or of another form.
    """
    try:
        yield
    except UserError:  # a ValueError too, and already as clear as it gets
        raise
    except KeyError as error:
        raise UserError(f"{path}: {prefix}{error.args[0]} is missing; {remedy}") from error
    except (TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError) as error:
        where = prefix.rstrip(".: ") or "the result"
        raise UserError(f"{path}: {where} is not {what}: {error}") from error


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Give each name one that a figure has room for: its last part, where that tells them apart.

    Args:
        names: Names or paths; repeated ones count once.

    Returns:
        A different short name for each.
    """
    distinct = list(dict.fromkeys(names))
    last = [name.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1] or name for name in distinct]
    if len(set(last)) < len(last):
        last = distinct
    cut = [name if len(name) <= _NAME else f"{name[:12]}…{name[12 - _NAME + 1 :]}" for name in last]
    if len(set(cut)) < len(cut):
        cut = [f"{index} {name}" for index, name in enumerate(cut, start=1)]
    return dict(zip(distinct, cut, strict=True))
