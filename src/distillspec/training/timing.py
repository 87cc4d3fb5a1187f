"""Where a step's time goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Lap = Literal["rollout", "target", "draft", "optimizer"]


@dataclass(frozen=True)
class Seconds:
    """Where a step's time went."""

    rollout: float
    """Sampling the completions; next to nothing for fixed data."""
    target: float
    """The target's pass over the completions, without its output layer."""
    draft: float
    """The draft's pass, both output layers, the divergence and the gradient."""
    optimizer: float
    """The update."""

    @property
    def total(self) -> float:
        """All parts together."""
        return self.rollout + self.target + self.draft + self.optimizer


class Laps:
    """Splits a step's time into parts."""

    def __init__(self, clock: Callable[[], float], device: torch.device) -> None:
        """Start now."""
        self._parts: dict[Lap, float] = {"rollout": 0, "target": 0, "draft": 0, "optimizer": 0}
        self._clock = clock
        self._device = device
        self._last = clock()

    def end(self, part: Lap) -> None:
        """Give the time since the last end to `part`."""
        if self._device.type == "cuda":
            # Kernels run after the call that launches them has returned.
            torch.cuda.synchronize(self._device)
        now = self._clock()
        self._parts[part] += now - self._last
        self._last = now

    @property
    def seconds(self) -> Seconds:
        """What the parts took so far."""
        return Seconds(**self._parts)
