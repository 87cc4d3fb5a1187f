"""Sessions whose tensors never change shape: what compiled passes and CUDA graphs need.

Every row fills the columns of its own cache from the left, at its own pace, and a mask says how far
each token may look. So rows that accept different numbers of tokens need no realignment: to forget
is to count less, and what lies past a row's count is overwritten. Buffers hold more columns and
rows than are in use, so that a pass over k tokens has one shape for hundreds of steps and is
compiled once. A CPU pays for columns that nobody uses; there `session.py` is the faster way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from distillspec.errors import UserError
from distillspec.models.cache import shortened
from distillspec.models.causal import CausalBody, opened
from distillspec.models.protocol import Batch, room_of
from distillspec.models.session import CachedSession, Source

COLUMNS = 256
"""Buffers hold a multiple of this many columns: each growth is a new shape, compiled anew."""
LONGEST = 32
"""Wider passes, which read prompts and have a new width each time, are not compiled."""

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What makes a forward pass a faster one, such as `torch.compile`."""


class StaticLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers' own hook
    """One layer's keys and values in buffers of [rows, heads, columns, D], written in place."""

    is_compileable = True
    columns: Tensor
    """[rows, k] int64: where the next pass writes; set before it."""

    def __init__(self, capacity: int) -> None:
        """Take the number of columns; heads and their size show at the first pass."""
        super().__init__()  # type: ignore[no-untyped-call]  # transformers' own has no types
        self.capacity = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the buffers of the shapes that the first pass brings."""
        self.hold(_blank(key_states, self.capacity), _blank(value_states, self.capacity))
        self.is_initialized = True

    def hold(self, keys: Tensor, values: Tensor) -> None:
        """Take buffers, whose addresses a recorded graph may then rely on."""
        self.keys, self.values = keys, values
        self.capacity = keys.shape[2]
        for buffer in (keys, values):
            torch._dynamo.mark_static_address(buffer)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [rows, heads, k, D] at the columns of this pass and return all columns."""
        if self.buffers is None:
            self.lazy_initialization(key_states, value_states)
            return self.update(key_states, value_states)
        keys, values = self.buffers
        index = self.columns[:, None, :, None]
        keys.scatter_(2, index.expand_as(key_states), key_states)
        values.scatter_(2, index.expand_as(value_states), value_states)
        return keys, values

    @property
    def buffers(self) -> tuple[Tensor, Tensor] | None:
        """Keys and values, [rows, heads, columns, D] each; None before the first pass."""
        if self.keys is None or self.values is None:
            return None
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Return the columns that a mask has to cover."""
        return self.capacity

    def get_max_length(self) -> int:
        """Return the same."""
        return self.capacity

    def get_max_cache_shape(self) -> int:
        """Return the same; transformers 5.0 has this name for it."""
        return self.capacity

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the columns that a mask has to cover, and the first of them."""
        return self.capacity, 0


class Feed(NamedTuple):
    """The arguments of one pass, all of the rows' buffers, unused ones included."""

    tokens: Tensor
    """[rows, k] int64."""
    positions: Tensor
    """[rows, k] int64."""
    mask: Tensor
    """[rows, 1, k, columns], 0 where a token may look and the lowest number elsewhere."""


