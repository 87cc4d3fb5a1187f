"""What the verbs keep of training steps: rows of counts for the run, sums for the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        **({"left_out": step.left_out} if step.left_out else {}),
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
    """Sums over the steps of a run, whichever process made them."""

    def __init__(self) -> None:
        """Start from nothing."""
        self.tokens = 0
        self.left_out = 0
        """Tokens that had no part in the loss."""
        self.seconds: dict[str, float] = {}
        self.sources: dict[str, int] = {}
        """Steps on each kind of completions."""
        self._losses: list[float] = []
        self._accepted = self._judged = 0.0

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count the rows of the run so far; rows of evaluations do not count."""
        for row in rows:
            if "evaluation" not in row:
                self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a step, told as `metrics_row` does."""
        self.tokens += row["tokens"]
        self.sources[row["source"]] = self.sources.get(row["source"], 0) + 1
        left_out = row.get("left_out", 0)
        self.left_out += left_out
        if left_out < row["tokens"]:  # else the loss is a mean over nothing
            self._losses.append(row["loss"])
        for part, spent in row["seconds_by_part"].items():
            self.seconds[part] = self.seconds.get(part, 0.0) + spent
        if "alpha_sum" in row:
            self._accepted += row["alpha_sum"]
            self._judged += row["alpha_count"]

    @property
    def loss(self) -> float | None:
        """The mean loss of the last tenth of the steps that had one; None before the first."""
        last = self._losses[-max(1, len(self._losses) // 10) :]
        return sum(last) / len(last) if last else None

    @property
    def acceptance(self) -> float | None:
        """Expected acceptance over all steps; None where no target was asked."""
        return self._accepted / self._judged if self._judged else None
