"""The text view: every token shown once with its role, nothing of it hidden, nothing obeyed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from distillspec.errors import UserError
from distillspec.report import text
from distillspec.report.text import TextView, plain, text_view, visible
from distillspec.studies.store import read_run
from report_runs import HOSTILE, create, hostile_rows, output_row


def view(folder: Path, rows: Sequence[Mapping[str, Any]]) -> TextView:
    run = create(folder / "r", "evaluate")
    run.write_rows("outputs.jsonl", rows)
    found = text_view(read_run(run.folder))
    assert found is not None
    return found


def test_a_run_without_outputs_has_no_text(tmp_path: Path) -> None:
    assert text_view(read_run(create(tmp_path / "r", "measure").folder)) is None


def test_every_token_is_shown_with_its_role(tmp_path: Path) -> None:
    found = view(tmp_path, [output_row("p1", ["It", " is", " 5", "."], "acbt")])
    (answer,) = found.examples[0].answers
    shown = re.findall(r'<span class="tok (\w)">(.*?)</span>', answer.tokens)
    assert shown == [("a", "It"), ("c", " is"), ("b", " 5"), ("t", ".")]
    assert found.roles == ("a", "c", "b", "t")
    assert found.examples[0].title == "p1 · code"
    assert answer.setting == "after · γ 3"
    facts = "4 tokens · 3 target calls · 3 drafted, 2 judged, 1 accepted · 0.75 s · ended by itself"
    assert answer.facts == facts


def test_what_was_not_drafted_or_clocked_is_not_said(tmp_path: Path) -> None:
    row = output_row("p1", ["a"], "t", finish_reason="length")
    del row["seconds"]
    (answer,) = view(tmp_path, [row]).examples[0].answers
    assert answer.facts == "1 tokens · 1 target calls · cut at the length limit"


def test_settings_of_one_prompt_stand_together(tmp_path: Path) -> None:
    rows = [
        output_row(id, ["x"], "t", setting=setting)
        for setting in ("target alone", "γ 3")
        for id in ("p1", "p2")
    ]
    found = view(tmp_path, rows)
    assert [example.title for example in found.examples] == ["p1 · code", "p2 · code"]
    for example in found.examples:
        assert [answer.setting for answer in example.answers] == ["target alone", "γ 3"]


def test_one_prompt_in_two_tasks_is_two_examples(tmp_path: Path) -> None:
    rows = [
        {**output_row("p1", ["x"], "t"), "task": task, "target": target, "quality": {"bleu": 31.25}}
        for task in ("gsm8k", "xsum")
        for target in ("small", "large")
    ]
    found = view(tmp_path, rows)
    assert [example.title for example in found.examples] == [
        "gsm8k · p1 · code",
        "xsum · p1 · code",
    ]
    settings = [answer.setting for answer in found.examples[0].answers]
    assert settings == ["small · after · γ 3", "large · after · γ 3"]
    assert "bleu 31.2" in found.examples[0].answers[0].facts


def test_markup_of_a_model_or_a_prompt_is_escaped(tmp_path: Path) -> None:
    found = view(tmp_path, hostile_rows())
    (example,) = found.examples
    for shown in (example.prompt, example.answers[0].tokens):
        assert "<script" not in shown
        assert "<img" not in shown
        assert str(Markup.escape(HOSTILE)) in shown


@pytest.mark.parametrize(
    ("character", "code"),
    [
        ("\x1b", "U+001B"),
        ("\r", "U+000D"),
        ("\x00", "U+0000"),
        ("\x9b", "U+009B"),
        ("\u202e", "U+202E"),
        ("\u2066", "U+2066"),
        ("\u200e", "U+200E"),
        ("\u200b", "U+200B"),
        ("\ufeff", "U+FEFF"),
        ("\u00ad", "U+00AD"),
        ("\u2028", "U+2028"),
        ("\U000e0041", "U+E0041"),
        ("\ue000", "U+E000"),
    ],
)
def test_what_hides_or_turns_text_is_shown_by_its_code_point(character: str, code: str) -> None:
    shown = visible(f"a{character}b")
    assert character not in shown
    assert f">{code}</span>" in shown
    assert plain(f"a{character}b") == f"a{code}b"


@pytest.mark.parametrize(
    "ordinary", ["für 你好 שלום", "नमस्\u200dते", "👩\u200d🔬", "a\tb", "e\u0301"]
)
def test_ordinary_text_of_any_script_stays_as_it_is(ordinary: str) -> None:
    assert visible(ordinary) == ordinary


def test_a_line_end_is_shown_and_kept() -> None:
    assert visible("a\nb") == 'a<span class="eol">↵</span>\nb'
    assert plain("a\nb") == "aU+000Ab"


def test_a_token_without_text_is_seen(tmp_path: Path) -> None:
    found = view(tmp_path, [output_row("p", ["", "é"], "ac")])
    assert '<span class="tok a" title="no text of its own">∅</span>' in (
        found.examples[0].answers[0].tokens
    )


def test_what_is_left_out_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PROMPTS", 3)
    monkeypatch.setattr(text, "ANSWERS", 4)
    monkeypatch.setattr(text, "TOKENS", 5)
    rows = [
        output_row(f"p{index}", ["x"] * 7, "t" * 6 + "a", setting=setting)
        for index in range(9)
        for setting in ("one", "two")
    ]
    found = view(tmp_path, rows)
    assert (found.shown, found.prompts) == (2, 9)
    assert {answer.left_out for example in found.examples for answer in example.answers} == {2}
    assert found.roles == ("t",)  # the accepted ones are past what is shown
    many = [output_row("p", ["x"], "t", setting=str(index)) for index in range(6)]
    (example,) = view(tmp_path / "many", many).examples
    assert (len(example.answers), example.left_out) == (4, 2)


def test_a_long_prompt_is_cut_and_says_so(tmp_path: Path) -> None:
    (example,) = view(tmp_path, [output_row("p", ["x"], "t", prompt="y" * 5000)]).examples
    assert len(example.prompt) == 4000
    assert example.cut


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"roles": "aa"}, r"row 1 is not an output: 1 pieces"),
        ({"roles": "z"}, r"row 1 is not an output: 1 pieces with the roles 'z'"),
        ({"pieces": 3}, r"row 1 is not an output"),
    ],
)
def test_a_damaged_row_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        view(tmp_path, [{**output_row("p", ["x"], "t"), **change}])


@pytest.mark.parametrize("key", ["id", "prompt", "pieces", "roles", "setting", "finish_reason"])
def test_a_field_that_is_missing_is_named(key: str, tmp_path: Path) -> None:
    row = output_row("p", ["x"], "t")
    del row[key]
    with pytest.raises(UserError, match=rf"outputs\.jsonl: row 1: {key} is missing"):
        view(tmp_path, [row])
