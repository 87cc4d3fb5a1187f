"""Paired differences and single prompts as the report reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distillspec.errors import UserError
from distillspec.report.drafts import comparisons, examples, ids_of
from distillspec.studies.store import read_run
from report_runs import compared, create, example_rows, full_measurement

Store = Callable[[dict[str, Any]], Path]


def several(*comparison: dict[str, Any]) -> dict[str, Any]:
    return {**full_measurement(0.3), "drafts": [], "comparison": list(comparison)}


def test_a_comparison_is_read_field_by_field(measured: Store) -> None:
    result = several(compared("new", "raw", ("code", "prose")))
    (one,) = comparisons(read_run(measured(result)))
    assert (one.draft, one.against, one.gamma, one.temperature) == ("new", "raw", 2, None)
    assert one.alpha == pytest.approx((0.11, 0.09, 0.13))
    assert one.speedup == pytest.approx((0.12, 0.07, 0.17))
    assert one.counts == (40, 6, 2)
    assert [(d.name, d.prompts) for d in one.domains] == [("code", 12), ("prose", 12)]
    assert one.worse == (("p7", "code", 1.31, 1.52),)


def test_a_speedup_that_was_not_clocked_stays_missing(measured: Store) -> None:
    result = several({**compared("new", "raw", ()), "speedup_difference": None})
    (one,) = comparisons(read_run(measured(result)))
    assert one.speedup is None


def test_a_demos_differences_come_by_temperature(demo: Path) -> None:
    found = comparisons(read_run(demo))
    assert [(one.draft, one.against, one.temperature) for one in found] == [
        ("after", "control", 0.0),
        ("after", "control", 1.0),
    ]
    assert found[0].tau == pytest.approx((0.21, 0.15, 0.27))


def test_a_missing_difference_is_named(measured: Store) -> None:
    result = several(compared("new", "raw", ()))
    del result["comparison"][0]["tau_difference"]
    with pytest.raises(UserError, match=r"comparison\.0\.tau_difference is missing"):
        comparisons(read_run(measured(result)))


def test_tau_of_a_prompt_is_tokens_over_calls(tmp_path: Path) -> None:
    run = create(tmp_path / "m", "measure")
    rows = example_rows(["raw", "new"], 3)
    run.write_rows("examples.jsonl", rows)
    found = examples(read_run(run.folder))
    assert [(one.draft, one.gamma) for one in found] == [("raw", 2), ("new", 2)]
    assert found[1].taus["p2"] == 64 / rows[5]["calls"]
    assert ids_of(found) == ["p0", "p1", "p2"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"calls": 0}, "row 1 is not of `measure`"), ({"tokens": "x"}, "row 1 is not of `measure`")],
)
def test_a_damaged_example_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    run = create(tmp_path / "m", "measure")
    run.write_rows("examples.jsonl", [{**example_rows(["raw"], 1)[0], **change}])
    with pytest.raises(UserError, match=message):
        examples(read_run(run.folder))


def test_the_prompts_of_a_transfer_are_not_mixed(tmp_path: Path) -> None:
    run = create(tmp_path / "t", "transfer")
    run.write_rows("examples.jsonl", [{**row, "task": "a"} for row in example_rows(["raw"], 2)])
    assert examples(read_run(run.folder)) == []
