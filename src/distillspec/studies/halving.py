"""Successive halving (Jamieson & Talwalkar 2016): equal time for all, twice as much for the better.

After rung k every candidate still in has trained for first · 2^k seconds in all; the better half
goes on. So the candidates of a rung are always compared after equal seconds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

from distillspec.studies.estimates import Estimate

C = TypeVar("C", bound=Hashable)


def rungs(candidates: int) -> int:
    """Return how many rungs it takes until one of so many candidates is left.

    Raises:
        ValueError: there is no candidate.
    """
    if candidates < 1:
        raise ValueError("there is no candidate")
    return 1 + math.ceil(math.log2(candidates))


def first_rung(seconds: float, candidates: int) -> float:
    """Return the seconds of the first rung, so that all of them take `seconds`.

    One candidate beside the others, which what wins is held against, trains to the end.
    """
    count, cost, trained = candidates, 0.0, 0.0
    for rung in range(rungs(candidates)):
        cost += (count + 1) * (2.0**rung - trained)
        count, trained = (count + 1) // 2, 2.0**rung
    return seconds / cost


def better_half(values: Mapping[C, float]) -> list[C]:
    """Return the half with the higher values, the best first; of equal ones the first given."""
    order = sorted(values, key=lambda one: -values[one])
    return order[: (len(order) + 1) // 2]


def moved(rises: Mapping[C, Estimate]) -> bool:
    """Tell whether a candidate has risen beyond chance over the best of the rung before.

    Args:
        rises: The paired difference of each to that best.
    """
    return any(rise["low"] > 0 for rise in rises.values())
