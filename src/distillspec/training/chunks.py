"""Head and loss of the draft, chunk by chunk, with the gradient computed in the forward pass.

A chunk's logits live long enough to give its value *and* its gradient, so no head is computed
twice and [N, V] never exists whole. Within a chunk the passes over the vocabulary run on a few
rows at a time (a tile), which stay in the processor's cache: what autograd keeps of them is small,
and the formulas are those of `math.divergences`, in no second copy. The gradient of the output
matrix is summed up in one buffer, which becomes the parameter's gradient without being copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from distillspec.models.products import plain_linear
from distillspec.models.protocol import LanguageModel
from distillspec.training.product import Product

CHUNK_BYTES = 3 << 23
"""What one chunk's logits may take in float32: large enough for the matrix products to run at full
speed, small beside the output matrix (docs/log.md has memory and time of other sizes)."""
TILE_BYTES = 1 << 20
"""The same for the rows of one pass over the vocabulary on a CPU: a few such tensors fit its cache.
Elsewhere a tile is a chunk, because every small pass costs a launch."""

Head = Callable[[Tensor], Tensor]
"""From [..., H] hidden states to [..., V] logits."""
Score = Callable[[Tensor | None, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""From target logits [C, V], draft logits [C, K], labels [C] and the draft's kept ids [K] to the
loss of each row [C, …], with gradient to the draft's logits, and what is only measured [C]."""


