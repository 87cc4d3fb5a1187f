"""What the verbs on tasks read, cut and refuse before a model is loaded."""

from __future__ import annotations

import json

import pytest

from distillspec.commands.benchmarks import ask, benchmark
from distillspec.commands.pairs import names_of
from distillspec.commands.task_settings import OnTask
from distillspec.errors import UserError
from support import tiny

TASK = """
description = "Say it."
source = "Nobody."
prompt = "Say: {input} Now:"
metric = "bleu"
max_input_tokens = 6
max_output_tokens = 9
"""


@pytest.fixture
def files(tmp_path):
    task, data = tmp_path / "say.toml", tmp_path / "rows.jsonl"
    task.write_text(TASK)
    rows = [
        {"id": "short", "input": "w6 w7", "target": "w8"},
        {"id": "long", "input": "w10 w11 w12 w13 w14", "target": "w9"},
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(task), data


def read(files, *, max_new_tokens=None, **shots):
    task, data = files
    return benchmark(OnTask(task=task, data=data, max_new_tokens=max_new_tokens), **shots)


def test_a_long_input_loses_its_end_and_is_counted(files):
    asked = ask(read(files), tiny("llama"))
    assert [row.prompt for row in asked.rows] == ["Say: w6 w7 Now:", "Say: w10 w11 w12 w13 Now:"]
    assert asked.truncated == 1
    assert [len(ids) for ids in asked.prompts] == [4, 6]


def test_the_limit_of_outputs_is_the_tasks_unless_one_is_given(files):
    assert read(files).max_new_tokens == 9
    assert read(files, max_new_tokens=4).max_new_tokens == 4
    with pytest.raises(UserError, match="--max-new-tokens 0"):
        read(files, max_new_tokens=0)


def test_a_task_without_a_limit_asks_for_one():
    with pytest.raises(UserError, match="--max-new-tokens is missing: the task stdlib"):
        benchmark(OnTask(task="stdlib", limit=2))


def test_examples_come_before_prompts_that_were_already_cut(files, tmp_path):
    training = tmp_path / "training.jsonl"
    training.write_text(json.dumps({"input": "w20", "target": "w21"}) + "\n")
    bench = read(files, shots=1, shots_data=training)
    asked = ask(bench, tiny("llama"))
    assert asked.rows[1].prompt == "Say: w20 Now: w21\n\nSay: w10 w11 w12 w13 Now:"
    assert asked.truncated == 1


def test_examples_that_are_evaluated_are_refused_at_once(files):
    with pytest.raises(UserError, match="is also evaluated"):
        read(files, shots=2, shots_data=files[1])
    with pytest.raises(UserError, match="does nothing without --shots"):
        read(files, shots_data=files[1])


def test_a_reference_that_cannot_be_used_is_refused_at_once(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"id": "odd", "input": "1 + 1?", "target": "two"}) + "\n")
    with pytest.raises(UserError, match="odd: the reference has no number"):
        benchmark(OnTask(task="gsm8k", data=data))


def test_models_are_named_by_what_tells_them_apart():
    assert names_of("--draft", ["runs/a/draft"]) == {"draft": "runs/a/draft"}
    assert list(names_of("--draft", ["runs/a/draft", "runs/b/draft"])) == ["a/draft", "b/draft"]
    with pytest.raises(UserError, match="each once"):
        names_of("--draft", ["a", "a"])
