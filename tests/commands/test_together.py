"""`distill` in two processes: one run directory, one voice, one end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import together
from distillspec.training import checkpoint
from verbs import WORDS, refused, run, saved, write_rows

CONFIGS = Path(__file__).parents[2] / "configs" / "accelerate"


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """A distillation of on-policy and fixed steps, evaluated after every one of them."""
    folder = tmp_path_factory.mktemp("pair")
    rows = [
        {"prompt": " ".join(WORDS[i : i + 4]), "target": " ".join(WORDS[i + 4 : i + 7])}
        for i in range(9)
    ]
    held = [{"prompt": f"w{i} w9"} for i in range(20, 26)]
    return [
        "distill", "--target", saved(folder / "target"),
        "--draft", saved(folder / "draft", noise=0.05),
        "--prompts", write_rows(folder / "prompts.jsonl", rows),
        "--held-out", write_rows(folder / "held.jsonl", held), "--evaluate-every", "0",
        "--batch-size", "4", "--rows-at-once", "1", "--optimizer", "adamw",
        "--learning-rate", "1e-2", "--max-new-tokens", "6", "--json",
    ]  # fmt: skip


class Said:
    """What two processes printed on one command line."""

    def __init__(self, name):
        def read(ending):
            return [Path(f"{name}-{i}{ending}").read_text() for i in range(2)]

        self.out, self.err, self.code = read(".out"), read(".err"), read(".code")

    @property
    def result(self):
        assert self.code == ["0", "0"], self.err
        return json.loads(self.out[0].strip().splitlines()[-1])


@pytest.fixture(scope="module")
def said(tmp_path_factory, flags):
    """Several command lines, run by two processes each.

    `accelerate launch` itself starts them, by our configuration, once for all, since most of their
    time goes into imports; on CPUs it starts several processes only if told MULTI_GPU.
    """
    folder = tmp_path_factory.mktemp("said")
    distilled = [*flags, "--steps", "4", "--out"]
    lines = {
        "whole": {"argv": [*distilled, str(folder / "run")]},
        "again": {"argv": [*distilled, str(folder / "run")]},
        "stopped": {"argv": [*distilled, str(folder / "stopped")], "stop": 2},
        "resumed": {"argv": [*distilled, str(folder / "stopped"), "--resume"]},
        "device": {"argv": [*distilled, str(folder / "other"), "--device", "cuda:1"]},
        "measure": {"argv": ["measure", "--cost", "target=20,draft=2,overhead=1"]},
    }
    for line, port in zip(lines.values(), together.free_ports(len(lines)), strict=True):
        line["port"] = port
    file = folder / "lines.json"
    file.write_text(json.dumps(list(lines.values())))
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("accelerate")), "launch", "--config_file",
            str(CONFIGS / "ddp.yaml"), "--num_processes", "2", together.__file__, "verbs",
            str(folder), str(file),
        ],
        capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, {name: Said(folder / str(i)) for i, name in enumerate(lines)}


def weights(folder):
    return load_file(folder / "draft" / "model.safetensors")


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def agree(found, expected):
    """To float32's rounding, which a step of Adam may take for a gradient where that is tiny."""
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=2e-4)


def test_two_processes_write_the_run_that_one_writes(capsys, tmp_path, flags, said):
    folder, told = said
    code, alone, _ = run(capsys, *flags[:-1], "--steps", 4, "--out", tmp_path / "alone")
    assert code == 0
    found = told["whole"].result
    assert found["processes"] == 2
    assert alone["processes"] == 1
    for key in ("steps", "tokens", "sources", "stopped", "evaluations", "draft_step"):
        assert found[key] == alone[key], key
    for key in ("loss", "training_acceptance", "alpha", "tau", "alpha_change", "tau_change"):
        assert found[key] == pytest.approx(alone[key], abs=1e-4), key
    agree(weights(folder / "run"), weights(tmp_path / "alone"))
    both, one = rows_of(folder / "run"), rows_of(tmp_path / "alone")
    assert [row["step"] for row in both] == [row["step"] for row in one]
    names = {path.name for path in (folder / "run").iterdir()}
    assert names == {path.name for path in (tmp_path / "alone").iterdir()}


def test_the_main_process_alone_speaks(said):
    _, told = said
    for name, one in told.items():
        assert one.out[1] == "", name
        assert "distillspec" not in one.err[1], name
        assert "loading" not in one.err[1], name
    assert "loading" in told["whole"].err[0]


def test_an_error_of_one_is_the_end_of_all_and_is_told_once(said):
    """The main process cannot make the run directory; a device is nobody's; a verb is for one."""
    _, told = said
    for name, words in (
        ("again", "holds an earlier run"),
        ("device", "leave out --device"),
        ("measure", "measure runs in one process, and 2 were started"),
    ):
        assert told[name].code == ["2", "2"]
        errors = [line for line in told[name].err[0].splitlines() if "error" in line]
        assert len(errors) == 1
        assert words in errors[0]


def test_a_stop_that_reaches_one_process_ends_both_after_the_same_step(said, capsys, flags):
    folder, told = said
    result = told["stopped"].result
    assert (result["steps"], result["stopped"]) == (2, "interrupted")
    assert told["resumed"].result["steps"] == 4
    agree(weights(folder / "stopped"), weights(folder / "run"))
    assert [row["step"] for row in rows_of(folder / "stopped")] == [
        row["step"] for row in rows_of(folder / "run")
    ]
    assert checkpoint.newest(folder / "stopped" / "checkpoints").name == "step-4"


def test_a_step_that_must_be_whole_is_not_cut(capsys, tmp_path, flags):
    arguments = [*flags[:-1], "--steps", 1, "--out", tmp_path / "run"]
    said = refused(
        capsys, *arguments, "--divergence", "select:0.5", "--reference", flags[4], "--fixed", 1
    )
    assert "leave out rows_at_once" in said
    assert "expected a whole number of at least 1" in refused(
        capsys, *arguments, "--rows-at-once", 0
    )
