"""One cell of a study: its verb run in a folder of its own, and what came of it."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from distillspec.commands.plan import STEPS, Planned, product_of, settings_of
from distillspec.errors import UserError
from distillspec.studies.grid import Cell
from distillspec.studies.provenance import provenance
from distillspec.studies.store import CHECKPOINTS, EXAMPLES, METRICS, RECORD, read_rows

CELLS = "cells"
"""The folder of cells, in the study's."""


@dataclass(frozen=True)
class Ended:
    """How a cell ended."""

    seconds: float
    """It took, in this run of the study."""
    provenance: Mapping[str, Any]
    """With what, where and when."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """`result`, and `examples` and `evaluations` where there are some."""
    failed: str | None = None
    """The error, with its traceback where it is none of the user's."""


def folder_of(cell: Cell, planned: Planned, out: Path) -> Path:
    """Return a cell's folder: its step, its labels and its key."""
    labels = "".join(f"-{_plain(label)}" for label in cell.axes.values())
    return out / CELLS / f"{cell.step}{labels}-{planned.keys[cell]}"


def make(cell: Cell, planned: Planned, out: Path) -> Ended:
    """Run a cell, or go on with it where it was interrupted.

    Raises:
        KeyboardInterrupt: it was interrupted; the next run goes on.
    """
    folder = folder_of(cell, planned, out)
    verb = STEPS[cell.verb]
    written = cell.written(
        lambda name: planned.things[name],
        lambda one: str(product_of(STEPS[one.verb], folder_of(one, planned, out))),
    )
    about = _provenance()
    start = time.monotonic()
    try:
        own = _make_way(cell, folder)
        settings = settings_of(cell, written, folder / str(verb.out), **own)
        function = getattr(import_module(f"distillspec.commands.{verb.module}"), verb.function)
        result = function(settings)
    except UserError as error:
        return Ended(time.monotonic() - start, about, failed=str(error))
    except Exception:  # whatever one cell dies of, the others go on; the whole trace is kept
        return Ended(time.monotonic() - start, about, failed=traceback.format_exc().strip())
    if result.get("interrupted"):
        raise KeyboardInterrupt
    named = {**planned.study.data, **planned.study.models}
    written_as = {place: named[name] for name, place in planned.things.items()}
    found = {"result": _portable(result, out, written_as), **_rows(folder / str(verb.out))}
    return Ended(time.monotonic() - start, about | _device(folder), found)


def _make_way(cell: Cell, folder: Path) -> dict[str, str]:
    """Clear what an interrupted run left and cannot be gone on with; return settings to go on."""
    from distillspec.training.checkpoint import newest  # imports torch

    out = folder / str(STEPS[cell.verb].out)
    if cell.verb in ("sft", "distill") and newest(out / CHECKPOINTS) is not None:
        return {"resume": "true"}
    if out.is_dir():
        shutil.rmtree(out)
    out.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    return {}


def _rows(run: Path) -> dict[str, Any]:
    """Read what findings need of a run directory: counts by prompt."""
    found: dict[str, Any] = {}
    if examples := read_rows(run / EXAMPLES):
        found["examples"] = list(examples)
    if tests := [row for row in read_rows(run / METRICS) if "evaluation" in row]:
        found["evaluations"] = tests
    return found


def _provenance() -> dict[str, Any]:
    found = provenance()
    del found["command"]  # the study's own, the same for all cells
    return found


def _device(folder: Path) -> dict[str, Any]:
    for path in folder.glob(f"*/{RECORD}"):
        record = json.loads(path.read_text(encoding="utf-8"))
        return {key: record[key] for key in ("device", "seed")}
    return {}


def _portable(value: Any, out: Path, written_as: Mapping[str, str]) -> Any:
    """Write paths as the study's file does, or relative to its folder, in sentences too.

    Results outlive the places of data, models and cells.
    """
    if isinstance(value, Mapping):
        return {key: _portable(one, out, written_as) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_portable(one, out, written_as) for one in value]
    if not isinstance(value, str):
        return value
    task, equals, path = value.rpartition("=")
    return (task + equals + written_as.get(path, path)).replace(f"{out}/", "")


def _plain(label: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "._" else "_" for sign in label)
