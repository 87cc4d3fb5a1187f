"""Text in, text out, on models that are in memory already: `generate` and `stream`.

    from distillspec import generate
    print(generate(target, draft, "Hello!", tokenizer=tokenizer).text)

Both run the engine of `distillspec.decoding` over our own models or Hugging Face's, whose configs
and weights they leave as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from distillspec.decoding import Block, Counts, Gammas, Role, collect, speculate
from distillspec.decoding.blocks import Finish, Origin, writer
from distillspec.errors import UserError
from distillspec.math.rules import AS_SAMPLED, Proposal
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.processors import LogitsProcessors, as_processors
from distillspec.models.requests import Prompt, as_generators, as_ids, as_stops
from distillspec.models.text import TextStream, Tokenizer
from distillspec.models.wrapping import HuggingFaceModel, HuggingFaceTokenizer, as_model


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
    call = _start(
        target,
        draft,
        prompts,
        tokenizer=tokenizer,
        draft_tokenizer=draft_tokenizer,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        draft_sampling=draft_sampling,
        proposal=proposal,
        processors=processors,
        stop=stop,
        n=n,
        seed=seed,
        batch_size=batch_size,
    )
    outputs = collect(map(_without_states, call.blocks), call.rows)
    return Generation(
        tuple(
            Completion(
                prompt=row // n,
                sample=row % n,
                text=call.tokenizer.decode(output.ids),
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
    call = _start(
        target,
        draft,
        prompts,
        tokenizer=tokenizer,
        draft_tokenizer=draft_tokenizer,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        draft_sampling=draft_sampling,
        proposal=proposal,
        processors=processors,
        stop=stop,
        n=n,
        seed=seed,
        batch_size=batch_size,
    )
    return _pieces(call, n)


@dataclass(frozen=True)
class _Call:
    """A call whose arguments have been checked."""

    tokenizer: Tokenizer
    """The target's."""
    rows: int
    """Completions: n of each prompt, one after the other."""
    blocks: Iterator[Block]
    """Of the engine, still to run."""


def _start(
    target: TransformersModel | HuggingFaceModel,
    draft: TransformersModel | HuggingFaceModel | None,
    prompts: Prompt | Sequence[Prompt],
    *,
    tokenizer: HuggingFaceTokenizer | None,
    draft_tokenizer: HuggingFaceTokenizer | None,
    gamma: int | Gammas,
    max_new_tokens: int,
    sampling: Sampling,
    draft_sampling: Sampling | None,
    proposal: Proposal,
    processors: LogitsProcessors,
    stop: Sequence[int | str] | None,
    n: int,
    seed: int | Sequence[int] | None,
    batch_size: int | None,
) -> _Call:
    """Check the arguments, which are those of `generate`, and start the engine."""
    if type(n) is not int or n < 1:
        raise UserError(f"n is {n!r}; expected a whole number of at least 1")
    if not isinstance(sampling, Sampling):
        raise UserError(f"sampling is {sampling!r}; expected a Sampling, as in Sampling(0.7)")
    large = as_model(target, tokenizer, "target")
    small = None
    if draft is not None:
        given = tokenizer if draft_tokenizer is None else draft_tokenizer
        small = as_model(draft, large.tokenizer.hf if given is None else given, "draft")
    ids = as_ids(prompts, large.tokenizer)
    generators = as_generators(seed, len(ids), n)
    stop_ids, stop_strings = as_stops(stop, large.tokenizer)
    rows = [one for one in ids for _ in range(n)]
    blocks = speculate(
        large,
        small,
        rows,
        gamma=gamma if small is not None else 0,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        draft_sampling=draft_sampling,
        proposal=proposal,
        processors=as_processors(processors),
        stop=stop_ids,
        stop_when=stop_strings,
        generators=generators,
        batch_size=batch_size,
    )
    return _Call(large.tokenizer, len(rows), blocks)


def _without_states(block: Block) -> Block:
    """Drop the hidden states, which nobody asks for here and which fill the memory."""
    return replace(block, states=tuple(states[:0] for states in block.states))


def _pieces(call: _Call, n: int) -> Iterator[Piece]:
    texts: dict[int, TextStream] = {}
    for block in call.blocks:
        for i, row in enumerate(block.rows):
            text = texts.setdefault(row, TextStream(call.tokenizer))
            new, end = text.push(block.ids[i]), block.finished[i]
            if end is not None:
                new += text.finish()
                del texts[row]
            yield Piece(row // n, row % n, new, block.ids[i], block.roles(i), end, block.counts(i))
