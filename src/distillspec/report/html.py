"""One page of a run: verdicts, figures, tables and how it was made; a single file, no network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from distillspec.errors import UserError
from distillspec.report import figures
from distillspec.report.results import Interval, Measured, Training, measurements, trainings
from distillspec.studies.store import StoredRun, read_run, write_text


class _Drawing(NamedTuple):
    name: str
    caption: str
    figure: Figure
    svg: str


class _Comparison(NamedTuple):
    temperature: float
    differences: Mapping[str, Interval]


def report(folder: str | Path, out: str | Path | None = None) -> list[Path]:
    """Draw a run's figures and its page.

    Args:
        folder: the directory of a run of `measure`, `distill`, `sft` or `demo`.
        out: where to write; default FOLDER/report.

    Returns:
        The files written, the page first, then an SVG and a PNG of each figure.

    Raises:
        UserError: the folder is no run directory, is damaged, or holds nothing to draw, or `out`
            cannot be written.
    """
    run = read_run(folder)
    measured, trained = measurements(run), trainings(run)
    if not measured and not trained:
        raise UserError(f"{folder}: neither measured nor trained anything yet; nothing to draw")
    drawings = _drawings(measured, trained)
    target = run.folder / "report" if out is None else Path(out)
    try:
        target.mkdir(parents=True, exist_ok=True)
        page = write_text(target / "index.html", _page(run, measured, trained, drawings))
        saved = [figures.save(one.figure, one.svg, target, one.name) for one in drawings]
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror}") from error
    return [page, *(path for paths in saved for path in paths)]


def _drawings(measured: Sequence[Measured], trained: Sequence[Training]) -> list[_Drawing]:
    found = []
    bars = figures.speedup_bars(measured)
    if bars is not None:
        caption = "Speed-up on the clock, decoding only, and what was forecast for it."
        found.append(_drawing("speedup", caption, bars))
    for temperature in sorted({one.temperature for one in measured}):
        same = [one for one in measured if one.temperature == temperature]
        caption = (
            f"Block efficiency at temperature {temperature:g}: the exact forecast with its 95 % "
            "interval over prompts (bands), and what the engine counted (markers)."
        )
        found.append(_drawing(f"tau-t{temperature:g}", caption, figures.tau_by_gamma(same)))
    if trained:
        caption = (
            "Training by steps; each point of a line joins consecutive steps. Losses of different "
            "objectives (cross-entropy, a divergence) do not compare; α and τ do."
        )
        found.append(_drawing("training-steps", caption, figures.training_curves(trained, "step")))
        caption = "The same by seconds, which is what training costs."
        drawn = figures.training_curves(trained, "seconds")
        found.append(_drawing("training-seconds", caption, drawn))
    return found


def _drawing(name: str, caption: str, figure: Figure) -> _Drawing:
    return _Drawing(name, caption, figure, figures.svg(figure))


def _page(
    run: StoredRun,
    measured: Sequence[Measured],
    trained: Sequence[Training],
    drawings: Sequence[_Drawing],
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("distillspec.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["fixed"] = lambda number, digits: f"{number:.{digits}f}"
    environment.filters["plain"] = lambda number: f"{number:g}"
    return environment.get_template("page.html.j2").render(
        title=run.folder.resolve().name,
        record=run.record,
        command=shlex.join(run.record["command"]),
        measured=measured,
        comparison=_comparison(run),
        trainings=trained,
        parts=list(dict.fromkeys(part for one in trained for part in one.parts)),
        figures=[{"caption": one.caption, "svg": _inline(one)} for one in drawings],
    )


def _comparison(run: StoredRun) -> list[_Comparison]:
    """Read a demo's paired differences, by temperature."""
    stored = (run.result or {}).get("comparison")
    if stored is None:
        return []
    names = {"alpha_difference": "α, after − control", "tau_difference": "τ, after − control"}
    try:
        temperatures = [float(one["temperature"]) for one in (run.result or {})["after"]]
        return [
            _Comparison(
                temperature,
                {label: _interval(stored[name], index) for name, label in names.items()},
            )
            for index, temperature in enumerate(temperatures)
        ]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UserError(f"{run.folder}/result.json: the comparison is damaged: {error}") from error


def _interval(values: Sequence[Mapping[str, Any]], index: int) -> Interval:
    return Interval(*(float(values[index][end]) for end in ("value", "low", "high")))


def _inline(about: _Drawing) -> Markup:
    """Fit an SVG into the page: its ids made its own, its ink the reader's text colour."""
    drawing = about.svg[about.svg.index("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{about.name}-', drawing)
    drawing = re.sub(r"url\(#", f"url(#{about.name}-", drawing)
    drawing = re.sub(r'href="#', f'href="#{about.name}-', drawing)
    drawing = drawing.replace(figures.INK, "currentColor").replace(figures.BLUE, "var(--blue)")
    # The white ground is for files of their own; here the page's shows through.
    drawing = drawing.replace("fill: #ffffff", "fill: none")
    label = str(Markup.escape(about.caption))
    drawing = drawing.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    # Drawn by matplotlib from numbers and escaped names: nothing of the user's is raw in it.
    return Markup(drawing)
