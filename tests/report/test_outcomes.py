"""Evaluations, trade-offs and transfers as the report reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distillspec.errors import UserError
from distillspec.report.outcomes import evaluated, tradeoff, transfer
from distillspec.studies.store import read_run
from report_runs import evaluation, measurement, trade_off, transfer_result

Store = Callable[[dict[str, Any]], Path]


def test_an_evaluation_is_read_field_by_field(measured: Store) -> None:
    found = evaluated(read_run(measured(evaluation())))
    assert found is not None
    assert (found.task, found.rule) == ("xsum", "greedy")
    assert found.facts["γ"] == 3
    assert [one.metric for one in found.qualities] == ["rouge2", "rougeLsum"]
    assert found.qualities[0].target == pytest.approx((12.0, 10.0, 14.0))
    assert found.qualities[0].difference == (0, 0, 0)
    assert found.latency is not None
    assert found.latency.repetitions == 3
    assert found.latency.draft.value < found.latency.target.value
    assert found.throughput["batch_size"] == 8
    assert found.same_output["near_ties"] == 1
    assert [domain.name for domain in found.domains] == ["news", "sport"]


def test_what_an_evaluation_did_not_take_stays_missing(measured: Store) -> None:
    missing: dict[str, Any] = dict.fromkeys(
        ("latency", "throughput", "same_output", "tau_forecast", "quality")
    )
    found = evaluated(read_run(measured({**evaluation(), **missing})))
    assert found is not None
    assert found.latency is None
    assert found.tau_forecast is None
    assert found.throughput == found.same_output == {}
    assert found.qualities == ()


def test_a_tradeoff_is_read_field_by_field(measured: Store) -> None:
    found = tradeoff(read_run(measured(trade_off())))
    assert found is not None
    assert (found.metric, found.gamma, found.prompts) == ("rouge2", 3, 24)
    assert found.quality.value == 20.0
    assert len(found.points) == 20
    assert found.points[1].lenience == "linear"
    assert found.points[1].epsilon == 0.5
    assert (found.pick, found.max_loss) == (12, 5.0)


@pytest.mark.parametrize("pick", [20, -1])
def test_a_pick_that_is_no_point_is_an_error(pick: int, measured: Store) -> None:
    result = {**trade_off(), "pick": {"max_loss": 5.0, "point": pick}}
    with pytest.raises(UserError, match=f"pick.point is {pick}, and there are 20 points"):
        tradeoff(read_run(measured(result)))


def test_a_transfer_is_read_field_by_field(measured: Store) -> None:
    found = transfer(read_run(measured(transfer_result())))
    assert found is not None
    assert [(cell.target, cell.task) for cell in found.cells][3] == ("models/large-target", "gsm8k")
    assert [one.name for one in found.cells[0].measured] == ["runs/raw", "runs/after"]
    assert found.cells[0].comparisons[0].against == "runs/raw"


def test_a_draft_not_measured_at_the_baselines_gamma_is_an_error(measured: Store) -> None:
    result = transfer_result()
    second = result["cells"][0]["measurements"][1]
    second["gammas"] = second["gammas"][3:]
    second["best_gamma"] = 4
    with pytest.raises(UserError, match="not measured at the baseline's best γ, 2"):
        transfer(read_run(measured(result)))


def test_a_missing_field_is_named(measured: Store) -> None:
    result = transfer_result()
    del result["cells"][1]["measurements"][0]["alpha"]
    with pytest.raises(UserError, match=r"cells\.1\.measurements\.0\.alpha is missing"):
        transfer(read_run(measured(result)))


@pytest.mark.parametrize("read", [evaluated, tradeoff, transfer])
def test_a_run_of_another_verb_is_none(read: Callable[..., object], measured: Store) -> None:
    assert read(read_run(measured(measurement(0.3)))) is None
