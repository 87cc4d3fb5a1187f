"""Successive halving: how long a rung is, who goes on, and when nothing moves."""

from __future__ import annotations

import pytest

from distillspec.studies.estimates import Estimate
from distillspec.studies.halving import better_half, first_rung, moved, rungs


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (12, 5)])
def test_rungs_until_one_is_left(count, expected):
    assert rungs(count) == expected
    left = count
    for _ in range(expected - 1):
        left = len(better_half({i: 0.0 for i in range(left)}))
    assert left == 1


@pytest.mark.parametrize("count", range(1, 20))
def test_all_rungs_together_take_the_seconds_given(count):
    first = first_rung(1000.0, count)
    trained = dict.fromkeys(range(-1, count), 0.0)  # −1 is what the winner is held against
    left = list(range(count))
    for rung in range(rungs(count)):
        for one in [-1, *left]:
            trained[one] = first * 2**rung
        left = better_half({one: float(one) for one in left})
    assert sum(trained.values()) == pytest.approx(1000.0)


def test_the_better_half_goes_on_the_best_first():
    assert better_half({"a": 1.0, "b": 3.0, "c": 2.0}) == ["b", "c"]
    assert better_half({"a": 1.0, "b": 1.0}) == ["a"]


def test_something_moves_if_one_rises_beyond_chance():
    changes = {"a": Estimate(value=0.1, low=-0.1, high=0.3), "b": Estimate(value=0, low=0, high=1)}
    assert not moved(changes)
    changes["b"]["low"] = 0.01
    assert moved(changes)
    assert not moved({"a": changes["a"]})


def test_no_candidate_is_refused():
    with pytest.raises(ValueError, match="no candidate"):
        rungs(0)
