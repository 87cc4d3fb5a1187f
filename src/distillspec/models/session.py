"""A batch of sequences part-way on a transformers model, decoder-only or encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import DynamicCache

from distillspec.errors import UserError
from distillspec.models.protocol import room_of


@dataclass(frozen=True)
class Source:
    """What an encoder made of the sources of B rows; it never changes while they are decoded."""

    states: Tensor
    """[B, S, H] encoder states, padded at the right."""
    mask: Tensor | None
    """[B, S] int64, 1 at real tokens; None if no row is padded."""

    def keep(self, rows: Tensor) -> Source:
        """Keep only `rows`."""
        return Source(self.states[rows], None if self.mask is None else self.mask[rows])

    def join(self, other: Source) -> Source:
        """Append the rows of another source, both padded at the right to the longer one."""
        width = max(self.states.shape[1], other.states.shape[1])
        states = [pad(s.states, (0, 0, 0, width - s.states.shape[1])) for s in (self, other)]
        masks = [pad(s._whole_mask(), (0, width - s.states.shape[1])) for s in (self, other)]
        mask = torch.cat(masks)
        return Source(torch.cat(states), None if bool(mask.all()) else mask)

    def _whole_mask(self) -> Tensor:
        if self.mask is not None:
            return self.mask
        return torch.ones(self.states.shape[:2], dtype=torch.int64, device=self.states.device)


class Rows(Protocol):
    """What a session needs of a cache; `RaggedCache` says what the methods do."""

    lengths: list[int]
    cross: DynamicCache | None

    def settle(self, k: int, lengths: Sequence[int]) -> None:
        """Record a pass over k columns of which each row keeps the first `lengths[row]`."""
        ...

    def rollback(self, surplus: Sequence[int]) -> None:
        """Forget the last `surplus[row]` tokens of each row."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only `rows`, in that order."""
        ...

    def join(self, other: Any) -> None:
        """Append the rows of another cache of its kind, of the same model."""
        ...


class Decoder(Protocol):
    """What a session needs of a model."""

    name: str
    context: int | None

    @property
    def batches(self) -> bool:
        """Whether rows of different lengths can share one pass."""
        ...

    @property
    def hidden_shape(self) -> tuple[int, torch.dtype]:
        """H and the type of the hidden states."""
        ...

    def run(self, tokens: Tensor, cache: Any, source: Source | None) -> Tensor:
        """Feed [B, k] tokens at the next columns of its cache -> [B, k, H] hidden states."""
        ...


class CachedSession:
    """Rows on a transformers cache; `Session` in `protocol.py` says what each method promises."""

    def __init__(
        self, model: Decoder, cache: Rows, pending: Tensor, source: Source | None = None
    ) -> None:
        """Start rows whose cache is filled already (or empty) and whose last token is `pending`."""
        self.model = model
        self.cache = cache
        self.pending = pending
        self.source = source

    @torch.no_grad()
    def extend(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Feed [B, k] tokens, `lengths` of them real, and return the [B, k, H] states at each.

        Raises:
            ValueError: if the shapes do not fit, or a row would outgrow the context.
        """
        new: list[int] = lengths.tolist()
        rows, k = tokens.shape
        if len(new) != rows or rows != len(self.cache.lengths):
            raise ValueError(
                f"expected {len(self.cache.lengths)} rows, got tokens {list(tokens.shape)} and "
                f"lengths {list(lengths.shape)}"
            )
        fed = max(new, default=0)
        if fed > k or min(new, default=0) < 0:
            raise ValueError(f"lengths must lie in 0…{k}, got {new}")
        self._check_room(new)
        if fed == 0:
            size, dtype = self.model.hidden_shape
            return torch.zeros(rows, k, size, dtype=dtype, device=tokens.device)
        hidden = self.model.run(tokens if fed == k else tokens[:, :fed], self.cache, self.source)
        self.cache.settle(fed, new)
        return hidden if fed == k else pad(hidden, (0, 0, 0, k - fed))

    def rollback(self, surplus: Tensor) -> None:
        """Forget the last `surplus[row]` tokens of each row ([B] int64)."""
        self.cache.rollback(surplus.tolist())

    def keep(self, rows: Tensor) -> None:
        """Keep only `rows` ([B'] int64), in that order; one that is named twice is copied."""
        check_batch(self.model, len(rows))
        self.cache.keep(rows.tolist())
        self.pending = self.pending[rows]
        if self.source is not None:
            self.source = self.source.keep(rows)

    @torch.no_grad()
    def join(self, session: CachedSession) -> None:
        """Append the rows of another session of the same model.

        Raises:
            ValueError: if it is a session of another model.
            UserError: if the model cannot decode more than one row at a time.
        """
        if session.model is not self.model:
            raise ValueError("only sessions of the same model can join")
        check_batch(self.model, len(self.pending) + len(session.pending))
        if self.source is not None and session.source is not None:
            for one in (self, session):
                one._fill_cross_attention()
            self.source = self.source.join(session.source)
        self.cache.join(session.cache)
        self.pending = torch.cat([self.pending, session.pending])

    @property
    def room(self) -> Tensor:
        """[B] int64: how many more tokens each row's cache can take."""
        held = torch.tensor(self.cache.lengths, device=self.pending.device)
        return room_of(self.model.context) - held

    def _check_room(self, new: list[int]) -> None:
        context = self.model.context
        if context is not None and any(
            held + n > context for held, n in zip(self.cache.lengths, new, strict=True)
        ):
            raise ValueError(
                f"rows of {self.model.name} hold {self.cache.lengths} of {context} tokens and "
                f"cannot take {new} more"
            )

    def _fill_cross_attention(self) -> None:
        """Run one pass and forget it, so that two caches agree on having seen their sources."""
        cross = self.cache.cross
        if cross is not None and cross.get_seq_length() == 0:
            self.model.run(self.pending[:, None], self.cache, self.source)
            self.cache.settle(1, [0] * len(self.cache.lengths))


def check_batch(model: Decoder, rows: int) -> None:
    """Refuse several rows on a model that numbers all rows alike.

    Raises:
        UserError: naming the model.
    """
    if rows > 1 and not model.batches:
        raise UserError(
            f"{model.name} numbers its decoder positions for the whole batch at once, so rows of "
            f"different lengths cannot share a pass: decode one prompt at a time, not {rows}"
        )


def check_context(model: Decoder, longest: int) -> None:
    """Refuse to score rows that the model has no positions for.

    Raises:
        UserError: naming the model, and how long the longest row is.
    """
    if model.context is not None and longest > model.context:
        raise UserError(
            f"a row of {longest} tokens, all but the last of a prompt with its completion, is "
            f"more than the context of {model.context} of {model.name}: shorten or drop it"
        )
