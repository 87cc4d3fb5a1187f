"""The frozen target's hidden states, computed once for data that comes back every epoch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distillspec.math.precision import at_least_float32
from distillspec.models.modes import evaluation_mode
from distillspec.models.protocol import Batch, LanguageModel
from distillspec.training.chunks import Rows


def states_of(model: LanguageModel, batch: Batch) -> Tensor:
    """Return a model's [N, H] states at the completion positions, in eval mode, no gradient."""
    with torch.no_grad(), evaluation_mode(model.module):
        return model.hidden(batch)


class HiddenCache:
    """States of one target on the completions of one list of examples, by example number.

    The target's states are constants, so from the second epoch on fixed data costs no target
    pass. An example takes length · H numbers of memory: 140,000 tokens of a model with H = 576
    take 320 MB in float32.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        """Start empty; `dtype` is what the states are stored in."""
        self.dtype = dtype
        self.passes = 0
        """How many target passes were needed so far."""
        self._states: dict[int, Tensor] = {}
        self._log_z: dict[int, Tensor] = {}

    def fill(self, indices: Sequence[int], states: Sequence[Tensor]) -> None:
        """Keep states that are known already, such as those the engine verified its output with.

        Args:
            indices: The examples' numbers.
            states: [length, H] each, at their completion positions.
        """
        self._states |= {i: part.to(self.dtype) for i, part in zip(indices, states, strict=True)}

    def states(self, target: LanguageModel, indices: Sequence[int], batch: Batch) -> Tensor:
        """Return the [N, H] states of a batch, scoring only the examples not seen before.

        Args:
            target: The model; the same in every call.
            indices: [B] the examples' numbers; a number must always mean the same example.
            batch: The B examples.

        Raises:
            ValueError: if a number is given with a completion of another length than before.
        """
        missing = [row for row, i in enumerate(indices) if i not in self._states]
        if missing:
            new = batch.part(missing)
            states = torch.split(states_of(target, new).to(self.dtype), list(new.lengths))
            self._states |= {
                # Cloned: a view would keep the whole batch alive.
                indices[row]: part.clone()
                for row, part in zip(missing, states, strict=True)
            }
            self.passes += 1
        found = [self._states[i] for i in indices]
        if tuple(len(part) for part in found) != batch.lengths:
            raise ValueError(
                f"examples {list(indices)} have completions of {batch.lengths} tokens but were "
                f"stored with {[len(part) for part in found]}"
            )
        return torch.cat(found).to(target.dtype)

    def normalisers(self, target: LanguageModel, indices: Sequence[int]) -> Tensor:
        """Return [N] log Σ_v exp(logit) of examples whose states are kept, in float32 or wider.

        Computed once an example, with the target's whole head: a draft that keeps K ids then needs
        K of the target's logits a position, in whatever epoch comes.

        Args:
            target: The model; the same in every call.
            indices: [B] the examples' numbers.
        """
        missing = [i for i in dict.fromkeys(indices) if i not in self._log_z]
        if missing:
            hidden = torch.cat([self._states[i] for i in missing]).to(target.dtype)
            parts = []
            with torch.no_grad():
                for rows in Rows.fitting(target.vocabulary.size, hidden.device).chunks(len(hidden)):
                    parts.append(at_least_float32(target.head(hidden[rows])).logsumexp(-1))
            split = torch.split(torch.cat(parts), [len(self._states[i]) for i in missing])
            self._log_z |= {i: part.clone() for i, part in zip(missing, split, strict=True)}
        return torch.cat([self._log_z[i] for i in indices])
