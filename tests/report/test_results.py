"""What the report reads: every field checked, what is missing stays missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distillspec.errors import UserError
from distillspec.report.results import measurements
from distillspec.studies.store import read_run
from report_runs import create, full_measurement, measurement

Store = Callable[[dict[str, Any]], Path]


def test_a_measurement_is_read_field_by_field(measured: Store) -> None:
    (one,) = measurements(read_run(measured(measurement(0.35))))
    assert (one.name, one.temperature, one.prompts, one.tokens) == ("measure", 1.0, 48, 3072)
    assert one.alpha == pytest.approx((0.35, 0.33, 0.37))
    assert [point.gamma for point in one.points] == list(range(1, 9))
    assert one.best.gamma == 2
    assert one.best.forecast_z == 0.8
    assert one.best.tau_counted is not None
    assert one.points[0].tau_counted is None
    assert one.points[0].speedup_measured is None


def test_a_demo_has_three_stages_at_each_temperature(demo: Path) -> None:
    found = [(one.name, one.temperature) for one in measurements(read_run(demo))]
    stages = ("before", "control", "after")
    assert found == [(stage, t) for stage in stages for t in (0.0, 1.0)]


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


def test_what_is_taken_today_is_read_field_by_field(measured: Store) -> None:
    (one,) = measurements(read_run(measured(full_measurement(0.35, domains=("code", "prose")))))
    assert one.estimator == "expected"
    assert one.alpha_ratio == pytest.approx((0.354, 0.324, 0.384))
    assert [(need.speedup, need.alpha) for need in one.needed] == [
        (1, 0.19),
        (1.5, 0.71),
        (2, None),
    ]
    assert one.position_gamma == 4
    assert [at.position for at in one.positions] == [1, 2, 3, 4]
    assert one.positions[1].judged == pytest.approx(900 * 0.35)
    assert [(at.start, at.end, at.tokens) for at in one.contexts][0] == (0, 63, 500)
    assert [domain.name for domain in one.domains] == ["code", "prose"]
    assert one.domains[1].tau.value == 1.6
    assert [batch.size for batch in one.batches] == [1, 4, 16]
    assert one.batches[2].break_even_alpha is None
    assert one.batches[1].gammas[0].gamma == 1
    assert one.suits is not None


def test_an_earlier_versions_measurement_lacks_what_it_did_not_take(measured: Store) -> None:
    (one,) = measurements(read_run(measured(measurement(0.35))))
    assert (one.positions, one.contexts, one.domains, one.batches, one.needed) == ((),) * 5
    assert one.alpha_ratio is None
    assert one.suits is None


def test_several_drafts_are_measurements_each(measured: Store) -> None:
    drafts = [{**full_measurement(a), "draft": name} for name, a in (("raw", 0.3), ("new", 0.4))]
    demands = ["raw: asked for 1.5×.", "new: asked for 1.5×."]
    drafts[1]["unmet"] = demands[1:]
    found = measurements(read_run(measured({**drafts[0], "drafts": drafts, "unmet": demands})))
    assert [(one.name, one.alpha.value) for one in found] == [("raw", 0.3), ("new", 0.4)]
    assert [one.unmet for one in found] == [(demands[0],), (demands[1],)]


def test_several_drafts_of_another_form_are_an_error(measured: Store) -> None:
    result = {**full_measurement(0.3), "drafts": [full_measurement(0.3)]}
    with pytest.raises(UserError, match="draft is missing"):
        measurements(read_run(measured(result)))


def test_no_draft_among_several_is_an_error(measured: Store) -> None:
    with pytest.raises(UserError, match="not a list of measurements: it is empty"):
        measurements(read_run(measured({**full_measurement(0.3), "drafts": []})))


def test_a_position_of_another_form_is_an_error(measured: Store) -> None:
    result = full_measurement(0.3)
    del result["by_position"]["positions"][0]["rate"]
    with pytest.raises(UserError, match="rate is missing"):
        measurements(read_run(measured(result)))