@dataclass(frozen=True)
class Rows:
    """How many rows exist at once."""

    chunk: int
    """Positions whose logits exist at once."""
    tile: int
    """Positions the loss is computed of at once."""

    @staticmethod
    def fitting(vocabulary: int, device: torch.device, chunk: int | None = None) -> Rows:
        """Choose by bytes; `chunk` takes precedence."""
        chunk = chunk or max(1, CHUNK_BYTES // (4 * vocabulary))
        tile = max(1, TILE_BYTES // (4 * vocabulary)) if device.type == "cpu" else chunk
        return Rows(chunk, min(chunk, tile))

    def chunks(self, count: int) -> Iterator[slice]:
        """Cut 0…count into chunks."""
        return (slice(i, min(i + self.chunk, count)) for i in range(0, count, self.chunk))

    def tiles(self, rows: slice) -> Iterator[tuple[slice, slice]]:
        """Cut one chunk: each tile's place within the chunk, and among all."""
        for i in range(rows.start, rows.stop, self.tile):
            stop = min(i + self.tile, rows.stop)
            yield slice(i - rows.start, stop - rows.start), slice(i, stop)


@dataclass(frozen=True)
class Objective:
    """A loss Σ weights · values over N positions of a draft."""

    draft: LanguageModel
    """Whose narrow head is applied."""
    score: Score
    """The loss of each position."""
    target_head: Head | None
    """None where no target is looked at."""
    target_hidden: Tensor | None
    """[N, H'] the target's states."""
    log_z: Tensor | None
    """[N] taken off the target's logits, which makes them log-probabilities; None not to."""
    labels: Tensor
    """[N] the completion tokens."""
    weights: Tensor
    """[N] on the CPU, what each position counts; at 0 its value may be infinite."""
    rows: Rows
    """How many rows exist at once."""

    def at(self, places: Tensor) -> Objective:
        """Return the same loss of some of the positions, int64 on the CPU."""
        hidden = self.target_hidden
        return replace(
            self,
            target_hidden=None if hidden is None else hidden[places.to(hidden.device)],
            log_z=None if self.log_z is None else self.log_z[places.to(self.log_z.device)],
            labels=self.labels[places.to(self.labels.device)],
            weights=self.weights[places],
        )

    def target_logits(self, rows: slice) -> Tensor | None:
        """Return the target's logits of some positions, without gradient."""
        if self.target_head is None or self.target_hidden is None:
            return None
        device = self.labels.device
        # The target keeps its own precision whatever the draft trains in.
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            logits = self.target_head(self.target_hidden[rows])
            if self.log_z is not None:
                logits = logits.to(self.log_z.dtype) - self.log_z[rows, None]
            return logits.to(device)


def chunked(objective: Objective, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    """Compute the loss from the draft's hidden states.

    Args:
        objective: What is minimised.
        hidden: [N, H] the draft's states, with gradient.

    Returns:
        The loss; `backward`, once, reaches `hidden` and the head's parameters. And the sum of what
        was measured beside it, in float64 on the CPU, without gradient, if anything was.
    """
    if not torch.is_grad_enabled():
        (seen,) = survey(objective, (objective.draft, hidden))
        return _weighed(seen.values, objective.weights), total(seen.measures)
    layer = plain_linear(objective.draft.projection)
    module = objective.draft.module if layer is None else layer
    parameters = [p for p in module.parameters() if p.requires_grad]
    apply: Callable[..., tuple[Tensor, Tensor | None]] = _Chunked.apply
    return apply(objective, layer, hidden, *parameters)


class Seen(NamedTuple):
    """What one draft scores at all positions."""

    values: Tensor
    """[N, …] unweighted."""
    measures: Tensor | None
    """[N] what is measured beside them."""


@torch.no_grad()
def survey(objective: Objective, *drafts: tuple[LanguageModel, Tensor]) -> list[Seen]:
    """Return what several drafts with their [N, H] states score, with the target's head run once.

    Nothing has a gradient, and the weights do not enter.
    """
    found: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in drafts]
    for rows in objective.rows.chunks(len(objective.labels)):
        target = objective.target_logits(rows)
        for (draft, hidden), (values, measures) in zip(drafts, found, strict=True):
            logits = draft.narrow_head(hidden[rows])
            for inside, place in objective.rows.tiles(rows):
                value, measure = objective.score(
                    _part(target, inside), logits[inside], objective.labels[place], draft.kept
                )
                values.append(value)
                measures += [] if measure is None else [measure]
    return [
        Seen(torch.cat(values), torch.cat(measures) if measures else None)
        for values, measures in found
    ]


class _Chunked(torch.autograd.Function):
    """A sum whose gradient is known as soon as its value is."""

    @staticmethod
    def forward(
        ctx: Any,
        objective: Objective,
        layer: nn.Linear | None,
        hidden: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        head, product = objective.draft.narrow_head, None
        if layer is not None:
            product = Product(layer, hidden)
            head = partial(head, projection=product)
        # With a product of our own the matrix's gradient is not autograd's business.
        loose = list(parameters) if product is None else []
        sums: list[Tensor | None] = [None] * len(loose)
        d_hidden = torch.zeros_like(hidden)
        values, measures = [], []
        for rows in objective.rows.chunks(len(hidden)):
            states = hidden[rows].detach().requires_grad_()
            with torch.enable_grad():
                logits = head(states)
            value, measure, slope = _score(objective, logits.detach(), rows, hidden)
            values.append(value)
            measures += [] if measure is None else [measure]
            found = torch.autograd.grad(logits, [states, *loose], slope, allow_unused=True)
            d_hidden[rows] = 0.0 if found[0] is None else found[0]
            sums = [_add(old, new) for old, new in zip(sums, found[1:], strict=True)]
            del logits, slope, found  # before the next chunk's are made
        ctx.gradients = (d_hidden, *(sums if product is None else product.release()))
        measured = total(torch.stack(measures) if measures else None)
        if measured is not None:
            ctx.mark_non_differentiable(measured)
        return torch.stack(values).sum(), measured

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        # Given away, not kept: autograd copies a gradient that anyone else still holds.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("the gradient of a chunked loss can be taken once")
        return (None, None, *(g if g is None else g.mul_(d_value) for g in gradients))


def _score(
    objective: Objective, logits: Tensor, rows: slice, hidden: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return a chunk's loss, its measure, and the loss's slope in the logits, written over them.

    Unless the logits are the hidden states themselves, which are not ours to write over.
    """
    target = objective.target_logits(rows)
    shared = logits.untyped_storage().data_ptr() == hidden.untyped_storage().data_ptr()
    slope = torch.empty_like(logits) if shared else logits
    values, measures = [], []
    for inside, place in objective.rows.tiles(rows):
        with torch.enable_grad():
            part = logits[inside].detach().requires_grad_()
            value, measure = objective.score(
                _part(target, inside), part, objective.labels[place], objective.draft.kept
            )
            weights = objective.weights[place]
            loss = _weighed(value, weights)
            (found,) = torch.autograd.grad(loss, part)
        slope[inside] = found
        idle = weights == 0  # on the CPU: no wait for the device
        if bool(idle.any()):  # what is infinite there has no gradient to tell
            slope[inside].masked_fill_(idle[:, None].to(slope.device), 0.0)
        values.append(loss.detach())
        measures += [] if measure is None else [measure.sum()]
    return (
        torch.stack(values).sum(),
        torch.stack(measures).sum() if measures else None,
        slope,
    )


def _weighed(values: Tensor, weights: Tensor) -> Tensor:
    """Return Σ weights · values; a weight of 0 leaves out even what is infinite."""
    weights = weights.to(values)
    return (values.masked_fill(weights == 0, 0.0) * weights).sum()


def total(measures: Tensor | None) -> Tensor | None:
    """Sum up what was measured, in float64 on the CPU; None if nothing was."""
    return None if measures is None else measures.cpu().double().sum()


def _part(logits: Tensor | None, rows: slice) -> Tensor | None:
    return None if logits is None else logits[rows]


def _add(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Add in place; the first is cloned, because autograd may return one tensor for two."""
    if new is None:
        return old
    return new.clone() if old is None else old.add_(new)
