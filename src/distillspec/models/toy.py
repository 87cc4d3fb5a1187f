"""An exact table model: next-token logits read from a table by the last few tokens.

Small enough to enumerate by hand, with the whole session protocol, so that everything above this
room can be tested against known laws. Its bookkeeping is strict: a caller that forgets tokens it
never fed, or feeds past the context, gets an error instead of a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from distillspec.models.protocol import Batch, room_of
from distillspec.models.vocabulary import Vocabulary


class TableModel(nn.Module):
    """A Markov model of any order: `logits[a, b]` is the [V] row after the last tokens a, b.

    The order is `logits.dim() - 1`: [V] is the same law at every position, [V, V] conditions on
    the last token, [V, V, V] on the last two (tokens before the first count as id 0). The hidden
    state *is* the row, so H = V, the head is the identity and gradients reach `logits` through
    `hidden`.
    """

    kept: Tensor | None

    def __init__(
        self,
        logits: Tensor,
        *,
        eos_ids: tuple[int, ...] = (),
        context: int | None = None,
        kept: Tensor | None = None,
        name: str = "table",
    ) -> None:
        """Make a model.

        Args:
            logits: [V]·order + [V] float logits; −inf where a token can never follow.
            eos_ids: The ids that end a sequence.
            context: The most tokens a row's cache can take; None for no limit.
            kept: [K] int64 ascending ids of a trimmed head; the others get −inf.
            name: What messages call the model.
        """
        super().__init__()
        self.logits = nn.Parameter(logits.clone())
        self.order = logits.dim() - 1
        self.vocabulary = Vocabulary.plain(logits.shape[-1])
        self.eos_ids = eos_ids
        self.context = context
        self.name = name
        self.register_buffer("kept", kept, persistent=False)

    @property
    def module(self) -> nn.Module:
        """The module whose parameters are trained: the model itself."""
        return self

    @property
    def device(self) -> torch.device:
        """Where the table lives."""
        return self.logits.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the hidden states."""
        return self.logits.dtype

    def prefix(self, prompt: Tensor) -> Tensor:
        """Return the ids that the first emitted token follows: the prompt."""
        return prompt

    def open(self, prompts: Sequence[Tensor]) -> TableSession:
        """Start one row per prompt (1-D int64 ids, at least one); the last token is pending."""
        for prompt in prompts:
            self._check_ids(prompt)
            if len(prompt) == 0:
                raise ValueError("a prompt needs at least one token")
        width = max((len(prompt) for prompt in prompts), default=1)
        padded = [pad(prompt.to(self.device), (0, width - len(prompt))) for prompt in prompts]
        tokens = torch.stack(padded)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        session = TableSession(self, tokens.gather(1, lengths[:, None] - 1)[:, 0])
        session.extend(tokens, lengths - 1)
        return session

    def head(self, hidden: Tensor) -> Tensor:
        """Map [..., V] rows to [..., V] logits, −inf outside the kept ids."""
        if self.kept is None:
            return hidden
        outside = torch.ones(self.vocabulary.size, dtype=torch.bool, device=hidden.device)
        outside[self.kept] = False
        return hidden.masked_fill(outside, -torch.inf)

    def head_at(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Return `head` for some ids alone."""
        return lambda hidden: self.head(hidden)[..., ids]

    @property
    def projection(self) -> None:
        """The head multiplies by nothing."""
        return None

    def narrow_head(
        self, hidden: Tensor, projection: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Map [..., V] rows to the [..., K] logits of the kept ids.

        Raises:
            ValueError: if a projection is given, for there is none to replace.
        """
        if projection is not None:
            raise ValueError("a table has no projection")
        return hidden if self.kept is None else hidden[..., self.kept]

    def hidden(self, batch: Batch) -> Tensor:
        """Return the [N, V] rows that predict the completion tokens, with gradient."""
        rows = []
        for prompt, completion in zip(batch.prompts, batch.completions, strict=True):
            tokens = torch.cat([prompt, completion]).to(self.device)
            self._check_ids(tokens)
            states = torch.arange(len(prompt) - 1, len(tokens) - 1, device=self.device)
            rows.append(self.rows(tokens[None], states[None])[0])
        return torch.cat(rows)

    def rows(self, tokens: Tensor, columns: Tensor) -> Tensor:
        """Look up the row after each column: [B, L] tokens, [B, k] columns -> [B, k, V]."""
        index = torch.zeros_like(columns)
        for back in range(self.order - 1, -1, -1):
            seen = tokens.gather(1, (columns - back).clamp_min(0))
            index = index * self.vocabulary.size + seen.masked_fill(columns < back, 0)
        return self.logits.reshape(-1, self.vocabulary.size)[index]

    def _check_ids(self, tokens: Tensor) -> None:
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary.size:
            raise ValueError(f"ids must lie in 0…{self.vocabulary.size - 1}, got {tokens.tolist()}")


class TableSession:
    """A batch of sequences part-way on a `TableModel`."""

    def __init__(self, model: TableModel, pending: Tensor) -> None:
        """Start B rows with empty caches; `pending` is [B] int64."""
        self.model = model
        self.pending = pending
        self.lengths = torch.zeros_like(pending)
        """[B] int64: how many tokens each row's cache holds."""
        self.tokens = pending.new_zeros(len(pending), 0)
        """[B, L] int64: the cached tokens; what lies past a row's length is meaningless."""

    @torch.no_grad()
    def extend(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Feed [B, k] tokens, `lengths` of them real, and return the [B, k, V] rows after each.

        Raises:
            ValueError: if the shapes do not fit, or a row would outgrow the context.
        """
        if tokens.dim() != 2 or lengths.shape != self.lengths.shape or len(tokens) != len(lengths):
            raise ValueError(
                f"expected [{len(self.lengths)}, k] tokens and [{len(self.lengths)}] lengths, "
                f"got {list(tokens.shape)} and {list(lengths.shape)}"
            )
        k = tokens.shape[1]
        lengths = lengths.to(self.lengths.device)
        if bool(((lengths < 0) | (lengths > k)).any()):
            raise ValueError(f"lengths must lie in 0…{k}, got {lengths.tolist()}")
        if bool((lengths > self.room).any()):
            raise ValueError(
                f"rows hold {self.lengths.tolist()} of {self.model.context} tokens and cannot "
                f"take {lengths.tolist()} more"
            )
        columns = self.lengths[:, None] + torch.arange(k, device=tokens.device)
        needed = int(self.lengths.max()) + k if len(tokens) else k
        self.tokens = pad(self.tokens, (0, max(0, needed - self.tokens.shape[1])))
        self.tokens = self.tokens.scatter(1, columns, tokens)
        self.lengths = self.lengths + lengths
        return self.model.rows(self.tokens, columns)

    def rollback(self, surplus: Tensor) -> None:
        """Forget the last `surplus[row]` tokens of each row.

        Raises:
            ValueError: if a row holds fewer tokens than it is asked to forget.
        """
        if surplus.shape != self.lengths.shape:
            raise ValueError(f"expected [{len(self.lengths)}] counts, got {list(surplus.shape)}")
        surplus = surplus.to(self.lengths.device)
        if bool(((surplus < 0) | (surplus > self.lengths)).any()):
            raise ValueError(
                f"cannot forget {surplus.tolist()} tokens of rows that hold {self.lengths.tolist()}"
            )
        self.lengths = self.lengths - surplus

    def keep(self, rows: Tensor) -> None:
        """Keep only `rows` ([B'] int64), in that order."""
        self.pending = self.pending[rows]
        self.lengths = self.lengths[rows]
        self.tokens = self.tokens[rows]

    def join(self, session: TableSession) -> None:
        """Append the rows of another session of the same model."""
        if session.model is not self.model:
            raise ValueError("only sessions of the same model can join")
        width = max(self.tokens.shape[1], session.tokens.shape[1])
        both = [pad(s.tokens, (0, width - s.tokens.shape[1])) for s in (self, session)]
        self.tokens = torch.cat(both)
        self.lengths = torch.cat([self.lengths, session.lengths])
        self.pending = torch.cat([self.pending, session.pending])

    @property
    def room(self) -> Tensor:
        """[B] int64: how many more tokens each row can take."""
        return room_of(self.model.context) - self.lengths
