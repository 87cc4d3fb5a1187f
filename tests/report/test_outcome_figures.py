"""Figures of outcomes show what is stored: each test reads the numbers back off the axes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distillspec.report import outcome_figures as figures
from distillspec.report import outcomes
from distillspec.report.outcome_figures import Dots
from distillspec.report.reading import Interval
from distillspec.studies.store import read_run
from report_runs import evaluation, trade_off, transfer_result

Store = Callable[[dict[str, Any]], Path]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def lines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def test_dots_stand_at_their_values_in_rows() -> None:
    a, b = Interval(1.0, 0.5, 1.5), Interval(2.0, 1.5, 2.5)
    figure = figures.dots(["x", "y"], ["one", "two"], [Dots("τ", ((a, b), (b, None)), even=1.2)])
    (axes,) = figure.axes
    drawn = lines(axes)
    assert ([1.0], [-0.1]) in drawn
    assert ([2.0], [0.1]) in drawn
    assert ([2.0], [0.9]) in drawn
    assert [1.2, 1.2] in [xs for xs, _ in drawn]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["x", "y"]
    assert legend(figure) == ["one", "two"]
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.dots([], ["one"], [])


def test_an_evaluation_has_a_panel_a_metric_and_one_for_the_clock(measured: Store) -> None:
    found = outcomes.evaluated(read_run(measured(evaluation())))
    assert found is not None
    figure = figures.evaluation(found)
    assert figure is not None
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["rouge2", "rougeLsum", "seconds per prompt (decoding alone)"]
    dots = [line for line in figure.axes[2].lines if line.get_marker() == "o"]
    assert [list(dot.get_xdata()) for dot in dots] == [[2.4], [1.9]]


def test_a_tradeoff_has_a_line_per_draft_and_function_from_its_lossless_point(
    measured: Store,
) -> None:
    found = outcomes.tradeoff(read_run(measured(trade_off())))
    assert found is not None
    figure = figures.tradeoff(found)
    drawn = lines(figure.axes[0])
    for draft in ("runs/raw", "runs/after"):
        for function in ("linear", "squared", "exponential"):
            points = [p for p in found.points if p.draft == draft and p.lenience == function]
            (start,) = [p for p in found.points if p.draft == draft and p.lenience == "lossless"]
            path = [start, *points]
            xs = [point.latency.value for point in path]
            assert (xs, [point.quality.value for point in path]) in drawn
    assert ([1.0], [20.0]) in drawn  # the target alone
    ring = [line for line in figure.axes[0].lines if line.get_markersize() == 16]
    assert [list(line.get_xdata()) for line in ring] == [[found.points[12].latency.value]]
    assert sorted({text.get_text() for text in figure.axes[0].texts}) == ["0.1", "0.2", "0.5"]
    assert "fastest within 5 %" in legend(figure)


def test_a_tradeoff_without_a_pick_has_no_ring(measured: Store) -> None:
    result = {**trade_off(), "pick": {"max_loss": 5.0, "point": None}}
    found = outcomes.tradeoff(read_run(measured(result)))
    assert found is not None
    figure = figures.tradeoff(found)
    assert not [line for line in figure.axes[0].lines if line.get_markersize() == 16]
    assert not [text for text in legend(figure) if "within" in text]


def test_transfer_bars_are_as_long_as_the_forecasts(measured: Store) -> None:
    found = outcomes.transfer(read_run(measured(transfer_result())))
    assert found is not None
    tau, gain = figures.transfer(found).axes
    every = [one for cell in found.cells for one in cell.measured]
    assert [bar.get_width() for bar in tau.patches] == [o.at(2).tau_forecast.value for o in every]
    widths = [one.best.speedup_forecast.value for one in every]
    assert [bar.get_width() for bar in gain.patches] == widths
    ticks = [tick.get_text() for tick in gain.get_yticklabels()]
    assert ticks[0] == "gsm8k\nsmall-target"
    assert len(ticks) == 6
    diamonds = [line for line in gain.lines if line.get_marker() == "D"]
    assert len(diamonds) == 12
