"""A row of a data set, its split into training and held-out rows, and their overlap."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distillspec.errors import UserError


@dataclass(frozen=True)
class EngineCounts:
    """What an engine counted while it wrote one answer."""

    calls: int
    """Target passes that put out tokens, without those of `alone`."""
    drafted: int
    """Tokens the draft wrote."""
    accepted: int
    """Drafted tokens that the engine says it accepted."""
    seconds: float
    """From question to answer, reading the prompt included."""
    alone: int
    """First tokens that came from reading the prompt, before anything was drafted."""


@dataclass(frozen=True)
class Row:
    """One prompt."""

    id: str
    """Names the row in messages and results; unique within a file."""
    prompt: str | tuple[Mapping[str, str], ...]
    """Plain text, or chat messages ({"role": …, "content": …}) up to the one to be answered."""
    target: str | None = None
    """The completion the data set gives (fixed data), if it gives one."""
    domain: str | None = None
    """What kind of prompt it is, where the data set says so."""
    target_ids: tuple[int, ...] | None = None
    """The target's ids as a model sampled them, where `generate` wrote the file. Tokenizing the
    text again could give others, and would end an answer that the length limit cut."""
    target_logprobs: tuple[float, ...] | None = None
    """ln of the probability each of `target_ids` had where it was sampled, where that was logged:
    nats, after the sampling settings."""
    cut: bool = False
    """Whether `target` is known to have ended at its length limit."""
    finish_reason: str | None = None
    """Why `target` ended, as the engine that wrote it says: `stop`, `length`, …"""
    prompt_ids: tuple[int, ...] | None = None
    """The prompt's ids as an engine was given them, where that was logged."""
    blocks: tuple[int, ...] | None = None
    """Tokens of `target_ids` that each target call put out, where an engine tells."""
    counts: EngineCounts | None = None
    """What an engine counted, where it tells."""

    @property
    def text(self) -> str:
        """The prompt as one text, for people to read."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(f"{message['role']}: {message['content']}" for message in self.prompt)


@dataclass(frozen=True)
class Split:
    """Rows to train on, and rows to judge by."""

    train: tuple[Row, ...]
    """Rows the draft may see, in the order they came."""
    held_out: tuple[Row, ...]
    """Rows kept for measuring, in the order they came."""


def split(rows: Iterable[Row], held_out: float) -> Split:
    """Split by a hash of each prompt, so that a prompt falls on one side for ever.

    Neither the order of the rows nor adding others moves a row, and rows whose prompts differ only
    in case or blanks stay together, so the sides cannot overlap. The held-out share is `held_out`
    in expectation.

    Args:
        rows: any number of rows.
        held_out: share of the prompts to hold out, in [0, 1]; 0 holds out none, 1 all.

    Raises:
        UserError: `held_out` is outside [0, 1].
    """
    if not 0 <= held_out <= 1:
        raise UserError(f"held-out share {held_out}: expected a number from 0 to 1")
    train: list[Row] = []
    kept: list[Row] = []
    for row in rows:
        digest = hashlib.sha256(normalised(row).encode()).digest()
        below = int.from_bytes(digest[:8], "big") < held_out * 2**64
        (kept if below else train).append(row)
    return Split(tuple(train), tuple(kept))


def overlap(train: Iterable[Row], held_out: Iterable[Row]) -> int:
    """Count the held-out rows whose normalised prompt is also a training row's."""
    seen = {normalised(row) for row in train}
    return sum(normalised(row) in seen for row in held_out)


def normalised(row: Row) -> str:
    """Reduce a prompt to what makes it the same prompt: its words, whatever case and blanks."""
    return " ".join(unicodedata.normalize("NFKC", row.text).casefold().split())
