"""Figures of stored results: lines, bars and markers, each told apart by more than its colour.

The colours are Okabe and Ito's, which stay apart for the colour-blind. A figure is as wide as a
phone, and its text stays text, so that one drawing serves paper, screen and phone.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from distillspec.report.results import Curve, Interval, Measured, Training
from distillspec.studies.store import write_text

INK = "#24292f"
"""Colour of text and axes; the page replaces it by the reader's own text colour."""
BLUE = "#0072b2"
"""The one series colour that is dark; the page lightens it on dark ground."""
_GRID = "#8c959f"  # readable on light and on dark ground
_WIDTH = 4.6  # inches


class _Look(NamedTuple):
    color: str
    marker: str
    line: Literal["-", "--", "-.", ":"]


_LOOKS = (
    _Look(BLUE, "o", "-"),
    _Look("#E69F00", "s", "--"),
    _Look("#CC79A7", "^", "-."),
    _Look("#009E73", "D", ":"),
    _Look("#D55E00", "v", "-"),
)
_STAGES = {"after": _LOOKS[0], "control": _LOOKS[1], "before": _LOOKS[2]}


def training_curves(runs: Sequence[Training], over: Literal["step", "seconds"]) -> Figure:
    """Draw acceptance, block efficiency where it was evaluated, and loss over training.

    Args:
        runs: one line each.
        over: optimizer steps, or seconds since each run began.

    Raises:
        ValueError: there is no run.
    """
    if not runs:
        raise ValueError("there is no training run to draw")
    looks = _looks([run.name for run in runs])
    panels: list[tuple[str, list[tuple[Curve | None, Curve | None]]]] = [
        ("acceptance α\n(expected)", [(run.alpha, run.held_out_alpha) for run in runs]),
        (_tau_label(runs), [(None, run.held_out_tau) for run in runs]),
        ("loss (nats)", [(run.loss, None) for run in runs]),
    ]
    drawn = [(label, curves) for label, curves in panels if any(_any_point(c) for c in curves)]
    with _style():
        figure = Figure(figsize=(_WIDTH, 0.9 + 1.6 * len(drawn)), layout="constrained")
        rows = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (label, curves) in zip(rows, drawn, strict=True):
            for look, (batches, held_out) in zip(looks, curves, strict=True):
                _line(axes, batches, over, look, faint=bool(held_out and held_out.value))
                _points(axes, held_out, over, look)
            axes.set_ylabel(label)
        _stretch(rows[-1], [value for run in runs for value in run.loss.value])
        rows[-1].set_xlabel("optimizer steps" if over == "step" else "seconds of training")
        _legend(figure, runs)
    return figure