class StaticRows:
    """The caches of B rows in buffers of at least B; `RaggedCache` says what the methods do."""

    def __init__(self, layers: int, rows: int) -> None:
        """Make empty caches for a model of so many layers."""
        self.lengths = [0] * rows
        self.slots = list(range(rows))
        """Which row of the buffers each row has."""
        self.size = _power_of_two(rows)
        self.cache = Cache(layers=[StaticLayer(0) for _ in range(layers)])
        self.cross: DynamicCache | None = None

    def feed(self, tokens: Tensor, limit: int, dtype: torch.dtype) -> Feed:
        """Lay out [B, k] tokens for a pass, with room for them in the buffers.

        Args:
            tokens: What comes next in each row.
            limit: Positions stop at limit − 1: what lies past a row's own is forgotten at once.
            dtype: Of the mask.
        """
        k, device = tokens.shape[1], tokens.device
        self._make_room(max(self.lengths) + k)
        slots = torch.tensor(self.slots, device=device)
        whole = tokens.new_zeros(self.size, k)
        whole[slots] = tokens
        start = torch.zeros(self.size, dtype=torch.int64, device=device)
        start[slots] = torch.tensor(self.lengths, device=device)
        columns = start[:, None] + torch.arange(k, device=device)  # [rows, k]
        for layer in self._layers():
            layer.columns = columns
        every = torch.arange(self._layers()[0].capacity, device=device)
        hidden = every > columns[:, :, None]  # [rows, k, columns]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        return Feed(whole, columns.clamp_max(limit - 1), mask[:, None])

    def settle(self, k: int, lengths: Sequence[int]) -> None:
        """Record a pass over k columns of which each row keeps the first `lengths[row]`."""
        self.lengths = [held + new for held, new in zip(self.lengths, lengths, strict=True)]

    def rollback(self, surplus: Sequence[int]) -> None:
        """Forget the last `surplus[row]` tokens of each row.

        Raises:
            ValueError: if a row holds fewer tokens than it is asked to forget.
        """
        self.lengths = shortened(self.lengths, surplus)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only `rows`, in that order; buffers shrink when half of their rows are free.

        A row that is kept twice gets a cache of its own.
        """
        self.lengths = [self.lengths[row] for row in rows]
        self.slots = [self.slots[row] for row in rows]
        if _power_of_two(len(rows)) != self.size or len(set(self.slots)) < len(rows):
            self._gather()

    def join(self, other: StaticRows) -> None:
        """Append the rows of another cache of the same model."""
        capacity = max(rows._layers()[0].capacity for rows in (self, other))
        for rows in (self, other):
            rows._make_room(capacity)
        for mine, theirs in zip(self._layers(), other._layers(), strict=True):
            like = mine.buffers or theirs.buffers
            if like is not None:  # else neither has seen a token
                first = mine.buffers or _empty(like, self.size)
                second = theirs.buffers or _empty(like, other.size)
                mine.hold(*(torch.cat(pair) for pair in zip(first, second, strict=True)))
        self.slots = self.slots + [self.size + slot for slot in other.slots]
        self.lengths = self.lengths + other.lengths
        self._gather()

    @property
    def filled(self) -> bool:
        """Whether a pass has made the buffers."""
        return self._layers()[0].buffers is not None

    def _layers(self) -> list[StaticLayer]:
        return [layer for layer in self.cache.layers if isinstance(layer, StaticLayer)]

    def _make_room(self, columns: int) -> None:
        """Have buffers of at least so many columns, moving what they hold."""
        for layer in self._layers():
            if layer.capacity >= columns:
                continue
            capacity = -(-columns // COLUMNS) * COLUMNS
            if layer.buffers is None:
                layer.capacity = capacity
            else:
                layer.hold(*(_blank(held, capacity, fill=True) for held in layer.buffers))

    def _gather(self) -> None:
        """Move the rows in use to the front of buffers that are as small as can be."""
        self.size = _power_of_two(len(self.slots))
        for layer in self._layers():
            if layer.buffers is not None:
                layer.hold(*(_taken(held, self.slots, self.size) for held in layer.buffers))
        self.slots = list(range(len(self.slots)))


class StaticBody:
    """A decoder-only model on `StaticRows`, its short passes compiled; see `Body` of `adapter`."""

    def __init__(self, body: CausalBody, compiler: Compiler) -> None:
        """Take a model's body and what compiles a forward pass.

        Raises:
            UserError: naming the model, if not every layer looks at all tokens before.
        """
        config = body.module.config.get_text_config(decoder=True)
        _refuse_windows(config, body.name)
        self.name = body.name
        self.context = body.context
        self._body = body
        self._layers: int = config.num_hidden_layers
        self._compiled = compiler(body.module.base_model)

    @property
    def batches(self) -> bool:
        """Rows of different lengths can share a pass."""
        return True

    @property
    def hidden_shape(self) -> tuple[int, torch.dtype]:
        """H and the type of the hidden states."""
        return self._body.hidden_shape

    def open(self, prompts: Sequence[Tensor]) -> CachedSession:
        """Start one row per prompt (1-D int64 ids); all but its last token are cached."""
        cache = StaticRows(self._layers, len(prompts))
        return opened(self, cache, prompts, self._body.module.device)

    def run(self, tokens: Tensor, cache: StaticRows, source: Source | None) -> Tensor:
        """Feed [B, k] tokens at the next columns of each row -> [B, k, H] hidden states."""
        feed = cache.feed(tokens, room_of(self.context), self.hidden_shape[1])
        short = cache.filled and tokens.shape[1] <= LONGEST
        forward = self._compiled if short else self._body.module.base_model
        states: Tensor = forward(
            input_ids=feed.tokens,
            position_ids=feed.positions,
            attention_mask=feed.mask,
            use_cache=True,
            **{self._body.cache_argument: cache.cache},
        ).last_hidden_state
        # Copied: a recorded graph writes its next result over this one.
        return states[torch.tensor(cache.slots, device=states.device)]

    def prefix(self, prompt: Tensor) -> Tensor:
        """Return the [L] ids that the first emitted token follows."""
        return self._body.prefix(prompt)

    def hidden(self, batch: Batch) -> Tensor:
        """Return the [N, H] states that predict the completion tokens, with gradient."""
        return self._body.hidden(batch)


def _refuse_windows(config: PreTrainedConfig, name: str) -> None:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    windowed = any(kind != "full_attention" for kind in kinds) if kinds else window is not None
    if windowed:
        raise UserError(
            f"{name} has layers that look at a window of the text or keep no keys; passes of fixed "
            "shapes are for models whose every layer looks at all of it: do not compile this one"
        )


def _power_of_two(rows: int) -> int:
    return 1 << max(0, rows - 1).bit_length()


def _blank(like: Tensor, columns: int, *, fill: bool = False) -> Tensor:
    """Return zeros [rows, heads, columns, D], beginning with `like` if asked."""
    rows, heads, width, size = like.shape
    buffer = like.new_zeros(rows, heads, columns, size)
    if fill:
        buffer[:, :, :width] = like
    return buffer


def _taken(states: Tensor, slots: Sequence[int], size: int) -> Tensor:
    """Gather rows of a buffer into a new one of `size` rows."""
    index = torch.tensor(slots, device=states.device, dtype=torch.int64)
    return torch.cat([states[index], states.new_zeros(size - len(slots), *states.shape[1:])])


def _empty(like: tuple[Tensor, Tensor], rows: int) -> tuple[Tensor, Tensor]:
    """Return blank buffers of so many rows."""
    keys, values = (states.new_zeros(rows, *states.shape[1:]) for states in like)
    return keys, values
