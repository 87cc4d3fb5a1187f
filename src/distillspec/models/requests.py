"""What a caller asks for, in any form that people give it in: prompts, stops and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TypeAlias

import torch
from torch import Generator, Tensor

from distillspec.errors import UserError
from distillspec.models.seeds import row_seed
from distillspec.models.stopping import StopStrings
from distillspec.models.text import Messages, Raw, Tokenizer

Prompt: TypeAlias = str | Raw | Messages | Tensor | Sequence[int]
"""A text (a user's message to a chat model), a text as it stands, messages, or ids."""


def as_ids(prompts: Prompt | Sequence[Prompt], tokenizer: Tokenizer) -> list[Tensor]:
    """Return the 1-D int64 ids of one prompt or several.

    Raises:
        UserError: they are something else, or a text cannot be a prompt.
    """
    return [_ids(prompt, tokenizer) for prompt in _several(prompts)]


def as_stops(
    stop: Sequence[int | str] | None, tokenizer: Tokenizer
) -> tuple[list[int] | None, StopStrings | None]:
    """Tell ids and strings that end a completion apart; None where there are none.

    Raises:
        UserError: it is no list of such.
    """
    if isinstance(stop, (str, Integral)):  # a text is a list of its characters, to Python
        raise UserError(f"stop is {stop!r}; expected a list of ids and strings: stop=[{stop!r}]")
    listed = () if stop is None else tuple(stop)
    for one in listed:
        if not isinstance(one, (str, Integral)):
            raise UserError(f"stop has {one!r}; expected ids and strings")
    ids = None if stop is None else [int(one) for one in listed if not isinstance(one, str)]
    strings = tuple(one for one in listed if isinstance(one, str))
    if not strings:
        return ids, None
    return ids or None, StopStrings(tokenizer, strings)


def as_generators(seed: int | Sequence[int] | None, prompts: int, n: int) -> list[Generator] | None:
    """Make one generator per sample: by the seed and the place, or by the prompt's own seed.

    Args:
        seed: One for all, or one per prompt; None for fresh randomness, which has no generators.
        prompts: How many there are.
        n: Samples of each.

    Raises:
        UserError: it is neither, or there are not as many as prompts.
    """
    if seed is None:
        return None
    given = [seed] if isinstance(seed, Integral) or not isinstance(seed, Sequence) else seed
    for one in given:
        if not isinstance(one, Integral):
            raise UserError(f"a seed is {one!r}; expected a whole number, or one per prompt")
    if isinstance(seed, Integral):
        seeds = [row_seed(int(seed), i) for i in range(prompts)]
    elif len(given) == prompts:
        seeds = [row_seed(int(one), 0) for one in given]
    else:
        raise UserError(f"{len(given)} seeds for {prompts} prompts; give one, or one per prompt")
    # torch's generators take 32 of a seed's bits: samples are set apart within those
    return [
        Generator().manual_seed((one + 65_537 * sample) % 2**63)
        for one in seeds
        for sample in range(n)
    ]


def _several(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Make a list of what may be a single prompt: a text, ids, or a conversation."""
    if isinstance(prompts, (str, Raw, Tensor)):
        return [prompts]
    # A tokenizer's output would be read as the texts "input_ids" and "attention_mask"
    if isinstance(prompts, Mapping) or not hasattr(prompts, "__getitem__"):
        raise UserError(
            f"the prompts are a {type(prompts).__name__}; expected a text, messages (a list), ids "
            "(such as a tokenizer's input_ids), or a list of such prompts"
        )
    first = prompts[0] if len(prompts) else None
    return [prompts] if isinstance(first, (Integral, Mapping)) else prompts  # type: ignore[list-item,return-value]  # told apart by the first element, which types cannot say


def _ids(prompt: Prompt, tokenizer: Tokenizer) -> Tensor:
    if isinstance(prompt, Tensor):
        return prompt
    if not isinstance(prompt, (str, Raw)) and len(prompt) and isinstance(prompt[0], Integral):
        return torch.tensor(prompt, dtype=torch.int64)
    return tokenizer.prompt(prompt)  # type: ignore[arg-type]  # not ids, by the line above
