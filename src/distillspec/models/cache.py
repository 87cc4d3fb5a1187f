"""Ragged rows on a transformers cache: per-row rollback, dropping rows, admitting rows.

A transformers cache is one rectangle for the whole batch. Rows that kept different numbers of
tokens are rolled right until all end at the same column; what is missing at the left is padding
that the attention mask hides. Distances between a row's tokens are thereby unchanged, which is what
rotary positions, relative biases and sliding windows see; absolute positions are given per row.
Only this module knows how transformers stores and removes columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from distillspec.errors import UserError


def cache_argument(module: nn.Module, name: str) -> str:
    """Say which argument of `module.forward` takes a cache.

    transformers renamed `past_key_values` to `cache` within its fifth major version and warns at
    each use of the old name, so the signature decides.

    Raises:
        UserError: naming the model, if there is no such argument.
    """
    accepted = inspect.signature(module.forward).parameters
    for argument in ("cache", "past_key_values"):
        if argument in accepted:
            return argument
    raise UserError(
        f"{name} ({type(module).__name__}) keeps no cache that could be rolled back, which "
        "speculative decoding needs: use a transformer model with a key-value cache"
    )


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers' own hook
    """A cache layer with room to grow: adding a column does not copy the others.

    transformers' own layer joins old and new columns at every step, which for a batch costs more
    than the attention itself. Here `keys` and `values` are the first columns of larger buffers;
    whoever sets them to other tensors (by `_hold`, or else the buffers stay alive) makes the next
    update move into new ones.
    """

    _buffers: tuple[Tensor, Tensor] | None = None

    def release(self) -> None:
        """Let go of the buffers: `keys` and `values` no longer lie in them."""
        self._buffers = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add [B, heads, k, D] columns and return all of them; see the base class."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        width = self.get_seq_length() + key_states.shape[2]
        held = _states(self)
        buffers = self._buffers
        if buffers is None or not all(map(_has_room, buffers, held, [width] * 2)):
            capacity = width + max(64, width // 4)
            buffers = _with_room(held[0], capacity), _with_room(held[1], capacity)
            self._buffers = buffers
        for buffer, new in zip(buffers, (key_states, value_states), strict=True):
            buffer[:, :, width - new.shape[2] : width] = new
        self.keys, self.values = buffers[0][:, :, :width], buffers[1][:, :, :width]
        return self.keys, self.values


def _has_room(buffer: Tensor, states: Tensor, width: int) -> bool:
    """Tell whether `states` are still the first columns of a buffer with `width` columns.

    A buffer made in inference mode can only be written to there.
    """
    same = buffer.data_ptr() == states.data_ptr() and len(buffer) == len(states)
    writable = torch.is_inference_mode_enabled() or not buffer.is_inference()
    return same and writable and buffer.shape[2] >= width


def _with_room(states: Tensor, capacity: int) -> Tensor:
    """Copy [B, heads, L, D] states into the first columns of a new buffer."""
    B, heads, L, D = states.shape
    buffer = states.new_empty(B, heads, capacity, D)
    buffer[:, :, :L] = states
    return buffer


class RaggedCache:
    """The self-attention columns of B rows, of which each row uses the last `lengths[row]`.

    Invariant between calls: the longest row fills all columns. The cache is made without a model's
    config, so that no layer forgets what lies outside a sliding window (the mask does the
    windowing) and every layer can be rolled back. An encoder-decoder cache also holds the
    cross-attention: never rolled back, since the source does not change, but kept and joined.
    """

    def __init__(self, rows: int, *, cross: bool = False) -> None:
        """Make an empty cache of `rows` rows, with cross-attention if asked."""
        self.own = DynamicCache()
        self.own.layer_class_to_replicate = GrowingLayer
        self.cross = DynamicCache() if cross else None
        self.cache: Cache = self.own
        if self.cross is not None:
            self.cache = EncoderDecoderCache(self.own, self.cross)
        self.lengths = [0] * rows
        """Tokens of each row; on the host, where every decision about columns is made."""

    @property
    def width(self) -> int:
        """The number of columns, padding included."""
        return max(self.lengths, default=0)

    @property
    def padded(self) -> bool:
        """Whether some row is shorter than the longest."""
        return min(self.lengths, default=0) != self.width

    def mask(self, k: int, device: torch.device) -> Tensor | None:
        """Mark the real columns once k more are fed: [B, width + k] int64, None if all are real."""
        if not self.padded:
            return None
        first = torch.tensor([self.width - n for n in self.lengths], device=device)
        return (torch.arange(self.width + k, device=device) >= first[:, None]).long()

    def positions(self, k: int, limit: int, device: torch.device) -> Tensor | None:
        """Number the next k tokens of each row: [B, k] int64, None if the columns do it.

        Tokens past a row's real ones may be numbered beyond the context; they are forgotten at
        once but must not index past a table of positions, so numbers stop at `limit` - 1.
        """
        if not self.padded:
            return None
        start = torch.tensor(self.lengths, device=device)
        return (start[:, None] + torch.arange(k, device=device)).clamp_max(limit - 1)

    def settle(self, k: int, lengths: Sequence[int]) -> None:
        """Record a pass over k columns of which each row keeps the first `lengths[row]`.

        Raises:
            RuntimeError: if the model did not store the columns.
        """
        columns = self.width + k
        if self.own.get_seq_length() != columns:
            raise RuntimeError(
                f"the cache holds {self.own.get_seq_length()} columns after a pass that should "
                f"have made {columns}: the model did not use it"
            )
        self.lengths = [held + new for held, new in zip(self.lengths, lengths, strict=True)]
        self._realign(columns, [k - new for new in lengths])

    def rollback(self, surplus: Sequence[int]) -> None:
        """Forget the last `surplus[row]` tokens of each row.

        Raises:
            ValueError: if a row holds fewer tokens than it is asked to forget.
        """
        columns = self.width
        self.lengths = shortened(self.lengths, surplus)
        self._realign(columns, surplus)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only `rows`, in that order, and drop columns that none of them uses."""
        columns = self.width
        for layer in _filled(self.own) + _filled(self.cross):
            keys, values = _states(layer)
            index = torch.tensor(rows, device=keys.device, dtype=torch.int64)
            _hold(layer, keys[index], values[index])
        self.lengths = [self.lengths[row] for row in rows]
        self._realign(columns, [0] * len(rows))

    def join(self, other: RaggedCache) -> None:
        """Append the rows of another cache of the same model.

        With cross-attention both caches must have been through the decoder once, or neither.
        """
        rows = len(self.lengths), len(other.lengths)
        width = max(self.width, other.width)
        _join(self.own, other.own, rows, width, left=True)
        if self.cross is not None and other.cross is not None:
            width = max(self.cross.get_seq_length(), other.cross.get_seq_length())
            _join(self.cross, other.cross, rows, width, left=False)
        self.lengths = self.lengths + other.lengths

    def _realign(self, columns: int, surplus: Sequence[int]) -> None:
        """Make rows that end `surplus[row]` before the last of `columns` columns end together."""
        width = self.width
        if all(n == columns - width for n in surplus):
            if columns != width:
                self.own.crop(width - columns)  # a negative count; a positive one is an error
            return
        for layer in _filled(self.own):
            keys, values = _states(layer)
            first = torch.tensor([columns - n - width for n in surplus], device=keys.device)
            index = (first[:, None] + torch.arange(width, device=keys.device)).clamp_min(0)
            _hold(layer, _take(keys, index), _take(values, index))


