"""The loss of a step, from hidden states, chunk by chunk: [N, V] logits never exist whole.

Each chunk's logits live long enough to give the chunk's value *and* its gradient, both in the
forward pass; what is kept for the backward pass is the size of the hidden states and of the head.
So no head is computed twice, which plain recomputation would pay for with a second pass through
two vocabularies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from distillspec.math import divergences
from distillspec.models.protocol import Batch, LanguageModel
from distillspec.training.recipes import Divergence, Precision, Reduction

CHUNK_BYTES = 1 << 26
"""What one chunk's target logits may take in float32: large enough for the matrix products to run
at full speed, small enough for the passes over the vocabulary."""

Head = Callable[[Tensor], Tensor]
"""From [..., H] hidden states to [..., V] logits."""


class Loss(NamedTuple):
    """What a batch cost."""

    value: Tensor
    """A scalar in nats, with gradient."""
    accepted: Tensor | None
    """A float64 scalar on the CPU without gradient, Σ over positions of Σ_v min(p, q); None
    without a target, where it is not measured."""


class DistillationLoss(nn.Module):
    """Draft body, draft head and divergence in one `forward`.

    This is the module to wrap for training on several devices: a wrapper only synchronises what
    runs inside the forward of what it wraps.
    """

    def __init__(
        self,
        draft: LanguageModel,
        divergence: Divergence,
        *,
        target_head: Head | None,
        precision: Precision = "float32",
        chunk: int | None = None,
    ) -> None:
        """Store what every step shares.

        Args:
            draft: The model to train.
            divergence: What is minimised at every position.
            target_head: From the target's hidden states to its logits; None exactly for
                cross_entropy.
            precision: The arithmetic of the draft's body and head.
            chunk: Positions whose logits exist at once; None for what CHUNK_BYTES holds.
        """
        super().__init__()
        if (target_head is None) != (divergence.name == "cross_entropy"):
            raise ValueError(f"{divergence} and target head {target_head} do not go together")
        self.module = draft.module
        # In a tuple, because a draft that is itself a module would be registered a second time.
        self._draft = (draft,)
        self._divergence = divergence
        self._target_head = target_head
        self._autocast = precision == "bfloat16"
        self._chunk = chunk or max(1, CHUNK_BYTES // (4 * draft.vocabulary.size))

    def forward(self, batch: Batch, weights: Tensor, target_hidden: Tensor | None) -> Loss:
        """Compute the loss of a batch.

        Args:
            batch: B prompts with their completions, N completion tokens in all.
            weights: [N] what each position counts, from `position_weights`.
            target_hidden: [N, H'] the target's states at the same positions; None exactly for
                cross_entropy.

        Returns:
            The loss Σ weights · D, and the expected acceptance summed over the N positions.
        """
        (draft,) = self._draft
        labels = torch.cat(batch.completions).to(draft.device)

        def part(hidden: Tensor, rows: slice) -> tuple[Tensor, Tensor | None]:
            logits = draft.narrow_head(hidden)
            p = None
            if self._target_head is not None and target_hidden is not None:
                # The target keeps its own precision whatever the draft trains in.
                with torch.no_grad(), torch.autocast(draft.device.type, enabled=False):
                    p = self._target_head(target_hidden[rows]).to(draft.device)
            values = position_values(self._divergence, p, logits, labels[rows], draft.kept)
            weight = weights[rows].to(values)
            # A weight of 0 leaves a position out even where its value is infinite.
            loss = (values.masked_fill(weight == 0, 0.0) * weight).sum()
            if p is None:
                return loss, None
            with torch.no_grad():
                return loss, divergences.acceptance(p, logits, kept=draft.kept).sum()

        with torch.autocast(draft.device.type, torch.bfloat16, enabled=self._autocast):
            return chunked(part, draft.hidden(batch), self.module, self._chunk)


def position_values(
    divergence: Divergence,
    target_logits: Tensor | None,
    draft_logits: Tensor,
    labels: Tensor,
    kept: Tensor | None,
) -> Tensor:
    """Return the recipe's divergence at every position, in nats.

    Args:
        divergence: Which.
        target_logits: [..., V]; may be None for cross_entropy, which does not look at them.
        draft_logits: [..., V], or [..., K] for a trimmed head.
        labels: [...] int64 ids; only cross_entropy looks at them.
        kept: [K] ids of a trimmed head, None for a whole one.

    Returns:
        [...] with gradient to the draft's logits.
    """
    if divergence.name == "cross_entropy":
        return divergences.cross_entropy(draft_logits, labels, kept=kept)
    if target_logits is None:
        raise ValueError(f"{divergence} compares with a target, and there are no target logits")
    if divergence.name == "forward_kl":
        return divergences.forward_kl(target_logits, draft_logits, kept=kept)
    if divergence.name == "reverse_kl":
        return divergences.reverse_kl(target_logits, draft_logits, kept=kept)
    if divergence.name == "total_variation":
        return divergences.total_variation(target_logits, draft_logits, kept=kept)
    if divergence.beta is None:
        raise ValueError("jsd without a beta")
    return divergences.jsd(target_logits, draft_logits, beta=divergence.beta, kept=kept)


def position_weights(
    lengths: Sequence[int], reduction: Reduction, counted: Tensor | None = None
) -> Tensor:
    """Return what each position counts, so that Σ weights · values is the reduced loss.

    Args:
        lengths: Completion lengths of the B sequences, in tokens.
        reduction: `sequence_mean` (Eq. 2): 1 / (B · length); `token_mean`: 1 / N.
        counted: [N] bool, the positions that count; None for all. A sequence without any is
            left out of B.

    Returns:
        [N] float64 that add up to 1.

    Raises:
        ValueError: if no position counts.
    """
    owner = torch.repeat_interleave(torch.tensor(lengths))  # [N] the sequence of each position
    weights = torch.ones(len(owner), dtype=torch.float64)
    if counted is not None:
        weights = weights * counted.cpu()
    if not bool(weights.any()):
        raise ValueError("no position counts: the mean over none is not defined")
    if reduction == "sequence_mean":
        totals = torch.zeros(len(lengths), dtype=torch.float64).index_add(0, owner, weights)
        weights = weights / totals.clamp(min=1)[owner]
    return weights / weights.sum()


Part = Callable[[Tensor, slice], tuple[Tensor, Tensor | None]]
"""From [C, H] states and their place among the N to the chunk's loss and summed acceptance."""


def chunked(part: Part, hidden: Tensor, module: nn.Module, chunk: int) -> Loss:
    """Sum `part` over chunks of the hidden states, with the gradient of the plain sum.

    Args:
        part: The loss of one chunk; adding its values must give the loss of the whole.
        hidden: [N, H].
        module: Its trainable parameters may take part in `part`.
        chunk: Rows at once.

    Returns:
        The sums; `backward` reaches `hidden` and the parameters.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    apply: Callable[..., tuple[Tensor, Tensor | None]] = _Chunked.apply
    return Loss(*apply(part, chunk, torch.is_grad_enabled(), hidden, *parameters))


class _Chunked(torch.autograd.Function):
    """A sum whose gradient is known as soon as its value is."""

    @staticmethod
    def forward(
        ctx: Any, part: Part, chunk: int, wanted: bool, hidden: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        values: list[Tensor] = []
        accepted: list[Tensor] = []
        d_hidden = torch.empty_like(hidden)
        d_parameters: list[Tensor | None] = [None] * len(parameters)
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            states = hidden[rows].detach().requires_grad_(wanted)
            with torch.set_grad_enabled(wanted):
                value, sums = part(states, rows)
            values.append(value.detach())
            accepted += [] if sums is None else [sums]
            if wanted:
                grads = torch.autograd.grad(value, [states, *parameters], allow_unused=True)
                d_hidden[rows] = grads[0]
                d_parameters = [
                    # Cloned, because autograd may return one tensor for two parameters.
                    total if grad is None else grad.clone() if total is None else total.add_(grad)
                    for total, grad in zip(d_parameters, grads[1:], strict=True)
                ]
        ctx.save_for_backward(d_hidden, *d_parameters)
        if not accepted:
            return torch.stack(values).sum(), None
        total_accepted = torch.stack(accepted).cpu().double().sum()
        ctx.mark_non_differentiable(total_accepted)
        return torch.stack(values).sum(), total_accepted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, None, *(g if g is None else g * d_value for g in ctx.saved_tensors))
