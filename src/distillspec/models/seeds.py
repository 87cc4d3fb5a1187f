"""A seed for every row, the same in every engine, and seeds for what draws globally."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def row_seed(seed: int, row: int, *, bits: int = 63) -> int:
    """Return the seed of one row, so that its output depends on its place alone.

    Args:
        seed: Of the run. Whole numbers have no limit in Python; generators have.
        row: The row's place, from 0.
        bits: How many its generator takes: 63 of torch, 31 of servers.
    """
    return (seed * 1_000_003 + row) % (1 << bits)


@contextmanager
def globally_seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Let what knows only the global generators draw from a seed; they are left as they were.

    `torch.manual_seed` would seed those of every GPU, and nothing gives them back their states.

    Args:
        device: Where it draws, beside the CPU.
        seed: Of 63 bits at most.
    """
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
