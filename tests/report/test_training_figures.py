"""Training curves show what is stored: each test reads the numbers back off the axes."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from distillspec.report.training import trainings
from distillspec.report.training_figures import training_curves
from distillspec.studies.store import read_run
from report_runs import create


def labels(figure: Figure) -> str:
    return " | ".join(text.get_text() for legend in figure.legends for text in legend.get_texts())


def test_training_is_drawn_over_steps_and_over_seconds(distilled: Path) -> None:
    runs = trainings(read_run(distilled))
    for over, label in (("step", "optimizer steps"), ("seconds", "seconds of training")):
        figure = training_curves(runs, over)
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
    figure = training_curves(trainings(read_run(demo)), "step")
    names = [axes.get_ylabel().splitlines()[0] for axes in figure.axes]
    assert names == ["acceptance α", "loss (nats)"]
    assert labels(figure) == "sft | after | control"
    with pytest.raises(ValueError, match="no training run"):
        training_curves([], "step")


def test_a_high_start_does_not_flatten_the_loss(tmp_path: Path) -> None:
    """A real first step at 50 nats left all later ones on the axis, as if nothing were learnt."""
    run = create(tmp_path / "t", "sft")
    for step, loss in enumerate((50.0, 11.0, 9.0, 8.0), start=1):
        run.log({"step": step, "seconds": step, "loss": loss, "tokens": 1})
    (axes,) = training_curves(trainings(read_run(run.folder)), "step").axes
    assert axes.get_yscale() == "log"


def test_a_gentle_loss_keeps_a_linear_scale(distilled: Path) -> None:
    figure = training_curves(trainings(read_run(distilled)), "step")
    assert figure.axes[-1].get_yscale() == "linear"
