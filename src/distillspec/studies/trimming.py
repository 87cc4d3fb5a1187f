"""What a smaller output head costs a draft in acceptance and saves in time, before it is trained.

A draft whose head keeps the ids K proposes nothing else: its q is renormalised on K. What that
loses follows for every K from one pass of the whole-headed draft over target outputs, since a head
of fewer rows gives the same logits for those it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distillspec.math.forecast import Cost
from distillspec.math.rules import Rule
from distillspec.models.adapter import TransformersModel
from distillspec.models.protocol import LanguageModel
from distillspec.models.surgery import trim
from distillspec.studies.clock import Timer
from distillspec.studies.cost import fit_cost
from distillspec.studies.outputs import (
    Scores,
    TargetOutputs,
    check_forecast,
    forced,
    nothing,
    scores_of,
)

WHOLE = "whole"
"""The name of the untrimmed head among the others."""


@dataclass(frozen=True)
class Trimmed:
    """What a head of some ids would do on some target outputs."""

    scores: Scores
    """Acceptance and ratios of the draft as it is, its q renormalised on the ids."""
    coverage: tuple[float, ...]
    """[prompts] Σ over positions of p(K), the target's mass on the ids: the numerators of the
    acceptance of a draft that is perfect on K, which no draft with this head can exceed."""


@torch.inference_mode()
def score_trimmed(
    target: LanguageModel,
    draft: LanguageModel,
    outputs: TargetOutputs,
    rule: Rule,
    heads: Mapping[str, Tensor | None],
    *,
    batch_size: int,
) -> dict[str, Trimmed]:
    """Score heads of several sizes by one pass of the draft.

    Args:
        target: The large model.
        draft: With a whole head.
        outputs: What the target wrote.
        rule: How drafted tokens are judged, at the sampler of the outputs.
        heads: [K] int64 ids of each head by name; None for the whole one.
        batch_size: Rows per pass.

    Raises:
        ValueError: the rule's target samples otherwise than the outputs were, or is lossy.
    """
    check_forecast(rule, outputs)
    V = target.vocabulary.size
    outside = {name: _outside(kept, V).to(draft.device) for name, kept in heads.items()}
    acceptance, ratios = ({name: nothing(outputs.completions) for name in heads} for _ in range(2))
    coverage = {name: [0.0] * len(outputs.completions) for name in heads}
    for i, rows, own in forced(draft, outputs.prompts, outputs.completions, batch_size):
        p = rule.sampling.probabilities(target.head(outputs.states[i][rows]))  # [n, V]
        logits = draft.head(own)  # [n, V]
        y = outputs.completions[i][rows]
        for name, dropped in outside.items():
            q = rule.draft_sampling.probabilities(logits.masked_fill(dropped, -torch.inf))
            acceptance[name][i][rows], ratios[name][i][rows] = scores_of(rule, p, q, y)
            coverage[name][i] += float(p.double().masked_fill(dropped, 0).sum())
    return {
        name: Trimmed(
            Scores(tuple(acceptance[name]), tuple(ratios[name]), outputs.limits),
            tuple(coverage[name]),
        )
        for name in heads
    }


def trimmed_costs(
    target: LanguageModel,
    draft: TransformersModel,
    prompts: Sequence[Tensor],
    rule: Rule,
    heads: Mapping[str, Tensor | None],
    gammas: Sequence[int],
) -> dict[str, Cost]:
    """Time drafts that really have these heads, in turn, on each prompt.

    Args:
        target: The large model.
        draft: With a whole head; copies of it are trimmed.
        prompts: On which to time, one by one.
        rule: The samplers.
        heads: As in `score_trimmed`.
        gammas: γ to forecast afterwards; the middle one is timed.
    """
    drafts = {name: draft if kept is None else trim(draft, kept) for name, kept in heads.items()}
    timer = Timer(target, drafts, rule, max_new_tokens=1, repetitions=1, seed=0)
    widths = range(1, max(gammas) + 2)
    # Blocks of one γ alone: a slope over several would drown what the heads differ by.
    timed = sorted(gammas)[len(gammas) // 2 :][:1]
    timings = [timer.timings([prompt], widths, timed) for prompt in prompts]
    return {name: fit_cost(timings, name) for name in drafts}


def _outside(kept: Tensor | None, size: int) -> Tensor:
    """[V] bool: the ids that a head lacks."""
    if kept is None:
        return torch.zeros(size, dtype=torch.bool)
    return torch.ones(size, dtype=torch.bool).index_fill(0, kept, False)
