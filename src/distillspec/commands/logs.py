"""The log of a server, read as outputs to judge a draft by."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distillspec.commands.pairs import examples
from distillspec.errors import UserError
from distillspec.math.rules import Rule
from distillspec.models import load_tokenizer
from distillspec.models.text import Tokenizer
from distillspec.studies.logged import LoggedOutputs
from distillspec.tasks import Row


def check_drafts(drafts: Sequence[str]) -> None:
    """Check from the tokenizers alone that a log's tokens are the same to all drafts.

    Raises:
        UserError: naming two drafts to which they are not.
    """
    first, *others = [load_tokenizer(draft) for draft in drafts]
    for other in others:
        if other.vocabulary.pieces != first.vocabulary.pieces:
            raise UserError(
                f"--draft: {first.name} and {other.name} do not share a tokenizer, so that a log's "
                "tokens are not the same to both; judge them one at a time"
            )


def read_log(tokenizer: Tokenizer, rows: Sequence[Row], rule: Rule, *, raw: bool) -> LoggedOutputs:
    """Make ids of a log's prompts and answers.

    Prompts are those of `prompt_ids` where a row has them. Answers logged as text are tokenized
    anew and end with the end-of-sequence token unless they were cut, which may differ from what
    was sampled; ids do not.

    Args:
        tokenizer: The draft's.
        rows: The log.
        rule: That is served.
        raw: Whether the log has prompts as the server rendered them.

    Raises:
        UserError: naming the row that lacks an answer, or what the rule needs of it.
    """
    asked = examples(tokenizer, rows, raw=raw)
    completions = []
    for row, example in zip(rows, asked, strict=True):
        if example.completion is None:
            raise UserError(f"{row.id}: a log needs the answer: give target_ids, or target")
        completions.append(example.completion)
    return LoggedOutputs(
        prompts=tuple(
            given_prompt(tokenizer, row, example.prompt)
            for row, example in zip(rows, asked, strict=True)
        ),
        completions=tuple(completions),
        logprobs=_logprobs(rows) if rule.needs_p else None,
        limits=tuple(
            len(ids) if row.cut else None for row, ids in zip(rows, completions, strict=True)
        ),
    )


def given_prompt(tokenizer: Tokenizer, row: Row, rendered: Tensor) -> Tensor:
    """Return the ids that a server was given: its log's own, or else the prompt as rendered here.

    Raises:
        UserError: the log's are of another tokenizer.
    """
    if row.prompt_ids is None:
        return rendered
    if max(row.prompt_ids) >= tokenizer.vocabulary.size:
        raise UserError(
            f"{row.id}: prompt_ids has {max(row.prompt_ids)}, and {tokenizer.name} knows ids "
            f"below {tokenizer.vocabulary.size}: it is another model's log"
        )
    return torch.tensor(row.prompt_ids)


def _logprobs(rows: Sequence[Row]) -> tuple[Tensor, ...]:
    found = []
    for row in rows:
        if row.target_ids is None or row.target_logprobs is None:
            lacking = "target_ids" if row.target_ids is None else "target_logprobs"
            raise UserError(
                f"{row.id}: --rule ratio needs target_ids and target_logprobs of every answer, and "
                f"{lacking} is missing; log it (generate --logprobs), or give --rule argmax or "
                "exact-match, which need the ids alone"
            )
        found.append(torch.tensor(row.target_logprobs, dtype=torch.float64))
    return tuple(found)
