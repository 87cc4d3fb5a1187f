"""What each token is worth to the objectives that look at all of them first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from distillspec.math.path import path_calls, path_ratios


def select(weights: Tensor, ahead: Tensor, fraction: float) -> Tensor:
    """Keep the weights of the tokens that are easiest to improve, and their sum.

    The rule of AdaSPEC: a token is easy where the draft's divergence exceeds by most that of a
    reference, a draft of the same kind that was distilled on all tokens before. What the
    reference could not learn either is left out, and what the draft has learned already.

    Args:
        weights: [N] what each position counts; those of 0 are not chosen.
        ahead: [N] D(p‖q) − D(p‖reference) in nats; nan (both infinite) is chosen last.
        fraction: How many to keep, in (0, 1] of those that count, rounded up.

    Returns:
        [N] weights, 0 where not chosen, with the sum of the weights given.

    Source:
        Hu et al. (2025), AdaSPEC, arXiv 2510.19779, who keep 0.4.
    """
    order = ahead.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    places = order.argsort(descending=True, stable=True)
    places = places[weights[places] != 0]
    chosen = places[: math.ceil(fraction * len(places))]
    kept = torch.zeros_like(weights)
    kept[chosen] = weights[chosen]
    return kept * (weights.sum() / kept.sum())


class Worth(NamedTuple):
    """A path's value, and what each token's log-probability is worth in it."""

    value: Tensor
    """Expected target calls per token, weighed over the sequences; a scalar."""
    worth: Tensor
    """[N] −∂value / ∂log q(y), not negative; 0 where q(y) ≥ p(y) or q(y) = 0."""


def path_worth(
    log_p_of_y: Tensor, log_q_of_y: Tensor, lengths: Sequence[int], weights: Tensor, gamma: int
) -> Worth:
    """Return the expected target calls per token at γ, and their gradient.

    Args:
        log_p_of_y: [N] the target's log-probabilities of its own tokens, in float64.
        log_q_of_y: [N] the draft's.
        lengths: Completion lengths of the B sequences; their sum is N.
        weights: [N]; a sequence counts E[calls] / length times the sum of its weights. With
            `token_mean` the value is 1 / τ of the batch, with `sequence_mean` a mean of 1 / τ.
        gamma: γ ≥ 1 drafted tokens per block.

    Returns:
        Value and worth, without gradient.

    Raises:
        UserError: if a token has target probability 0.
    """
    count = torch.tensor(lengths)
    with torch.enable_grad():
        log_q = log_q_of_y.detach().requires_grad_()
        ratios = torch.split(path_ratios(log_p_of_y, log_q), list(lengths))
        rows = pad_sequence(list(ratios), batch_first=True)
        parts = torch.split(weights.to(log_q), list(lengths))
        share = torch.stack([part.sum() for part in parts])
        value = (path_calls(rows, count, gamma) / count * share).sum()
        (slope,) = torch.autograd.grad(value, log_q)
    return Worth(value.detach(), (-slope).clamp(min=0))
