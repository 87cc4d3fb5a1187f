"""What an engine wrote and counted, from a file: for engines that run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distillspec.commands.pairs import rows_of
from distillspec.errors import UserError
from distillspec.studies.serving import Answered
from distillspec.tasks import Row


def by_file(
    flag: str, path: str, rows: Sequence[Row], prompts: Sequence[Tensor], *, size: int
) -> tuple[list[Tensor], list[Answered]]:
    """Read the answers to the prompts.

    Args:
        flag: What names the file, for messages.
        path: JSON lines with `id`, `target_ids`, `counts`, and where known `prompt_ids`,
            `finish_reason` and `blocks`.
        rows: The prompts, whose ids the file has too.
        prompts: Their ids as the target's tokenizer makes them.
        size: How many ids the target knows.

    Returns:
        The prompts' ids as the engine was given them, and its answers.

    Raises:
        UserError: naming the prompt that the file lacks, or what its line lacks.
    """
    found = {row.id: row for row in rows_of(path, None, skip_invalid=False)}
    given, answered = [], []
    for row, prompt in zip(rows, prompts, strict=True):
        one = found.get(row.id)
        if one is None:
            raise UserError(f"{flag} {path}: no line has the id {row.id!r}, which --prompts has")
        if one.target_ids is None or one.counts is None:
            raise UserError(f"{flag} {path}: {row.id} needs target_ids and counts")
        if one.counts.calls == 0 and len(one.target_ids) > one.counts.alone:
            raise UserError(
                f"{flag} {path}: {row.id} counts no calls, and {len(one.target_ids)} tokens"
            )
        if one.text != row.text:
            raise UserError(f"{flag} {path}: {row.id} answers another prompt than --prompts has")
        highest = max((*one.target_ids, *(one.prompt_ids or ())))
        if highest >= size:
            raise UserError(
                f"{flag} {path}: {row.id} has the id {highest}, and --target knows ids below "
                f"{size}: another model wrote it"
            )
        given.append(prompt if one.prompt_ids is None else torch.tensor(one.prompt_ids))
        answered.append(
            Answered(
                ids=torch.tensor(one.target_ids),
                reason=one.finish_reason,
                calls=one.counts.calls,
                drafted=one.counts.drafted,
                accepted=one.counts.accepted,
                seconds=one.counts.seconds,
                alone=one.counts.alone,
                blocks=one.blocks,
            )
        )
    return given, answered
