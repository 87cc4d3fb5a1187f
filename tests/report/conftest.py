"""Synthetic run directories of a demo, a measurement and a distillation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from report_runs import create, estimate, log_training, measurement


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo's run, the same for every test of a module: none changes it."""
    run = create(tmp_path_factory.mktemp("demo") / "demo", "demo")
    log_training(create(run.folder / "sft", "sft"), steps=150, start=0.02, end=0.28)
    log_training(create(run.folder / "after", "distill"), steps=300, start=0.28, end=0.41)
    log_training(create(run.folder / "control", "sft"), steps=360, start=0.28, end=0.31)
    stages = {"before": 0.28, "control": 0.3, "after": 0.4}
    temperatures = (0.0, 1.0)
    result: dict[str, Any] = {
        stage: [measurement(alpha + 0.05 * (1 - t), t) for t in temperatures]
        for stage, alpha in stages.items()
    }
    result["comparison"] = {
        "alpha_difference": [estimate(0.1, 0.02)] * 2,
        "tau_difference": [estimate(0.21, 0.06)] * 2,
    }
    result["seconds"] = {"total": 890.0}
    run.write_json("result.json", result)
    return run.folder


@pytest.fixture
def measured(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def store(result: dict[str, Any]) -> Path:
        run = create(tmp_path / "measure", "measure")
        run.write_json("result.json", result)
        return run.folder

    return store


@pytest.fixture
def distilled(tmp_path: Path) -> Path:
    run = create(tmp_path / "distill", "distill")
    log_training(run, steps=300, start=0.2, end=0.4, evaluate=True)
    run.write_json("result.json", {"steps": 300, "loss": 2.0, "out": "x"})
    return run.folder
