"""What is counted of a draft, by prompt, and the estimates from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distillspec.studies.estimates import Estimate, ratio, ratio_difference

if TYPE_CHECKING:
    from distillspec.decoding import Output  # imports torch, which findings go without


def block_efficiency(outputs: Sequence[Output]) -> Estimate:
    """Estimate τ as the engine counted it: tokens over target calls."""
    counts = [output.counts for output in outputs]
    return ratio([one.tokens for one in counts], [one.target_calls for one in counts])


@dataclass(frozen=True)
class Counts:
    """What is known of one draft on the same target outputs, [prompts] each."""

    lengths: NDArray[np.float64]
    """Tokens."""
    alpha_sums: NDArray[np.float64]
    """Numerators of α."""
    calls: NDArray[np.float64]
    """Expected target calls at one γ."""

    @property
    def alpha(self) -> Estimate:
        """The expected acceptance rate."""
        return ratio(self.alpha_sums, self.lengths)

    @property
    def tau(self) -> Estimate:
        """The block efficiency."""
        return ratio(self.lengths, self.calls)

    def alpha_above(self, other: Counts) -> Estimate:
        """Estimate the paired difference in α, this minus the other."""
        return ratio_difference((self.alpha_sums, other.alpha_sums), (self.lengths, other.lengths))

    def tau_above(self, other: Counts) -> Estimate:
        """Estimate the paired difference in τ, this minus the other."""
        return ratio_difference((self.lengths, other.lengths), (self.calls, other.calls))
