"""From the flags of `shaping_settings` to values of the engine."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from distillspec.commands.shaping_settings import Shaping
from distillspec.errors import UserError
from distillspec.math.processors import Processor, check_processors, processors_of
from distillspec.models.stopping import StopStrings
from distillspec.models.text import Tokenizer


@dataclass(frozen=True)
class Shape:
    """What the engine is told beside the sampling settings."""

    processors: tuple[Processor, ...]
    """Applied to the logits of both models."""
    stop: tuple[int, ...]
    """The ids that end a text."""
    stop_when: StopStrings | None
    """The strings that end it too."""


def shape_of(settings: Shaping, tokenizer: Tokenizer, ends: tuple[int, ...]) -> Shape:
    """Make of the flags what the engine takes.

    Args:
        settings: The flags.
        tokenizer: The target's.
        ends: The target's own stop ids.

    Raises:
        UserError: naming the flag that cannot be used.
    """
    stop = ends if settings.eos_token_id is None else settings.eos_token_id
    processors = processors_of(
        sequence_bias=dict(_bias(text) for text in settings.logit_bias),
        repetition_penalty=settings.repetition_penalty,
        frequency_penalty=settings.frequency_penalty,
        presence_penalty=settings.presence_penalty,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
        bad_words_ids=_bad_words(settings, tokenizer),
        min_new_tokens=settings.min_new_tokens,
        stop=stop,
    )
    check_processors(processors, tokenizer.vocabulary.size)
    strings = tuple(_unescaped(text, "--stop-strings") for text in settings.stop_strings)
    return Shape(processors, stop, StopStrings(tokenizer, strings) if strings else None)


def _bad_words(settings: Shaping, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Tokenize each word as it stands and as it is in the midst of a text."""
    found: dict[tuple[int, ...], None] = {}
    for text in settings.bad_words:
        word = _unescaped(text, "--bad-words")
        for spelled in (word, f" {word}"):
            ids = tuple(tokenizer.ids(spelled))
            if not ids:
                raise UserError(f"--bad-words {text}: no token of {tokenizer.name} spells it")
            found[ids] = None
    return list(found)


def _bias(text: str) -> tuple[tuple[int, ...], float]:
    token, _, bias = text.partition(":")
    try:
        value = (int(token),), float(bias)
    except ValueError as error:
        raise UserError(f"--logit-bias {text}: expected ID:BIAS, such as 11:-2.5") from error
    if math.isnan(value[1]) or value[1] == math.inf:
        raise UserError(f"--logit-bias {text}: expected a finite bias, or -inf to forbid the token")
    return value


def _unescaped(text: str, flag: str) -> str:
    quoted = text.replace('"', '\\"')
    try:
        return str(json.loads(f'"{quoted}"', strict=False))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{flag} {text!r}: not a JSON escape; write a backslash as two of them"
        ) from error
