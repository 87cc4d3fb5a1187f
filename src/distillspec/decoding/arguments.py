"""What can be wrong with the arguments of a run, each told in one line before any work is done."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from distillspec.decoding.blocks import Block
from distillspec.errors import UserError
from distillspec.models.protocol import LanguageModel
from distillspec.models.vocabulary import check_same


def own_generators(generators: Sequence[Generator] | None, count: int) -> Sequence[Generator]:
    """Check the generators, or make as many freshly seeded ones."""
    if generators is None:
        fresh = [Generator() for _ in range(count)]
        for generator in fresh:
            generator.seed()  # from the system's entropy, so the global RNG stays as it was
        return fresh
    if not len(generators) == len(set(generators)) == count:
        raise UserError(
            f"{len(generators)} generators ({len(set(generators))} different) given for {count} "
            "prompts; give every prompt one of its own"
        )
    return generators


def check_counts(max_new_tokens: int, batch_size: int) -> None:
    """Check that the budget and the batch size are whole numbers ≥ 1."""
    for name, value in (("max_new_tokens", max_new_tokens), ("batch_size", batch_size)):
        if type(value) is not int or value < 1:
            raise UserError(f"{name} is {value!r}; expected a whole number of at least 1")


def check_pair(target: LanguageModel, draft: LanguageModel | None, gamma: int) -> None:
    """Check that there is a draft to speculate with, and that it shares the target's ids."""
    if draft is not None:
        check_same(target.vocabulary, draft.vocabulary, names=(target.name, draft.name))
    elif gamma > 0:
        raise UserError(f"gamma is {gamma} but there is no draft; give one, or set gamma to 0")


def check_ids(target: LanguageModel, prompts: Sequence[Tensor], stop: Sequence[int]) -> None:
    """Check that the prompts fit the target and that every id lies in its vocabulary."""
    size = target.vocabulary.size
    if len(prompts) == 0:
        raise UserError("there are no prompts; give at least one")
    for i, prompt in enumerate(prompts):
        if prompt.dim() != 1 or prompt.dtype != torch.int64 or len(prompt) == 0:
            raise UserError(
                f"prompt {i} is a {prompt.dtype} tensor of shape {list(prompt.shape)}; "
                "expected a 1-D int64 tensor of at least one id"
            )
        held = len(target.prefix(prompt))  # an encoder has a limit of its own
        if target.context is not None and held > target.context:
            raise UserError(
                f"prompt {i} has {held} tokens, more than the context of {target.context} "
                f"of {target.name}; shorten it"
            )
        if not 0 <= int(prompt.min()) <= int(prompt.max()) < size:
            raise UserError(f"prompt {i} has ids outside 0…{size - 1}, those of {target.name}")
    for token in stop:
        if not 0 <= token < size:
            raise UserError(f"stop id {token} lies outside 0…{size - 1}, those of {target.name}")


def check_sayable(empty: Tensor, block: Block) -> None:
    """Check that the processors left something to say wherever a token was emitted.

    Args:
        empty: [B, w+1] bool, the positions at which they forbade every id.
        block: What was emitted.
    """
    for row, ids, none in zip(block.rows, block.ids, empty.tolist(), strict=True):
        if any(none[: len(ids)]):
            raise UserError(
                f"prompt {row}: the settings forbid every token that could come next; loosen what "
                "bans tokens (bad_words_ids, no_repeat_ngram_size, min_new_tokens, a processor)"
            )
