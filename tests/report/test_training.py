"""Training metrics as the report reads them: ratios of sums, stages told apart, damage named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distillspec.errors import UserError
from distillspec.report.training import trainings
from distillspec.studies.store import read_run
from report_runs import create, log_training


def test_curves_are_ratios_of_sums(tmp_path: Path) -> None:
    """The mean of 1/10 and 90/100 is 0.5, but 91 of 110 tokens were accepted."""
    run = create(tmp_path / "t", "distill")
    for step in range(1, 121):
        counts = {"alpha_sum": 90, "alpha_count": 100}
        if step % 2:
            counts = {"alpha_sum": 1, "alpha_count": 10}
        run.log({"step": step, "seconds": step, "loss": 1.0, "tokens": 5, **counts})
    (one,) = trainings(read_run(run.folder))
    assert len(one.alpha.value) == 60
    assert one.alpha.value == pytest.approx([91 / 110] * 60)
    assert one.alpha.step[:2] == (2, 4)
    assert (one.steps, one.tokens, one.duration) == (120, 600, 120.0)


def test_sft_has_a_loss_and_no_acceptance(tmp_path: Path) -> None:
    run = create(tmp_path / "t", "sft")
    for step in (1, 2):
        row = {"step": step, "seconds": step, "loss": 1.0, "tokens": 5}
        run.log({**row, "alpha_sum": None, "alpha_count": 0})
    (one,) = trainings(read_run(run.folder))
    assert one.alpha.value == ()
    assert one.loss.value == (1.0, 1.0)


def test_a_step_that_taught_nothing_is_no_point_of_the_curve(tmp_path: Path) -> None:
    """Its loss of 0 is a mean over none."""
    run = create(tmp_path / "t", "sft")
    for step, (loss, left_out) in enumerate([(2.0, 1), (0.0, 5), (4.0, 0)], 1):
        row = {"step": step, "seconds": step, "loss": loss, "tokens": 5}
        run.log({**row, "left_out": left_out})
    (one,) = trainings(read_run(run.folder))
    assert (one.loss.step, one.loss.value) == ((1, 3), (2.0, 4.0))


def test_evaluations_are_apart_from_steps(distilled: Path) -> None:
    (one,) = trainings(read_run(distilled))
    assert one.held_out_tau.step == (60, 120, 180, 240, 300)
    assert one.gamma == 2
    assert len(one.loss.value) == 60
    assert one.parts == pytest.approx({"rollout": 90.0, "target": 180.0, "draft": 150.0})


def test_stages_in_one_file_are_told_apart(tmp_path: Path) -> None:
    run = create(tmp_path / "t", "demo")
    for stage in ("sft", "after"):
        run.log({"stage": stage, "step": 1, "seconds": 1.0, "loss": 1.0, "tokens": 1})
    assert [one.name for one in trainings(read_run(run.folder))] == ["sft", "after"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"step": 2, "seconds": 9.0, "tokens": 1}, "lacks 'loss'"),
        ({"step": 2, "seconds": 9.0, "loss": "x", "tokens": 1}, "not of a training run"),
        ({"step": 2, "seconds": 0.5, "loss": 1.0, "tokens": 1}, "seconds go backwards"),
    ],
)
def test_a_damaged_row_is_an_error(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    run = create(tmp_path / "t", "distill")
    run.log({"step": 1, "seconds": 1.0, "loss": 1.0, "tokens": 1})
    run.log(row)
    with pytest.raises(UserError, match=message):
        trainings(read_run(run.folder))


def test_tau_at_two_gammas_is_an_error(tmp_path: Path) -> None:
    run = create(tmp_path / "t", "distill")
    log_training(run, steps=60, start=0.2, end=0.4, evaluate=True)
    counts = {"alpha_sum": 1, "alpha_count": 2, "tokens": 10, "calls": 8, "gamma": 3}
    run.log({"step": 60, "seconds": 95.0, "evaluation": counts})
    with pytest.raises(UserError, match="several γ"):
        trainings(read_run(run.folder))
