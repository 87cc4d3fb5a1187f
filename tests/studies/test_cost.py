"""The cost model on hand-made timings, where every constant is known."""

from __future__ import annotations

import pytest

from distillspec.math.forecast import Cost
from distillspec.studies.clock import Passes, Timings
from distillspec.studies.cost import fit_cost

PASSES = Passes(target={1: 10.0, 2: 10.5, 3: 11.0, 4: 12.0}, drafts={"d": 2.0})


def test_a_line_through_blocks_of_several_gammas_gives_draft_and_overhead():
    """block(γ) = t(γ+1) + γ·2.5 + 0.5 and block(0) = t(1) + 0.25."""
    blocks = {(None, 0): 10.25, **{("d", g): PASSES.target[g + 1] + 2.5 * g + 0.5 for g in (1, 3)}}
    cost = fit_cost([Timings(PASSES, blocks)], "d")
    assert cost.target == (10.0, 10.5, 11.0, 12.0)
    assert cost.draft == pytest.approx(2.5)
    assert cost.overhead == pytest.approx(0.5)
    assert cost.overhead_plain == pytest.approx(0.25)
    assert cost.block(2) == pytest.approx(11.0 + 5.0 + 0.5)


def test_blocks_of_one_gamma_tell_no_slope():
    cost = fit_cost([Timings(PASSES, {(None, 0): 10.0, ("d", 3): 18.5})], "d")
    assert cost == Cost((10.0, 10.5, 11.0, 12.0), 2.0, overhead=0.5, overhead_plain=0.0)


def test_noise_makes_no_negative_cost():
    """Passes that look dearer than the blocks they are in."""
    cost = fit_cost([Timings(PASSES, {(None, 0): 9.0, ("d", 1): 10.0, ("d", 3): 11.0})], "d")
    assert (cost.draft, cost.overhead, cost.overhead_plain) == (0, 0, 0)


def test_blocks_of_another_draft_say_nothing():
    passes = Passes(PASSES.target, {"d": 2.0, "e": 50.0})
    timings = Timings(passes, {(None, 0): 10.25, ("d", 3): 18.5, ("e", 1): 99.0})
    assert fit_cost([timings], "d").overhead == 0.5


def test_nothing_timed_is_no_cost():
    with pytest.raises(ValueError, match="no block of 'd'"):
        fit_cost([Timings(PASSES, {(None, 0): 10.0})], "d")
