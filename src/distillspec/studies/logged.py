"""What a server's log says of a draft, where the target that wrote it is not at hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distillspec.math.rules import Rule
from distillspec.models.protocol import LanguageModel
from distillspec.studies.outputs import Scores, forced, nothing, ratios_of


@dataclass(frozen=True)
class LoggedOutputs:
    """What some server wrote after some prompts, as its log tells it: no target is at hand."""

    prompts: tuple[Tensor, ...]
    """1-D int64 ids of each prompt."""
    completions: tuple[Tensor, ...]
    """1-D int64 ids of each completion, the stop token included."""
    logprobs: tuple[Tensor, ...] | None
    """[L] each: ln p of each completion token at the sampler served; None where it was not
    logged."""
    limits: tuple[int | None, ...] | None = None
    """As in `TargetOutputs`."""


@torch.inference_mode()
def score_logged(
    draft: LanguageModel, outputs: LoggedOutputs, rule: Rule, *, batch_size: int
) -> Scores:
    """Score a draft on logged outputs: the ratios of the exact forecast, without the target.

    Raises:
        ValueError: the rule needs p of the tokens and the log has none, or the rule is lossy.
    """
    if (rule.needs_p and outputs.logprobs is None) or not rule.lossless:
        raise ValueError(f"{rule} cannot be forecast from this log")
    ratios = nothing(outputs.completions)
    for i, rows, own in forced(draft, outputs.prompts, outputs.completions, batch_size):
        q = rule.draft_sampling.probabilities(draft.head(own))  # [n, V]
        q_of_y = q.gather(1, outputs.completions[i][rows, None].to(q.device))[:, 0]
        # Where the rule does not ask for p, that y was emitted is all there is to know.
        p_of_y = (
            outputs.logprobs[i][rows].double().exp().to(q.device)
            if rule.needs_p and outputs.logprobs is not None
            else torch.ones_like(q_of_y)
        )
        ratios[i][rows] = ratios_of(rule, p_of_y, q_of_y)
    return Scores(None, tuple(ratios), outputs.limits)
