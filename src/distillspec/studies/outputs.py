"""Target outputs and what one teacher-forced pass of both models says of them.

The outputs are the ground of every figure: made once for a pair of (target, sampler), they serve
any number of drafts, which makes comparisons between drafts paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from distillspec.decoding import Block, Output, collect, speculate
from distillspec.decoding.stopping import Stop
from distillspec.math.processors import Processor
from distillspec.math.rules import Rule
from distillspec.math.sampling import Sampling
from distillspec.models.protocol import Batch, LanguageModel
from distillspec.models.seeds import row_seed
from distillspec.training.cache import states_of

ROWS = 256
"""Positions whose two [V] distributions are in memory at once: 100 MB at V = 49,152."""
GROUP = 256
"""Outputs whose hidden states are in memory at once: 0.5 GB a model for 256 tokens each in bf16 at
H = 4,096, and still enough for batches of like lengths."""

Report = Callable[[int, int], None]
"""Called with (done, total) after each step of long work."""


@dataclass(frozen=True)
class TargetOutputs:
    """What a target wrote after some prompts."""

    prompts: tuple[Tensor, ...]
    """1-D int64 ids of each prompt."""
    completions: tuple[Tensor, ...]
    """1-D int64 ids of each completion, the stop token included."""
    states: tuple[Tensor, ...]
    """[L, H] hidden states of the target that predict each completion token."""
    sampling: Sampling
    """The settings they were sampled at."""
    limits: tuple[int | None, ...] | None = None
    """Length at which each was cut, None for one that ended by itself; None where not known."""

    @staticmethod
    def of(
        prompts: Sequence[Tensor], outputs: Sequence[Output], sampling: Sampling
    ) -> TargetOutputs:
        """Take what the engine put out: ids, and the states they were verified with."""
        return TargetOutputs(
            prompts=tuple(prompts),
            completions=tuple(torch.tensor(output.ids) for output in outputs),
            states=tuple(output.states for output in outputs),
            sampling=sampling,
            limits=tuple(
                len(output.ids) if output.finish_reason == "length" else None for output in outputs
            ),
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[prompts] completion lengths in tokens."""
        return np.array([len(completion) for completion in self.completions], dtype=np.int64)


@dataclass(frozen=True)
class Scores:
    """What a draft would have done on some outputs, token by token, one entry a prompt."""

    acceptance: tuple[Tensor, ...] | None
    """float64 [L] each: the chance that a drafted token is accepted there, over what the draft
    might draft (Σ_v min(p, q) under the ratio test); None where the target was not at hand."""
    ratios: tuple[Tensor, ...]
    """float64 [L] each: r_t, the probability that y_t is accepted as a drafted token."""
    limits: tuple[int | None, ...] | None = None
    """As in `TargetOutputs`."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[prompts] completion lengths: the denominators of α."""
        return np.array([len(ratios) for ratios in self.ratios], dtype=np.int64)

    @property
    def estimator(self) -> Literal["expected", "ratio"]:
        """Say which estimator of α these scores allow: `ratio` where p is known at y alone."""
        return "ratio" if self.acceptance is None else "expected"

    @property
    def by_token(self) -> tuple[Tensor, ...]:
        """float64 [L] each: what α is the mean of, by that estimator."""
        return self.ratios if self.acceptance is None else self.acceptance

    @property
    def alpha_sums(self) -> NDArray[np.float64]:
        """[prompts] numerators of α (paper Eq. 1)."""
        return sums(self.by_token)


