"""`audit` on the command line: what passes, what is rejected and why, users' errors."""

from __future__ import annotations

import json

import pytest

from verbs import WORDS, refused, run, saved, write_rows


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    rows = [{"id": str(i), "prompt": " ".join(WORDS[i : i + 4])} for i in range(16)]
    return write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", rows)


def generated(capsys, target, prompts, file, *flags):
    run(
        capsys, "generate", "--target", target, "--prompts", prompts, "--out", file,
        "--max-new-tokens", 40, *flags,
    )  # fmt: skip
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_targets_own_outputs_pass_and_another_temperature_is_named(
    capsys, tmp_path, target, prompts
):
    file = tmp_path / "own.jsonl"
    generated(capsys, target, prompts, file, "--temperature", 1.3, "--top-k", 20)
    flags = ("--top-k", 20, "--max-new-tokens", 40)
    code, found, _ = run(capsys, "audit", target, file, "--temperature", 1.3, *flags)
    assert code == 0
    assert not found["rejected"]
    assert found["ids"] == "sampled"
    assert found["impossible"]["count"] == 0
    fitted = found["temperature_fitted"]
    assert fitted["low"] < 1.3 < fitted["high"]
    assert sum(found["ends"].values()) == found["prompts"] == 16

    code, found, _ = run(capsys, "audit", target, file, "--temperature", 0.7, *flags)
    assert code == 3
    assert found["likelihood"]["high"] < 0
    assert any("temperature" in point or "less likely" in point for point in found["points_to"])
    assert found["unmet"] == [found["verdict"]]
    assert "or at temperature 0 if that passes" in found["verdict"]


def test_tokens_that_the_sampler_never_draws_are_named(capsys, tmp_path, target, prompts):
    file = tmp_path / "wide.jsonl"
    generated(capsys, target, prompts, file)
    code, found, _ = run(capsys, "audit", target, file, "--top-k", 3)
    assert code == 3
    assert found["impossible"]["count"] > 10
    assert found["impossible"]["examples"][0]["gap"] > 0
    assert "another top-k" in found["verdict"]


def test_greedy_outputs_are_held_against_the_argmax(capsys, tmp_path, target, prompts):
    file = tmp_path / "greedy.jsonl"
    rows = generated(capsys, target, prompts, file, "--temperature", 0)
    code, found, _ = run(capsys, "audit", target, file, "--temperature", 0)
    assert code == 0
    assert found["likelihood"] is None
    assert "greedy choice" in found["verdict"]
    rows[3]["target_ids"][2] = 6 + (rows[3]["target_ids"][2] + 1) % 40
    write_rows(file, rows)
    code, found, _ = run(capsys, "audit", target, file, "--temperature", 0)
    assert code == 3
    assert {key: found["impossible"]["examples"][0][key] for key in ("id", "token")} == {
        "id": "3",
        "token": 2,
    }


def test_how_outputs_end_is_checked(capsys, tmp_path, target, prompts):
    rows = [
        {"id": "a", "prompt": "w6 w7", "target_ids": [9, 1, 8]},
        {"id": "b", "prompt": "w6 w7", "target_ids": [9, 8]},
        {"id": "c", "prompt": "w6 w7", "target_ids": [9] * 6},
        {"id": "d", "prompt": "w6 w7", "target_ids": [9, 8], "finish_reason": "stop"},
        {"id": "e", "prompt": "w6 w7", "target_ids": [9, 1]},
        {"id": "f", "prompt": "w6 w7", "target_ids": [9, 8, 9, 9, 8]},
    ]
    file = write_rows(tmp_path / "ends.jsonl", rows)
    code, found, _ = run(capsys, "audit", target, file, "--max-new-tokens", 5)
    assert code == 3
    assert found["ends"] == {
        "stop": 1, "length": 1, "lost_stop": 1, "early": 1, "past_stop": 1, "too_long": 1,
    }  # fmt: skip
    for said in ("go on after a stop token (a", "without a stop token (b", "longer"):
        assert said in found["verdict"]
    assert not any(test["name"] == "stop token" for test in found["tests"])


def test_an_id_that_stands_for_nothing_is_an_impossible_token(capsys, tmp_path, target):
    row = {"prompt": "w6 w7", "target_ids": [9, 48, 8], "prompt_ids": [6, 7]}
    file = write_rows(tmp_path / "pad.jsonl", [row])
    code, found, _ = run(capsys, "audit", target, file)
    assert code == 3
    assert found["impossible"]["examples"] == [
        {"id": "pad.jsonl:1", "token": 1, "emitted": 48, "gap": None}
    ]


def test_an_id_that_the_target_does_not_know_may_come_first(capsys, tmp_path, target):
    file = write_rows(tmp_path / "first.jsonl", [{"prompt": "w6", "target_ids": [999, 7]}])
    code, found, _ = run(capsys, "audit", target, file)
    assert code == 3
    assert found["impossible"]["count"] == 1
    assert found["tokens"] == 0


def test_users_errors(capsys, tmp_path, target):
    file = write_rows(tmp_path / "bare.jsonl", [{"prompt": "w6"}])
    assert "no answer to audit" in refused(capsys, "audit", target, file)
    assert "--level" in refused(capsys, "audit", target, file, "--level", 2)
    assert "--tolerance" in refused(capsys, "audit", target, file, "--tolerance", -1)
    assert "--max-new-tokens 0" in refused(capsys, "audit", target, file, "--max-new-tokens", 0)
    row = {"prompt": "w6", "target_ids": [7, 8, 9]}
    file = write_rows(tmp_path / "blocks.jsonl", [{**row, "blocks": [1, 1]}])
    assert "add up" in refused(capsys, "audit", target, file)
    file = write_rows(tmp_path / "ids.jsonl", [{**row, "prompt_ids": [99]}])
    assert "another model" in refused(capsys, "audit", target, file)
    file = write_rows(tmp_path / "long.jsonl", [{"prompt": "w6", "target_ids": [7] * 200}])
    assert "cannot have written" in refused(capsys, "audit", target, file)
