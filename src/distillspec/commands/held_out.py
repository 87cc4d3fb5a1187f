"""α and τ of a draft in training, on the target's answers to prompts it does not train on."""

from __future__ import annotations

from typing import Any

from distillspec.math.rules import ratio_test
from distillspec.models.protocol import LanguageModel
from distillspec.studies.breakdown import calls
from distillspec.studies.outputs import Scores, TargetOutputs, score

GAMMA = 3
"""The γ of τ in metrics.jsonl: the smallest of the paper's."""
ROWS = 32
"""Answers scored at once."""


def evaluate(target: LanguageModel, draft: LanguageModel, held: TargetOutputs) -> Scores:
    """Score the draft on held-out answers, at the sampler they were made with."""
    return score(target, draft, held, ratio_test(held.sampling), batch_size=ROWS)


def evaluation_row(scores: Scores, step: int, seconds: float) -> dict[str, Any]:
    """Return scores as a row of metrics.jsonl: counts, not ratios."""
    tokens = int(scores.lengths.sum())
    return {
        "step": step,
        "seconds": seconds,
        "evaluation": {
            "alpha_sum": float(scores.alpha_sums.sum()),
            "alpha_count": tokens,
            "gamma": GAMMA,
            "tokens": tokens,
            "calls": float(calls(scores, GAMMA)[0].sum()),
        },
    }
