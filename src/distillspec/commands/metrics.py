"""What the verbs keep of training steps: rows of counts for the run, sums for the result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from distillspec.training.distill import Step


def metrics_row(step: Step, seconds: float) -> dict[str, Any]:
    """Return a step as a row of metrics.jsonl: counts, not ratios."""
    return {
        "step": step.step,
        "seconds": seconds,
        "loss": step.loss,
        "grad_norm": step.gradient_norm,
        "learning_rate": step.learning_rate,
        "tokens": step.tokens,
        "source": step.source,
        "seconds_by_part": asdict(step.seconds),
        **(
            {}
            if step.accepted is None
            else {"alpha_sum": step.accepted, "alpha_count": step.tokens}
        ),
    }


def figures(step: Step) -> str:
    """Say a step's figures beside a progress bar."""
    alpha = step.expected_acceptance
    told = "" if alpha is None else f" α {alpha:.3f} ({step.source})"
    return f"loss {step.loss:.3f}{told}"


class Totals:
    """Sums over the steps of this process."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.tokens = 0
        self.seconds: dict[str, float] = {}
        self._losses: list[float] = []
        self._accepted = self._judged = 0.0

    def add(self, step: Step) -> None:
        """Count a step."""
        self.tokens += step.tokens
        self._losses.append(step.loss)
        for part, spent in asdict(step.seconds).items():
            self.seconds[part] = self.seconds.get(part, 0.0) + spent
        if step.accepted is not None:
            self._accepted += step.accepted
            self._judged += step.tokens

    @property
    def loss(self) -> float | None:
        """The mean loss of the last tenth of the steps; None before the first."""
        last = self._losses[-max(1, len(self._losses) // 10) :]
        return sum(last) / len(last) if last else None

    @property
    def acceptance(self) -> float | None:
        """Expected acceptance over all steps; None where no target was asked."""
        return self._accepted / self._judged if self._judged else None