def sums(values: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the [prompts] sums of values by token."""
    return np.array([float(one.sum()) for one in values], dtype=np.float64)


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Group indices into batches of like lengths, so that little is spent on padding."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for start in range(0, len(order), size):
        yield order[start : start + size]


def seeded(seed: int, count: int) -> list[Generator]:
    """Make one generator per prompt, so that a prompt's output depends on its index alone."""
    return [Generator().manual_seed(row_seed(seed, i)) for i in range(count)]


def complete_all(
    target: LanguageModel,
    prompts: Sequence[Tensor],
    *,
    sampling: Sampling,
    max_new_tokens: int,
    batch_size: int,
    generators: Sequence[Generator],
    report: Report,
    processors: Sequence[Processor] = (),
    stop: Sequence[int] | None = None,
    stop_when: Stop | None = None,
) -> list[Output]:
    """Let the target answer every prompt by the engine itself (γ = 0), its batch kept full.

    The longest prompts come first, so that rows of like length share the batch and what does not
    fit into memory fails at once.

    `processors`, `stop` and `stop_when` are those of `speculate`.

    Returns:
        One output per prompt, in the prompts' order.
    """
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    blocks = speculate(
        target,
        None,
        [prompts[i] for i in order],
        gamma=0,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        processors=processors,
        stop=stop,
        stop_when=stop_when,
        generators=[generators[i] for i in order],
        batch_size=batch_size,
    )
    outputs = collect(_reported(blocks, len(prompts), report), len(prompts))
    return [output for _, output in sorted(zip(order, outputs, strict=True), key=itemgetter(0))]


def _reported(blocks: Iterable[Block], total: int, report: Report) -> Iterator[Block]:
    """Pass blocks on and report the rows that finish."""
    done = 0
    for block in blocks:
        ended = sum(finished is not None for finished in block.finished)
        if ended:
            done += ended
            report(done, total)
        yield block


@torch.inference_mode()
def teacher_forced(
    model: LanguageModel,
    prompts: Sequence[Tensor],
    completions: Sequence[Tensor],
    *,
    batch_size: int,
) -> tuple[Tensor, ...]:
    """Return the [L, H] states of `model` that predict each completion token."""
    states: list[Tensor] = [torch.empty(0)] * len(prompts)
    lengths = [len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]
    for rows in batches(lengths, batch_size):
        batch = Batch(tuple(prompts[i] for i in rows), tuple(completions[i] for i in rows))
        parts = torch.split(states_of(model, batch), list(batch.lengths))
        for i, part in zip(rows, parts, strict=True):
            states[i] = part
    return tuple(states)


def each_forced(
    models: Sequence[LanguageModel],
    prompts: Sequence[Tensor],
    completions: Sequence[Tensor],
    *,
    batch_size: int,
) -> Iterator[tuple[Tensor, ...]]:
    """Yield each completion's [L, H] states, one of every model; a group is gone before the next.

    What `teacher_forced` returns, for any number of completions.
    """
    for start in range(0, len(prompts), GROUP):
        part = slice(start, start + GROUP)
        yield from zip(
            *(
                teacher_forced(model, prompts[part], completions[part], batch_size=batch_size)
                for model in models
            ),
            strict=True,
        )


@torch.inference_mode()
def logprobs(
    target: LanguageModel, states: Tensor, completion: Tensor, sampling: Sampling
) -> Tensor:
    """Return float64 [L]: ln p of each completion token, at the sampler, from its [L, H] state."""
    found = torch.empty(len(completion), dtype=torch.float64)
    for rows in torch.split(torch.arange(len(completion)), ROWS):
        p = sampling.probabilities(target.head(states[rows]))  # [n, V]
        of_y = p.gather(1, completion[rows, None].to(p.device))[:, 0]
        found[rows] = _emitted(of_y).log().cpu()
    return found.clamp(max=0)  # a probability may round to a little above 1


@torch.inference_mode()
def score(
    target: LanguageModel,
    draft: LanguageModel,
    outputs: TargetOutputs,
    rule: Rule,
    *,
    batch_size: int,
) -> Scores:
    """Score a draft on target outputs: expected acceptance and the ratios of the exact forecast.

    p and q are taken under the rule's samplers. Past its context a draft writes nothing, which
    counts as never accepted.

    Raises:
        ValueError: the rule's target samples otherwise than the outputs were, or is lossy.
    """
    check_forecast(rule, outputs)
    acceptance = nothing(outputs.completions)
    ratios = nothing(outputs.completions)
    for i, rows, own in forced(draft, outputs.prompts, outputs.completions, batch_size):
        p = rule.sampling.probabilities(target.head(outputs.states[i][rows]))  # [n, V]
        q = rule.draft_sampling.probabilities(draft.head(own))  # [n, V]
        y = outputs.completions[i][rows]
        acceptance[i][rows], ratios[i][rows] = scores_of(rule, p, q, y)
    return Scores(tuple(acceptance), tuple(ratios), outputs.limits)


def check_forecast(rule: Rule, outputs: TargetOutputs) -> None:
    """Check that a rule forecasts what was sampled so.

    Raises:
        ValueError: the rule's target samples otherwise than the outputs were, or is lossy.
    """
    if rule.sampling != outputs.sampling or not rule.lossless:
        raise ValueError(f"{rule} does not forecast outputs sampled at {outputs.sampling}")


def scores_of(rule: Rule, p: Tensor, q: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Score some tokens of an output.

    Args:
        rule: How drafted tokens are judged.
        p: [n, V] the target's probabilities.
        q: [n, V] the draft's.
        y: [n] int64, what the target emitted.

    Returns:
        [n] chances that a drafted token is accepted, and [n] r_t; float64 on the CPU.
    """
    # Sums over V round to a little above 1 where the two models agree.
    acceptance = rule.proposal.acceptance(p, q).double().clamp(max=1).cpu()
    column = y[:, None].to(p.device)
    return acceptance, ratios_of(rule, p.gather(1, column)[:, 0], q.gather(1, column)[:, 0])


def nothing(completions: Sequence[Tensor]) -> list[Tensor]:
    """Return float64 [L] zeros for each completion: what a draft scores that writes nothing."""
    return [torch.zeros(len(ids), dtype=torch.float64) for ids in completions]


def forced(
    draft: LanguageModel,
    prompts: Sequence[Tensor],
    completions: Sequence[Tensor],
    batch_size: int,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Run a draft over outputs as far as its context reaches.

    Yields:
        The output's index, [n] positions of its tokens, and the [n, H] states that predict them.
    """
    heads = [prompt[: draft.context] for prompt in prompts]
    within = [
        ids[: _reach(draft, prompt, len(ids))]
        for prompt, ids in zip(prompts, completions, strict=True)
    ]
    writing = [i for i, ids in enumerate(within) if len(ids)]
    states = each_forced(
        (draft,), [heads[i] for i in writing], [within[i] for i in writing], batch_size=batch_size
    )
    for i, (own,) in zip(writing, states, strict=True):
        for rows in torch.split(torch.arange(len(within[i])), ROWS):
            yield i, rows, own[rows]


def _reach(draft: LanguageModel, prompt: Tensor, length: int) -> int:
    """Return how many of `length` tokens after a prompt the draft's context lets it predict.

    The engine's own rule: what the context cannot hold of the prompt is cut off and charged.
    """
    context = draft.context
    if context is None or len(prompt) + length <= context:
        return length
    head = prompt[:context]
    room = int(draft.open([head]).room) - (len(prompt) - len(head))
    return max(0, min(length, room))


def ratios_of(rule: Rule, p_of_y: Tensor, q_of_y: Tensor) -> Tensor:
    """Return the rule's r_t in float64 for tokens that the target really emitted."""
    return rule.proposal.ratios(_emitted(p_of_y).cpu(), q_of_y.double().cpu())


def _emitted(p_of_y: Tensor) -> Tensor:
    """Return float64 probabilities of emitted tokens, none of them 0.

    Where rounding alone decides between two tokens (greedy near ties, the edge of a truncation)
    the teacher-forced pass may give an emitted token p = 0. It was emitted, so under greedy its
    p was 1; r = q is exact there and the closest bound elsewhere.
    """
    return torch.where(p_of_y > 0, p_of_y, torch.ones_like(p_of_y)).double()
