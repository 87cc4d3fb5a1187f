"""Figures of findings show what they are given, in no more room than a screen has."""

from __future__ import annotations

import pytest

from distillspec.report.findings import Curve, Panel, panels
from distillspec.report.reading import Interval


def curve(name: str, *values: float) -> Curve:
    return Curve(name, (3, 5, 7), tuple(Interval(v, v - 0.1, v + 0.1) for v in values))


def test_panels_share_scale_and_looks_and_fit_a_screen() -> None:
    recipes = ("seqkd", "supervised_kd", "imitkd", "fdistill", "gkd")
    found = [
        Panel(f"place {i}", tuple(curve(name, i, 1.0, 2.0) for name in recipes)) for i in range(4)
    ]
    figure = panels(found, "γ", "gain", even=0.0)
    assert figure.get_figheight() <= 5  # 60 rows of dots took 11 inches
    assert [axes.get_title("left") for axes in figure.axes] == [panel.title for panel in found]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    first = [list(line.get_ydata()) for line in figure.axes[3].lines if len(line.get_xdata()) == 3]
    assert first == [[3, 1.0, 2.0]] * len(recipes)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(recipes)


def test_a_line_that_a_panel_lacks_is_left_out_and_an_odd_place_empty() -> None:
    found = [Panel("a", (curve("x", 1, 2, 3), curve("y", 1, 2, 3))), Panel("b", ()),
             Panel("c", (curve("y", 4, 5, 6),))]  # fmt: skip
    axes = panels(found, "γ", "gain", even=0.0).axes
    assert [one.get_visible() for one in axes] == [True, True, True, False]
    looks = [line for line in axes[2].lines if len(line.get_xdata()) == 3]
    same = [line for line in axes[0].lines if len(line.get_xdata()) == 3][1]
    assert [line.get_color() for line in looks] == [same.get_color()]
    with pytest.raises(ValueError, match="nothing to draw"):
        panels([Panel("b", ())], "γ", "gain", even=0.0)
