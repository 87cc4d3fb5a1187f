"""From hidden states to logits over the shared vocabulary.

Whatever a family does after its last layer is undone nowhere else: T5's scaling of the hidden
state, a factor on the logits, soft-capping, rows beyond the tokenizer, ids the tokenizer lacks,
and a head that was trimmed to some ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from distillspec.models.products import multiplier, plain_linear, product
from distillspec.models.vocabulary import Vocabulary


@dataclass(frozen=True)
class Head:
    """The output layer of a model together with all that surrounds it."""

    linear: nn.Module
    """[..., H] -> [..., R]: one row per id of the model, or per kept id."""
    vocabulary: Vocabulary
    """The ids of the logits; rows past its size are cut off."""
    kept: Tensor | None = None
    """[K] int64 ascending ids that the rows of a trimmed head stand for."""
    before: float = 1.0
    """A factor on the hidden state (T5 with tied embeddings)."""
    after: float = 1.0
    """A factor on the logits (Cohere, Granite)."""
    cap: float | None = None
    """Logits become cap · tanh(logits / cap) (Gemma)."""
    bias: Tensor | None = None
    """[R] added to the logits (BART)."""

    def rows(self, hidden: Tensor, projection: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Map [..., H] to the [..., R] logits of the output layer's own rows.

        `projection` takes the place of `linear`, if given.
        """
        inputs = hidden if self.before == 1.0 else hidden * self.before
        logits = (
            product(self.linear, inputs, multiplier(inputs))
            if projection is None
            else projection(inputs)
        )
        if self.bias is not None:
            logits = logits + self.bias.to(logits.device)
        if self.after != 1.0:
            logits = logits * self.after
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits

    def whole(self, hidden: Tensor, projection: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Map [..., H] to [..., V] logits, −inf at ids that cannot be emitted."""
        logits = self.rows(hidden, projection)
        size = self.vocabulary.size
        if self.kept is not None:
            everywhere = logits.new_full((*logits.shape[:-1], size), -torch.inf)
            return everywhere.index_copy(-1, self.kept.to(logits.device), logits)
        if logits.shape[-1] > size:
            logits = logits[..., :size]
        elif logits.shape[-1] < size:
            logits = pad(logits, (0, size - logits.shape[-1]), value=-torch.inf)
        if self.vocabulary.holes:
            holes = torch.tensor(self.vocabulary.holes, device=logits.device)
            logits = logits.index_fill(-1, holes, -torch.inf)
        return logits

    def at(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Return [..., H] -> [..., len(ids)]: the logits of some ids, no other row computed.

        Of the weights as they are, without gradient; −inf at ids that cannot be emitted.
        """
        layer = plain_linear(self.linear)
        if self.kept is not None or layer is None:
            return lambda hidden: self.whole(hidden)[..., ids]
        ids = ids.to(layer.weight.device)
        places = ids.clamp(max=len(layer.weight) - 1)
        weight = layer.weight.detach()[places]
        own = None if layer.bias is None else layer.bias.detach()[places]
        part = replace(self, bias=None if self.bias is None else self.bias.to(ids.device)[places])
        absent = ids >= len(layer.weight)
        absent |= torch.isin(ids, torch.tensor(self.vocabulary.holes, device=ids.device))

        def head(hidden: Tensor) -> Tensor:
            logits = part.rows(hidden, lambda inputs: multiplier(inputs)(inputs, weight, own))
            return logits.masked_fill(absent, -torch.inf)

        return head

    def narrow(
        self, hidden: Tensor, projection: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Map [..., H] to the [..., K] logits of the kept ids; all V where none were dropped."""
        return (self.whole if self.kept is None else self.rows)(hidden, projection)
