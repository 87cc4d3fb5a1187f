"""Prompts that wait for a place in the batch, and how they come into it.

A place is free once its row has finished. Places are filled a quarter of the batch at a time:
every admission costs a pass over its prompts and a copy of both caches, so one row at a time wastes
passes and copies, and waiting for the whole batch wastes places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from distillspec.decoding.state import State, open_state
from distillspec.models.protocol import LanguageModel

SHARE = 4
"""A batch of n rows admits when n / SHARE of its places are free, at least one."""


@dataclass
class Queue:
    """The prompts of a run, admitted in their order."""

    target: LanguageModel
    draft: LanguageModel | None
    prompts: Sequence[Tensor]
    """All of the run's; those before `first` have been admitted."""
    generators: Sequence[Generator]
    """One per prompt."""
    max_new_tokens: int
    """Tokens to emit per row, at most."""
    size: int
    """Rows in the batch, at most: with the longest row they bound the memory of both caches."""
    first: int = 0
    """The prompt that waits longest."""

    @property
    def waiting(self) -> int:
        """How many prompts have not been admitted."""
        return len(self.prompts) - self.first

    def open(self) -> State:
        """Start a batch with as many rows as it has places."""
        return self._open(min(self.size, self.waiting), beside=False)

    @torch.no_grad()
    def admit(self, state: State) -> None:
        """Fill free places beside unfinished rows, once there are enough of them."""
        free = self.size - len(state.rows)
        if not self.waiting or free < min(self.waiting, max(1, self.size // SHARE)):
            return
        # Rows without a draft's session beside them are at their last token.
        if self.draft is not None and state.draft is None:
            return
        new = self._open(min(free, self.waiting), beside=state.draft is not None)
        state.target.join(new.target)
        if state.draft is not None and new.draft is not None:
            state.draft.join(new.draft)
        state.rows = state.rows + new.rows

    def _open(self, count: int, *, beside: bool) -> State:
        """Run the models over the next prompts; `beside`: to join a batch that has a draft."""
        chosen = slice(self.first, self.first + count)
        state = open_state(
            self.target,
            self.draft,
            self.prompts[chosen],
            max_new_tokens=self.max_new_tokens,
            generators=self.generators[chosen],
            first=self.first,
            beside=beside,
        )
        self.first += count
        return state
