"""Text in, text out, on models that are in memory already: `generate` and `stream`.

    from distillspec import generate
    print(generate(target, draft, "Hello!", tokenizer=tokenizer).text)

Both run the engine of `distillspec.decoding` over our own models or Hugging Face's, whose configs
and weights they leave as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TypeAlias

import torch
from torch import Generator, Tensor

from distillspec.decoding import Block, Counts, Gammas, Role, collect, speculate
from distillspec.decoding.blocks import Finish, Origin, writer
from distillspec.errors import UserError
from distillspec.math.rules import AS_SAMPLED, Proposal
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.processors import LogitsProcessors, as_processors
from distillspec.models.stopping import StopStrings
from distillspec.models.text import Messages, Raw, TextStream
from distillspec.models.wrapping import HuggingFaceModel, HuggingFaceTokenizer, as_model

Prompt: TypeAlias = str | Raw | Messages | Tensor | Sequence[int]
"""A text (a user's message to a chat model), a text as it stands, messages, or ids."""


@dataclass(frozen=True)
class Completion:
    """What came after one prompt, or one of its samples."""

    prompt: int
    """Index of the prompt."""
    sample: int
    """Which of its n samples, from 0."""
    text: str
    """The text of `ids`, special tokens left out."""
    ids: tuple[int, ...]
    """[L] the tokens, the stop token included; `counts.tokens` is L."""
    roles: tuple[Role, ...]
    """[L] how each of them came about."""
    finish_reason: Finish
    """`stop`, or `length`: the budget or the target's context."""
    counts: Counts
    """Target calls, and tokens drafted, judged and accepted."""

    @property
    def origin(self) -> tuple[Origin, ...]:
        """[L] who wrote each token: `draft` (and the target accepted it) or `target`."""
        return tuple(map(writer, self.roles))


@dataclass(frozen=True)
class Generation:
    """What came after all prompts."""

    completions: tuple[Completion, ...]
    """By prompt, and within it by sample."""

    @property
    def counts(self) -> Counts:
        """The totals."""
        return sum((one.counts for one in self.completions), Counts())

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of every completion."""
        return tuple(one.text for one in self.completions)

    @property
    def text(self) -> str:
        """The text of the only completion.

        Raises:
            UserError: there are several.
        """
        if len(self.completions) != 1:
            raise UserError(f"there are {len(self.completions)} completions; take them by `texts`")
        return self.completions[0].text


@dataclass(frozen=True)
class Piece:
    """What one block added to one completion."""

    prompt: int
    """Index of the prompt."""
    sample: int
    """Which of its n samples, from 0."""
    text: str
    """Text that is certain by now: of a character split over tokens nothing until it is whole.
    The texts of a completion's pieces join to its text."""
    ids: tuple[int, ...]
    """The block's tokens."""
    roles: tuple[Role, ...]
    """How each of them came about."""
    finish_reason: Finish | None
    """Why the completion ends here; None if it goes on."""
    counts: Counts
    """Of this block."""


def generate(
    target: TransformersModel | HuggingFaceModel,
    draft: TransformersModel | HuggingFaceModel | None,
    prompts: Prompt | Sequence[Prompt],
    *,
    tokenizer: HuggingFaceTokenizer | None = None,
    draft_tokenizer: HuggingFaceTokenizer | None = None,
    gamma: int | Gammas = 4,
    max_new_tokens: int = 128,
    sampling: Sampling = GREEDY,
    draft_sampling: Sampling | None = None,
    proposal: Proposal = AS_SAMPLED,
    processors: LogitsProcessors = (),
    stop: Sequence[int | str] | None = None,
    n: int = 1,
    seed: int | Sequence[int] | None = None,
    batch_size: int | None = None,
) -> Generation:
    """Complete every prompt; the output is the target's own, only sooner.

    Args:
        target: The large model, ours (`distillspec.models.load`, `wrap`) or Hugging Face's.
        draft: The small one; None for the target alone.
        prompts: One prompt or several.
        tokenizer: The target's, where it is a Hugging Face model; the draft's too unless given.
        draft_tokenizer: The draft's, to be checked against the target's.
        gamma: Drafted tokens per block, or a rule that chooses them: `Schedule()`, or
            `Optimal(cost)` with a cost from `measure_cost`. Without a draft nothing is drafted.
        max_new_tokens: Tokens per completion, at most.
        sampling: Temperature, top-k and top-p; greedy unless given.
        draft_sampling: The same for the draft; None for the target's.
        proposal: How drafted tokens are judged, as in `distillspec.decoding.speculate`.
        processors: Applied to the logits of both models before the sampling settings: ours
            (`distillspec.math.processors`), or transformers' own, or a list of them.
        stop: Ids and strings that end a completion; strings alone come on top of the target's own
            ids, and an empty list means that nothing but the budget ends it. None for the target's
            own ids. The token that completes a string is kept whole.
        n: Samples per prompt.
        seed: One for the call, of which prompt i's samples depend on i; or one per prompt, whose
            samples are then the same in any company. None for fresh randomness.
        batch_size: Completions decoded at once, at most; the others wait. None for all at once.

    Raises:
        UserError: naming what cannot be used.
    """
    call = _call(target, draft, tokenizer, draft_tokenizer, prompts, n, seed, sampling)
    ids, strings = _stops(stop, call.target)
    blocks = speculate(
        call.target,
        call.draft,
        call.ids,
        gamma=gamma if call.draft is not None else 0,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        draft_sampling=draft_sampling,
        proposal=proposal,
        processors=as_processors(processors),
        stop=ids,
        stop_when=strings,
        generators=call.generators,
        batch_size=batch_size,
    )
    outputs = collect(map(_without_states, blocks), len(call.ids))
    return Generation(
        tuple(
            Completion(
                prompt=row // n,
                sample=row % n,
                text=call.target.tokenizer.decode(output.ids),
                ids=output.ids,
                roles=output.roles,
                finish_reason=output.finish_reason,
                counts=output.counts,
            )
            for row, output in enumerate(outputs)
        )
    )


def stream(
    target: TransformersModel | HuggingFaceModel,
    draft: TransformersModel | HuggingFaceModel | None,
    prompts: Prompt | Sequence[Prompt],
    *,
    tokenizer: HuggingFaceTokenizer | None = None,
    draft_tokenizer: HuggingFaceTokenizer | None = None,
    gamma: int | Gammas = 4,
    max_new_tokens: int = 128,
    sampling: Sampling = GREEDY,
    draft_sampling: Sampling | None = None,
    proposal: Proposal = AS_SAMPLED,
    processors: LogitsProcessors = (),
    stop: Sequence[int | str] | None = None,
    n: int = 1,
    seed: int | Sequence[int] | None = None,
    batch_size: int | None = None,
) -> Iterator[Piece]:
    """Complete every prompt, giving out text as it comes: a piece per block and completion.

    The arguments, and what they are checked for before the first piece, are those of `generate`.
    To stop early, stop iterating: nothing runs between two pieces.
    """
    call = _call(target, draft, tokenizer, draft_tokenizer, prompts, n, seed, sampling)
    ids, strings = _stops(stop, call.target)
    blocks = speculate(
        call.target,
        call.draft,
        call.ids,
        gamma=gamma if call.draft is not None else 0,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        draft_sampling=draft_sampling,
        proposal=proposal,
        processors=as_processors(processors),
        stop=ids,
        stop_when=strings,
        generators=call.generators,
        batch_size=batch_size,
    )
    return _pieces(call, blocks, n)


@dataclass(frozen=True)
class _Call:
    """What the engine needs of a call's arguments."""

    target: TransformersModel
    draft: TransformersModel | None
    ids: list[Tensor]
    generators: list[Generator] | None


def _call(
    target: TransformersModel | HuggingFaceModel,
    draft: TransformersModel | HuggingFaceModel | None,
    tokenizer: HuggingFaceTokenizer | None,
    draft_tokenizer: HuggingFaceTokenizer | None,
    prompts: Prompt | Sequence[Prompt],
    n: int,
    seed: int | Sequence[int] | None,
    sampling: Sampling,
) -> _Call:
    if type(n) is not int or n < 1:
        raise UserError(f"n is {n!r}; expected a whole number of at least 1")
    if not isinstance(sampling, Sampling):
        raise UserError(f"sampling is {sampling!r}; expected a Sampling, as in Sampling(0.7)")
    large = as_model(target, tokenizer, "target")
    small = None
    if draft is not None:
        given = tokenizer if draft_tokenizer is None else draft_tokenizer
        small = as_model(draft, large.tokenizer.hf if given is None else given, "draft")
    ids = [_ids(large, prompt) for prompt in _several(prompts)]
    return _Call(
        large,
        small,
        [one for one in ids for _ in range(n)],
        None if seed is None else _generators(seed, len(ids), n),
    )


def _stops(
    stop: Sequence[int | str] | None, target: TransformersModel
) -> tuple[list[int] | None, StopStrings | None]:
    """Tell ids and strings apart; None where there are none."""
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
    return ids or None, StopStrings(target.tokenizer, strings)


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


def _ids(model: TransformersModel, prompt: Prompt) -> Tensor:
    if isinstance(prompt, Tensor):
        return prompt
    if not isinstance(prompt, (str, Raw)) and len(prompt) and isinstance(prompt[0], Integral):
        return torch.tensor(prompt, dtype=torch.int64)
    return model.tokenizer.prompt(prompt)  # type: ignore[arg-type]  # not ids, by the line above


def _generators(seed: int | Sequence[int], prompts: int, n: int) -> list[Generator]:
    """Make one generator per sample: by the seed and the place, or by the prompt's own seed."""
    given = [seed] if isinstance(seed, Integral) or not isinstance(seed, Sequence) else seed
    for one in given:
        if not isinstance(one, Integral):
            raise UserError(f"a seed is {one!r}; expected a whole number, or one per prompt")
    if isinstance(seed, Integral):
        seeds = [int(seed) * 1_000_003 + i for i in range(prompts)]
    elif len(given) == prompts:
        seeds = [int(one) * 1_000_003 for one in given]
    else:
        raise UserError(f"{len(given)} seeds for {prompts} prompts; give one, or one per prompt")
    # torch's generators take 32 of a seed's bits: samples are set apart within those
    return [
        Generator().manual_seed((one + 65_537 * sample) % 2**63)
        for one in seeds
        for sample in range(n)
    ]


def _without_states(block: Block) -> Block:
    """Drop the hidden states, which nobody asks for here and which fill the memory."""
    return replace(block, states=tuple(states[:0] for states in block.states))


def _pieces(call: _Call, blocks: Iterator[Block], n: int) -> Iterator[Piece]:
    texts: dict[int, TextStream] = {}
    for block in blocks:
        for i, row in enumerate(block.rows):
            text = texts.setdefault(row, TextStream(call.target.tokenizer))
            new, end = text.push(block.ids[i]), block.finished[i]
            if end is not None:
                new += text.finish()
                del texts[row]
            yield Piece(row // n, row % n, new, block.ids[i], block.roles(i), end, block.counts(i))
