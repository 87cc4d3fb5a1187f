"""Optimizers and learning-rate schedules as data. Nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from distillspec.errors import UserError
from distillspec.training.checks import in_range, is_number, one_of


@dataclass(frozen=True)
class Adafactor:
    """`torch.optim.Adafactor`: factored second moments, updates in proportion to the weights.

    An update has RMS rate · max(RMS(weights), 1e-3) at most. The rate is at most 1/√step, as its
    authors have it and torch does: 0.01 is cut from step 10,001 on, 3e-4 from step 11 million. A
    `Step` has the rate that was applied.
    """

    name: Literal["adafactor"] = "adafactor"
    weight_decay: float = 0.0
    """The share of each weight removed per step, times the rate."""

    def __post_init__(self) -> None:
        """Refuse what torch would not take."""
        in_range("weight_decay", self.weight_decay, 0, math.inf)


@dataclass(frozen=True)
class AdamW:
    """`torch.optim.AdamW`."""

    name: Literal["adamw"] = "adamw"
    weight_decay: float = 0.0
    """The share of each weight removed per step, times the rate."""
    beta1: float = 0.9
    """Decay of the gradient's running mean."""
    beta2: float = 0.999
    """Decay of the squared gradient's running mean."""

    def __post_init__(self) -> None:
        """Refuse what torch would not take."""
        in_range("weight_decay", self.weight_decay, 0, math.inf)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not (is_number(beta) and 0 <= beta < 1):
                raise UserError(f"{name} must be a number, at least 0 and below 1, got {beta!r}")


Optimizer: TypeAlias = Adafactor | AdamW
OPTIMIZERS = {"adafactor": Adafactor, "adamw": AdamW}


@dataclass(frozen=True)
class Schedule:
    """The learning rate's factor: linear warm-up, constant, cosine decay to a floor, constant.

    Its clock is the number of the update being made (from 1), or the seconds trained so far.
    """

    warmup: float = 0.0
    """Where the factor reaches 1."""
    decay_from: float | None = None
    """Where the cosine begins; None for a rate that stays constant."""
    decay_to: float | None = None
    """Where it reaches the floor; given exactly if `decay_from` is."""
    floor: float = 0.1
    """The factor at and after `decay_to`."""
    unit: Literal["steps", "seconds"] = "steps"
    """What the numbers above count."""

    def __post_init__(self) -> None:
        """Refuse corners that are out of order."""
        if (self.decay_from is None) != (self.decay_to is None):
            raise UserError(
                f"schedule decay_from={self.decay_from}, decay_to={self.decay_to}: give both or "
                "neither"
            )
        corners = [0, self.warmup]
        if self.decay_from is not None and self.decay_to is not None:
            corners += [self.decay_from, self.decay_to]
        if not all(is_number(c) for c in corners) or corners != sorted(corners):
            raise UserError(
                f"schedule warmup={self.warmup!r}, decay_from={self.decay_from!r}, "
                f"decay_to={self.decay_to!r}: the corners must be numbers that do not decrease"
            )
        in_range("schedule floor", self.floor, 0, 1)
        one_of("schedule unit", self.unit, ("steps", "seconds"))

    def factor(self, progress: float) -> float:
        """Return the factor in [0, 1] on the learning rate at `progress` (in `unit`s)."""
        if progress < self.warmup:
            return progress / self.warmup
        if self.decay_from is None or self.decay_to is None or progress <= self.decay_from:
            return 1.0
        if progress >= self.decay_to:
            return self.floor
        done = (progress - self.decay_from) / (self.decay_to - self.decay_from)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))
