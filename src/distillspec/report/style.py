"""How figures look: colours, markers and lines, each series told apart by more than its colour.

The colours are Okabe and Ito's, which stay apart for the colour-blind. A figure is as wide as a
phone, and its text stays text, so that one drawing serves paper, screen and phone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from distillspec.report.reading import Interval
from distillspec.studies.store import write_text

INK = "#24292f"
"""Colour of text and axes; the page replaces it by the reader's own text colour."""
BLUE = "#0072b2"
"""The one series colour that is dark; the page lightens it on dark ground."""
GRID = "#8c959f"
"""Readable on light and on dark ground."""
WIDTH = 4.6
"""Inches."""

Dash = Literal["-", "--", "-.", ":"]


class Look(NamedTuple):
    """What a series looks like."""

    color: str
    """Of its line and markers."""
    marker: str
    """Shape of its markers."""
    line: Dash
    """Dashes of its line."""


COLORS = (BLUE, "#E69F00", "#CC79A7", "#009E73", "#D55E00")
"""Dark enough for white ground and light enough for dark."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Eight to five colours: forty series before two look alike."""
LINES: tuple[Dash, ...] = ("-", "--", "-.", ":")
"""Solid first."""
_STAGES = {"after": 0, "control": 1, "before": 2}


def looks_of(names: Sequence[str]) -> list[Look]:
    """Give each name its look: a demo's stages theirs, others in turn what those leave."""
    taken = {_STAGES[name] for name in names if name in _STAGES}
    free = (index for index in range(len(names) + len(taken)) if index not in taken)
    return [_look(_STAGES[name] if name in _STAGES else next(free)) for name in names]


def marker(axes: Axes, x: float, at: Interval, look: Look) -> None:
    """Draw an estimate and its interval as one marker."""
    axes.errorbar(
        x, at.value, yerr=arms(at), color=look.color, marker=look.marker, markersize=6, capsize=3
    )


def diamond(label: str) -> Line2D:
    """Return the legend's key of a hollow diamond."""
    return Line2D([], [], color=INK, marker="D", markerfacecolor="none", linestyle="", label=label)


def arms(at: Interval) -> list[list[float]]:
    """Turn an interval into matplotlib's lengths below and above the value."""
    return [[max(0.0, at.value - at.low)], [max(0.0, at.high - at.value)]]


def nudges(count: int, step: float) -> list[float]:
    """Return offsets around 0, so that series at one place do not hide one another."""
    return [step * (index - (count - 1) / 2) for index in range(count)]


def svg(figure: Figure) -> str:
    """Write a figure as SVG text, the same for the same figure."""
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def save(figure: Figure, drawing: str, folder: Path, name: str) -> list[Path]:
    """Write NAME.svg (its text is `drawing`) and NAME.png; return their paths."""
    picture = folder / f"{name}.png"
    figure.set_layout_engine("none")  # drawing it as `drawing` has laid it out already
    with style():
        figure.savefig(picture, format="png", dpi=200)
    return [write_text(folder / f"{name}.svg", drawing), picture]


@contextmanager
def style() -> Iterator[None]:
    """Draw in this style within."""
    settings: dict[Any, Any] = {
        "font.size": 9,
        "font.family": "sans-serif",
        "text.parse_math": False,  # names may hold dollars
        "svg.fonttype": "none",  # text, not outlines: smaller, and a reader can select it
        "svg.hashsalt": "distillspec",
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.titlesize": 9,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": GRID,
        "grid.alpha": 0.35,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.8,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
    }
    with mpl.rc_context(settings):
        yield


def _look(index: int) -> Look:
    return Look(
        COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)]
    )
