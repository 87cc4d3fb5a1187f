"""`report` says which file to open."""

from __future__ import annotations

from pathlib import Path

from distillspec.commands import report
from distillspec.commands.settings import Report
from report_runs import create, measurement


def test_the_page_comes_first_and_the_figures_after_it(tmp_path: Path) -> None:
    run = create(tmp_path / "m", "measure")
    run.write_json("result.json", measurement(0.3, ran=False))
    result = report.run(Report(run=run.folder, out=tmp_path / "out"))
    lines = report.tell(result).splitlines()
    assert lines[0] == f"open {tmp_path / 'out' / 'index.html'}"
    names = ["speedup-t1.svg", "speedup-t1.png", "tau-t1.svg", "tau-t1.png"]
    assert lines[1:] == [str(tmp_path / "out" / name) for name in names]
