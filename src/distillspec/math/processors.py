"""What people do to logits before sampling that depends on the text so far.

A processor is a value: called with one position's logits and the ids before it, it returns the
logits to sample from instead. The same ones are applied to target and draft, each drafted token
counting for the positions after it, so p and q are the distributions that plain decoding with the
same settings samples from; nothing else in speculative decoding changes. Names, meaning and order
are those of transformers where it has the setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from distillspec.errors import UserError
from distillspec.math.precision import at_least_float32

Words = tuple[tuple[int, ...], ...]
"""Sequences of ids, none of them empty."""


class Processor(Protocol):
    """A function of the logits of the next token and the ids before it, without memory."""

    def __call__(self, logits: Tensor, prefix: Tensor, prompt_length: int) -> Tensor:
        """Return the logits to sample the next token from; the inputs stay as they are.

        Args:
            logits: [V] float32 or wider, −inf at ids that cannot be emitted.
            prefix: [L] int64 ids before the position: the prompt and what was emitted after it;
                of an encoder-decoder model the decoder's ids, its start token first.
            prompt_length: How many of them were given, and not emitted.

        Returns:
            [V]; −inf at an id must stay −inf, nan and +inf are errors.
        """
        ...


@dataclass(frozen=True)
class SequenceBias:
    """Add a bias to the token that would complete a sequence (transformers' `sequence_bias`).

    Of one id it is the logit bias of an API.
    """

    biases: tuple[tuple[tuple[int, ...], float], ...]
    """Sequences of ids with what is added to the logit of their last id; −inf forbids it."""

    def __post_init__(self) -> None:
        """Refuse what cannot be added, or never completes."""
        if any(not ids for ids, _ in self.biases):
            raise UserError("a sequence to bias is empty; give at least one id")
        for ids, bias in self.biases:
            if math.isnan(bias) or bias == math.inf:
                raise UserError(
                    f"the bias of {list(ids)} is {bias}: give a finite number, or -inf to forbid it"
                )

    def __call__(self, logits: Tensor, prefix: Tensor, prompt_length: int) -> Tensor:
        """Return the logits with the biases of all sequences that the next token can complete."""
        added = torch.zeros_like(logits)
        for ids, bias in self._groups(logits.dtype, logits.device):
            lead = ids.shape[1] - 1
            if lead <= len(prefix):
                begun = (ids[:, :-1] == prefix[len(prefix) - lead :]).all(-1)  # [n]
                added.index_add_(0, ids[:, -1], torch.where(begun, bias, 0.0))
        return logits + added

    def _groups(self, dtype: torch.dtype, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """Group sequences of one length: [n, length] ids with [n] biases each."""
        if (dtype, device) not in self._made:
            self._made[dtype, device] = [
                (
                    torch.tensor([ids for ids, _ in group], device=device),
                    torch.tensor([bias for _, bias in group], dtype=dtype, device=device),
                )
                for length in sorted({len(ids) for ids, _ in self.biases})
                for group in [[one for one in self.biases if len(one[0]) == length]]
            ]
        return self._made[dtype, device]

    @cached_property
    def _made(self) -> dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor]]]:
        """What `_groups` made: lists of hundreds of words would be made anew at every position."""
        return {}


@dataclass(frozen=True)
class BadWords:
    """Forbid sequences of ids (transformers' `bad_words_ids`): none is ever completed."""

    words: Words
    """The sequences."""

    def __post_init__(self) -> None:
        """Refuse an empty sequence."""
        if not all(self.words):
            raise UserError("a bad word is empty; give at least one id")

    def __call__(self, logits: Tensor, prefix: Tensor, prompt_length: int) -> Tensor:
        """Return the logits, −inf at every id that would complete a word."""
        return self._bias(logits, prefix, prompt_length)

    @cached_property
    def _bias(self) -> SequenceBias:
        return SequenceBias(tuple((word, -math.inf) for word in self.words))


@dataclass(frozen=True)
class RepetitionPenalty:
    """Divide the positive and multiply the negative logits of ids seen, the prompt's included.

    Source: Keskar et al. (2019), CTRL, section 4.1, as transformers has it.
    """

    penalty: float
    """Above 1 repeats less, below 1 more."""

    def __post_init__(self) -> None:
        """Check the penalty."""
        if not 0 < self.penalty < math.inf:
            raise UserError(
                f"repetition_penalty is {self.penalty}: give a number above 0; 1 is off"
            )

    def __call__(self, logits: Tensor, prefix: Tensor, prompt_length: int) -> Tensor:
        """Return the logits with those of the prefix's ids penalised, each once."""
        own = logits[prefix]
        changed = torch.where(own < 0, own * self.penalty, own / self.penalty)
        return logits.scatter(0, prefix, changed)


@dataclass(frozen=True)
class CountPenalty:
    """Lower the logits of ids by how often they were emitted, the prompt not counted.

    Source: the OpenAI API: logit − count · frequency − [count > 0] · presence.
    """

    presence: float = 0.0
    """Subtracted once from the logit of every id emitted before."""
    frequency: float = 0.0
    """Subtracted as many times as the id was emitted."""

    def __post_init__(self) -> None:
        """Check that both are numbers."""
        for name in ("presence", "frequency"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise UserError(f"{name}_penalty is {value}: give a finite number; 0 is off")

    def __call__(self, logits: Tensor, prefix: Tensor, prompt_length: int) -> Tensor:
        """Return the logits less the penalties."""
        emitted = prefix[prompt_length:]
        count = torch.zeros_like(logits).index_add_(
            0, emitted, torch.ones(len(emitted), dtype=logits.dtype, device=logits.device)
        )
        return logits - self.frequency * count - self.presence * (count > 0)


@dataclass(frozen=True)
class NoRepeatNGram:
    """Forbid any n ids in a row that occurred before, in the prompt too."""

    size: int
    """n, at least 1 (transformers' `no_repeat_ngram_size`)."""

    def __post_init__(self) -> None:
        """Check n."""
        if self.size < 1:
            raise UserError(f"no_repeat_ngram_size is {self.size}: give 1 or more, or leave it out")

    def __call__(self, logits: Tensor, prefix: Tensor, prompt_length: int) -> Tensor:
        """Return the logits, −inf at ids that would complete an n-gram again."""
        n, length = self.size, len(prefix)
        if length < n:
            return logits
        windows = prefix.unfold(0, n, 1)  # [L − n + 1, n]
        again = (windows[:, :-1] == prefix[length - n + 1 :]).all(-1)
        # Where the lead differs, the id of its window is not banned: it goes to a spare place.
        banned = torch.zeros(len(logits) + 1, dtype=torch.bool, device=logits.device)
        banned[torch.where(again, windows[:, -1], len(logits))] = True
        return logits.masked_fill(banned[:-1], -math.inf)


@dataclass(frozen=True)
class MinNewTokens:
    """Forbid the ids that end a row before it has emitted so many tokens."""

    count: int
    """Tokens to emit first (transformers' `min_new_tokens`)."""
    stop: tuple[int, ...]
    """The ids that end a row."""

    def __post_init__(self) -> None:
        """Check the count."""
        if self.count < 0:
            raise UserError(f"min_new_tokens is {self.count}: give 0 or more")

    def __call__(self, logits: Tensor, prefix: Tensor, prompt_length: int) -> Tensor:
        """Return the logits, −inf at the stop ids while too little was emitted."""
        if len(prefix) - prompt_length >= self.count or not self.stop:
            return logits
        return logits.index_fill(0, torch.tensor(self.stop, device=logits.device), -math.inf)


def processors_of(
    *,
    sequence_bias: Mapping[tuple[int, ...], float] | None = None,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    no_repeat_ngram_size: int = 0,
    bad_words_ids: Sequence[Sequence[int]] = (),
    min_new_tokens: int = 0,
    stop: Sequence[int] = (),
) -> tuple[Processor, ...]:
    """Make the processors that settings ask for, in the order they are applied.

    That is the order of the arguments: transformers', with the two penalties it lacks behind the
    repetition penalty, as in vLLM. Sampling's temperature, top-k, top-p and min-p come after all.

    Args:
        sequence_bias: What to add to the logit that completes each sequence of ids.
        repetition_penalty: Of ids in prompt and completion; 1 is off.
        frequency_penalty: Per occurrence in the completion; 0 is off.
        presence_penalty: For having occurred in the completion; 0 is off.
        no_repeat_ngram_size: Length of what may not occur twice; 0 is off.
        bad_words_ids: Sequences of ids that may not occur. One that is a stop id alone is
            ignored, as in transformers.
        min_new_tokens: Tokens before the first stop id; 0 is off.
        stop: The ids that end a row.

    Returns:
        As many as are not off, so none for the defaults.

    Raises:
        UserError: naming the setting that cannot be used.
    """
    words = tuple(tuple(word) for word in bad_words_ids if list(word) not in [[i] for i in stop])
    made: list[Processor] = []
    if sequence_bias:
        made.append(SequenceBias(tuple(sequence_bias.items())))
    if repetition_penalty != 1:
        made.append(RepetitionPenalty(repetition_penalty))
    if frequency_penalty != 0 or presence_penalty != 0:
        made.append(CountPenalty(presence_penalty, frequency_penalty))
    if no_repeat_ngram_size != 0:
        made.append(NoRepeatNGram(no_repeat_ngram_size))
    if words:
        made.append(BadWords(words))
    if min_new_tokens != 0:
        made.append(MinNewTokens(min_new_tokens, tuple(stop)))
    return tuple(made)


def process(
    processors: Sequence[Processor], logits: Tensor, ids: Tensor, prompt_length: int
) -> Tensor:
    """Apply processors to the logits of consecutive positions, each at its own prefix.

    Args:
        processors: Applied one after another.
        logits: [n, V] of n positions in a row.
        ids: [L] int64, L ≥ n: all ids before the last position, so that the i-th position's
            prefix is all but the last n − 1 − i of them.
        prompt_length: How many of the ids were given, and not emitted.

    Returns:
        [n, V] in float32 or wider.
    """
    logits = at_least_float32(logits)
    if not processors:
        return logits
    rows = []
    for i, row in enumerate(logits):
        prefix = ids[: len(ids) - len(logits) + 1 + i]
        for processor in processors:
            row = processor(row, prefix, prompt_length)
        rows.append(row)
    return torch.stack(rows)


def check_processors(processors: Sequence[Processor], size: int) -> None:
    """Check that the ids which processors name lie in a vocabulary of `size`.

    Raises:
        UserError: naming the first that does not.
    """
    for processor in processors:
        if isinstance(processor, SequenceBias):
            words: Words = tuple(ids for ids, _ in processor.biases)
        elif isinstance(processor, BadWords):
            words = processor.words
        elif isinstance(processor, MinNewTokens):
            words = (processor.stop,)
        else:
            continue
        for ids in words:
            for i in ids:
                if not 0 <= i < size:
                    raise UserError(
                        f"{type(processor).__name__}: id {i} in {list(ids)} lies outside the "
                        f"vocabulary, 0…{size - 1}"
                    )
