"""The frozen target's hidden states, computed once for data that comes back every epoch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distillspec.math.precision import at_least_float32
from distillspec.models.modes import evaluation_mode
from distillspec.models.protocol import Batch, LanguageModel
from distillspec.training.chunks import Rows

STATE_BYTES = 4 << 30
"""What kept states may take by default: of a target with H = 4096 in 16 bits 500,000 tokens."""


def states_of(model: LanguageModel, batch: Batch) -> Tensor:
    """Return a model's [N, H] states at the completion positions, in eval mode, no gradient."""
    with torch.no_grad(), evaluation_mode(model.module):
        return model.hidden(batch)


class HiddenCache:
    """States of one target on the completions of one list of examples, by example number.

    The target's states are constants, so from the second epoch on fixed data costs no target
    pass. They lie where the target does, as it computed them: a token takes its hidden size times
    the bytes of its type. Examples that come when no room is left are scored every time anew.
    """

    def __init__(self, limit: int = STATE_BYTES) -> None:
        """Start empty; `limit` is how many bytes of states are kept at most."""
        self.passes = 0
        """How many target passes were needed so far."""
        self.bytes = 0
        """What the states take. A normaliser beside each, of 4 bytes, is not counted."""
        self._limit = limit
        self._states: dict[int, Tensor] = {}
        self._log_z: dict[int, Tensor] = {}

    def fill(self, indices: Sequence[int], states: Sequence[Tensor]) -> None:
        """Keep states that are known already, such as those the engine verified its output with.

        Args:
            indices: The examples' numbers.
            states: [length, H] each, at their completion positions. Of those that find no room
                nothing is kept.
        """
        for i, part in zip(indices, states, strict=True):
            if i not in self._states and self.bytes + part.nbytes <= self._limit:
                self._states[i] = part.clone()  # a view would keep the whole batch alive
                self.bytes += part.nbytes

    def states(self, target: LanguageModel, indices: Sequence[int], batch: Batch) -> Tensor:
        """Return the [N, H] states of a batch, scoring only the examples that are not kept.

        Args:
            target: The model; the same in every call.
            indices: [B] the examples' numbers; a number must always mean the same example.
            batch: The B examples.

        Raises:
            ValueError: if a number is given with a completion of another length than before.
        """
        found = {i: self._states[i] for i in indices if i in self._states}
        missing = [row for row, i in enumerate(indices) if i not in found]
        if missing:
            new = batch.part(missing)
            parts = torch.split(states_of(target, new), list(new.lengths))
            scored = dict(zip([indices[row] for row in missing], parts, strict=True))
            self.fill(list(scored), list(scored.values()))
            found |= scored
            self.passes += 1
        lengths = tuple(len(found[i]) for i in indices)
        if lengths != batch.lengths:
            raise ValueError(
                f"examples {list(indices)} have completions of {batch.lengths} tokens but were "
                f"stored with {list(lengths)}"
            )
        return torch.cat([found[i] for i in indices])

    def normalisers(
        self, target: LanguageModel, indices: Sequence[int], lengths: Sequence[int], hidden: Tensor
    ) -> Tensor:
        """Return [N] log Σ_v exp(logit) of a batch, in float32 or wider.

        Computed once an example whose states are kept, with the target's whole head: a draft that
        keeps K ids then needs K of the target's logits a position, in whatever epoch comes.

        Args:
            target: The model; the same in every call.
            indices: [B] the examples' numbers.
            lengths: [B] of their completions.
            hidden: [N, H] what `states` returned for them.
        """
        states = dict(zip(indices, torch.split(hidden, list(lengths)), strict=True))
        found = {i: self._log_z[i] for i in states if i in self._log_z}
        missing = {i: part for i, part in states.items() if i not in found}
        if missing:
            rows = torch.cat(list(missing.values()))
            chunks = Rows.fitting(target.vocabulary.size, rows.device).chunks(len(rows))
            with torch.no_grad():
                parts = [at_least_float32(target.head(rows[c])).logsumexp(-1) for c in chunks]
            sizes = [len(part) for part in missing.values()]
            new = dict(zip(missing, torch.split(torch.cat(parts), sizes), strict=True))
            found |= new
            self._log_z |= {i: part.clone() for i, part in new.items() if i in self._states}
        return torch.cat([found[i] for i in indices])
