"""Names that fit a figure, and errors that say where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.errors import UserError
from distillspec.report.reading import interval, maybe, number, reading, short_names, text_or_none


def test_the_last_part_of_a_path_is_its_short_name() -> None:
    assert short_names(["runs/raw", "runs/new/"]) == {"runs/raw": "raw", "runs/new/": "new"}
    assert short_names(["C:\\runs\\raw"]) == {"C:\\runs\\raw": "raw"}


def test_paths_with_one_last_part_keep_the_rest() -> None:
    names = ["runs/a/draft", "runs/b/draft"]
    assert short_names(names) == {name: name for name in names}


def test_a_long_name_keeps_its_ends() -> None:
    (short,) = short_names(["abcdefghijklmnopqrstuvwxyz-0123456789"]).values()
    assert short == "abcdefghijkl…tuvwxyz-0123456789"[:13] + "uvwxyz-0123456789"[-17:]
    assert len(short) == 30


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.text(alphabet="ab/\\", max_size=60), max_size=6))
def test_short_names_are_short_and_stay_apart(names: list[str]) -> None:
    found = short_names(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(set(names))
    assert all(len(short) <= 32 for short in found.values())


def test_what_was_not_made_stays_missing() -> None:
    assert maybe(None) is number(None) is text_or_none(None) is None
    assert interval({"value": 1, "low": 0, "high": 2}) == (1.0, 0.0, 2.0)


def test_an_error_says_where_and_what_to_do() -> None:
    with (
        pytest.raises(UserError, match=r"r\.json: a\.0\.x is missing; measure again"),
        reading(Path("r.json"), "a.0.", "a measurement", "measure again"),
    ):
        raise KeyError("x")
    with (
        pytest.raises(UserError, match=r"r\.json: a\.0 is not a measurement: odd"),
        reading(Path("r.json"), "a.0.", "a measurement", "measure again"),
    ):
        raise ValueError("odd")
    with (
        pytest.raises(UserError, match=r"^clear$"),
        reading(Path("r.json"), "a.0.", "a measurement", "measure again"),
    ):
        raise UserError("clear")
