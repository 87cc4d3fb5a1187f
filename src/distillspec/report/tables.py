"""Parts of the page as values: tables, figures with their data, sections of either."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from markupsafe import Markup
from matplotlib.figure import Figure

from distillspec.report.reading import Interval
from distillspec.report.text import visible

Cell: TypeAlias = Markup
"""Text of a cell, escaped."""
NOT_MEASURED = Markup('<span class="soft">not measured</span>')


class Table(NamedTuple):
    """Rows under a head."""

    head: tuple[str, ...]
    """One a column."""
    rows: tuple[tuple[Cell, ...], ...]
    """One cell a column."""
    note: str = ""
    """What the columns mean, or what was left out."""
    summary: str = ""
    """What to call it where it is folded away; "" leaves it open."""


class Drawing(NamedTuple):
    """A figure with what it says and the numbers it shows."""

    name: str
    """Of its files, without an ending."""
    caption: str
    """What is drawn, by which acceptance rule."""
    figure: Figure
    """The drawing."""
    data: Table
    """Every number in it."""


class Section(NamedTuple):
    """Tables under a heading."""

    title: str
    """The heading."""
    intro: str
    """A sentence below it, or ""."""
    tables: tuple[Table, ...]
    """In order."""


class Verdict(NamedTuple):
    """An answer in a sentence."""

    about: str
    """What it answers for, or ""."""
    sentence: str
    """The answer."""
    kind: str = "main"
    """One of "main", "note" (said beside it), "aside" (folded away) or "unmet" (a demand that was
    not met)."""


class Content(NamedTuple):
    """What one kind of result brings to the page."""

    verdicts: tuple[Verdict, ...] = ()
    """Answers, the most important first."""
    drawings: tuple[Drawing, ...] = ()
    """Figures."""
    sections: tuple[Section, ...] = ()
    """Tables."""


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    *,
    note: str = "",
    summary: str = "",
) -> Table:
    """Make a table; cells that are not markup are escaped, hidden characters shown."""
    cells = tuple(tuple(_cell(cell) for cell in row) for row in rows)
    for row in cells:
        if len(row) != len(head):
            raise ValueError(f"{len(row)} cells under a head of {len(head)}: {head}")
    return Table(tuple(head), cells, note, summary)


def estimate(at: Interval | None, digits: int) -> Cell:
    """Write an estimate with its interval below it."""
    if at is None:
        return NOT_MEASURED
    value, low, high = (_digits(number, digits) for number in at)
    return Markup("{}<small>{} … {}</small>").format(value, low, high)


def fixed(number: float | None, digits: int) -> Cell:
    """Write a number to so many digits."""
    return NOT_MEASURED if number is None else Markup(_digits(number, digits))


def brief(number: float | None) -> Cell:
    """Write a number as briefly as it can be."""
    return NOT_MEASURED if number is None else Markup(f"{number:g}")


def _digits(number: float, digits: int) -> str:
    return f"{round(number, digits) + 0.0:.{digits}f}"  # the sum turns -0.0 into 0.0


def _cell(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Markup) else visible(cell)
