"""Figures of evaluations, trade-offs and transfers, and dots by domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from distillspec.report.outcomes import LOSSLESS, Evaluated, Point, TradeOff, Transfer
from distillspec.report.reading import Interval, short_names
from distillspec.report.style import (
    COLORS,
    GRID,
    INK,
    LINES,
    MARKERS,
    WIDTH,
    Look,
    arms,
    diamond,
    looks_of,
    nudges,
    style,
)
from distillspec.report.text import plain


class Dots(NamedTuple):
    """One quantity in rows: a dot with its interval per series."""

    label: str
    """Of the axis."""
    values: tuple[tuple[Interval | None, ...], ...]
    """One tuple a row, one estimate a series."""
    even: float | None = None
    """Where nothing is gained or lost, drawn as a line."""


def dots(rows: Sequence[str], series: Sequence[str], panels: Sequence[Dots]) -> Figure:
    """Draw dots with intervals, a row per name, a panel per quantity.

    Args:
        rows: names down the side.
        series: what the dots of a row are, in the legend where there are several.
        panels: the quantities.

    Raises:
        ValueError: there is no row, or a panel has not a value per row and series.
    """
    if not rows or not panels:
        raise ValueError("there is nothing to draw")
    looks = looks_of(series)
    short = short_names(rows)
    height = 0.9 + len(panels) * (0.5 + (0.14 + 0.16 * len(series)) * len(rows))
    with style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        every = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, panel in zip(every, panels, strict=True):
            for row, values in zip(range(len(rows)), panel.values, strict=True):
                for at, look, nudge in zip(values, looks, nudges(len(series), 0.2), strict=True):
                    _dot(axes, row + nudge, at, look)
            if panel.even is not None:
                axes.axvline(panel.even, color=INK, linewidth=1, linestyle=":")
            axes.set_yticks(range(len(rows)), [plain(short[row]) for row in rows])
            axes.set_ylim(len(rows) - 0.4, -0.6)
            axes.set_xlabel(plain(panel.label))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        if len(series) > 1:
            names = short_names(series)
            figure.legend(
                handles=[
                    _key(look, plain(names[name])) for name, look in zip(series, looks, strict=True)
                ],
                loc="outside upper left",
                ncols=2,
            )
    return figure


def evaluation(found: Evaluated) -> Figure | None:
    """Draw each metric, and the seconds per prompt, with the draft beside the target alone.

    Returns:
        The figure, or None where there is neither.
    """
    panels = [
        Dots(one.metric, ((one.target,), (one.draft,)))
        for one in found.qualities
        if one.target is not None
    ]
    if found.latency is not None:
        pair = ((found.latency.target,), (found.latency.draft,))
        panels.append(Dots("seconds per prompt (decoding alone)", pair))
    return dots(["target alone", "with the draft"], [""], panels) if panels else None


def tradeoff(found: TradeOff) -> Figure:
    """Draw quality against relative latency, a line per draft and lenience (paper, Fig. 5b).

    The colour says the draft, the marker and the dashes say the lenience function; every line
    starts at its draft's lossless point, where that was run.
    """
    drafts = list(dict.fromkeys(point.draft for point in found.points))
    lossless = {point.draft: point for point in found.points if point.lenience == LOSSLESS}
    functions = list(
        dict.fromkeys(point.lenience for point in found.points if point.lenience != LOSSLESS)
    )
    colors = {draft: COLORS[index % len(COLORS)] for index, draft in enumerate(drafts)}
    with style():
        figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        axes = figure.subplots()
        for draft in drafts:
            start = [lossless[draft]] if draft in lossless else []
            for index, function in enumerate(functions):
                look = Look(colors[draft], MARKERS[index % len(MARKERS)], LINES[index % len(LINES)])
                own = [p for p in found.points if (p.draft, p.lenience) == (draft, function)]
                own.sort(key=lambda point: -(point.epsilon or 0.0))
                if own:
                    _lenience(axes, [*start, *own], look)
            for point in start:
                _estimate(axes, point, Look(colors[draft], "*", "-"))
        axes.axhline(found.quality.value, color=INK, linewidth=1, linestyle=":")
        axes.plot(1.0, found.quality.value, "x", color=INK, markersize=9, markeredgewidth=2)
        if found.pick is not None:
            _circle(axes, found.points[found.pick])
        axes.set_xlabel("decoding time over that of the target alone (less is faster)")
        axes.set_ylabel(plain(found.metric))
        figure.legend(
            handles=_tradeoff_keys(found, colors, functions), loc="outside upper left", ncols=2
        )
    return figure


def transfer(found: Transfer) -> Figure:
    """Draw bars of τ and of speed-up per task and target, drafts side by side (paper, Fig. 1).

    Block efficiency is the forecast at one γ per task, the baseline's best; a speed-up is the
    forecast at each draft's own best γ, a diamond what the clock said.
    """
    drafts = list(dict.fromkeys(one.name for cell in found.cells for one in cell.measured))
    looks = dict(zip(drafts, looks_of(drafts), strict=True))
    names = short_names(drafts)
    bars = sum(len(cell.measured) for cell in found.cells)
    with style():
        height = 1.2 + 2 * (0.5 + 0.24 * bars + 0.16 * len(found.cells))
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        tau, gain = figure.subplots(2, 1)
        at, ticks = 0.0, []
        for cell in found.cells:
            gamma, first = cell.measured[0].best_gamma, at
            for one in cell.measured:
                look = looks[one.name]
                _bar(tau, at, one.at(gamma).tau_forecast, look)
                _bar(gain, at, one.best.speedup_forecast, look)
                if one.best.speedup_measured is not None:
                    clock = one.best.speedup_measured.value
                    gain.plot(clock, at, "D", color=INK, markerfacecolor="none", markersize=6)
                at += 1.0
            ticks.append(((first + at - 1.0) / 2, _cell_label(found, cell.target, cell.task)))
            at += 0.7
        gain.axvline(1.0, color=INK, linewidth=1, linestyle=":")
        for axes, label in (
            (tau, "block efficiency τ, forecast"),
            (gain, "speed-up over the target alone, forecast"),
        ):
            axes.set_yticks([y for y, _ in ticks], [label for _, label in ticks])
            axes.invert_yaxis()
            axes.grid(visible=False, axis="y")
            axes.set_xlim(left=0)
            axes.set_xlabel(label)
        keys = [_key(looks[draft], plain(names[draft])) for draft in drafts]
        if any(one.best.speedup_measured for cell in found.cells for one in cell.measured):
            keys.append(diamond("measured"))
        figure.legend(handles=keys, loc="outside upper left", ncols=3)
    return figure


def _dot(axes: Axes, y: float, at: Interval | None, look: Look) -> None:
    if at is not None:
        axes.errorbar(
            at.value, y, xerr=arms(at), color=look.color, marker=look.marker, capsize=3, linewidth=1
        )


def _key(look: Look, label: str) -> Line2D:
    return Line2D([], [], color=look.color, marker=look.marker, linestyle="", label=label)


def _bar(axes: Axes, y: float, at: Interval, look: Look) -> None:
    axes.barh(y, at.value, height=0.8, color=look.color, alpha=0.55)
    axes.errorbar(
        at.value, y, xerr=arms(at), color=INK, marker=look.marker, markersize=4, capsize=3
    )


def _cell_label(found: Transfer, target: str, task: str) -> str:
    names = short_names([cell.target for cell in found.cells])
    task = short_names([task])[task]
    return plain(task) if len(names) == 1 else f"{plain(task)}\n{plain(names[target])}"


def _lenience(axes: Axes, points: Sequence[Point], look: Look) -> None:
    xs = [point.latency.value for point in points]
    ys = [point.quality.value for point in points]
    axes.plot(xs, ys, color=look.color, linestyle=look.line, linewidth=1.2)
    for point in points:
        if point.lenience != LOSSLESS:
            _estimate(axes, point, look)
            axes.annotate(
                f"{point.epsilon:g}",
                (point.latency.value, point.quality.value),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=7,
            )


def _estimate(axes: Axes, point: Point, look: Look) -> None:
    axes.errorbar(
        point.latency.value,
        point.quality.value,
        xerr=arms(point.latency),
        yerr=arms(point.quality),
        color=look.color,
        ecolor=GRID,
        elinewidth=0.5,
        marker=look.marker,
        markersize=9 if look.marker == "*" else 5,
        linestyle="",
    )


def _circle(axes: Axes, point: Point) -> None:
    axes.plot(
        point.latency.value,
        point.quality.value,
        "o",
        color=INK,
        markerfacecolor="none",
        markersize=16,
        markeredgewidth=1.5,
    )


def _tradeoff_keys(
    found: TradeOff, colors: dict[str, str], functions: Sequence[str]
) -> list[Line2D]:
    names = short_names(list(colors))
    keys = [
        Line2D([], [], color=color, linewidth=4, label=plain(names[draft]))
        for draft, color in colors.items()
    ]
    keys += [
        Line2D(
            [],
            [],
            color=GRID,
            marker=MARKERS[index % len(MARKERS)],
            linestyle=LINES[index % len(LINES)],
            label=f"{plain(function)}, ε beside it",
        )
        for index, function in enumerate(functions)
    ]
    if any(point.lenience == LOSSLESS for point in found.points):
        keys.append(Line2D([], [], color=GRID, marker="*", linestyle="", label="lossless"))
    keys.append(Line2D([], [], color=INK, marker="x", linestyle="", label="target alone"))
    if found.pick is not None:
        label = f"fastest within {found.max_loss:g} %"
        keys.append(
            Line2D(
                [],
                [],
                color=INK,
                marker="o",
                markerfacecolor="none",
                markersize=10,
                linestyle="",
                label=label,
            )
        )
    return keys
