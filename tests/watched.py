"""A model that notes what it is fed, so that caches can be checked from outside the engine."""

from __future__ import annotations

import copy

import torch

from distillspec.models.protocol import Batch


class WatchedSession:
    """A session beside the list of what each row's cache holds since it was opened."""

    def __init__(self, model, prompts):
        self.model = model
        self.session = model.inner.open(prompts)
        self.prompts = list(prompts)
        self.first = self.session.pending.tolist()
        self.room_at_first = self.session.room.tolist()
        self.seen = [[] for _ in prompts]
        self.calls = 0

    @property
    def pending(self):
        return self.session.pending

    @pending.setter
    def pending(self, value):
        self.session.pending = value

    @property
    def room(self):
        return self.session.room

    def extend(self, tokens, lengths):
        self.calls += 1
        for row, (ids, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
            self.seen[row] += ids[:length]
        states = self.session.extend(tokens, lengths)
        for row, length in enumerate(lengths.tolist()):
            if self.model.tolerance is not None and length:
                self.compare(row, states[row, :length])
        # What lies past a row's length means nothing: nothing may depend on it.
        past = torch.arange(tokens.shape[1]) >= lengths[:, None]
        return states.masked_fill(past[..., None], torch.nan)

    def compare(self, row, states):
        """Hold states against an uncached pass over the prompt and all that was seen."""
        seen = torch.tensor([*self.seen[row][1:], 0])
        fresh = self.model.inner.hidden(Batch((self.prompts[row],), (seen,)))[-len(states) :]
        logits, expected = self.model.inner.head(states), self.model.inner.head(fresh)
        assert torch.allclose(logits, expected, atol=self.model.tolerance, rtol=0)

    def rollback(self, surplus):
        for row, count in enumerate(surplus.tolist()):
            assert 0 <= count <= len(self.seen[row])
            self.seen[row] = self.seen[row][: len(self.seen[row]) - count]
        self.session.rollback(surplus)

    def keep(self, rows):
        for name in ("seen", "prompts", "first", "room_at_first"):
            values = getattr(self, name)
            setattr(self, name, [copy.copy(values[row]) for row in rows.tolist()])
        self.session.keep(rows)


class Watched:
    """A model whose sessions are `WatchedSession`s; everything else is the inner model's."""

    def __init__(self, inner, *, tolerance=None):
        """`tolerance`: how far logits may lie from an uncached pass; None compares nothing."""
        self.inner = inner
        self.tolerance = tolerance
        self.sessions = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open(self, prompts):
        self.sessions.append(WatchedSession(self, prompts))
        return self.sessions[-1]

    @property
    def calls(self):
        """How many times any session was fed after its opening."""
        return sum(session.calls for session in self.sessions)
