"""Cells: escaped, rounded as said, missing where nothing was measured."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from distillspec.report.reading import Interval
from distillspec.report.tables import NOT_MEASURED, brief, estimate, fixed, table


def test_cells_of_text_are_escaped_and_markup_is_kept() -> None:
    found = table(("a", "b"), [("<b>\x1b", Markup("<i>x</i>"))])
    assert found.rows[0][0].startswith("&lt;b&gt;<span")
    assert found.rows[0][1] == "<i>x</i>"


def test_a_row_must_fit_its_head() -> None:
    with pytest.raises(ValueError, match="1 cells under a head of 2"):
        table(("a", "b"), [("x",)])


def test_an_estimate_stands_above_its_interval() -> None:
    shown = estimate(Interval(0.12345, 0.1, 0.15), 3)
    assert shown == "0.123<small>0.100 … 0.150</small>"


def test_zero_has_no_sign() -> None:
    """The bug: a difference of nothing was shown as -0.000."""
    assert fixed(-0.0001, 3) == "0.000"
    assert fixed(-0.001, 3) == "-0.001"
    assert estimate(Interval(-0.0, -0.0004, 0.0), 2) == "0.00<small>0.00 … 0.00</small>"


def test_what_was_not_measured_says_so() -> None:
    assert estimate(None, 2) == fixed(None, 2) == brief(None) == NOT_MEASURED
    assert brief(0.5) == "0.5"
