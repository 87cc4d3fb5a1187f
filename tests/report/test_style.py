"""Figures as files, and looks that stay apart."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from distillspec.report import figures, style
from distillspec.report.results import measurements
from distillspec.studies.store import read_run


@pytest.mark.parametrize(
    "names",
    [
        ("before", "control", "after"),
        ("sft", "after", "control"),
        ("a", "b", "c", "d", "after"),
        tuple("abcdefghijklmnop"),
    ],
)
def test_no_two_series_look_alike(names: tuple[str, ...]) -> None:
    looks = style.looks_of(names)
    assert len({(look.color, look.marker) for look in looks}) == len(names)
    if len(names) <= 5:
        assert len({look.color for look in looks}) == len(names)
        assert len({look.marker for look in looks}) == len(names)


def test_a_stage_always_looks_the_same() -> None:
    assert style.looks_of(["after"]) == style.looks_of(["control", "x", "after"])[2:]


def test_an_interval_off_its_value_has_no_negative_arm() -> None:
    """The bug: matplotlib refuses an error bar below zero, as rounding can make one."""
    assert style.arms(style.Interval(1.0, 1.0000001, 0.9999999)) == [[0.0], [0.0]]


def test_dollars_in_a_name_are_not_mathematics() -> None:
    with style.style():
        figure = Figure()
        figure.subplots().set_title("a $x^ draft")
    assert "a $x^ draft" in style.svg(figure)


def test_an_svg_is_whole_and_always_the_same(demo: Path) -> None:
    measured = measurements(read_run(demo))
    first = figures.speedup_bars(measured)
    second = figures.speedup_bars(measured)
    assert first is not None
    assert second is not None
    drawing = style.svg(first)
    ET.fromstring(drawing)
    assert drawing == style.svg(second)
    assert "speed-up over the target alone" in drawing  # text stays text
    assert re.search(r"<dc:date>", drawing) is None


def test_a_saved_picture_is_a_png_on_white_ground(demo: Path, tmp_path: Path) -> None:
    figure = figures.speedup_bars(measurements(read_run(demo)))
    assert figure is not None
    drawing, picture = style.save(figure, style.svg(figure), tmp_path, "bars")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert drawing.read_text().rstrip().endswith("</svg>")
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
