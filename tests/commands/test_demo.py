"""The demo: on a tiny target always, on its real one where asked for.

The real one, shortened: make test PYTEST="-m demo -n 0"
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from distillspec import cli
from distillspec.commands import demo
from distillspec.commands.lab import Budget
from distillspec.commands.settings import Demo
from distillspec.models import load, wrap
from distillspec.tasks import hub
from support import module, word_tokenizer


def check(found: dict, out: Path) -> None:
    """What the demo promises, whatever its target."""
    for stage in ("before", "control", "after"):
        assert [one["temperature"] for one in found[stage]] == [1.0, 0.0]
        for one in found[stage]:
            (ran,) = [row for row in one["gammas"] if "tau_counted" in row]
            assert one["alpha"]["low"] <= one["alpha"]["value"] <= one["alpha"]["high"]
            if one["temperature"] == 0:
                assert ran["forecast_exact"]
            else:
                assert abs(ran["forecast_z"]) <= 4
    for difference in found["comparison"].values():
        assert len(difference) == 2
    assert set(found["seconds"]) >= {"load", "data", "sft", "after", "control", "measure"}
    assert (out / "report" / "index.html").is_file()
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {row["stage"] for row in rows} == {"sft", "after", "control"}
    load(out / "draft")


def test_the_whole_path_on_a_tiny_target(capsys, tmp_path, monkeypatch):
    target = tmp_path / "target"
    wrap(module("llama", layers=3), word_tokenizer()).save(target)
    prompts = tmp_path / "prompts.txt"
    lines = [f"w{6 + i % 40} w{6 + i * 7 % 41} w{6 + i * 11 % 37}" for i in range(400)]
    prompts.write_text("\n".join(dict.fromkeys(lines)) + "\n")
    monkeypatch.setattr(demo, "SHARES", dict.fromkeys(demo.SHARES, 0.015))
    monkeypatch.setattr(demo, "MAX_NEW_TOKENS", 16)
    # A race of 3 prompts by 12 tokens runs every lane as one of 8 by 40 does.
    monkeypatch.setattr(demo, "CLOCKED", 3)
    monkeypatch.setattr(demo, "RACE_TOKENS", 12)
    out = tmp_path / "demo"
    arguments = ["--target", str(target), "--prompts", str(prompts), "--minutes", "2"]
    assert cli.main(["demo", *arguments, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    check(found, out)
    # Soft labels of a random target teach what single samples of it cannot.
    assert found["comparison"]["alpha_difference"][0]["value"] > 0


def test_measuring_never_takes_more_than_half_of_the_budget_from_training(capsys):
    """At first passes timed beside an installation left a minute of 24, without a word."""
    assert demo._beside(Budget(600.0), 200.0) == pytest.approx(400.0, abs=1)
    assert not capsys.readouterr().err
    assert demo._beside(Budget(240.0), 420.0) == pytest.approx(120.0, abs=1)
    told = capsys.readouterr().err
    assert "--minutes 4: measuring is foreseen to take 7.0 minutes" in told
    assert "will take about 9" in told


def test_a_benchmarks_evaluation_rows_are_not_trained_on(monkeypatch):
    """The bug: they alone were read, and split into both sides."""

    def records(name, *, config, split, revision):
        count = {"train": 70, "test": 9}[split]
        return ({"question": f"{split} {i}?", "answer": f"#### {i}"} for i in range(count))

    monkeypatch.setattr(hub, "records", records)
    sides = demo._sides(Demo(prompts="gsm8k"))
    assert len(sides.train) == 70
    assert len(sides.held_out) == 9
    assert all("Q: train" in row.prompt for row in sides.train)
    assert all("Q: test" in row.prompt for row in sides.held_out)


@pytest.mark.demo
@pytest.mark.skipif(find_spec(demo.PACKAGE) is None, reason=f"{demo.PACKAGE} is not installed")
def test_the_whole_path_on_the_real_target(capsys, tmp_path):
    out = tmp_path / "demo"
    assert cli.main(["demo", "--minutes", "2", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    check(found, out)
    assert load(out / "draft").kept is not None
