"""One page of a run: verdict, figures, tables, text, and how it was made; one file, no network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup

from distillspec.errors import UserError
from distillspec.report import outcomes, style
from distillspec.report.draft_parts import comparison_content, training_content
from distillspec.report.drafts import comparisons, examples
from distillspec.report.measured_parts import measured_content
from distillspec.report.outcome_parts import evaluated_content, tradeoff_content, transfer_content
from distillspec.report.results import measurements, rules
from distillspec.report.settings_view import settings_view
from distillspec.report.tables import Content, Drawing
from distillspec.report.text import ROLES, TOKENS, text_view, visible
from distillspec.report.training import trainings
from distillspec.studies.store import StoredRun, read_run, write_text

DRAWN = ("demo", "measure", "sft", "distill", "evaluate", "tradeoff", "transfer")
"""The verbs whose runs have figures."""


class _Drawn(NamedTuple):
    drawing: Drawing
    svg: str


def report(folder: str | Path, out: str | Path | None = None) -> list[Path]:
    """Draw a run's figures and its page.

    Args:
        folder: the directory of a run of one of `DRAWN`.
        out: where to write; default FOLDER/report.

    Returns:
        The files written, the page first, then an SVG and a PNG of each figure.

    Raises:
        UserError: the folder is no run directory, is of another verb, is damaged, or holds nothing
            to draw, or `out` cannot be written.
    """
    run = read_run(folder)
    if run.record["verb"] not in DRAWN:
        raise UserError(
            f"{folder}: a run of {run.record['verb']}, of which there are no figures; what it "
            f"found is in its result.json, and report draws runs of {', '.join(DRAWN)}"
        )
    contents = _contents(run)
    drawn = [_Drawn(one, style.svg(one.figure)) for part in contents for one in part.drawings]
    page = _page(run, contents, drawn)
    target = run.folder / "report" if out is None else Path(out)
    try:
        target.mkdir(parents=True, exist_ok=True)
        files = [write_text(target / "index.html", page)]
        for one in drawn:
            files += style.save(one.drawing.figure, one.svg, target, one.drawing.name)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror}") from error
    return files


def _contents(run: StoredRun) -> list[Content]:
    """Assemble whatever the run holds, the kind that answers for it first."""
    measured = measurements(run)
    contents = [measured_content(measured)]
    contents.append(comparison_content(comparisons(run), examples(run), rules(measured)))
    if (evaluated := outcomes.evaluated(run)) is not None:
        contents.append(evaluated_content(evaluated))
    if (traded := outcomes.tradeoff(run)) is not None:
        contents.append(tradeoff_content(traded))
    if (transferred := outcomes.transfer(run)) is not None:
        contents.append(transfer_content(transferred))
    answered = any(part.verdicts for part in contents)
    contents.append(training_content(trainings(run), alone=not answered))
    if not any(part.sections for part in contents):
        raise UserError(f"{run.folder}: neither measured nor trained anything yet; nothing to draw")
    return contents


def _page(run: StoredRun, contents: Sequence[Content], drawn: Sequence[_Drawn]) -> str:
    verdicts = [verdict for part in contents for verdict in part.verdicts]
    return template("page.html.j2").render(
        title=run.folder.resolve().name,
        record=run.record,
        command=shlex.join(run.record["command"]),
        unmet=[verdict for verdict in verdicts if verdict.kind == "unmet"],
        verdicts=[verdict for verdict in verdicts if verdict.kind == "main"],
        notes=[verdict for verdict in verdicts if verdict.kind == "note"],
        asides=[verdict for verdict in verdicts if verdict.kind == "aside"],
        figures=[
            {
                "svg": inline(one.drawing, one.svg),
                "caption": one.drawing.caption,
                "data": one.drawing.data,
            }
            for one in drawn
        ],
        sections=[section for part in contents for section in part.sections],
        text=text_view(run),
        roles=ROLES,
        tokens=TOKENS,
        settings=settings_view(run.record["config"]),
        visible=visible,
    )


def template(name: str) -> jinja2.Template:
    """Return one of this room's templates, which escapes whatever it is given as text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("distillspec.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def inline(one: Drawing, svg: str) -> Markup:
    """Fit an SVG into the page: its ids made its own, its ink the reader's text colour."""
    name, drawing = one.name, svg[svg.index("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    drawing = re.sub(r"url\(#", f"url(#{name}-", drawing)
    drawing = re.sub(r'href="#', f'href="#{name}-', drawing)
    drawing = drawing.replace(style.INK, "currentColor").replace(style.BLUE, "var(--blue)")
    # The white ground is for files of their own; here the page's shows through.
    drawing = drawing.replace("fill: #ffffff", "fill: none")
    label = str(Markup.escape(one.caption))
    drawing = drawing.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    # Drawn by matplotlib from numbers and escaped names: nothing of the user's is raw in it.
    return Markup(drawing)
