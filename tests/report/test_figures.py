"""Figures show what is stored: each test reads the numbers back off the axes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from distillspec.report import figures
from distillspec.report.results import measurements, trainings
from distillspec.studies.store import read_run
from report_runs import create, measurement

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


def test_training_is_drawn_over_steps_and_over_seconds(distilled: Path) -> None:
    runs = trainings(read_run(distilled))
    for over, label in (("step", "optimizer steps"), ("seconds", "seconds of training")):
        figure = figures.training_curves(runs, over)
        names = [axes.get_ylabel().splitlines()[0] for axes in figure.axes]
        assert names == ["acceptance α", "block efficiency τ", "loss (nats)"]
        assert figure.axes[-1].get_xlabel() == label
        alpha, tau, loss = figure.axes
        assert list(alpha.lines[0].get_ydata()) == list(runs[0].alpha.value)
        assert list(alpha.lines[1].get_ydata()) == list(runs[0].held_out_alpha.value)
        assert list(tau.lines[0].get_ydata()) == list(runs[0].held_out_tau.value)
        assert list(loss.lines[0].get_xdata()) == list(getattr(runs[0].loss, over))
    assert "held-out" in labels(figure)


def test_panels_without_a_number_are_left_out(demo: Path) -> None:
    figure = figures.training_curves(trainings(read_run(demo)), "step")
    names = [axes.get_ylabel().splitlines()[0] for axes in figure.axes]
    assert names == ["acceptance α", "loss (nats)"]
    assert labels(figure) == "sft | after | control"
    with pytest.raises(ValueError, match="no training run"):
        figures.training_curves([], "step")


@pytest.mark.parametrize(
    "names",
    [("before", "control", "after"), ("sft", "after", "control"), ("a", "b", "c", "d", "after")],
)
def test_no_two_series_look_alike(names: tuple[str, ...]) -> None:
    looks = figures._looks(names)
    assert len({look.color for look in looks}) == len(names)
    assert len({look.marker for look in looks}) == len(names)


def test_an_svg_is_whole_and_always_the_same(demo: Path) -> None:
    measured = measurements(read_run(demo))
    first = figures.speedup_bars(measured)
    second = figures.speedup_bars(measured)
    assert first is not None
    assert second is not None
    drawing = figures.svg(first)
    ET.fromstring(drawing)
    assert drawing == figures.svg(second)
    assert "speed-up over the target alone" in drawing  # text stays text
    assert re.search(r"<dc:date>", drawing) is None


def test_a_saved_picture_is_a_png_on_white_ground(demo: Path, tmp_path: Path) -> None:
    figure = figures.speedup_bars(measurements(read_run(demo)))
    assert figure is not None
    drawing, picture = figures.save(figure, figures.svg(figure), tmp_path, "bars")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert drawing.read_text().rstrip().endswith("</svg>")
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_a_high_start_does_not_flatten_the_loss(tmp_path: Path) -> None:
    """A real first step at 50 nats left all later ones on the axis, as if nothing were learnt."""
    run = create(tmp_path / "t", "sft")
    for step, loss in enumerate((50.0, 11.0, 9.0, 8.0), start=1):
        run.log({"step": step, "seconds": step, "loss": loss, "tokens": 1})
    (axes,) = figures.training_curves(trainings(read_run(run.folder)), "step").axes
    assert axes.get_yscale() == "log"


def test_a_gentle_loss_keeps_a_linear_scale(distilled: Path) -> None:
    figure = figures.training_curves(trainings(read_run(distilled)), "step")
    assert figure.axes[-1].get_yscale() == "linear"