def shortened(lengths: Sequence[int], surplus: Sequence[int]) -> list[int]:
    """Take `surplus[row]` off every row's length.

    Raises:
        ValueError: if a row holds fewer tokens than it is asked to forget.
    """
    if len(surplus) != len(lengths) or any(
        not 0 <= n <= held for n, held in zip(surplus, lengths, strict=True)
    ):
        raise ValueError(f"cannot forget {list(surplus)} tokens of rows with {list(lengths)}")
    return [held - n for held, n in zip(lengths, surplus, strict=True)]


def _filled(cache: DynamicCache | None) -> list[DynamicLayer]:
    """Return the layers that hold something (layers that share another's keys never do)."""
    layers = [] if cache is None else cache.layers
    return [layer for layer in layers if isinstance(layer, DynamicLayer) and layer.is_initialized]


def _states(layer: DynamicLayer) -> tuple[Tensor, Tensor]:
    """Return the keys and values of a filled layer, both [B, heads, L, D]."""
    if layer.keys is None or layer.values is None:
        raise TypeError("a filled cache layer has keys and values")
    return layer.keys, layer.values


def _hold(layer: DynamicLayer, keys: Tensor, values: Tensor) -> None:
    """Have a layer hold other columns, without keeping the memory of the old ones."""
    layer.keys, layer.values = keys, values
    if isinstance(layer, GrowingLayer):
        layer.release()


def _take(states: Tensor, index: Tensor) -> Tensor:
    """Gather columns per row: [B, heads, L, D] and [B, W] indices -> [B, heads, W, D]."""
    _, heads, _, size = states.shape
    return states.gather(2, index[:, None, :, None].expand(-1, heads, -1, size))


def _join(
    own: DynamicCache, other: DynamicCache, rows: tuple[int, int], width: int, *, left: bool
) -> None:
    """Append the rows of `other` to `own`, both padded to `width` columns on the named side."""
    if not _filled(own):
        own.layers = [_empty_like(layer, rows[0]) for layer in other.layers]
    mine, theirs = _filled(own), _filled(other)
    for i, layer in enumerate(mine):
        added = _states(theirs[i]) if theirs else None
        parts = [
            torch.cat(
                [
                    _widen(states, width, left=left),
                    _blank(states, rows[1], width)
                    if added is None
                    else _widen(added[part], width, left=left),
                ]
            )
            for part, states in enumerate(_states(layer))
        ]
        _hold(layer, *parts)


def _empty_like(layer: Any, rows: int) -> Any:
    """Make a layer of the same kind for `rows` rows that have nothing cached.

    A layer without states (one that shares another's) stays without.
    """
    if not (isinstance(layer, DynamicLayer) and layer.is_initialized):
        return type(layer)()
    keys, values = _states(layer)
    empty: DynamicLayer = type(layer)()
    empty.lazy_initialization(keys, values)
    _hold(empty, _blank(keys, rows, 0), _blank(values, rows, 0))
    return empty


def _blank(like: Tensor, rows: int, width: int) -> Tensor:
    """Return zero states of `rows` rows that have nothing cached: [rows, heads, width, D]."""
    return like.new_zeros(rows, like.shape[1], width, like.shape[3])


def _widen(states: Tensor, width: int, *, left: bool) -> Tensor:
    """Pad [B, heads, L, D] with zero columns to [B, heads, width, D]."""
    missing = width - states.shape[2]
    return pad(states, (0, 0, missing, 0) if left else (0, 0, 0, missing))
