"""The page: one file, complete, safe against what names may hold, honest about what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from distillspec.errors import UserError
from distillspec.report import report
from report_runs import (
    HOSTILE,
    compared,
    create,
    evaluation,
    example_rows,
    full_measurement,
    hostile_rows,
    log_training,
    measurement,
    trade_off,
    transfer_result,
)

Store = Callable[[dict[str, Any]], Path]


class Ids(HTMLParser):
    """Collects what the browser would: ids, references, and tags that stay open."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id" and value:
                self.ids.append(value)
            if name in ("href", "xlink:href", "src") and value:
                self.links.append(value)


def parsed(page: Path) -> Ids:
    found = Ids()
    found.feed(page.read_text())
    return found


@pytest.fixture(scope="module")
def written(demo: Path) -> list[Path]:
    return report(demo)


def test_a_demo_gives_every_figure_and_a_page(demo: Path, written: list[Path]) -> None:
    paths = written
    assert [path.name for path in paths] == [
        "index.html",
        "speedup.svg",
        "speedup.png",
        "speedup-t0.svg",
        "speedup-t0.png",
        "tau-t0.svg",
        "tau-t0.png",
        "speedup-t1.svg",
        "speedup-t1.png",
        "tau-t1.svg",
        "tau-t1.png",
        "training-steps.svg",
        "training-steps.png",
        "training-seconds.svg",
        "training-seconds.png",
    ]
    assert all(path.stat().st_size > 0 for path in paths)
    assert all(path.parent == demo / "report" for path in paths)
    page = paths[0].read_text()
    for stage, alpha in (("before", 0.28), ("control", 0.3), ("after", 0.4)):
        assert f"{stage}, temperature 1" in page
        assert f"Use this draft with γ = 2: {1 + alpha:.2f}×" in page
    assert "0.210<small>0.150 … 0.270</small>" in page
    assert "not measured" in page  # the engine ran at one γ only


def test_the_page_stands_alone(written: list[Path]) -> None:
    page = written[0]
    found = parsed(page)
    assert "script" not in found.tags
    assert all(link.startswith("#") for link in found.links)
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links} <= set(found.ids)
    used = set(re.findall(r"url\(#([^)]+)\)", page.read_text()))
    assert used <= set(found.ids)
    assert found.tags.count("svg") == 7
    assert page.stat().st_size < 400_000


def test_text_and_axes_follow_the_readers_colours(written: list[Path]) -> None:
    page = written[0].read_text()
    svg = page[page.index("<svg") : page.index("</svg>")]
    assert "currentColor" in svg
    assert "#24292f" not in svg
    assert "#ffffff" not in svg
    assert "prefers-color-scheme: dark" in page


def test_what_names_hold_is_escaped(tmp_path: Path) -> None:
    run = create(tmp_path / "<img src=x>", "measure")
    result = measurement(0.3)
    result["verdict"] = "<script>alert(1)</script>"
    run.write_json("result.json", result)
    found = parsed(report(run.folder)[0])
    assert "script" not in found.tags
    assert "img" not in found.tags


SAFE = ("format", "verb", "roles", "rule", "lenience")
"""Keys whose values are words of ours: another is refused, or drawn by its own look."""


def poisoned(value: Any, key: str = "") -> Any:
    """Add to every text what would leave an attribute, and be a script, were it not escaped."""
    if isinstance(value, dict):
        return {name: poisoned(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, key) for inner in value]
    return f"{value}\"'>{HOSTILE}" if isinstance(value, str) and key not in SAFE else value


@pytest.mark.parametrize("verb", ["measure", "evaluate", "tradeoff", "transfer"])
def test_no_text_of_a_run_is_markup_wherever_it_stands(tmp_path: Path, verb: str) -> None:
    """Every text of every file at once: names, ids, domains, settings, versions, outputs."""
    drafts = [{**full_measurement(0.3, domains=["code"]), "draft": name} for name in ("a", "b")]
    results: dict[str, dict[str, Any]] = {
        "measure": {
            **drafts[0],
            "drafts": drafts,
            "comparison": [compared("b", "a", ["code"])],
            "unmet": ["Too slow."],
        },
        "evaluate": evaluation(),
        "tradeoff": trade_off(),
        "transfer": transfer_result(),
    }
    run = create(tmp_path / "run", verb)
    record = json.loads((run.folder / "run.json").read_text("utf-8"))
    run.write_json("run.json", poisoned(record))
    run.write_json("result.json", poisoned(results[verb]))
    run.write_rows("outputs.jsonl", poisoned(hostile_rows()))
    if verb == "measure":
        run.write_rows("examples.jsonl", poisoned(example_rows(("a", "b"), 4)))
    page = report(run.folder)[0]
    found = parsed(page)
    assert not {"script", "img"} & set(found.tags)
    assert not [name for name in found.attributes if not re.fullmatch(r"[a-z][a-z0-9:_-]*", name)]
    assert not [name for name in found.attributes if name.startswith("on")]
    assert all(link.startswith("#") for link in found.links)
    assert page.read_text("utf-8").count("&lt;script&gt;") > 20  # it was all there


def test_a_measurement_alone_makes_a_page(measured: Store, tmp_path: Path) -> None:
    folder = measured(measurement(0.3, ran=False))
    paths = report(folder, tmp_path / "elsewhere" / "deep")
    assert [path.name for path in paths] == [
        "index.html",
        "speedup-t1.svg",
        "speedup-t1.png",
        "tau-t1.svg",
        "tau-t1.png",
    ]
    page = paths[0].read_text()
    assert "not measured" in page
    assert "against the control" not in page
    assert "<h2>Training</h2>" not in page


def test_an_interrupted_training_makes_a_page(tmp_path: Path) -> None:
    run = create(tmp_path / "t", "distill")
    log_training(run, steps=5, start=0.2, end=0.3)
    metrics = run.folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"step": 6, "lo')
    page = report(run.folder)[0].read_text()
    assert "<td>t</td><td>5</td>" in page


def test_a_page_is_rewritten(distilled: Path) -> None:
    first = report(distilled)
    assert report(distilled) == first


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to draw"):
        report(create(tmp_path / "r", "distill").folder)
    with pytest.raises(UserError, match="no such folder"):
        report(tmp_path / "absent")


@pytest.mark.parametrize("verb", ["garden", "tune", "bounds", "perplexity"])
def test_a_run_that_report_does_not_draw_is_named(tmp_path: Path, verb: str) -> None:
    """They were told that nothing was measured yet, and tune's that its seconds go backwards."""
    run = create(tmp_path / "r", verb)
    run.log({"candidate": "a", "rung": 0, "step": 3, "seconds": 2.0})
    run.log({"candidate": "b", "rung": 0, "step": 3, "seconds": 1.0})
    with pytest.raises(UserError, match=f"a run of {verb}, of which there are no figures"):
        report(run.folder)


def test_a_folder_that_cannot_be_written_is_said(distilled: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written"):
        report(distilled, tmp_path / "file")


def test_a_damaged_comparison_is_said(tmp_path: Path) -> None:
    run = create(tmp_path / "d", "demo")
    stages = {stage: [measurement(0.3)] for stage in ("before", "control", "after")}
    run.write_json("result.json", {**stages, "comparison": {"alpha_difference": []}})
    with pytest.raises(UserError, match="comparison is not a demo's, it is damaged"):
        report(run.folder)
