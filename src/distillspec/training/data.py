"""What a step trains on: examples, their order, and completions sampled by our own engine.

The order is a function of the seed and the step, so a position in the data is one number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from distillspec.decoding import Output, complete
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.modes import evaluation_mode
from distillspec.models.protocol import LanguageModel
from distillspec.training.randomness import generator

WINDOW = 16
"""Batches whose examples are sorted by length together: enough to halve the padding, few enough
that a batch is still a nearly random sample."""


@dataclass(frozen=True)
class Example:
    """One prompt, with its completion where the dataset has one."""

    prompt: Tensor
    """1-D int64 ids, at least one."""
    completion: Tensor | None = None
    """1-D int64 ids, at least one, with the end-of-sequence token if it ends; None if only
    sampled completions are wanted."""

    def __post_init__(self) -> None:
        """Refuse a prompt or completion that no model could score."""
        for name, ids in (("prompt", self.prompt), ("completion", self.completion)):
            if ids is not None and (ids.dim() != 1 or len(ids) == 0 or ids.dtype != torch.int64):
                raise ValueError(
                    f"a {name} must be a 1-D int64 tensor with at least one id, "
                    f"got {ids.dtype} {list(ids.shape)}"
                )

    @property
    def length(self) -> int:
        """Prompt and completion together, in tokens."""
        return len(self.prompt) + (0 if self.completion is None else len(self.completion))


class Batches:
    """Endless shuffled epochs over a list of examples, in batches of similar length.

    Each epoch visits every example once. Its last batch in the shuffled order may be smaller.
    """

    def __init__(self, examples: Sequence[Example], batch_size: int) -> None:
        """Store the examples; nothing is random before `at`."""
        if not examples:
            raise UserError("there are no examples to train on; give at least one")
        self.examples = tuple(examples)
        self.batch_size = batch_size
        self._epoch: tuple[tuple[int, int], list[tuple[int, ...]]] | None = None

    @property
    def per_epoch(self) -> int:
        """How many batches one epoch has."""
        return -(-len(self.examples) // self.batch_size)

    def at(self, step: int, seed: int) -> tuple[int, ...]:
        """Return the indices of the examples of step number `step` (from 0).

        A pure function of its arguments: asking for any step in any order gives the same answer.
        """
        epoch, position = divmod(step, self.per_epoch)
        if self._epoch is None or self._epoch[0] != (epoch, seed):
            self._epoch = ((epoch, seed), self._shuffled(epoch, seed))
        return self._epoch[1][position]

    def _shuffled(self, epoch: int, seed: int) -> list[tuple[int, ...]]:
        """Shuffle the examples, sort them by length within windows, shuffle the batches."""
        source = generator(seed, "epoch", epoch)
        order: list[int] = torch.randperm(len(self.examples), generator=source).tolist()
        span = WINDOW * self.batch_size
        batches = []
        for start in range(0, len(order), span):
            # Sorting is stable, so equal lengths keep their shuffled order.
            window = sorted(order[start : start + span], key=lambda i: self.examples[i].length)
            batches += [
                tuple(window[i : i + self.batch_size])
                for i in range(0, len(window), self.batch_size)
            ]
        return [batches[i] for i in torch.randperm(len(batches), generator=source).tolist()]

    def digest(self) -> str:
        """Return a SHA-256 of every id in order, by which a resumed run knows its data."""
        total = hashlib.sha256(f"{self.batch_size}".encode())
        for example in self.examples:
            completion = None if example.completion is None else example.completion.tolist()
            total.update(f"{example.prompt.tolist()}|{completion}\n".encode())
        return total.hexdigest()


@dataclass(frozen=True)
class Part:
    """The rows of a step's batch that go through one pass of one process."""

    rows: range
    """Their places in the batch, at least one."""
    counts: bool
    """False for a row that another pass counts: it is there so that all processes make the same
    number of passes, which those that share weights must."""


def parts_of(
    count: int, processes: int = 1, index: int = 0, *, rows_at_once: int | None = None
) -> list[Part]:
    """Cut a batch into contiguous shares, one a process, and the share of one into parts.

    Args:
        count: Rows in the batch, at least one.
        processes: How many share it.
        index: Whose parts are asked for.
        rows_at_once: Rows in a part, at most; None for a whole share.
    """
    share = _cut(range(count), processes)[index]
    most = -(-count // processes)
    passes = 1 if rows_at_once is None else -(-most // rows_at_once)
    spare = (share or range(count))[-1:]
    return [Part(rows or spare, bool(rows)) for rows in _cut(share, passes)]


def _cut(rows: range, pieces: int) -> list[range]:
    """Cut into contiguous pieces whose sizes differ by one at most."""
    edges = [len(rows) * i // pieces for i in range(pieces + 1)]
    return [rows[edges[i] : edges[i + 1]] for i in range(pieces)]


def rollout(
    writer: LanguageModel,
    prompts: Sequence[Tensor],
    *,
    ahead: LanguageModel | None = None,
    gamma: int = 0,
    max_new_tokens: int,
    stop: Sequence[int],
    generators: Sequence[Generator],
) -> list[Output]:
    """Sample one completion per prompt, at temperature 1 and without truncation.

    The paper's Appendix B samples its data so; a lower temperature harms (C.1.3).

    Args:
        writer: The draft (on-policy data) or the target (target data), whose law is sampled.
        prompts: 1-D int64 ids, one tensor a row.
        ahead: A draft that writes ahead of it, which changes the seconds and not the law.
        gamma: Tokens it writes ahead; 0 without one.
        max_new_tokens: The length limit in tokens.
        stop: Ids that end a completion: the target's, whichever model writes.
        generators: One per prompt; a row depends on its own only.

    Returns:
        One output per prompt, of 1…max_new_tokens ids, the stop token included.
    """
    with ExitStack() as modes:
        for model in (writer,) if ahead is None else (writer, ahead):
            modes.enter_context(evaluation_mode(model.module))
        return complete(
            writer,
            ahead,
            prompts,
            gamma=gamma,
            max_new_tokens=max_new_tokens,
            sampling=Sampling(),
            stop=stop,
            generators=generators,
        )
