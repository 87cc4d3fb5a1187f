"""A finding of a study, its figures, and the page of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from distillspec.report import style
from distillspec.report.html import inline, template
from distillspec.report.reading import Interval, interval, short_names
from distillspec.report.style import INK, WIDTH, Look, arms, looks_of, marker, nudges
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


class Panel(NamedTuple):
    """A part of a figure with axes of its own."""

    title: str
    """Above it."""
    lines: tuple[Curve, ...]
    """What is drawn in it."""


def panels(found: Sequence[Panel], xlabel: str, ylabel: str, *, even: float) -> Figure:
    """Draw lines with intervals in panels of one scale, two in a row, so that many read at once.

    Args:
        found: The panels; a line of the same name looks the same in all.
        xlabel: What the points are drawn over.
        ylabel: What they are.
        even: Where nothing is gained or lost, drawn as a line.

    Raises:
        ValueError: there is nothing to draw.
    """
    every = [line for panel in found for line in panel.lines if line.x]
    if not every:
        raise ValueError("there is nothing to draw")
    names = list(dict.fromkeys(line.name for line in every))
    short = short_names(names)
    places = {x for line in every for x in line.x}
    step = 0.06 * (max(places) - min(places) or 1.0)  # or the intervals hide one another
    series = list(zip(names, looks_of(names), nudges(len(names), step), strict=True))
    rows = -(-len(found) // 2)
    with style.style():
        figure = Figure(figsize=(WIDTH, 0.9 + 1.8 * rows), layout="constrained")
        grid = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(found) :]:
            axes.set_visible(False)
        for place, (axes, panel) in enumerate(zip(grid.flat, found, strict=False), start=1):
            by_name = {line.name: line for line in panel.lines}
            for name, look, nudge in series:
                if name in by_name:
                    _nudged(axes, by_name[name], look, nudge)
            axes.axhline(even, color=INK, linewidth=1, linestyle=":")
            axes.set_title(plain(panel.title))
            axes.set_xticks(sorted(places), [f"{x:g}" for x in sorted(places)])
            axes.tick_params(labelbottom=place + 2 > len(found))  # of those with none below
        figure.supxlabel(plain(xlabel), fontsize=9)
        figure.supylabel(plain(ylabel), fontsize=9)
        keys = [
            Line2D([], [], color=look.color, marker=look.marker, label=plain(short[name]))
            for name, look, _ in series
        ]
        figure.legend(handles=keys, loc="outside upper left", ncols=3)
    return figure


def _nudged(axes: Axes, line: Curve, look: Look, nudge: float) -> None:
    at = [x + nudge for x in line.x]
    axes.plot(at, [y.value for y in line.y], color=look.color, linestyle=look.line, linewidth=1)
    for x, y in zip(at, line.y, strict=True):
        marker(axes, x, y, look)


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
