"""A seed for every row, made of the run's own and the row's place: the same in every engine."""

from __future__ import annotations


def row_seed(seed: int, row: int, *, bits: int = 63) -> int:
    """Return the seed of one row, so that its output depends on its place alone.

    Args:
        seed: Of the run. Whole numbers have no limit in Python; generators have.
        row: The row's place, from 0.
        bits: How many its generator takes: 63 of torch, 31 of servers.
    """
    return (seed * 1_000_003 + row) % (1 << bits)
