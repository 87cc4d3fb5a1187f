"""The exact expected number of target calls as a loss: the forecast's recursion with a gradient.

`forecast.expected_calls` answers for one sequence in numpy; this is the same recursion for a batch
in torch, differentiable in the draft. Given the target's own output y, position t is accepted with
probability r_t = min(1, q(y_t) / p(y_t)), and y does not depend on the draft: the gradient of the
expected calls is the expectation of this gradient, nothing is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from distillspec.errors import UserError


def path_ratios(log_p_of_y: Tensor, log_q_of_y: Tensor) -> Tensor:
    """Return r = min(1, q(y) / p(y)), differentiable in q where q(y) is below p(y).

    Args:
        log_p_of_y: [...] log-probabilities of the target's own tokens, finite.
        log_q_of_y: [...] the draft's of the same tokens; −inf gives 0 without gradient.

    Returns:
        [...] in [0, 1].

    Raises:
        UserError: If a log p(y) is not finite: then y is not the target's output.
    """
    if not bool(log_p_of_y.isfinite().all()):
        raise UserError(
            "the path loss counts the calls for the target's own outputs, and a token of these "
            "completions has target probability 0: train it on target data"
        )
    behind = log_q_of_y - log_p_of_y
    # Not clamp, whose gradient at 0 is that of below 0: a draft that is the target must stay.
    return torch.where(behind < 0, behind, 0.0).exp()


def path_calls(ratios: Tensor, lengths: Tensor, gamma: int) -> Tensor:
    """Return the expected target calls of each sequence, differentiable in the ratios.

    E[s] = 1 + Σ_{k<γ} (Π_{j<k} r_{s+j}) (1 − r_{s+k}) E[s+k+1] + (Π_{j<γ} r_{s+j}) E[s+γ+1], with
    E[s] = 0 past the end, where every end of a block is the same one.

    Args:
        ratios: [B, L] in [0, 1], left-aligned; what lies past a row's length counts for nothing.
        lengths: [B] int64 in 0…L.
        gamma: γ ≥ 1 drafted tokens per block.

    Returns:
        [B] expected calls, from ⌈length / (γ+1)⌉ to length.

    Raises:
        ValueError: If γ is below 1.

    Source: distillspec.math.forecast.
    """
    if gamma < 1:
        raise ValueError(f"gamma is {gamma}, expected 1 or more drafted tokens per block")
    B, L = ratios.shape
    alive = torch.arange(L, device=ratios.device) < lengths[:, None]  # [B, L]
    judged = pad(ratios.masked_fill(~alive, 0.0), (0, gamma)).unfold(1, gamma, 1)[:, :L]
    one = ratios.new_ones(B, L, 1)
    reached = torch.cat([one, judged.cumprod(-1)], dim=-1)  # [B, L, γ+1] the k before are accepted
    ends = reached * torch.cat([1 - judged, one], dim=-1)  # [B, L, γ+1] exactly k are
    later = ratios.new_zeros(B, gamma + 1)  # E[s+1] … E[s+γ+1]
    for s in range(L - 1, -1, -1):
        calls = (1 + (ends[:, s] * later).sum(-1)) * alive[:, s]
        later = torch.cat([calls[:, None], later[:, :-1]], dim=1)
    return later[:, 0]
