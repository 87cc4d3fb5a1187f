"""How many tokens a block drafts: a constant, transformers' schedule, or the online optimum.

A rule is a value; what it learns while running lives in a `Chooser`, made anew for every run, so
that the same call twice gives the same blocks. A choice may depend on past blocks alone: never on
this block's uniforms, nor on what is drafted in it. Given the past, every block is then a block of
a fixed γ, which is lossless, and so is the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from distillspec.decoding.blocks import Block
from distillspec.errors import UserError
from distillspec.math.forecast import Cost, block_efficiency_iid, speedup


class Chooser(Protocol):
    """A rule at work in one run."""

    def choose(self, rows: Sequence[int], unseen: Sequence[int]) -> Sequence[int]:
        """Say how many tokens each row may draft in the next block, 0…limit.

        Args:
            rows: [B] indices into the prompts.
            unseen: [B] tokens that the draft must read before it writes the first, 1 or more.
        """
        ...

    def observe(self, block: Block) -> None:
        """Take note of the block that came of the last choice."""
        ...


@runtime_checkable
class Gammas(Protocol):
    """A rule that chooses γ for every block."""

    @property
    def limit(self) -> int:
        """The largest γ it ever chooses. Each row draws 2·limit + 1 uniforms a block."""
        ...

    def chooser(self) -> Chooser:
        """Return the rule at its beginning."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same γ for every block. A row's output is what it is alone."""

    gamma: int
    """Tokens to draft per block, 0 or more; 0 is autoregressive decoding."""

    def __post_init__(self) -> None:
        """Refuse what is no count."""
        if type(self.gamma) is not int or self.gamma < 0:
            raise UserError(f"gamma is {self.gamma!r}; expected a whole number of at least 0")

    @property
    def limit(self) -> int:
        """γ itself."""
        return self.gamma

    def chooser(self) -> Constant:
        """Return itself: it learns nothing."""
        return self

    def choose(self, rows: Sequence[int], unseen: Sequence[int]) -> Sequence[int]:
        """Say γ for every row."""
        return [self.gamma] * len(rows)

    def observe(self, block: Block) -> None:
        """Learn nothing."""


@dataclass(frozen=True)
class Schedule:
    """transformers' `heuristic` schedule, row by row: a row's output is what it is alone.

    After a block whose drafted tokens were all accepted two more are drafted, after any other one
    less, but at least one. It knows no cost, and never stops drafting. transformers keeps the
    number from one call to the next; here each run begins anew, as in its `heuristic_transient`.
    """

    start: int = 20
    """γ of the first block; 20 is transformers' default."""
    limit: int = 64
    """The largest γ; transformers has none."""

    def __post_init__(self) -> None:
        """Refuse what is no count, and a start outside 1…limit."""
        for name in ("start", "limit"):
            if type(getattr(self, name)) is not int:
                raise UserError(f"{name} is {getattr(self, name)!r}; expected a whole number")
        if not 1 <= self.start <= self.limit:
            raise UserError(f"the schedule starts at γ = {self.start}, outside 1…{self.limit}")

    def chooser(self) -> _Scheduled:
        """Return the schedule with every row at its start."""
        return _Scheduled(self)


@dataclass
class _Scheduled:
    rule: Schedule
    gammas: dict[int, int] = field(default_factory=dict)

    def choose(self, rows: Sequence[int], unseen: Sequence[int]) -> Sequence[int]:
        return [self.gammas.get(row, self.rule.start) for row in rows]

    def observe(self, block: Block) -> None:
        for i, row in enumerate(block.rows):
            gamma = self.gammas.get(row, self.rule.start)
            if block.drafted[i]:
                step = 2 if block.accepted[i] == block.drafted[i] else -1
                gamma = min(max(1, gamma + step), self.rule.limit)
            self.gammas[row] = gamma
            if block.finished[i]:
                del self.gammas[row]


