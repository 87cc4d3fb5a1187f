"""What theory promises of a draft, beside what it does: two lower bounds on the acceptance rate.

Both are at temperature 1 without truncation, as training sees the models.

Pinsker's inequality at every position, and Jensen's over positions, give 1 − α ≤ √(KL / 2) with KL
the mean of KL(p‖q) per token of the target's outputs. It holds on any sample of them.

Theorem 4.1 of the paper bounds α by the total variation on the draft's *own* outputs: per prompt
1 − α ≤ T Σ_t TVD_t / L, with the expected sum over a draft's output of at most T tokens and the
expected length L of the target's. The paper writes the sum as T · ε, which is no less: its ε is the
mean over an output, whose length is at most T. It holds in expectation, and one may find it
violated on few prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillspec.math.divergences import forward_kl, total_variation
from distillspec.models.protocol import LanguageModel
from distillspec.studies.estimates import Estimate, estimate, ratio
from distillspec.studies.outputs import each_forced

ROWS = 256
"""Positions whose logits are held at once."""


@dataclass(frozen=True)
class Divergences:
    """Sums over the tokens of some outputs, [prompts] each."""

    lengths: NDArray[np.float64]
    """Tokens."""
    variation: NDArray[np.float64]
    """Σ TVD(p, q)."""
    kl: NDArray[np.float64]
    """Σ KL(p‖q), nats."""
    entropy: NDArray[np.float64]
    """Σ H(p), nats."""


class Bounds(TypedDict):
    """A draft's acceptance, and what theory says that it is at least."""

    alpha: Estimate
    kl: Estimate
    cross_entropy: Estimate
    on_policy_variation: Estimate
    pinsker: Estimate
    theorem: Estimate


@torch.inference_mode()
def divergences(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: Sequence[Tensor],
    completions: Sequence[Tensor],
    *,
    batch_size: int,
) -> Divergences:
    """Sum the divergences of p and q along some outputs, whoever wrote them."""
    forced = each_forced((target, draft), prompts, completions, batch_size=batch_size)
    found = np.zeros((4, len(prompts)))
    for i, (p_states, q_states) in enumerate(forced):
        for rows in torch.split(torch.arange(len(p_states)), ROWS):
            p, q = target.head(p_states[rows]).double(), draft.head(q_states[rows]).double()
            found[0, i] += len(rows)
            found[1, i] += float(total_variation(p, q).sum())
            found[2, i] += float(forward_kl(p, q).sum())
            # H(p) = log V − KL(p‖uniform)
            uniform = forward_kl(p, torch.zeros_like(p))
            found[3, i] += len(rows) * math.log(p.shape[-1]) - float(uniform.sum())
    return Divergences(*found)


def bounds(on_target: Divergences, on_draft: Divergences, limit: int) -> Bounds:
    """Put together what holds on the target's outputs and what on the draft's own.

    Args:
        on_target: On one output of the target a prompt.
        on_draft: On one output of the draft a prompt, the same prompts.
        limit: T, the most tokens of an output.

    Raises:
        ValueError: KL(p‖q) is infinite, as of a draft that cannot write some of the ids.
    """
    lengths = on_target.lengths
    columns = np.stack([on_target.kl, lengths], axis=1)
    return Bounds(
        alpha=ratio(lengths - on_target.variation, lengths),
        kl=ratio(on_target.kl, lengths),
        cross_entropy=ratio(on_target.kl + on_target.entropy, lengths),
        on_policy_variation=ratio(on_draft.variation, on_draft.lengths),
        pinsker=estimate(lambda s: 1 - np.sqrt(np.maximum(0, s[:, 0] / s[:, 1]) / 2), columns),
        theorem=estimate(
            lambda s: 1 - limit * s[:, 0] / s[:, 1],
            np.stack([on_draft.variation, lengths], axis=1),
        ),
    )
