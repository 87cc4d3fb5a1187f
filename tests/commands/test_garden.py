"""`garden` from the command line, on tiny models."""

from __future__ import annotations

import json

import pytest

from distillspec.studies import garden as study
from verbs import refused, run, saved, write_rows

TASK = """
description = "Say it."
source = "Nobody."
prompt = "{input}"
metric = "bleu"
max_output_tokens = 6
"""


@pytest.fixture
def task(tmp_path):
    (tmp_path / "say.toml").write_text(TASK)
    rows = [{"id": f"p{i}", "input": f"w{i} w9", "target": "w8 w7"} for i in range(7, 10)]
    data = write_rows(tmp_path / "say.jsonl", rows)
    return ("garden", "--task", tmp_path / "say.toml", "--data", data, "--out", tmp_path / "run")


def test_a_garden_picks_for_two_budgets(capsys, tmp_path, task):
    big, small = saved(tmp_path / "big"), saved(tmp_path / "small", noise=0.1)
    ways = f"big={big},{small},both={big}+{small}"
    code, found, _ = run(
        capsys, *task, "--ways", ways, "--gamma", 2, "--max-latency", 100, "--min-quality", 101
    )
    assert code == 0
    by = {one["way"]: one for one in found["points"]}
    assert list(by) == ["big", small, "both"]
    assert by["both"]["quality"] == by["big"]["quality"]  # greedy and lossless
    assert by["both"]["tau"]["value"] > 1
    assert [one["way"] is None for one in found["picks"]] == [False, True]
    assert json.loads((tmp_path / "run" / "result.json").read_text("utf-8")) == found
    assert len((tmp_path / "run" / "outputs.jsonl").read_text("utf-8").splitlines()) == 9


def test_prompts_that_were_raced_outlive_an_interrupt(capsys, tmp_path, task, monkeypatch):
    whole = study.race

    def interrupted(*arguments):
        yield next(whole(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "race", interrupted)
    big = saved(tmp_path / "big")
    code, _, _ = run(capsys, *task, "--ways", f"big={big},both={big}+{big}")
    assert code == 130
    rows = [json.loads(line) for line in (tmp_path / "run" / "outputs.jsonl").open()]
    assert [(row["setting"], row["id"]) for row in rows] == [("big", "p7"), ("both", "p7")]


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        ("big=m+", "expected NAME=MODEL"),
        ("=m", "expected NAME=MODEL"),
        ("a=m,a=m", "given twice"),
    ],
)
def test_ways_that_cannot_be_are_refused(capsys, task, ways, said):
    assert said in refused(capsys, *task, "--ways", ways)


def test_a_task_without_a_metric_is_refused_before_a_model_is_loaded(capsys, tmp_path, task):
    (tmp_path / "say.toml").write_text(TASK.replace('"bleu"', '"none"'))
    message = refused(capsys, *task, "--ways", "a=nowhere")
    assert "has no metric, so that there is no quality to compare" in message


def test_a_draft_of_the_other_kind_is_refused(capsys, tmp_path, task):
    big, other = saved(tmp_path / "big"), saved(tmp_path / "other", "t5")
    message = refused(capsys, *task, "--ways", f"both={big}+{other}")
    assert "both must be of the same kind" in message
    assert not (tmp_path / "run").exists()
