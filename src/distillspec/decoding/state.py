"""Where a run stands between two blocks: its unfinished rows and the two models' sessions.

This is bookkeeping only. The law of what is emitted is the business of `speculative`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from distillspec.decoding.blocks import Block
from distillspec.decoding.opening import open_rows
from distillspec.models.protocol import LanguageModel, Session


@dataclass
class Row:
    """Where one unfinished sequence stands."""

    prompt: int
    """Its index into the prompts."""
    generator: Generator
    """The source of its uniforms."""
    left: int
    """How many tokens it may still emit."""
    ids: list[int]
    """All that it holds: what was given (see `LanguageModel.prefix`), then what was emitted."""
    given: int
    """How many of them were given."""
    draft_left: int = 0
    """How many more tokens the draft's context has room to predict; below 1 it never drafts."""
    unseen: list[int] = field(default_factory=list)
    """What the draft's cache has not seen; the last one is the pending token."""


@dataclass
class State:
    """What changes from block to block; a session holds one row per entry of `rows`."""

    rows: list[Row]
    target: Session
    draft: Session | None
    """None where no row can ever draft."""


@torch.no_grad()
def open_state(
    target: LanguageModel,
    draft: LanguageModel | None,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    generators: Sequence[Generator],
    first: int = 0,
    beside: bool = False,
) -> State:
    """Run both models over the prompts; the draft only where some row can use it.

    Args:
        target: The large model.
        draft: The small one, if any.
        prompts: 1-D int64 ids, one tensor a row.
        max_new_tokens: Tokens to emit per row, at most.
        generators: One per prompt.
        first: The index of the first prompt among those of the run.
        beside: Whether the rows are to join others that have the draft's session.
    """
    session = open_rows(target, prompts)
    prefixes = [target.prefix(prompt).tolist() for prompt in prompts]
    rows = [
        # The last token of all is not fed, so as many can be emitted as the context can take.
        Row(
            prompt=first + i,
            generator=generators[i],
            left=min(max_new_tokens, room),
            ids=prefixes[i],
            given=len(prefixes[i]),
        )
        for i, room in enumerate(session.room.tolist())
    ]
    state = State(rows, session, None)
    if draft is not None and (beside or any(row.left > 1 for row in rows)):
        # What a draft cannot hold is cut off and charged: that row has no room to draft in.
        heads = [prompt[: draft.context] for prompt in prompts]
        state.draft = open_rows(draft, heads)
        room_of, pending = state.draft.room.tolist(), state.draft.pending.tolist()
        for i, row in enumerate(rows):
            row.draft_left = room_of[i] - (len(prompts[i]) - len(heads[i]))
            row.unseen = [pending[i]]
    return state


def advance(state: State, block: Block) -> None:
    """Drop the finished rows and bring caches and bookkeeping of the others up to the block."""
    going = [i for i, finished in enumerate(block.finished) if finished is None]
    state.rows = [state.rows[i] for i in going]
    if not going:
        return
    target_surplus, draft_surplus = [], []
    for row, i in zip(state.rows, going, strict=True):
        ids, g, n = list(block.ids[i]), block.drafted[i], block.accepted[i]
        row.ids += ids
        row.left -= len(ids)
        row.draft_left -= len(ids)
        # The draft wrote g tokens and was fed g - 1 of them: after a full block it lacks two.
        kept = min(n, g - 1) if g else 0
        row.unseen = ids[kept:] if g else row.unseen + ids
        target_surplus.append(g - n)
        draft_surplus.append(max(g - 1, 0) - kept)
    pending = [block.ids[i][-1] for i in going]
    rows = None if len(going) == len(block.rows) else going
    _settle(state.target, rows, target_surplus, pending)
    if state.draft is not None:
        _settle(state.draft, rows, draft_surplus, pending)


def _settle(
    session: Session, rows: list[int] | None, surplus: list[int], pending: list[int]
) -> None:
    """Keep `rows` (None for all), forget their surplus, and set their pending tokens."""
    if rows is not None:
        session.keep(torch.tensor(rows))
    if any(surplus):
        session.rollback(torch.tensor(surplus))
    session.pending = torch.tensor(pending, device=session.pending.device)


def draw_uniforms(rows: Sequence[Row], count: int) -> Tensor:
    """Draw [B, count] float64 uniforms in [0, 1), each row's from its own generator."""
    sources = [row.generator for row in rows]
    return torch.stack(
        [torch.rand(count, generator=g, dtype=torch.float64, device=g.device) for g in sources]
    )


def left_aligned(rows: list[list[int]], device: torch.device) -> Tensor:
    """Stack lists of ids: [B, k] int64, k the longest, zeros behind the others."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
