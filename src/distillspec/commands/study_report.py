"""`study report`: the findings' scripts read the results, and one page shows what they say.

A script is a Python file with `finding(results) -> Finding`; run by itself it says its verdict:

    python experiments/f01_recipes.py runs/small
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distillspec.errors import UserError
from distillspec.report import style
from distillspec.report.findings import Finding, page
from distillspec.studies.results import RESULTS, Results
from distillspec.studies.store import write_text

Script = Callable[[Results], Finding]


def draw(study: str, file: Path, scripts: Sequence[str], out: Path) -> list[Path]:
    """Draw the page of a study from its results, and return the files written.

    Raises:
        UserError: there are no results or no scripts, or one of the scripts is not there.
    """
    results = _results(out)
    if not scripts:
        raise UserError(f"{file}: findings is missing: name the scripts that read the results")
    found = [_script(file.parent / name)(results) for name in scripts]
    command = f"distillspec study run {file.name}"
    return page(study, found, command, list(results.rows.values()), out / "report")


def verdicts(file: Path, scripts: Sequence[str], out: Path) -> list[dict[str, Any]]:
    """Return what the scripts say, ready for JSON."""
    results = _results(out)
    found = [_script(file.parent / name)(results) for name in scripts]
    return [
        {"number": one.number, "claim": one.claim, "outcome": one.outcome, "said": one.sentence}
        for one in found
    ]


def main(finding: Script) -> None:
    """Say one finding's verdict, and write its figure beside the results it is read from."""
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


def _script(path: Path) -> Script:
    if not path.is_file():
        raise UserError(f"findings: {path}: no such script")
    found: Script | None = runpy.run_path(str(path)).get("finding")
    if found is None:
        raise UserError(f"findings: {path}: has no function finding(results) (docs/study.md)")
    return found
