"""`study`: make what a study file asks for, say what is left, and draw its findings.

What only some actions need is imported when they are asked for: `status` answers without torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distillspec.commands.plan import Planned, plan
from distillspec.commands.progress import console
from distillspec.commands.steps import Ended, make
from distillspec.commands.study_settings import Study
from distillspec.errors import UserError, nearest
from distillspec.files import alone
from distillspec.studies.grid import Cell
from distillspec.studies.results import RESULTS, Results, State, foreseen, states
from distillspec.studies.store import Run

LOCK = "lock"
"""The file in the study's folder that one run holds."""
_STATES: tuple[State, ...] = ("done", "left", "failed", "blocked")


def run(settings: Study) -> dict[str, Any]:
    """Do what was asked, and return what `--json` prints."""
    out = Path("runs") / settings.file.stem if settings.out is None else settings.out
    planned = plan(settings.file, settings.data)
    chosen = _chosen(planned, settings.steps)
    if settings.action == "run":
        store = _store(settings, out)
        with alone(out / LOCK) as free:
            if not free:
                raise UserError(f"{out}: another `study run` is at work there; wait for it")
            _run(store, planned, chosen, out)
    found = _status(planned, chosen, out)
    if settings.action == "cost":
        from distillspec.commands.study_cost import costs  # imports torch

        found["cost"] = costs(planned)
    if settings.action == "report":
        from distillspec.commands.study_report import report  # imports matplotlib

        found |= report(planned, settings.file, out)
        failed = found["scripts_failed"]
        found["unmet"] += [f"{len(failed)} scripts of findings failed"] if failed else []
    return found


def _chosen(planned: Planned, steps: Sequence[str]) -> list[Cell]:
    """Keep the cells of some steps and what these need; all where none is named."""
    names = list(dict.fromkeys(cell.step for cell in planned.keys))
    for step in steps:
        if step not in names:
            raise UserError(f"--steps {step}: no such step; {nearest(step, names)}")
    wanted: set[Cell] = set()
    for cell in reversed(list(planned.keys)):
        if not steps or cell.step in steps or cell in wanted:
            wanted |= {cell, *cell.sources}
    return [cell for cell in planned.keys if cell in wanted]


def _store(settings: Study, out: Path) -> Run:
    return Run.create(
        out,
        verb="study",
        config={"file": settings.file.name, "data": settings.data.name},
        seed=0,
        device="each cell's own",
        exists="continue",
    )


def _run(store: Run, planned: Planned, chosen: Sequence[Cell], out: Path) -> None:
    """Make every cell whose result is not there; cells of equal content are made once."""
    failed: set[str] = set()
    for number, cell in enumerate(chosen, start=1):
        results = Results.read(out / RESULTS)
        key = planned.keys[cell]
        if key in failed or results.done(key) is not None:
            continue
        lacking = [one for one in cell.sources if results.done(planned.keys[one]) is None]
        if lacking:
            console().print(f"{cell.title}: left out, as {lacking[0].title} failed")
            continue
        time_left = _time_left(chosen, planned, results)
        console().rule(f"{number} of {len(chosen)} · {cell.title} · {time_left}", align="left")
        ended = make(cell, planned, out)
        store.append(RESULTS, _row(cell, planned, ended))
        if ended.failed is not None:
            failed.add(key)
            console().print(f"{cell.title}: failed: {ended.failed.splitlines()[-1]}")


def _row(cell: Cell, planned: Planned, ended: Ended) -> dict[str, Any]:
    sources = {
        planned.keys[one]: {"step": one.step, "axes": dict(one.axes)} for one in cell.sources
    }
    row = {
        "key": planned.keys[cell],
        "step": cell.step,
        "verb": cell.verb,
        "axes": dict(cell.axes),
        "sources": sources,
        "settings": planned.settings[cell],
        "seconds": ended.seconds,
        **ended.provenance,
    }
    return {**row, **({"failed": ended.failed} if ended.failed is not None else ended.found)}


def _time_left(chosen: Sequence[Cell], planned: Planned, results: Results) -> str:
    """Say how long the rest will take, as far as finished cells tell."""
    todo = {
        planned.keys[cell]: planned.expected(cell) or foreseen(cell, results)
        for cell in chosen
        if results.done(planned.keys[cell]) is None
    }
    known = [seconds for seconds in todo.values() if seconds is not None]
    unknown = len(todo) - len(known)
    said = f"about {shown(sum(known))} left" if known else f"{unknown} cells left"
    return f"{said}, and {unknown} cells of unknown length" if known and unknown else said


def shown(seconds: float) -> str:
    """Write a length of time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _status(planned: Planned, chosen: Sequence[Cell], out: Path) -> dict[str, Any]:
    results = Results.read(out / RESULTS)
    found = states(chosen, planned.keys, results)
    counts = {
        step: dict(Counter(found[cell] for cell in chosen if cell.step == step))
        for step in dict.fromkeys(cell.step for cell in chosen)
    }
    failures = {
        cell.title: str(results.rows[planned.keys[cell]]["failed"]).splitlines()[-1]
        for cell in chosen
        if found[cell] == "failed"
    }
    return {
        "study": planned.study.name,
        "out": str(out),
        "cells": len(chosen),
        **{state: list(found.values()).count(state) for state in _STATES},
        "steps": counts,
        "failures": failures,
        "time_left": _time_left(chosen, planned, results),
        "unmet": [f"{len(failures)} cells failed"] if failures else [],
    }


def tell(result: Mapping[str, Any]) -> str:
    """Show a line per step."""
    lines = [f"{result['study']}: {result['done']} of {result['cells']} cells done"]
    for step, counts in result["steps"].items():
        states_of = ", ".join(f"{counts[state]} {state}" for state in _STATES if state in counts)
        lines.append(f"  {step:<24} {states_of}")
    lines += [f"failed: {title}: {error}" for title, error in result["failures"].items()]
    if result["left"] or result["failed"]:
        lines.append(result["time_left"])
    for one in result.get("findings", ()):
        lines += [f"{one['number']:>3} {one['outcome']:<14} {one['claim']}", f"    {one['said']}"]
    lines += [f"failed: {name}: {said}" for name, said in result.get("scripts_failed", {}).items()]
    if "cost" in result:
        from distillspec.commands.study_cost import line_of  # imports torch

        lines += map(line_of, result["cost"])
    if "report" in result:
        lines.append(str(result["report"]))
    return "\n".join(lines)
