"""Figures of training: acceptance, block efficiency and loss over steps and over seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from distillspec.report.style import GRID, WIDTH, Look, looks_of, style
from distillspec.report.text import plain
from distillspec.report.training import Curve, Training


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
    looks = looks_of([run.name for run in runs])
    panels: list[tuple[str, list[tuple[Curve | None, Curve | None]]]] = [
        ("acceptance α\n(expected)", [(run.alpha, run.held_out_alpha) for run in runs]),
        (_tau_label(runs), [(None, run.held_out_tau) for run in runs]),
        ("loss (nats)", [(run.loss, None) for run in runs]),
    ]
    drawn = [(label, curves) for label, curves in panels if any(_any_point(c) for c in curves)]
    with style():
        figure = Figure(figsize=(WIDTH, 0.9 + 1.6 * len(drawn)), layout="constrained")
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


def _any_point(curves: tuple[Curve | None, Curve | None]) -> bool:
    return any(curve is not None and curve.value for curve in curves)


def _line(axes: Axes, curve: Curve | None, over: str, look: Look, *, faint: bool) -> None:
    if curve is not None and curve.value:
        x = curve.step if over == "step" else curve.seconds
        alpha = 0.4 if faint else 1.0
        axes.plot(x, curve.value, color=look.color, linestyle=look.line, alpha=alpha)


def _points(axes: Axes, curve: Curve | None, over: str, look: Look) -> None:
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
        Line2D([], [], color=look.color, linestyle=look.line, label=plain(run.name))
        for run, look in zip(runs, looks_of([run.name for run in runs]), strict=True)
    ]
    if any(run.held_out_alpha.value for run in runs):
        handles.append(Line2D([], [], color=GRID, marker="o", label="on held-out prompts"))
    figure.legend(handles=handles, loc="outside upper left", ncols=3)


def _tau_label(runs: Sequence[Training]) -> str:
    gammas = {run.gamma for run in runs if run.gamma is not None}
    return f"block efficiency τ\n(γ = {', '.join(map(str, sorted(gammas)))})"