@dataclass(frozen=True)
class Optimal:
    """The γ that a measured cost and the acceptance so far make the fastest, 0 included.

    One γ for the whole batch, since its rows share every pass. The acceptance α is a running
    ratio of accepted to judged tokens over all rows, in which old blocks count less and less; the
    γ of the next block maximises τ(α, γ) / block(γ), with τ by the i.i.d. formula.

    Where that is 0, one drafted token is tried after `pause` blocks, and after twice as many each
    time it is rejected.

    A ledger bounds the regret. It holds the seconds, by the cost model, that the run has taken
    beyond autoregressive decoding of the same tokens. A block may draft only if the ledger, should
    all its tokens be rejected, stays below allowance + rate · T plain blocks, T being the tokens
    so far of a row. What the draft must read of the tokens it has missed is charged too: where
    reading alone costs more than `rate` of the time, a draft that has failed is not tried again
    before other rows come. So a draft that is never right costs at most 3 % from 40 tokens on.

    A greedy row's output is what it is alone. A sampled row follows the target's law, but which
    sample it is depends on the γ, and so on the rows beside it.
    """

    cost: Cost
    """The seconds of passes and blocks at the batch size that is decoded, on this machine."""
    memory: float = 64.0
    """Judged tokens after which an observation counts 1/e of what it did."""
    prior: float = 0.7
    """The acceptance believed in before any token was judged."""
    weight: float = 4.0
    """Judged tokens that this belief is worth."""
    pause: int = 16
    """Blocks without drafting before the first new try."""
    allowance: float = 1.0
    """Plain blocks that may be lost in any case."""
    rate: float = 0.005
    """Share of the time without a draft that may be lost beside that."""

    def __post_init__(self) -> None:
        """Refuse what no estimate or ledger can work with."""
        if not 0 <= self.prior <= 1:
            raise UserError(f"prior is {self.prior}: an acceptance lies in 0…1")
        for name in ("memory", "weight", "pause", "allowance", "rate"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}: expected a number above 0")

    @property
    def limit(self) -> int:
        """The largest γ whose target pass was timed."""
        return len(self.cost.target) - 1

    def chooser(self) -> _Optimiser:
        """Return the rule with nothing seen."""
        return _Optimiser(self, idle=self.pause, pause=self.pause)

    def best(self, alpha: float) -> int:
        """Return the fastest γ for an acceptance rate; of equally fast ones the smallest."""
        return max(range(self.limit + 1), key=lambda gamma: self.speedup(alpha, gamma))

    @property
    def hopeless(self) -> bool:
        """Whether even a draft that is always right would not pay."""
        return self.best(1.0) == 0

    def reading(self, unseen: int) -> float:
        """Estimate the seconds that the draft takes to read tokens before the pending one.

        The draft was timed over one token only; its longer passes are taken to grow as the
        target's do, and beyond the longest one by the slope of a line through the first and last.
        """
        target, more = self.cost.target, unseen - 1
        if more < len(target):
            grown = target[more] - target[0]
        elif len(target) > 1:
            grown = (target[-1] - target[0]) * more / (len(target) - 1)
        else:
            grown = 0.0
        return max(0.0, grown) * self.cost.c

    def speedup(self, alpha: float, gamma: int) -> float:
        """Forecast how much faster than γ = 0 a γ is at an i.i.d. acceptance rate."""
        return speedup(block_efficiency_iid(alpha, gamma), gamma, self.cost)


@dataclass
class _Optimiser:
    rule: Optimal
    idle: int
    """Blocks since one drafted."""
    pause: int
    """Blocks to wait before a new try."""
    accepted: float = 0.0
    """Discounted tokens accepted."""
    judged: float = 0.0
    """Discounted tokens judged."""
    tokens: float = 0.0
    """Tokens so far of a row, the mean over the rows of each block."""
    lost: float = 0.0
    """Seconds beyond autoregressive decoding; below 0 where drafting has paid."""
    reading: float = 0.0
    """Seconds of reading that the block to come would begin with."""
    trying: bool = False
    """Whether the block to come drafts although that is not believed to pay."""

    @property
    def alpha(self) -> float:
        """The acceptance believed in now."""
        rule = self.rule
        return (self.accepted + rule.prior * rule.weight) / (self.judged + rule.weight)

    def choose(self, rows: Sequence[int], unseen: Sequence[int]) -> Sequence[int]:
        rule = self.rule
        self.reading = rule.reading(max(unseen, default=1))
        if rule.hopeless:
            return [0] * len(rows)
        affordable = [0, *(gamma for gamma in range(1, rule.limit + 1) if self._affordable(gamma))]
        gamma = max(affordable, key=lambda gamma: rule.speedup(self.alpha, gamma))
        self.trying = not gamma and self.idle >= self.pause and 1 in affordable
        if self.trying:
            gamma = 1  # the cheapest try that can teach anything
        elif gamma:
            self.pause = rule.pause
        return [gamma] * len(rows)

    def observe(self, block: Block) -> None:
        cost, drafted = self.rule.cost, max(block.drafted)
        judged, accepted = sum(block.judged), sum(block.accepted)
        kept = math.exp(-judged / self.rule.memory)
        self.accepted = kept * self.accepted + accepted
        self.judged = kept * self.judged + judged
        tokens = sum(map(len, block.ids)) / len(block.rows)
        self.tokens += tokens
        self.lost += cost.block(drafted) - tokens * cost.block(0)
        if not drafted:
            self.idle += 1
            return
        self.lost += self.reading
        if self.trying and accepted < judged:
            self.pause *= 2
        self.idle = 0 if accepted < judged else self.pause

    def _affordable(self, gamma: int) -> bool:
        """Whether the ledger bears a block of γ drafted tokens that are all rejected."""
        rule, plain = self.rule, self.rule.cost.block(0)
        bound = (rule.allowance + rule.rate * self.tokens) * plain
        return self.lost + rule.cost.block(gamma) + self.reading - plain <= bound


def as_gammas(gamma: int | Gammas) -> Gammas:
    """Read a whole number as a constant.

    Raises:
        UserError: it is neither that nor a rule.
    """
    rule = isinstance(gamma, Gammas) and not isinstance(gamma, type)  # Schedule is none, but its ()
    return gamma if isinstance(gamma, Gammas) and rule else Constant(gamma)  # type: ignore[arg-type]  # refused by it
