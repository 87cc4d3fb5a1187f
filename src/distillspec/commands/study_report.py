"""`study report`: the findings' scripts read the results, and one page shows what they say.

A script is a Python file with `finding(results) -> Finding`; run by itself it says its verdict:

    python experiments/f01_recipes.py runs/small

There it reads every row of the folder. `study report` leaves out what the study file does not ask
for, such as cells of an earlier state of it; where there are such rows the two may differ.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distillspec.commands.plan import Planned
from distillspec.errors import UserError
from distillspec.report import style
from distillspec.report.findings import Finding, page
from distillspec.studies.results import RESULTS, Results
from distillspec.studies.store import write_text

Script = Callable[[Results], Finding]


def report(planned: Planned, file: Path, out: Path) -> dict[str, Any]:
    """Let every script read the results, and draw one page of what they say.

    Cells that the file does not ask for, of an earlier state of it or of another file with the
    same folder, are left out. What a script dies of is told by its name, and the others go on.

    Args:
        planned: What the file asks for.
        file: The study file, beside which the scripts are.
        out: The study's folder.

    Returns:
        Ready for JSON: `report`, the page; `findings`, what the scripts say; `scripts_failed`, an
        error by script.

    Raises:
        UserError: there are no results or no scripts, or one of the scripts is not there.
    """
    study, asked = planned.study, set(planned.keys.values())
    results = Results({key: row for key, row in _results(out).rows.items() if key in asked})
    if not study.findings:
        raise UserError(f"{file}: findings is missing: name the scripts that read the results")
    found: list[Finding] = []
    failed: dict[str, str] = {}
    for name, path in _paths(file, study.findings).items():
        try:
            found.append(_script(path)(results))
        except Exception as error:  # a script's own, of which the others know nothing
            failed[name] = _line_of(error, path)
    command = f"distillspec study run {file.name}"
    files = page(study.name, found, failed, command, list(results.rows.values()), out / "report")
    return {
        "report": str(files[0]),
        "findings": [
            {"number": one.number, "claim": one.claim, "outcome": one.outcome, "said": one.sentence}
            for one in found
        ],
        "scripts_failed": failed,
    }


def main(finding: Script) -> None:
    """Say one finding's verdict on all rows of a folder, and write its figure beside them."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python {sys.argv[0]} FOLDER, the --out of a study")
    out = Path(sys.argv[1])
    found = finding(_results(out))
    if found.figure is not None:
        (out / "report").mkdir(exist_ok=True)
        write_text(out / "report" / f"finding-{found.number}.svg", style.svg(found.figure))
    sys.stdout.write(f"{found.number}: {found.outcome}. {found.claim}\n{found.sentence}\n")


def _results(out: Path) -> Results:
    results = Results.read(out / RESULTS)
    if not results.rows:
        raise UserError(f"{out}: no results yet; `distillspec study run` makes them")
    return results


def _paths(file: Path, scripts: Sequence[str]) -> dict[str, Path]:
    """Find the scripts beside the study file, by their names."""
    paths = {name: file.parent / name for name in scripts}
    for path in paths.values():
        if not path.is_file():
            raise UserError(f"findings: {path}: no such script")
    return paths


def _script(path: Path) -> Script:
    found: Script | None = runpy.run_path(str(path)).get("finding")
    if found is None:
        raise UserError("has no function finding(results) (docs/study.md)")
    return found


def _line_of(error: Exception, path: Path) -> str:
    """Say in one line what a script died of, and where in it."""
    whole = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
    said = str(error) if isinstance(error, UserError) else whole
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return f"line {lines[-1]}: {said}" if lines else said
