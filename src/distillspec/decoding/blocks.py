"""What the engine counted: blocks as they come, counts that add up, outputs assembled from them.

Counts are kept, never ratios: ratios of sums are taken once, at the end. Nothing here knows a
model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Origin: TypeAlias = Literal["draft", "target"]
"""Which model wrote a token: the draft (and the target accepted it) or the target itself."""
Role: TypeAlias = Literal["accepted", "correction", "bonus", "target"]
"""How a token came about: drafted and accepted; the target's in place of a rejected one, after a
wholly accepted block, or where nothing was drafted."""
Finish: TypeAlias = Literal["stop", "length"]
"""Why a row ended: a stop token, or its budget (`max_new_tokens` or the target's context)."""


@dataclass(frozen=True)
class Counts:
    """Totals over any set of blocks; `+` is the union of two disjoint sets."""

    target_calls: int = 0
    """Target passes that a row took part in, prefill not included."""
    tokens: int = 0
    """Tokens emitted, the stop token included and nothing after it."""
    drafted: int = 0
    """Tokens the draft wrote, those never looked at included."""
    accepted: int = 0
    """Emitted tokens that the draft wrote."""
    judged: int = 0
    """Emitted positions at which a drafted token was accepted or rejected."""

    def __add__(self, other: Counts) -> Counts:
        """Add two counts term by term."""
        return Counts(
            target_calls=self.target_calls + other.target_calls,
            tokens=self.tokens + other.tokens,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            judged=self.judged + other.judged,
        )

    @property
    def block_efficiency(self) -> float:
        """τ = tokens / target calls.

        Raises:
            ValueError: if nothing was decoded.
        """
        if self.target_calls == 0:
            raise ValueError("block efficiency needs at least one target call, got none")
        return self.tokens / self.target_calls

    @property
    def empirical_acceptance(self) -> float:
        """Return accepted / judged.

        It equals the expected rate (the paper's Eq. 1) only where tokens are i.i.d.: a position
        after a rejection is not judged.

        Raises:
            ValueError: if no drafted token was judged.
        """
        if self.judged == 0:
            raise ValueError("empirical acceptance needs at least one judged token, got none")
        return self.accepted / self.judged


@dataclass(frozen=True)
class Block:
    """What one target call for the whole batch emitted, one entry per row still running."""

    rows: tuple[int, ...]
    """[B] indices into the prompts."""
    ids: tuple[tuple[int, ...], ...]
    """[B] emitted tokens, 1…γ+1 each: `accepted` drafted ones, then at most one of the target's."""
    accepted: tuple[int, ...]
    """[B] emitted tokens that the draft wrote."""
    drafted: tuple[int, ...]
    """[B] tokens the draft wrote, at most γ."""
    judged: tuple[int, ...]
    """[B] emitted positions at which a drafted token was accepted or rejected."""
    finished: tuple[Finish | None, ...]
    """[B] why the row ends with this block, None if it goes on."""
    states: tuple[Tensor, ...] = field(compare=False, repr=False)
    """[B] the target's [n, H] hidden states that predicted the n emitted tokens: verification has
    computed them, and whoever scores the output needs no second pass."""

    def counts(self, i: int) -> Counts:
        """Return the counts of the block's i-th row."""
        return Counts(
            target_calls=1,
            tokens=len(self.ids[i]),
            drafted=self.drafted[i],
            accepted=self.accepted[i],
            judged=self.judged[i],
        )

    def roles(self, i: int) -> tuple[Role, ...]:
        """Return how each token of the block's i-th row came about."""
        accepted, drafted = self.accepted[i], self.drafted[i]
        own: Role = "target" if not drafted else "bonus" if accepted == drafted else "correction"
        return tuple(
            "accepted" if position < accepted else own for position in range(len(self.ids[i]))
        )


@dataclass(frozen=True)
class Output:
    """One prompt's whole completion."""

    ids: tuple[int, ...]
    """[L] the emitted tokens."""
    roles: tuple[Role, ...]
    """[L] how each of them came about."""
    finish_reason: Finish
    """Why it ended."""
    counts: Counts
    """What its blocks add up to."""
    states: Tensor = field(compare=False, repr=False)
    """[L, H] the target's hidden states that predicted each of them."""

    @property
    def origin(self) -> tuple[Origin, ...]:
        """[L] who wrote each of them."""
        return tuple(map(writer, self.roles))

    def bare(self) -> Output:
        """Return the same without its states, which for thousands of outputs fill the memory."""
        return replace(self, states=self.states[:0].clone())


def writer(role: Role) -> Origin:
    """Return the model that wrote a token of this role."""
    return "draft" if role == "accepted" else "target"


def collect(blocks: Iterable[Block], prompts: int) -> list[Output]:
    """Assemble the blocks of a finished run into one output per prompt, in the prompts' order.

    Args:
        blocks: What `speculate` yielded.
        prompts: How many prompts it was given.

    Returns:
        `prompts` outputs.

    Raises:
        ValueError: if the blocks end before every prompt has finished.
    """
    ids: list[list[int]] = [[] for _ in range(prompts)]
    roles: list[list[Role]] = [[] for _ in range(prompts)]
    counts = [Counts() for _ in range(prompts)]
    finished: list[Finish | None] = [None] * prompts
    states: list[list[Tensor]] = [[] for _ in range(prompts)]
    for block in blocks:
        for i, row in enumerate(block.rows):
            ids[row] += block.ids[i]
            roles[row] += block.roles(i)
            counts[row] += block.counts(i)
            finished[row] = block.finished[i]
            states[row].append(block.states[i])
    outputs = []
    for row, reason in enumerate(finished):
        if reason is None:
            raise ValueError(f"the blocks end before prompt {row} of {prompts} has finished")
        outputs.append(
            Output(tuple(ids[row]), tuple(roles[row]), reason, counts[row], torch.cat(states[row]))
        )
    return outputs
