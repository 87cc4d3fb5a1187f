"""What the page says of measurements: every number stored is in a table, by its rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from distillspec.report.measured_parts import measured_content
from distillspec.report.results import measurements
from distillspec.report.tables import Content, Table
from distillspec.studies.store import read_run
from report_runs import full_measurement, measurement

Store = Callable[[dict[str, Any]], Path]


def rows(table: Table) -> list[tuple[str, ...]]:
    """Cells without their intervals."""
    return [tuple(re.sub("<small>.*?</small>", "", cell) for cell in row) for row in table.rows]


def column(table: Table, name: str) -> list[str]:
    return [row[table.head.index(name)] for row in rows(table)]


def kinds(content: Content) -> Iterable[tuple[str, str]]:
    return [(verdict.kind, verdict.about) for verdict in content.verdicts]


def test_nothing_measured_says_nothing() -> None:
    assert measured_content([]) == Content()


def test_what_distillation_brought_comes_before_what_it_started_from(demo: Path) -> None:
    content = measured_content(measurements(read_run(demo)))
    main = [about for kind, about in kinds(content) if kind == "main"]
    assert main == [f"after, temperature {t}, rule: ratio" for t in (0, 1)]
    aside = [about for kind, about in kinds(content) if kind == "aside"]
    assert [about.split(",")[0] for about in aside] == ["before", "before", "control", "control"]


def test_a_demand_that_was_not_met_comes_first(measured: Store) -> None:
    result = {**full_measurement(0.3), "unmet": ["--min-speedup 2 is not met"]}
    content = measured_content(measurements(read_run(measured(result))))
    assert [verdict.kind for verdict in content.verdicts] == ["unmet", "main", "note"]
    assert content.verdicts[0].sentence == "--min-speedup 2 is not met"
    assert content.verdicts[2].about == "which divergence suits the rule (ratio)"


def test_every_figure_names_its_rule_and_has_its_data(measured: Store) -> None:
    result = {**full_measurement(0.3, domains=("code", "prose")), "rule": "exact match"}
    content = measured_content(measurements(read_run(measured(result))))
    names = [drawing.name for drawing in content.drawings]
    assert names == ["speedup", "speedup-t1", "tau-t1", "acceptance-t1", "domains-t1"]
    for drawing in content.drawings:
        assert "Acceptance rule: exact match." in drawing.caption
        assert drawing.data.rows


def test_the_data_of_a_figure_are_its_numbers(measured: Store) -> None:
    result = full_measurement(0.3, domains=("code", "prose"))
    content = measured_content(measurements(read_run(measured(result))))
    data = {drawing.name: drawing.data for drawing in content.drawings}
    assert column(data["speedup-t1"], "batch") == ["1"] * 8 + ["4"] * 8 + ["16"] * 8
    assert column(data["speedup-t1"], "speed-up measured")[1] == "1.05"
    assert column(data["speedup-t1"], "speed-up measured")[9] == "–"  # the clock ran at batch 1
    assert column(data["acceptance-t1"], "where")[3:5] == ["position 4", "context 0–63"]
    assert column(data["acceptance-t1"], "acceptance α")[4] == "0.350"
    assert column(data["domains-t1"], "domain") == ["code", "prose"]
    assert column(data["domains-t1"], "τ") == ["1.50", "1.60"]


def test_tables_hold_what_a_decision_needs(measured: Store) -> None:
    content = measured_content(measurements(read_run(measured(full_measurement(0.3)))))
    (section,) = content.sections
    best, costs, needed, batches, every = section.tables
    assert column(best, "best γ") == ["2"]
    assert column(best, "estimator") == ["expected"]
    assert column(costs, "target ms") == ["50.00"]
    assert column(costs, "α by ratio estimator") == ["0.304"]
    assert column(needed, "speed-up wanted") == ["1×", "1.5×", "2×"]
    assert column(needed, "α needed") == ["0.19", "0.71", "none pays"]
    assert column(batches, "break-even α") == ["0.19", "0.76", "none pays"]
    assert column(every, "γ") == [str(gamma) for gamma in range(1, 9)]


@pytest.mark.parametrize("ran", [True, False])
def test_an_earlier_versions_measurement_still_has_its_page(ran: bool, measured: Store) -> None:
    content = measured_content(measurements(read_run(measured(measurement(0.3, ran=ran)))))
    names = [drawing.name for drawing in content.drawings]
    assert names == (["speedup"] if ran else []) + ["speedup-t1", "tau-t1"]
    (section,) = content.sections
    assert [table.summary for table in section.tables] == [
        "",
        "Costs, and α by the other estimator",
        "Every γ",
    ]
