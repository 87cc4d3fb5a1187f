"""transformers' own logits processors, for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor
from transformers import LogitsProcessor

from distillspec.errors import UserError
from distillspec.math.processors import Processor

LogitsProcessors: TypeAlias = LogitsProcessor | Processor | Sequence[LogitsProcessor | Processor]

REMEMBERING = (
    "SynthIDTextWatermarkLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "WhisperNoSpeechDetection",
)
"""Processors that keep something from call to call: a rejected token would stay in it."""


@dataclass(frozen=True)
class Adapted:
    """A processor of transformers as a `Processor`; it must depend on nothing but its inputs."""

    processor: LogitsProcessor
    """It is called with input_ids [1, L] and scores [1, V] of each position by itself."""

    def __call__(self, logits: Tensor, prefix: Tensor, prompt_length: int) -> Tensor:
        """Return the [V] scores that it makes of a copy of the logits."""
        scores: Tensor = self.processor(prefix[None], logits.clone()[None])
        return scores[0]


def as_processors(processors: LogitsProcessors) -> tuple[Processor, ...]:
    """Take the engine's processors as they are, one or a list, and adapt transformers' own.

    One of these that was made with a prompt's length, or with what an encoder read, is right for
    that prompt alone.

    Raises:
        UserError: naming one that remembers earlier calls, or is no processor.
    """
    # transformers' LogitsProcessorList can be called too, and is a list
    listed = list(processors) if isinstance(processors, Sequence) else [processors]
    found: list[Processor] = []
    for one in listed:
        if not callable(one):
            raise UserError(f"processors has {one!r}; expected functions of logits and ids")
        found.append(_adapted(one) if isinstance(one, LogitsProcessor) else one)
    return tuple(found)


def _adapted(processor: LogitsProcessor) -> Adapted:
    name = type(processor).__name__
    if name in REMEMBERING:
        raise UserError(
            f"{name} remembers earlier calls, which speculative decoding makes for tokens that it "
            "then rejects: leave it out"
        )
    return Adapted(processor)
