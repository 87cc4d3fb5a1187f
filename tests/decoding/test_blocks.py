"""Counts, blocks and outputs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decoding_checks as checks
from distillspec.decoding import Block, Counts, collect

NUMBERS = st.integers(0, 1000)
COUNTS = st.builds(Counts, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


def block(rows, ids, accepted, drafted, judged, finished):
    states = tuple(torch.tensor(row, dtype=torch.float32)[:, None] for row in ids)
    return Block(rows, ids, accepted, drafted, judged, finished, states)


@settings(deadline=None, derandomize=True)
@given(st.lists(COUNTS), st.lists(COUNTS))
def test_counts_of_a_union_are_the_sum(a, b):
    assert sum(a, Counts()) + sum(b, Counts()) == sum(a + b, Counts())


def test_ratios_divide_once_at_the_end():
    total = Counts(2, 5, 6, 3, 4) + Counts(8, 10, 24, 2, 8)
    assert total.block_efficiency == 15 / 10
    assert total.empirical_acceptance == 5 / 12


def test_a_ratio_that_was_not_measured_is_an_error():
    with pytest.raises(ValueError, match="at least one target call"):
        _ = Counts().block_efficiency
    with pytest.raises(ValueError, match="at least one judged token"):
        _ = Counts(target_calls=3, tokens=3).empirical_acceptance


def test_collect_assembles_rows_that_end_at_different_blocks():
    blocks = [
        block((0, 1), ((5, 6), (7,)), (1, 0), (2, 2), (2, 1), (None, None)),
        block((0, 1), ((8,), (9, 1)), (0, 2), (2, 2), (1, 2), (None, "stop")),
        block((0,), ((4,),), (0,), (0,), (0,), ("length",)),
    ]
    first, second = collect(blocks, 2)
    assert first.ids == (5, 6, 8, 4)
    assert first.origin == ("draft", "target", "target", "target")
    assert first.finish_reason == "length"
    assert first.counts == Counts(target_calls=3, tokens=4, drafted=4, accepted=1, judged=3)
    assert first.states[:, 0].tolist() == [5, 6, 8, 4]
    assert second.ids == (7, 9, 1)
    assert second.origin == ("target", "draft", "draft")
    assert second.finish_reason == "stop"
    assert second.counts == Counts(target_calls=2, tokens=3, drafted=4, accepted=2, judged=3)


def test_collect_refuses_an_unfinished_run():
    blocks = [block((0, 1), ((5,), (7,)), (0, 0), (0, 0), (0, 0), ("length", None))]
    with pytest.raises(ValueError, match="before prompt 1 of 2 has finished"):
        collect(blocks, 2)
    with pytest.raises(ValueError, match="before prompt 0 of 1"):
        collect([], 1)


def test_every_block_emits_what_it_counts():
    """lucidrains/speculative-decoding#3: rejected tokens stayed in the output."""
    checks.check_counts()
