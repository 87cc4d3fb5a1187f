"""What the report reads: every field checked, what is missing stays missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distillspec.errors import UserError
from distillspec.report.results import measurements, trainings
from distillspec.studies.store import read_run
from report_runs import create, log_training, measurement

Store = Callable[[dict[str, Any]], Path]


def test_a_measurement_is_read_field_by_field(measured: Store) -> None:
    (one,) = measurements(read_run(measured(measurement(0.35))))
    assert (one.stage, one.temperature, one.prompts, one.tokens) == ("measure", 1.0, 48, 3072)
    assert one.alpha == pytest.approx((0.35, 0.33, 0.37))
    assert [point.gamma for point in one.points] == list(range(1, 9))
    assert one.best.gamma == 2
    assert one.best.forecast_z == 0.8
    assert one.best.tau_counted is not None
    assert one.points[0].tau_counted is None
    assert one.points[0].speedup_measured is None


def test_a_demo_has_three_stages_at_each_temperature(demo: Path) -> None:
    found = [(one.stage, one.temperature) for one in measurements(read_run(demo))]
    stages = ("before", "control", "after")
    assert found == [(stage, t) for stage in stages for t in (0.0, 1.0)]
    assert [one.name for one in trainings(read_run(demo))] == ["sft", "after", "control"]


def test_gammas_are_put_in_order(measured: Store) -> None:
    result = measurement(0.35)
    result["gammas"].reverse()
    (one,) = measurements(read_run(measured(result)))
    assert [point.gamma for point in one.points] == list(range(1, 9))


def test_none_stays_none(measured: Store) -> None:
    result = measurement(0.35)
    result["break_even_alpha"] = None
    result["gammas"][1]["forecast_z"] = None
    (one,) = measurements(read_run(measured(result)))
    assert one.break_even_alpha is None
    assert one.best.forecast_z is None


@pytest.mark.parametrize(
    "key", ["alpha", "temperature", "prompts", "cost", "best_gamma", "headroom", "verdict", "rule"]
)
def test_a_missing_field_is_an_error_that_names_it(key: str, measured: Store) -> None:
    result = measurement(0.35)
    del result[key]
    with pytest.raises(UserError, match=rf"result\.json: {key} is missing"):
        measurements(read_run(measured(result)))


def test_a_field_of_another_form_is_an_error(measured: Store) -> None:
    with pytest.raises(UserError, match="not a measurement"):
        measurements(read_run(measured({**measurement(0.3), "alpha": 0.3})))


def test_a_best_gamma_that_was_not_measured_is_an_error(tmp_path: Path) -> None:
    run = create(tmp_path / "m", "measure")
    run.write_json("result.json", {**measurement(0.3), "best_gamma": 12})
    with pytest.raises(UserError, match="best_gamma is not among"):
        measurements(read_run(run.folder))


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
