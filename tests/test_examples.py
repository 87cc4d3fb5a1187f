"""Every example runs as it is, on tiny models, and on two folders; and each fits a screen."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from distillspec.models import load
from verbs import saved

FOLDER = Path(__file__).parent.parent / "examples"
FAMILIES = {"t5": "t5", "decoder_only": "llama"}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("by_path", [False, True], ids=["tiny", "folders"])
def test_an_example_runs_and_leaves_a_draft(capsys, tmp_path, monkeypatch, name, by_path):
    family = FAMILIES[name]
    pair = [saved(tmp_path / "target", family), saved(tmp_path / "draft", family, noise=0.3)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *(pair if by_path else [])])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    losses = [float(re.search(r"loss (\d+\.\d+)", line)[1]) for line in lines]
    assert len(losses) == 10
    assert min(losses) > 0
    (draft,) = (tmp_path / "runs").iterdir()
    before = load(pair[1]).module.state_dict() if by_path else None
    after = load(draft).module.state_dict()
    assert before is None or any(not torch.equal(before[key], after[key]) for key in before)


def test_every_example_is_tested_and_fits_a_screen():
    files = sorted(FOLDER.glob("*.py"))
    assert {file.stem for file in files} == set(FAMILIES)
    for file in files:
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 20, file.name
