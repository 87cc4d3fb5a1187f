"""Figures of measurements: γ, batch sizes, positions, context lengths, domains, prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from distillspec.report.drafts import Examples
from distillspec.report.reading import Interval, short_names
from distillspec.report.results import Measured
from distillspec.report.style import (
    GRID,
    INK,
    WIDTH,
    Look,
    arms,
    diamond,
    looks_of,
    marker,
    nudges,
    style,
)
from distillspec.report.text import plain


def tau_by_gamma(measured: Sequence[Measured]) -> Figure:
    """Draw block efficiency over γ: forecast with its interval, and what the engine counted.

    Args:
        measured: measurements at one temperature, one line each.

    Raises:
        ValueError: there is none, or their temperatures differ.
    """
    _one_temperature(measured)
    labels = _labels(measured)
    lines = [
        _Line(
            label=labels[one.name],
            look=look,
            forecast=tuple((point.gamma, point.tau_forecast) for point in one.points),
            marks=tuple(
                (point.gamma, point.tau_counted) for point in one.points if point.tau_counted
            ),
        )
        for one, look in zip(measured, looks_of([one.name for one in measured]), strict=True)
    ]
    return _over_gamma([("", lines)], "block efficiency τ\n(tokens per target call)", "counted")


def speedup_by_gamma(measured: Sequence[Measured]) -> Figure:
    """Draw the forecast speed-up over γ, a line per batch size, and what the clock said.

    Where batch 1 alone was timed, there is one panel, a line per measurement; else a panel per
    measurement. The clocked runs are at batch 1.

    Args:
        measured: measurements at one temperature.

    Raises:
        ValueError: there is none, or their temperatures differ.
    """
    _one_temperature(measured)
    labels = _labels(measured)
    if all(len(one.batches) < 2 for one in measured):
        looks = looks_of([one.name for one in measured])
        lines = [
            _batch_one(one, labels[one.name], look)
            for one, look in zip(measured, looks, strict=True)
        ]
        panels = [("", lines)]
    else:
        panels = [(labels[one.name], _batch_lines(one)) for one in measured]
    return _over_gamma(panels, "speed-up over\nthe target alone", "measured", even=1.0)


class _Line(NamedTuple):
    label: str
    look: Look
    forecast: tuple[tuple[int, Interval], ...]
    marks: tuple[tuple[int, Interval], ...]


def _batch_one(one: Measured, label: str, look: Look) -> _Line:
    return _Line(
        label=label,
        look=look,
        forecast=tuple((point.gamma, point.speedup_forecast) for point in one.points),
        marks=tuple(
            (point.gamma, point.speedup_measured) for point in one.points if point.speedup_measured
        ),
    )


def _batch_lines(one: Measured) -> list[_Line]:
    """Make a line per batch size; the clocked runs belong to batch 1."""
    if not one.batches:
        return [_batch_one(one, "batch 1", looks_of(["batch 1"])[0])]
    names = [f"batch {batch.size}" for batch in one.batches]
    clocked = _batch_one(one, "", looks_of(["batch 1"])[0]).marks
    return [
        _Line(
            label=name,
            look=look,
            forecast=tuple((at.gamma, at.forecast) for at in batch.gammas),
            marks=clocked if batch.size == 1 else (),
        )
        for batch, name, look in zip(one.batches, names, looks_of(names), strict=True)
    ]


def _over_gamma(
    panels: Sequence[tuple[str, Sequence[_Line]]],
    ylabel: str,
    marked: str,
    *,
    even: float | None = None,
) -> Figure:
    """Draw lines with bands over γ; `even` is where drafting neither gains nor loses."""
    with style():
        height = 1.1 + 2.3 * len(panels)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (title, lines) in zip(rows, panels, strict=True):
            for line, nudge in zip(lines, nudges(len(lines), 0.12), strict=True):
                _band(axes, line, nudge)
            if even is not None:
                axes.axhline(even, color=INK, linewidth=1, linestyle=":")
            axes.set_title(title)
            axes.set_ylabel(ylabel)
            _count(axes)
        rows[-1].set_xlabel("γ, drafted tokens per block")
        every = {line.label: line for _, lines in panels for line in lines}.values()
        handles = [
            Line2D(
                [],
                [],
                color=line.look.color,
                linestyle=line.look.line,
                label=f"{line.label}, forecast",
            )
            for line in every
        ]
        handles += [
            Line2D([], [], color=line.look.color, marker=line.look.marker, linestyle="", label=name)
            for line in every
            if line.marks
            for name in [marked]
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def _band(axes: Axes, line: _Line, nudge: float) -> None:
    gammas = [gamma for gamma, _ in line.forecast]
    at = [forecast for _, forecast in line.forecast]
    lows, highs = [one.low for one in at], [one.high for one in at]
    axes.fill_between(gammas, lows, highs, color=line.look.color, alpha=0.18, linewidth=0)
    values = [one.value for one in at]
    axes.plot(gammas, values, color=line.look.color, linestyle=line.look.line, marker=".")
    for gamma, mark in line.marks:  # nudged, or the marks hide one another
        marker(axes, gamma + nudge, mark, line.look)


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
    names = list(dict.fromkeys(one.name for one in measured))
    looks = dict(zip(names, looks_of(names), strict=True))
    labels = _labels(measured)
    with style():
        figure = Figure(figsize=(WIDTH, 1.2 + 0.36 * len(bars)), layout="constrained")
        axes = figure.subplots()
        for row, (one, point, gain) in enumerate(bars):
            color = looks[one.name].color
            axes.barh(row, gain.value, height=0.62, color=color, alpha=0.55)
            axes.errorbar(gain.value, row, xerr=arms(gain), color=INK, capsize=3, linewidth=1.2)
            forecast = point.speedup_forecast.value
            axes.plot(forecast, row, "D", color=INK, markerfacecolor="none", markersize=6)
        axes.axvline(1.0, color=INK, linewidth=1, linestyle=":")
        axes.set_yticks(
            range(len(bars)),
            [
                f"{labels[one.name]}, γ = {point.gamma}, T = {one.temperature:g}"
                for one, point, _ in bars
            ],
        )
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=0)
        axes.set_xlabel("speed-up over the target alone (1 = as fast)")
        handles = [
            Patch(color=GRID, alpha=0.55, label="measured, 95 % interval"),
            diamond("forecast"),
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def acceptance_by_place(measured: Sequence[Measured]) -> Figure | None:
    """Draw acceptance by position in the block and by context length, a line per measurement.

    Args:
        measured: measurements at one temperature.

    Returns:
        The figure, or None where neither was taken.
    """
    labels = _labels(measured)
    spans = sorted({(at.start, at.end) for one in measured for at in one.contexts})
    places = [
        [(at.position, at.rate) for at in one.positions if at.rate is not None] for one in measured
    ]
    contexts = [
        [(spans.index((at.start, at.end)), at.alpha) for at in one.contexts if at.alpha is not None]
        for one in measured
    ]
    panels = [
        (axis, series)
        for axis, series in (
            ("position in the block (1 is the first drafted)", places),
            ("tokens of context", contexts),
        )
        if any(series)
    ]
    if not panels:
        return None
    looks = looks_of([one.name for one in measured])
    with style():
        figure = Figure(figsize=(WIDTH, 0.8 + 2.1 * len(panels)), layout="constrained")
        rows = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (axis, series) in zip(rows, panels, strict=True):
            for found, look, nudge in zip(series, looks, nudges(len(series), 0.1), strict=True):
                _estimates(axes, [(x + nudge, at) for x, at in found], look)
            axes.set_xlabel(axis)
            axes.set_ylabel("acceptance α")
            _count(axes)
            if series is contexts:
                axes.set_xticks(range(len(spans)), [f"{low}–{high}" for low, high in spans])
        figure.legend(
            handles=[
                _handle(look, labels[o.name]) for look, o in zip(looks, measured, strict=True)
            ],
            loc="outside upper left",
            ncols=2,
        )
    return figure


def sorted_taus(found: Sequence[Examples]) -> Figure:
    """Draw τ of every prompt, each draft's prompts in the order of its own τ (paper, Fig. 3b).

    Args:
        found: one line each.

    Raises:
        ValueError: there is none.
    """
    if not found:
        raise ValueError("there is no draft to draw")
    labels = short_names([one.draft for one in found])
    looks = looks_of([one.draft for one in found])
    with style():
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        axes = figure.subplots()
        for one, look in zip(found, looks, strict=True):
            taus = sorted(one.taus.values())
            every = max(1, len(taus) // 8)  # markers enough to tell the lines apart
            axes.plot(
                range(1, len(taus) + 1),
                taus,
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                markevery=every,
                markersize=5,
            )
        axes.axhline(1.0, color=INK, linewidth=1, linestyle=":")
        axes.set_xlabel("prompts, in the order of τ")
        axes.set_ylabel("block efficiency τ\n(tokens per target call)")
        _count(axes)
        handles = [
            _handle(look, f"{plain(labels[one.draft])}, γ = {one.gamma}")
            for one, look in zip(found, looks, strict=True)
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
    return figure


def _count(axes: Axes) -> None:
    """Mark whole numbers alone below, even where there is only one to mark."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _estimates(axes: Axes, found: Sequence[tuple[float, Interval]], look: Look) -> None:
    xs, values = [x for x, _ in found], [at.value for _, at in found]
    axes.plot(xs, values, color=look.color, linestyle=look.line, linewidth=1)
    for x, at in found:
        marker(axes, x, at, look)


def _handle(look: Look, label: str) -> Line2D:
    return Line2D([], [], color=look.color, linestyle=look.line, marker=look.marker, label=label)


def _labels(measured: Sequence[Measured]) -> dict[str, str]:
    """Give every measurement's name one that a figure can show."""
    names = short_names([one.name for one in measured])
    return {name: plain(short) for name, short in names.items()}


def _one_temperature(measured: Sequence[Measured]) -> None:
    temperatures = {one.temperature for one in measured}
    if len(temperatures) != 1:
        raise ValueError(f"expected measurements at one temperature, not {sorted(temperatures)}")
