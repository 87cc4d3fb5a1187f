"""Whether greedy outputs with a draft are the target's own, token for token.

Rounding alone may decide between two tokens: a pass over one token and a pass over a block are
computed by different kernels. Such a near tie is told from an error by the target's own logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch

from distillspec.decoding import Output
from distillspec.math.precision import at_least_float32
from distillspec.models.protocol import LanguageModel

ULPS = {torch.float64: 64, torch.float32: 64}
"""A logit less than so many units in the last place below the largest one is a near tie. Rounding
grows through the layers: logits of a pass over one token and of a pass over three were up to 27
units apart in float32 (SmolLM2, 30 layers, docs/log.md), and two logits can move apart."""
COARSE = 4
"""The same in half precision, whose single unit is already a visible step."""


class SameOutput(TypedDict):
    """How many greedy outputs are the target's own."""

    checked: int
    identical: int
    near_ties: int
    different: int


@dataclass(frozen=True)
class Difference:
    """The first token in which an output differs from the target's own."""

    id: str
    """The prompt's."""
    token: int
    """Index of the token."""
    gap: float | None
    """The target's largest logit there minus that of the token emitted instead; None where one
    output merely ends before the other."""
    bound: float
    """A gap below this is a near tie."""

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.gap is not None and self.gap < self.bound

    def __str__(self) -> str:
        """Say where, and how far from a tie."""
        if self.gap is None:
            return f"{self.id} ends at token {self.token}"
        return (
            f"{self.id} differs at token {self.token}, where the target's logits are "
            f"{self.gap:.2g} apart and a near tie is less than {self.bound:.2g}"
        )


@torch.inference_mode()
def first_difference(
    target: LanguageModel, own: Output, other: Output, id: str
) -> Difference | None:
    """Hold an output against the target's own; None where they are the same.

    Up to the first difference both have the same context, so the target's states tell which
    tokens could have followed.

    Args:
        target: The large model.
        own: Its greedy output, with its states.
        other: A greedy output with a draft.
        id: The prompt's.
    """
    if own.ids == other.ids:
        return None
    pairs = enumerate(zip(own.ids, other.ids, strict=False))
    at = next((i for i, (mine, theirs) in pairs if mine != theirs), None)
    if at is None:
        return Difference(id, min(len(own.ids), len(other.ids)), None, 0.0)
    logits = at_least_float32(target.head(own.states[at]))  # [V]
    top = float(logits.max())
    gap = top - float(logits[other.ids[at]])
    return Difference(id, at, gap, near_tie(top, target.dtype))


def near_tie(top: float, dtype: torch.dtype) -> float:
    """Return the gap below the largest logit under which rounding decides between two tokens."""
    return ULPS.get(dtype, COARSE) * _ulp(top, dtype)


def _ulp(value: float, dtype: torch.dtype) -> float:
    """Return the distance to the next number of the type."""
    _, exponent = math.frexp(value)
    return float(torch.finfo(dtype).eps * 2.0 ** (exponent - 1))


def counted(differences: Sequence[Difference | None]) -> SameOutput:
    """Count what checking some outputs found."""
    found = [one for one in differences if one is not None]
    ties = sum(one.near_tie for one in found)
    return SameOutput(
        checked=len(differences),
        identical=len(differences) - len(found),
        near_ties=ties,
        different=len(found) - ties,
    )
