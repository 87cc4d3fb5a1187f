"""What the page says of evaluations, trade-offs and transfers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distillspec.report import outcomes
from distillspec.report.outcome_parts import evaluated_content, tradeoff_content, transfer_content
from distillspec.report.tables import NOT_MEASURED, Content, Table
from distillspec.studies.store import read_run
from report_runs import evaluation, trade_off, transfer_result

Store = Callable[[dict[str, Any]], Path]


def rows(table: Table) -> list[tuple[str, ...]]:
    """Cells without their intervals."""
    return [tuple(re.sub("<small>.*?</small>", "", cell) for cell in row) for row in table.rows]


def evaluated(folder: Path) -> Content:
    found = outcomes.evaluated(read_run(folder))
    assert found is not None
    return evaluated_content(found)


def test_an_evaluation_has_its_verdict_its_rule_and_every_number(measured: Store) -> None:
    result = {**evaluation(), "suits": "cross-entropy: only the argmax counts"}
    content = evaluated(measured(result))
    assert [verdict.kind for verdict in content.verdicts] == ["main", "note"]
    assert [drawing.name for drawing in content.drawings] == ["evaluation", "domains"]
    assert all("Acceptance rule: greedy." in drawing.caption for drawing in content.drawings)
    facts, qualities, speed, same = content.sections[0].tables
    assert ("acceptance rule", "greedy") in rows(facts)
    assert rows(qualities)[0] == ("rouge2", "12.00", "12.00", "0.00")
    assert rows(qualities)[2] == ("seconds per prompt", "2.400", "1.900", "–")
    assert ("speed-up at batch 1, decoding only", "1.26") in rows(speed)
    assert ("speed-up at batch 1, prefill included", "1.20") in rows(speed)
    assert ("throughput: tokens per second", "71.5") in rows(speed)
    assert "on the clock: 8; runs of each, of which the median counts: 3." in speed.note
    assert ("near ties", "1") in rows(same)


def test_what_an_evaluation_did_not_take_is_said(measured: Store) -> None:
    missing: dict[str, Any] = {"latency": None, "throughput": None, "same_output": None}
    lenient: dict[str, Any] = {"alpha": None, "tau_forecast": None}
    content = evaluated(measured({**evaluation(), **missing, **lenient}))
    facts, qualities, speed = content.sections[0].tables
    assert rows(speed)[0][1] == NOT_MEASURED
    assert rows(speed)[-1] == ("speed-up at batch 1", NOT_MEASURED)
    assert len(qualities.rows) == 2
    assert facts.rows


def test_outputs_that_are_not_the_targets_own_are_the_first_thing_said(measured: Store) -> None:
    content = evaluated(measured({**evaluation(), "unmet": ["1 of 24 greedy outputs differ"]}))
    assert content.verdicts[0].kind == "unmet"


def test_a_task_without_a_metric_still_has_its_clock(measured: Store) -> None:
    none: dict[str, Any] = {"quality": {}, "quality_target": {}, "quality_difference": {}}
    content = evaluated(measured({**evaluation(), **none, "by_domain": []}))
    assert [drawing.name for drawing in content.drawings] == ["evaluation"]
    assert rows(content.drawings[0].data) == [("seconds per prompt", "2.400", "1.900", "–")]


def test_a_tradeoff_lists_every_point_and_marks_the_pick(measured: Store) -> None:
    found = outcomes.tradeoff(read_run(measured(trade_off())))
    assert found is not None
    content = tradeoff_content(found)
    (table,) = content.sections[0].tables
    listed = rows(table)
    assert len(listed) == 21
    assert listed[0][:4] == ("target alone", "–", "–", "20.00")
    assert listed[1][:4] == ("runs/raw", "lossless", "–", "20.00")
    assert [row[-1] for row in listed].index("picked") == 13
    assert [row[-1] for row in listed].count("picked") == 1
    assert "It takes 2.4 s a prompt [2.3, 2.5]." in table.note
    assert "Acceptance rule: lenient" in content.drawings[0].caption


def test_a_transfer_lists_every_draft_of_every_cell(measured: Store) -> None:
    found = outcomes.transfer(read_run(measured(transfer_result())))
    assert found is not None
    content = transfer_content(found)
    cells, differences = content.sections[0].tables
    assert len(cells.rows) == 12
    assert rows(cells)[3][:6] == (
        "bbh:navigate",
        "models/small-target",
        "runs/after",
        "ratio",
        "48",
        "0.420",
    )
    assert rows(differences)[0][:3] == ("gsm8k", "models/small-target", "runs/after − runs/raw")
    assert [verdict.kind for verdict in content.verdicts] == ["main", "note"]


def test_a_transfer_of_one_draft_has_no_differences(measured: Store) -> None:
    result = transfer_result()
    for cell in result["cells"]:
        cell["measurements"], cell["comparison"] = cell["measurements"][:1], []
    found = outcomes.transfer(read_run(measured(result)))
    assert found is not None
    assert len(transfer_content(found).sections[0].tables) == 1
