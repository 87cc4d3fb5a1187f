"""Figures show what is stored: each test reads the numbers back off the axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from distillspec.report import figures
from distillspec.report.drafts import Examples
from distillspec.report.results import measurements
from distillspec.studies.store import read_run
from report_runs import full_measurement, measurement

Store = Callable[[dict[str, Any]], Path]


def labels(figure: Figure) -> str:
    return " | ".join(text.get_text() for legend in figure.legends for text in legend.get_texts())


def test_tau_lines_pass_through_the_forecasts_and_the_counts(demo: Path) -> None:
    measured = [one for one in measurements(read_run(demo)) if one.temperature == 1.0]
    (axes,) = figures.tau_by_gamma(measured).axes
    lines = [list(line.get_ydata()) for line in axes.lines]
    for one in measured:
        assert [point.tau_forecast.value for point in one.points] in lines
        assert one.best.tau_counted is not None
        assert [one.best.tau_counted.value] in lines
    assert "γ" in axes.get_xlabel()
    assert "tokens per target call" in axes.get_ylabel()


def test_counts_that_were_not_made_are_not_drawn(measured: Store) -> None:
    found = measurements(read_run(measured(measurement(0.3, ran=False))))
    figure = figures.tau_by_gamma(found)
    assert len(figure.axes[0].lines) == 1
    assert "counted" not in labels(figure)
    assert figures.speedup_bars(found) is None


def test_tau_needs_one_temperature(demo: Path) -> None:
    with pytest.raises(ValueError, match=r"one temperature, not \[0\.0, 1\.0\]"):
        figures.tau_by_gamma(measurements(read_run(demo)))
    with pytest.raises(ValueError, match="one temperature"):
        figures.tau_by_gamma([])


def test_bars_are_as_long_as_the_measured_speedups(demo: Path) -> None:
    measured = measurements(read_run(demo))
    figure = figures.speedup_bars(measured)
    assert figure is not None
    (axes,) = figure.axes
    widths = [patch.get_width() for patch in axes.patches]
    gains = [one.best.speedup_measured for one in measured]
    assert widths == [gain.value for gain in gains if gain is not None]
    forecasts = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert forecasts == [one.best.speedup_forecast.value for one in measured]
    assert axes.get_xlim()[0] == 0
    assert [tick.get_text() for tick in axes.get_yticklabels()][-1] == "after, γ = 2, T = 1"


def test_a_speedup_line_a_batch_size_and_the_clock_on_batch_one(measured: Store) -> None:
    (one,) = measurements(read_run(measured(full_measurement(0.4))))
    figure = figures.speedup_by_gamma([one])
    (axes,) = figure.axes
    drawn = [list(line.get_ydata()) for line in axes.lines]
    for batch in one.batches:
        assert [at.forecast.value for at in batch.gammas] in drawn
    assert one.best.speedup_measured is not None
    assert [one.best.speedup_measured.value] in drawn
    assert axes.get_title() == ""
    assert axes.get_title("left") == "measure"
    legend = "batch 1, forecast | batch 4, forecast | batch 16, forecast | measured"
    assert labels(figure) == legend


def test_speedups_at_batch_one_alone_share_a_panel(demo: Path) -> None:
    measured = [one for one in measurements(read_run(demo)) if one.temperature == 1.0]
    figure = figures.speedup_by_gamma(measured)
    (axes,) = figure.axes
    drawn = [list(line.get_ydata()) for line in axes.lines]
    for one in measured:
        assert [point.speedup_forecast.value for point in one.points] in drawn
    assert labels(figure).startswith("before, forecast | control, forecast | after, forecast")


def test_acceptance_by_place_shows_positions_and_contexts(measured: Store) -> None:
    found = measurements(read_run(measured(full_measurement(0.4))))
    figure = figures.acceptance_by_place(found)
    assert figure is not None
    places, contexts = figure.axes
    assert list(places.lines[0].get_ydata()) == [0.4] * 4
    assert list(places.lines[0].get_xdata()) == [1, 2, 3, 4]
    assert list(contexts.lines[0].get_ydata()) == [0.45, 0.4, 0.38]
    ticks = [tick.get_text() for tick in contexts.get_xticklabels()]
    assert ticks == ["0–63", "64–127", "128–255"]


def test_one_position_is_marked_by_its_number(measured: Store) -> None:
    """Three drafts beside one another at γ = 1: positions are counted, never 0.975."""
    (one,) = measurements(read_run(measured(full_measurement(0.4))))
    drafts = [replace(one, name=name, positions=one.positions[:1]) for name in "abc"]
    figure = figures.acceptance_by_place(drafts)
    assert figure is not None
    places = figure.axes[0]
    low, high = sorted(places.get_xlim())
    assert [at for at in places.get_xticks() if low <= at <= high] == [1.0]


def test_acceptance_by_place_needs_a_place(demo: Path) -> None:
    assert figures.acceptance_by_place(measurements(read_run(demo))) is None


def test_every_drafts_prompts_are_sorted_by_their_own_tau() -> None:
    found = [
        Examples("raw", 2, {"a": 1.5, "b": 1.0, "c": 2.0}),
        Examples("new", 2, {"a": 1.2, "b": 3.0, "c": 1.1}),
    ]
    figure = figures.sorted_taus(found)
    lines = [list(line.get_ydata()) for line in figure.axes[0].lines]
    assert lines[:2] == [[1.0, 1.5, 2.0], [1.1, 1.2, 3.0]]
    assert labels(figure) == "raw, γ = 2 | new, γ = 2"
    with pytest.raises(ValueError, match="no draft"):
        figures.sorted_taus([])
