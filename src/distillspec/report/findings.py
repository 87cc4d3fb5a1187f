"""A finding of a study, its figures, and the page of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from distillspec.report import style
from distillspec.report.html import inline, template
from distillspec.report.reading import Interval, interval, short_names
from distillspec.report.style import WIDTH, arms, looks_of
from distillspec.report.tables import Drawing, Table, table
from distillspec.report.text import plain, visible
from distillspec.studies.store import write_text


class Finding(NamedTuple):
    """What a study says of one claim."""

    number: str
    """Its place in docs/findings.md."""
    claim: str
    """What the paper says, with its figure or table."""
    outcome: str
    """holds, does not hold, undecided, or not run."""
    sentence: str
    """The verdict, computed from the rows; what is lacking where nothing was run."""
    head: tuple[str, ...] = ()
    """Of the figure's data."""
    rows: tuple[tuple[str, ...], ...] = ()
    """The figure's data."""
    figure: Figure | None = None
    """Its figure; None where nothing was run."""
    paper: str = ""
    """The paper's own values, where they can be compared."""


def not_run(number: str, claim: str, step: str) -> Finding:
    """Say that a study has no cell that a finding could be read from."""
    return Finding(number, claim, "not run", f"Not run: the results have no cell of {step}.")


def estimated(value: Mapping[str, Any], digits: int = 3) -> str:
    """Write an estimate for a table."""
    at = interval(value)
    return f"{at.value:.{digits}f} [{at.low:.{digits}f}, {at.high:.{digits}f}]"


class Curve(NamedTuple):
    """One line of a figure."""

    name: str
    """In the legend."""
    x: tuple[float, ...]
    """Where its points are."""
    y: tuple[Interval, ...]
    """What they are."""


def curves(lines: Sequence[Curve], xlabel: str, ylabel: str, *, joined: bool = True) -> Figure:
    """Draw lines with intervals, or points alone.

    Raises:
        ValueError: there is nothing to draw.
    """
    if not any(line.x for line in lines):
        raise ValueError("there is nothing to draw")
    names = [line.name for line in lines]
    short = short_names(names)
    with style.style():
        figure = Figure(figsize=(WIDTH, 3.2 + 0.1 * len(lines)), layout="constrained")
        axes = figure.subplots()
        for line, look in zip(lines, looks_of(names), strict=True):
            for x, at in zip(line.x, line.y, strict=True):
                axes.errorbar(x, at.value, yerr=arms(at), color=look.color, capsize=2)
            axes.plot(
                line.x,
                [at.value for at in line.y],
                color=look.color,
                marker=look.marker,
                linestyle=look.line if joined else "",
                label=plain(short[line.name]),
            )
        axes.set_xlabel(plain(xlabel))
        axes.set_ylabel(plain(ylabel))
        if len(lines) > 1:
            figure.legend(loc="outside upper left", ncols=2)
    return figure


def page(
    study: str,
    findings: Sequence[Finding],
    failed: Mapping[str, str],
    command: str,
    rows: Sequence[Mapping[str, Any]],
    target: Path,
) -> list[Path]:
    """Write the page of a study's findings, and an SVG and a PNG of each figure.

    Args:
        study: Its name.
        findings: In order.
        failed: What other scripts died of, by their names.
        command: That made the results.
        rows: Those of results.jsonl that count.
        target: Folder to write to.

    Returns:
        The files, the page first.
    """
    target.mkdir(parents=True, exist_ok=True)
    drawn = {one.number: style.svg(one.figure) for one in findings if one.figure is not None}
    shown = [_shown(one, drawn.get(one.number)) for one in findings]
    text = template("findings.html.j2").render(
        study=study,
        findings=shown,
        failed=failed,
        command=command,
        made=_made(rows),
        visible=visible,
    )
    files = [write_text(target / "index.html", text)]
    for one in findings:
        if one.figure is not None:
            files += style.save(one.figure, drawn[one.number], target, f"finding-{one.number}")
    return files


def _shown(one: Finding, drawing: str | None) -> dict[str, Any]:
    data: Table = table(one.head, one.rows)
    figure = (
        None
        if drawing is None or one.figure is None
        else inline(Drawing(f"finding-{one.number}", one.claim, one.figure, data), drawing)
    )
    return {**one._asdict(), "figure": figure, "data": data}


def _made(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Say of each step when, where and by which code its cells were made."""
    made: dict[tuple[str, ...], float] = {}
    for row in rows:
        code = row.get("code") or {}
        commit = str(code.get("commit") or "unknown")[:10] + (" +" if code.get("dirty") else "")
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        place = (str(row["step"]), commit, versions, str(row.get("device", "")))
        made[place] = made.get(place, 0.0) + float(row["seconds"])
    return table(
        ("step", "commit (+ changed)", "versions", "device", "seconds"),
        [(*place, f"{seconds:.0f}") for place, seconds in made.items()],
    )
