"""What is done to the prompts of a task: examples before them, and their length."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

from distillspec.errors import UserError
from distillspec.tasks.rows import Row, normalised
from distillspec.tasks.task import Task


def with_shots(
    task: Task, rows: Sequence[Row], training: Sequence[Row], *, count: int, seed: int
) -> list[Row]:
    """Put the same examples before every prompt.

    Args:
        task: says how an example is written.
        rows: what is evaluated.
        training: rows with targets, from `Task.read_training`.
        count: how many examples to draw.
        seed: of the draw.

    Raises:
        UserError: there are fewer examples than `count`, an example has no target, or its prompt
            is, but for case and blanks, one that is evaluated.
    """
    if not 0 <= count <= len(training):
        raise UserError(f"{count} examples: expected 0 to {len(training)}, the training rows")
    evaluated = {normalised(row): row.id for row in rows}
    text = ""
    for row in random.Random(seed).sample(list(training), count):
        same = evaluated.get(normalised(row))
        if same is not None:
            raise UserError(
                f"the example {row.id} is also evaluated, as {same}; take examples from training "
                "rows"
            )
        if row.target is None:
            raise UserError(f"the example {row.id} has no target to show")
        # Filled in one go: an example's text may itself hold the word {target}.
        before, between = task.shot.split("{prompt}")
        middle, after = between.split("{target}")
        text += f"{before}{row.prompt}{middle}{row.target}{after}"
    return [dataclasses.replace(row, prompt=f"{text}{row.prompt}") for row in rows]


def shortened(task: Task, row: Row, tokens: Callable[[str], int]) -> Row:
    """Cut the end of a row's input so that its prompt keeps to the task's `max_input_tokens`.

    The template's text around the input stays whole.

    Args:
        task: the row's task.
        row: a row without examples before its prompt.
        tokens: counts the tokens of a prompt.

    Raises:
        UserError: the template alone is too long.
    """
    prompt = str(row.prompt)
    most = task.max_input_tokens
    if most is None or tokens(prompt) <= most:
        return row
    head, tail = task.prompt.split("{input}")
    text = prompt[len(head) : len(prompt) - len(tail)]
    fits, too_many = 0, len(text)  # characters of the input
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if tokens(f"{head}{text[:middle]}{tail}") <= most:
            fits = middle
        else:
            too_many = middle
    if fits == 0:
        raise UserError(
            f"{task.name}: {row.id}: no input fits into {most} tokens beside the prompt"
        )
    return dataclasses.replace(row, prompt=f"{head}{text[:fits].rstrip()}{tail}")
