"""Randomness as a function of the run's seed and of what it is for.

No generator outlives the use it was made for, so a run's random state is its seed and its step
count, and resuming needs nothing else. The global generator is never advanced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from distillspec.models.seeds import globally_seeded


def derived(seed: int, *purpose: str | int) -> int:
    """Return 63 bits that depend on the seed and on every part of the purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Make a fresh CPU generator for one purpose, such as `("rollout", step, row)`."""
    return torch.Generator().manual_seed(derived(seed, *purpose))


def uniform(seed: int, *purpose: str | int) -> float:
    """Draw one number in [0, 1)."""
    return float(torch.rand((), generator=generator(seed, *purpose), dtype=torch.float64))


@contextmanager
def seeded_dropout(device: torch.device, seed: int, *purpose: str | int) -> Iterator[None]:
    """Let dropout, which only knows the global generators, draw from a seed of its own."""
    with globally_seeded(device, derived(seed, *purpose)):
        yield
