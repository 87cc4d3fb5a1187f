"""The split: by prompt, for ever, without overlap."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.errors import UserError
from distillspec.tasks import Row, overlap, split
from distillspec.tasks.rows import normalised


def rows(*prompts: str) -> list[Row]:
    return [Row(f"r{number}", prompt) for number, prompt in enumerate(prompts)]


MANY = rows(*(f"prompt number {number}" for number in range(2000)))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_share_is_held_out(share: float) -> None:
    """Five standard deviations of the binomial: a false alarm in 1.7 million for a fair hash."""
    held_out = len(split(MANY, share).held_out)
    assert abs(held_out - 2000 * share) < 5 * (2000 * share * (1 - share)) ** 0.5


def test_every_row_falls_on_one_side_in_its_order() -> None:
    parts = split(MANY, 0.3)
    train, held_out = set(parts.train), set(parts.held_out)
    assert train | held_out == set(MANY)
    assert not train & held_out
    assert list(parts.train) == [row for row in MANY if row in train]
    assert list(parts.held_out) == [row for row in MANY if row in held_out]


def test_neither_order_nor_company_moves_a_row() -> None:
    shuffled = list(MANY)
    random.Random(0).shuffle(shuffled)
    held_out = set(split(MANY, 0.3).held_out)
    assert set(split(shuffled, 0.3).held_out) == held_out
    assert set(split(MANY[:500], 0.3).held_out) == held_out & set(MANY[:500])


def test_a_larger_share_keeps_what_a_smaller_held_out() -> None:
    assert set(split(MANY, 0.1).held_out) < set(split(MANY, 0.2).held_out)


@pytest.mark.parametrize("count", [1, 2, 50])
def test_the_edges_are_all_and_nothing(count: int) -> None:
    assert len(split(MANY[:count], 0).held_out) == 0
    assert len(split(MANY[:count], 1).train) == 0
    assert len(split([], 0.5).train) == 0


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="from 0 to 1"):
        split(MANY, share)


def test_the_split_is_the_same_on_every_machine() -> None:
    """Pinned: a changed hash would silently mix training prompts into old held-out sets."""
    found = [row.id for row in split(MANY[:20], 0.3).held_out]
    assert found == ["r0", "r6", "r9", "r11", "r16"]


def test_variants_of_a_prompt_stay_together() -> None:
    variants = rows("Explain  THIS\n", "explain this", " Explain this", "explain\tthis")
    for share in (0.1, 0.5, 0.9):
        parts = split(variants, share)
        assert len(parts.train) in (0, 4)


def test_chat_and_text_are_told_apart() -> None:
    chat = Row("c", ({"role": "user", "content": "Hi"},))
    assert normalised(chat) == "user: hi"
    assert normalised(Row("t", "Hi")) == "hi"


def test_overlap_counts_held_out_rows_seen_in_training() -> None:
    assert overlap(rows("a", "b"), rows("A ", "c", "b", "b")) == 3
    assert overlap(rows("a"), rows("b")) == 0


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    prompts=st.lists(st.text(alphabet="aA b\n", min_size=1, max_size=4), max_size=30),
    share=st.floats(0, 1),
)
def test_the_sides_never_overlap(prompts: list[str], share: float) -> None:
    parts = split(rows(*prompts), share)
    assert overlap(parts.train, parts.held_out) == 0
    assert len(parts.train) + len(parts.held_out) == len(prompts)
