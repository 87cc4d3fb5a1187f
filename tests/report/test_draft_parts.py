"""What the page says of drafts beside one another, and of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from distillspec.report import draft_parts
from distillspec.report.draft_parts import comparison_content, training_content
from distillspec.report.drafts import Examples, comparisons
from distillspec.report.tables import NOT_MEASURED, Content
from distillspec.report.training import trainings
from distillspec.studies.store import read_run
from report_runs import compared, create, full_measurement

Store = Callable[[dict[str, Any]], Path]


def test_differences_are_shown_by_draft_and_by_domain(measured: Store) -> None:
    result = {**full_measurement(0.3), "comparison": [compared("new", "raw", ("code", "prose"))]}
    found = comparisons(read_run(measured(result)))
    content = comparison_content(found, [], "ratio")
    (section,) = content.sections
    assert section.title == "Drafts compared"
    summary, worse = section.tables
    assert summary.rows[0][:2] == ("new − raw", "2")
    assert summary.rows[0][-3:] == ("40", "6", "2")
    assert worse.rows == (("p7", "code", "1.31", "1.52"),)
    assert worse.note == "1 of 6 listed."
    (drawing,) = content.drawings
    assert drawing.name == "difference-1"
    assert [row[0] for row in drawing.data.rows] == ["code", "prose"]
    assert "Acceptance rule: ratio." in drawing.caption


def test_a_demos_differences_are_against_the_control(demo: Path) -> None:
    content = comparison_content(comparisons(read_run(demo)), [], "ratio")
    (section,) = content.sections
    assert section.title == "After distillation, against the control"
    assert section.tables[0].head == ("difference", "T", "in α", "in τ")
    assert [row[1] for row in section.tables[0].rows] == ["0", "1"]
    assert content.drawings == ()


def test_single_prompts_are_listed_as_far_as_there_is_room(monkeypatch: Any) -> None:
    monkeypatch.setattr(draft_parts, "ROWS", 2)
    found = [Examples("raw", 2, {"a": 1.5, "b": 1.0, "c": 2.0}), Examples("new", 3, {"b": 1.25})]
    (drawing,) = comparison_content([], found, "ratio").drawings
    assert drawing.data.head == ("prompt", "τ, raw, γ = 2", "τ, new, γ = 3")
    assert drawing.data.rows == (("a", "1.50", NOT_MEASURED), ("b", "1.00", "1.25"))
    assert drawing.data.note.startswith("2 of 3 prompts shown")
    assert "γ is each draft's own best" in drawing.caption


def test_nothing_to_compare_says_nothing() -> None:
    assert comparison_content([], [], "") == training_content([], alone=True) == Content()


def test_training_answers_only_where_nothing_else_does(distilled: Path) -> None:
    trained = trainings(read_run(distilled))
    assert training_content(trained, alone=False).verdicts == ()
    (verdict,) = training_content(trained, alone=True).verdicts
    first, last = trained[0].held_out_alpha.value[0], trained[0].held_out_alpha.value[-1]
    assert verdict.sentence == (
        f"Trained 300 steps on {trained[0].tokens} tokens in 450 s; held-out α went from "
        f"{first:.3f} to {last:.3f}."
    )


def test_training_without_acceptance_tells_its_loss(tmp_path: Path) -> None:
    run = create(tmp_path / "t", "sft")
    for step, loss in ((1, 3.0), (2, 2.5)):
        run.log({"step": step, "seconds": step, "loss": loss, "tokens": 5})
    (verdict,) = training_content(trainings(read_run(run.folder)), alone=True).verdicts
    assert verdict.sentence.endswith("the loss went from 3.000 to 2.500 nats.")


def test_the_points_of_the_curves_are_listed(distilled: Path) -> None:
    trained = trainings(read_run(distilled))
    steps, seconds = training_content(trained, alone=True).drawings
    assert steps.data == seconds.data
    listed = [(row[2], row[4]) for row in steps.data.rows if row[1] == "held-out τ, γ = 2"]
    curve = trained[0].held_out_tau
    assert listed == [
        (f"{step:g}", f"{value:.4f}") for step, value in zip(curve.step, curve.value, strict=True)
    ]