def tau_by_gamma(measured: Sequence[Measured]) -> Figure:
    """Draw block efficiency over γ: forecast with its interval, and what the engine counted.

    Args:
        measured: measurements at one temperature, one line each.

    Raises:
        ValueError: there is none, or their temperatures differ.
    """
    temperatures = {one.temperature for one in measured}
    if len(temperatures) != 1:
        raise ValueError(f"expected measurements at one temperature, not {sorted(temperatures)}")
    looks = _looks([one.stage for one in measured])
    with _style():
        figure = Figure(figsize=(_WIDTH, 3.4), layout="constrained")
        axes = figure.subplots()
        for index, (one, look) in enumerate(zip(measured, looks, strict=True)):
            gammas = [point.gamma for point in one.points]
            forecasts = [point.tau_forecast for point in one.points]
            lows, highs = [f.low for f in forecasts], [f.high for f in forecasts]
            axes.fill_between(gammas, lows, highs, color=look.color, alpha=0.18, linewidth=0)
            values = [forecast.value for forecast in forecasts]
            axes.plot(gammas, values, color=look.color, linestyle=look.line, marker=".")
            nudge = 0.12 * (index - (len(measured) - 1) / 2)  # or the counts hide one another
            for point in one.points:
                if point.tau_counted is not None:
                    _marker(axes, point.gamma + nudge, point.tau_counted, look)
        axes.set_xlabel("γ, drafted tokens per block")
        axes.set_ylabel("block efficiency τ\n(tokens per target call)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles: list[Line2D | Patch] = [
            Line2D([], [], color=look.color, linestyle=look.line, label=f"{one.stage}, forecast")
            for one, look in zip(measured, looks, strict=True)
        ]
        handles += [
            Line2D([], [], color=look.color, marker=look.marker, linestyle="", label="counted")
            for one, look in zip(measured, looks, strict=True)
            if any(point.tau_counted is not None for point in one.points)
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def speedup_bars(measured: Sequence[Measured]) -> Figure | None:
    """Draw the speed-up on the clock as bars, with the forecast beside each.

    Args:
        measured: measurements at any temperatures.

    Returns:
        The figure, or None where the engine never ran on the clock.
    """
    bars = [
        (one, point, point.speedup_measured)
        for one in measured
        for point in one.points
        if point.speedup_measured is not None
    ]
    if not bars:
        return None
    names = list(dict.fromkeys(one.stage for one in measured))
    looks = dict(zip(names, _looks(names), strict=True))
    with _style():
        figure = Figure(figsize=(_WIDTH, 1.2 + 0.36 * len(bars)), layout="constrained")
        axes = figure.subplots()
        for row, (one, point, gain) in enumerate(bars):
            color = looks[one.stage].color
            axes.barh(row, gain.value, height=0.62, color=color, alpha=0.55)
            axes.errorbar(gain.value, row, xerr=_arms(gain), color=INK, capsize=3, linewidth=1.2)
            forecast = point.speedup_forecast.value
            axes.plot(forecast, row, "D", color=INK, markerfacecolor="none", markersize=6)
        axes.axvline(1.0, color=INK, linewidth=1, linestyle=":")
        axes.set_yticks(range(len(bars)), [_bar_label(one, point.gamma) for one, point, _ in bars])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=0)
        axes.set_xlabel("speed-up over the target alone (1 = as fast)")
        handles = [
            Patch(color=_GRID, alpha=0.55, label="measured, 95 % interval"),
            Line2D(
                [],
                [],
                color=INK,
                marker="D",
                markerfacecolor="none",
                linestyle="",
                label="forecast",
            ),
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def svg(figure: Figure) -> str:
    """Write a figure as SVG text, the same for the same figure."""
    buffer = io.StringIO()
    with _style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def save(figure: Figure, drawing: str, folder: Path, name: str) -> list[Path]:
    """Write NAME.svg (its text is `drawing`) and NAME.png; return their paths."""
    picture = folder / f"{name}.png"
    with _style():
        figure.savefig(picture, format="png", dpi=200)
    return [write_text(folder / f"{name}.svg", drawing), picture]


@contextmanager
def _style() -> Iterator[None]:
    settings: dict[Any, Any] = {
        "font.size": 9,
        "font.family": "sans-serif",
        "svg.fonttype": "none",  # text, not outlines: smaller, and a reader can select it
        "svg.hashsalt": "distillspec",
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": _GRID,
        "grid.alpha": 0.35,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.8,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
    }
    with mpl.rc_context(settings):
        yield


def _looks(names: Sequence[str]) -> list[_Look]:
    """Give each name its look: a demo's stages theirs, others in turn what those leave."""
    taken = {_STAGES[name] for name in names if name in _STAGES}
    free = itertools.cycle([look for look in _LOOKS if look not in taken])
    return [_STAGES[name] if name in _STAGES else next(free) for name in names]


def _any_point(curves: tuple[Curve | None, Curve | None]) -> bool:
    return any(curve is not None and curve.value for curve in curves)


def _line(axes: Axes, curve: Curve | None, over: str, look: _Look, *, faint: bool) -> None:
    if curve is not None and curve.value:
        x = curve.step if over == "step" else curve.seconds
        alpha = 0.4 if faint else 1.0
        axes.plot(x, curve.value, color=look.color, linestyle=look.line, alpha=alpha)


def _points(axes: Axes, curve: Curve | None, over: str, look: _Look) -> None:
    if curve is not None and curve.value:
        x = curve.step if over == "step" else curve.seconds
        axes.plot(x, curve.value, color=look.color, linestyle=look.line, marker=look.marker)


def _stretch(axes: Axes, losses: Sequence[float]) -> None:
    """Give losses a log scale where a high start would flatten all that follows."""
    if losses and 0 < 5 * min(losses) < max(losses):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")


def _legend(figure: Figure, runs: Sequence[Training]) -> None:
    handles = [
        Line2D([], [], color=look.color, linestyle=look.line, label=run.name)
        for run, look in zip(runs, _looks([run.name for run in runs]), strict=True)
    ]
    if any(run.held_out_alpha.value for run in runs):
        handles.append(Line2D([], [], color=_GRID, marker="o", label="on held-out prompts"))
    figure.legend(handles=handles, loc="outside upper left", ncols=3)


def _tau_label(runs: Sequence[Training]) -> str:
    gammas = {run.gamma for run in runs if run.gamma is not None}
    return f"block efficiency τ\n(γ = {', '.join(map(str, sorted(gammas)))})"


def _marker(axes: Axes, x: float, at: Interval, look: _Look) -> None:
    axes.errorbar(
        x, at.value, yerr=_arms(at), color=look.color, marker=look.marker, markersize=6, capsize=3
    )


def _arms(at: Interval) -> list[list[float]]:
    """Turn an interval into matplotlib's lengths below and above the value."""
    return [[max(0.0, at.value - at.low)], [max(0.0, at.high - at.value)]]


def _bar_label(one: Measured, gamma: int) -> str:
    return f"{one.stage}, γ = {gamma}, T = {one.temperature:g}"
