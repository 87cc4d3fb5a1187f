"""What the rest of the house knows of a model: a vocabulary, sessions, hidden states and a head.

Hidden states, not logits, cross the rooms: a [B, k, V] tensor is made only where it is needed,
in chunks where it would be large. Nothing here imports transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self

    from distillspec.models.vocabulary import Vocabulary


UNBOUNDED = 1 << 31
"""The room of a model without a context limit, in tokens."""


def room_of(context: int | None) -> int:
    """Return how many tokens fit a context, `UNBOUNDED` for one without a limit."""
    return UNBOUNDED if context is None else context


@dataclass(frozen=True)
class Batch:
    """Prompts with their completions, as ids; ragged, so that no token id has to mean "padding"."""

    prompts: tuple[Tensor, ...]
    """One 1-D int64 tensor a row: the prompt of a decoder-only model, the source of an
    encoder-decoder model (its decoder start token is the model's business)."""
    completions: tuple[Tensor, ...]
    """One 1-D int64 tensor a row, with its end-of-sequence token if it ended with one."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Completion lengths in tokens; their sum is the N of `LanguageModel.hidden`."""
        return tuple(len(completion) for completion in self.completions)

    def part(self, rows: Sequence[int]) -> Batch:
        """Return some of the rows, in the order asked."""
        return Batch(
            tuple(self.prompts[row] for row in rows), tuple(self.completions[row] for row in rows)
        )


class Session(Protocol):
    """A batch of B sequences part-way, on one model."""

    pending: Tensor
    """[B] int64: the last token of each row, not yet in the cache. The engine sets it."""

    def extend(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Feed `tokens` to the cache and return the hidden state at each of them.

        The caller passes every token that the cache has not seen, `pending` included, so the
        state at index i of a row is the one that predicts the token after `tokens[row, i]`.

        Args:
            tokens: [B, k] int64, left-aligned; what lies past a row's length is any valid id.
            lengths: [B] int64 in 0…k, the number of real tokens of each row.

        Returns:
            [B, k, H] hidden states, meaningless past a row's length. The cache has grown by
            exactly `lengths[row]` tokens.
        """
        ...

    def rollback(self, surplus: Tensor) -> None:
        """Forget the last `surplus[row]` tokens of each row's cache ([B] int64, ≥ 0)."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only `rows` ([B'] int64 indices, in that order) and drop the others.

        A row that is named twice is copied: several samples of one prompt start like that.
        """
        ...

    def join(self, session: Self) -> None:
        """Append the rows of another session of the same model."""
        ...

    @property
    def room(self) -> Tensor:
        """[B] int64: how many more tokens each row's cache can take before the context is full."""
        ...


class LanguageModel(Protocol):
    """A target or a draft."""

    name: str
    """What messages call it: the path or hub name it was loaded from."""
    vocabulary: Vocabulary
    """The ids both models of a pair share; its size is the V of every distribution."""
    eos_ids: tuple[int, ...]
    """The ids that end a sequence of this model."""
    context: int | None
    """The most tokens one row's cache can take, None for no limit; a longer prompt is refused."""
    kept: Tensor | None
    """[K] int64 ascending ids of a trimmed head, None for a whole one."""

    @property
    def module(self) -> nn.Module:
        """What holds the parameters: what is trained, frozen and switched between modes."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of the hidden states."""
        ...

    def prefix(self, prompt: Tensor) -> Tensor:
        """Return the [L] int64 ids that the first emitted token follows.

        They are the prompt itself, and the decoder start token of an encoder-decoder model.
        """
        ...

    def open(self, prompts: Sequence[Tensor]) -> Session:
        """Start one row per prompt (1-D int64 ids).

        A decoder-only model caches all but the last prompt token, which is `pending`; an
        encoder-decoder model runs its encoder once and `pending` is the decoder start token.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Map [..., H] hidden states to [..., V] logits; −inf at ids the model cannot emit."""
        ...

    def head_at(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Return `head` for some ids alone, [..., H] to [..., len(ids)], without gradient.

        The rows of the output matrix are copied: it is for a model that stays as it is.
        """
        ...

    @property
    def projection(self) -> nn.Module | None:
        """The layer in the heads that multiplies by the output matrix; None if there is none."""
        ...

    def narrow_head(
        self, hidden: Tensor, projection: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Map [..., H] to [..., K] logits of the `kept` ids; the same as `head` if all are kept.

        `projection` takes the place of the layer of that name, for callers that sum up the
        gradient of its matrix themselves.
        """
        ...

    def hidden(self, batch: Batch) -> Tensor:
        """Teacher-forced hidden states of the completion positions, with gradient.

        Returns:
            [N, H], rows ordered by sequence and then by position, N = sum(batch.lengths); row t
            of a sequence is the state that predicts its completion token t.
        """
        ...
