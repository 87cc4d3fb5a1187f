"""`decode --gamma`: a number, the schedule, or the optimum at a known or a measured cost."""

from __future__ import annotations

import json

import pytest

from distillspec.commands.gammas import read_cost
from distillspec.errors import UserError
from verbs import refused, run, saved

ROW = {
    "target_ms": 20.0,
    "draft_ms": 2.0,
    "overhead_ms": 1.0,
    "overhead_plain_ms": 0.5,
    "c": 0.1,
    "target_ms_by_tokens": [20.0, 21.0, 22.0],
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return saved(folder / "target"), saved(folder / "draft", noise=0.02)


def test_every_rule_writes_the_targets_own_text(capsys, tmp_path, pair):
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"alpha": 1, "cost": ROW}))
    flags = ["decode", "--target", pair[0], "--prompt", "w6 w7", "--max-new-tokens", 16]
    _, plain, _ = run(capsys, *flags)
    for gamma, cost, says in (
        ("0", None, ""),
        ("schedule", None, ""),
        ("auto", None, "timing the pair"),
        ("auto", "target=20,draft=1", ""),
        ("auto", file, ""),
    ):
        given = [] if cost is None else ["--cost", cost]
        code, found, shown = run(capsys, *flags, "--draft", pair[1], "--gamma", gamma, *given)
        assert code == 0
        assert found["tokens"] == plain["tokens"]
        assert says in shown
        assert (found["drafted"] > 0) or gamma in ("0", "auto")
    code, found, _ = run(capsys, *flags, "--gamma", "auto")
    assert found["drafted"] == 0


def test_a_measured_cost_is_read(tmp_path):
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"cost": ROW}))
    cost = read_cost(str(file))
    assert cost.target == pytest.approx((0.020, 0.021, 0.022))
    assert (cost.draft, cost.overhead, cost.overhead_plain) == pytest.approx((0.002, 0.001, 0.0005))
    assert len(read_cost("target=20:30,draft=2").target) == 9


def test_what_cannot_be_used_is_told_in_one_line(capsys, tmp_path, pair):
    flags = ["decode", "--target", pair[0], "--draft", pair[1], "--prompt", "w6"]
    for gamma in ("-1", "2.5", "fast"):
        said = refused(capsys, *flags, f"--gamma={gamma}")
        assert f"--gamma {gamma}: expected a whole number of at least 0, auto or schedule" in said
    assert "--cost is for --gamma auto" in refused(capsys, *flags, "--cost", "target=1,draft=1")
    for text, message in (("{}", "expected the JSON object"), (None, "cannot be read")):
        file = tmp_path / "cost.json"
        if text is not None:
            file.write_text(text)
        else:
            file.unlink()
        with pytest.raises(UserError, match=message):
            read_cost(str(file))
