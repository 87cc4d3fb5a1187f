"""The table of promised against served: every engine a row, and one that fails is told in its."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from verbs import WORDS, run, saved, write_rows

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "served.py"


@pytest.fixture
def table(capsys, tmp_path, monkeypatch):
    target, raw = saved(tmp_path / "target"), saved(tmp_path / "raw", noise=0.05)
    rows = [{"id": str(i), "prompt": " ".join(WORDS[i : i + 4])} for i in range(3)]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    draft = tmp_path / "draft"
    code, _, _ = run(capsys, "export", raw, "--target", target, "--out", draft, "--gamma", 2)
    assert code == 0

    def make(*flags):
        common = (target, draft, prompts, "--gamma", 2, "--out", tmp_path / "out")
        monkeypatch.setattr(sys, "argv", ["served.py", *map(str, (*common, *flags))])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out.splitlines()[2:]

    return make


def test_rows_are_kept_and_an_engine_that_fails_is_told(table):
    first = table("--here", "ours", "--max-new-tokens", 8, "--temperatures", 0)
    assert [line.split(" | ")[:2] for line in first] == [
        ["| ours", "0"],
        ["| ours, no draft", "0"],
    ]
    assert "| exact | pass (0 other, 0 near) |" in first[0]
    both = table("--here", "--outputs", "elsewhere=missing.jsonl", "--temperatures", 0)
    assert both[1:] == first
    assert both[0].startswith("| elsewhere | 0 |")
    assert "not checked: distillspec: error" in both[0]
    assert "missing.jsonl" in both[0]
