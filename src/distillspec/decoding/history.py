"""The logits of a block's positions, each processed by what comes before it in its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from distillspec.decoding.state import Row
from distillspec.math.precision import at_least_float32
from distillspec.math.processors import Processor, process


class Processed(NamedTuple):
    """Logits to sample from, and where none were left."""

    logits: Tensor
    """[B, n, V] float32 or wider; as they came where processors left no id."""
    empty: Tensor
    """[B, n] bool: where they left none."""


def process_block(
    processors: Sequence[Processor],
    rows: Sequence[Row],
    logits: Tensor,
    drafted: Tensor,
    real: Sequence[int],
) -> Processed:
    """Process the logits of n consecutive positions of every row.

    A drafted token may be one that plain decoding never emits, or lie behind the end of its row,
    so processors may forbid every id after it. That is no error until a token is emitted there:
    the logits stay as they were, and the position is marked.

    Args:
        processors: Applied one after another; at least one.
        rows: The B rows, with the ids that each holds.
        logits: [B, n, V].
        drafted: [B, d] the tokens that follow a row's ids; all d of them come before the last of
            n positions.
        real: How many of the n positions mean something, per row: the leading ones.
    """
    logits = at_least_float32(logits)
    n, d = logits.shape[1], drafted.shape[1]
    changed, empty = logits.clone(), torch.zeros(logits.shape[:2], dtype=torch.bool)
    empty = empty.to(logits.device)
    for i, (row, count) in enumerate(zip(rows, real, strict=True)):
        if count == 0:
            continue
        held = torch.tensor(row.ids, device=logits.device)
        ids = torch.cat([held, drafted[i, : d - (n - count)]])
        given = process(processors, logits[i, :count], ids, row.given)
        empty[i, :count] = given.amax(-1) == -torch.inf
        changed[i, :count] = given
    return Processed(torch.where(empty[..., None], logits, changed), empty)
