"""The clock: timed passes of the models, and the engine timed with and without each draft.

Everything that is compared is timed in turn on the same prompts, because a machine's speed drifts
by more than the differences that matter. Prefill is timed apart from decoding.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Generator, Tensor

from distillspec.decoding import Block, Output, collect, speculate
from distillspec.errors import UserError
from distillspec.math.rules import Rule
from distillspec.math.sampling import draw
from distillspec.models.protocol import LanguageModel, Session
from distillspec.studies.outputs import Report, seeded

PASSES = 3
"""Timed passes of a kind per prompt, of which the median counts."""


BLOCKS = 8
"""Timed blocks of a kind per prompt, of which the median counts."""


@dataclass(frozen=True)
class Lane:
    """One way to decode: with a draft or without."""

    draft: str | None
    """The draft's name; None for the target alone."""
    gamma: int
    """Drafted tokens per block."""
    rule: Rule
    """The samplers, and how drafted tokens are judged."""


@dataclass(frozen=True)
class Passes:
    """Median seconds of single passes on one prompt or batch of prompts, in turn."""

    target: dict[int, float]
    """Of one target pass over k tokens a row, by k; head and distribution included."""
    drafts: dict[str, float]
    """Of one pass over one token a row of each draft; head, distribution and draw included."""


@dataclass(frozen=True)
class Timings:
    """What was timed in turn on one prompt or batch of prompts, in seconds."""

    passes: Passes
    """Single passes."""
    blocks: Mapping[tuple[str | None, int], float]
    """Blocks of the engine, by (draft, γ); (None, 0) without one."""
    prefill: Mapping[str | None, float] = field(default_factory=dict)
    """Reading the prompts, by draft; None for the target alone."""


@dataclass(frozen=True)
class Run:
    """Prompts decoded by the engine, on the clock."""

    outputs: tuple[Output, ...]
    """What came out, with its counts, one a prompt."""
    prefill: float
    """Seconds until the models had read the prompts."""
    blocks: tuple[float, ...]
    """Seconds of each block."""

    @property
    def seconds(self) -> float:
        """Seconds of decoding, prefill not included."""
        return sum(self.blocks)

    @property
    def output(self) -> Output:
        """The output of a run of one prompt."""
        (output,) = self.outputs
        return output

    def bare(self) -> Run:
        """Return the same without the outputs' states."""
        return replace(self, outputs=tuple(output.bare() for output in self.outputs))


@dataclass(frozen=True)
class Race:
    """Autoregressive and speculative runs of one prompt, timed in turn."""

    plain: Run
    """The target alone: γ = 0."""
    runs: dict[str, Run]
    """Those of each lane, by its name."""

    def bare(self) -> Race:
        """Return the same without the outputs' states."""
        runs = {name: run.bare() for name, run in self.runs.items()}
        return replace(self, plain=self.plain.bare(), runs=runs)


@dataclass(frozen=True)
class Timer:
    """What is timed."""

    target: LanguageModel
    """The large model."""
    drafts: Mapping[str, LanguageModel]
    """The small ones, by name."""
    rule: Rule
    """The samplers of the passes, and of the runs without a draft."""
    max_new_tokens: int
    """Tokens per run, at most."""
    repetitions: int
    """Timed runs of a kind per prompt, of which the median counts."""
    seed: int
    """Of the runs: every run of a prompt has the same."""

    @torch.inference_mode()
    def passes(
        self, prompts: Sequence[Tensor], widths: Sequence[int], repetitions: int = PASSES
    ) -> Passes:
        """Time single passes on sessions that hold the prompts, rolled back after each pass.

        Of a prompt that leaves no room for the widest pass, as much is held as leaves it.

        Raises:
            UserError: a pass is wider than the target's context.
        """
        target = self.target.open([_cut(prompt, self.target, max(widths)) for prompt in prompts])
        drafts = {
            name: draft.open([_cut(prompt, draft, 1) for prompt in prompts])
            for name, draft in self.drafts.items()
        }
        seconds: dict[int, list[float]] = {k: [] for k in widths}
        draft_seconds: dict[str, list[float]] = {name: [] for name in drafts}
        for _ in range(repetitions):
            for k in widths:
                seconds[k].append(_time_pass(target, k, self._finish_target))
            for name, session in drafts.items():
                finish = self._finish_draft(self.drafts[name])
                _time_pass(session, 1, finish)  # the caches of the processor hold the target now
                draft_seconds[name].append(_time_pass(session, 1, finish))
        return Passes(
            target={k: statistics.median(of_width) for k, of_width in seconds.items()},
            drafts={name: statistics.median(of_draft) for name, of_draft in draft_seconds.items()},
        )

    def race(
        self, prompts: Sequence[Tensor], lanes: Mapping[str, Lane], report: Report
    ) -> Iterator[Race]:
        """Run every prompt without a draft and by each lane, in alternating order, after a warm-up.

        Yields one race a prompt, with the states of its outputs: who needs none keeps it `bare`.

        Args:
            prompts: One 1-D int64 tensor each.
            lanes: What races against the target alone, by name.
            report: Called after each prompt.
        """
        if not prompts:
            return
        plain = Lane(None, 0, self.rule)
        running: list[tuple[str | None, Lane]] = [(None, plain), *lanes.items()]
        for _, lane in running:
            self.run(prompts[:1], lane, seeded(self.seed, 1))
        for i, prompt in enumerate(prompts):
            runs: dict[str | None, list[Run]] = {name: [] for name, _ in running}
            for repetition in range(self.repetitions):
                shift = (i + repetition) % len(running)
                for name, lane in running[shift:] + running[:shift]:
                    runs[name].append(self.run([prompt], lane, seeded(self.seed + i, 1)))
            middle = {name: median_run(of_lane) for name, of_lane in runs.items()}
            alone = middle.pop(None)
            report(i + 1, len(prompts))
            yield Race(alone, {name: run for name, run in middle.items() if name is not None})

    def run(self, prompts: Sequence[Tensor], lane: Lane, generators: Sequence[Generator]) -> Run:
        """Decode prompts at once, on the clock, each by its generator."""
        ticks = [time.perf_counter()]
        stream = self._stream(prompts, lane, generators, self.max_new_tokens, None)
        ticks.append(time.perf_counter())
        found: list[Block] = []
        for block in stream:
            found.append(block)
            ticks.append(time.perf_counter())
        prefill, *blocks = [after - before for before, after in pairwise(ticks)]
        return Run(tuple(collect(found, len(prompts))), prefill, tuple(blocks))

    def timings(
        self,
        prompts: Sequence[Tensor],
        widths: Sequence[int],
        gammas: Sequence[int],
        *,
        blocks: int = BLOCKS,
    ) -> Timings:
        """Time passes of every width, and full blocks without a draft and with each at each γ.

        Blocks of each kind take turns, because a machine's speed drifts from second to second.

        Raises:
            UserError: the target's context has no room for that.
        """
        passes = self.passes(prompts, widths)
        lanes = [
            Lane(name, gamma, self.rule)
            for name in (None, *self.drafts)
            for gamma in ((0,) if name is None else self._drafted(name, gammas))
        ]
        streams: dict[tuple[str | None, int], Iterator[Block]] = {}
        prefill: dict[str | None, float] = {}
        for lane in lanes:
            start = time.perf_counter()
            streams[lane.draft, lane.gamma] = self._full_blocks(prompts, lane)
            prefill[lane.draft] = time.perf_counter() - start
        seconds: dict[tuple[str | None, int], list[float]] = {key: [] for key in streams}
        for _ in range(blocks):
            for key, stream in streams.items():
                start = time.perf_counter()
                if next(stream, None) is not None:
                    seconds[key].append(time.perf_counter() - start)
        medians = {key: statistics.median(of_kind) for key, of_kind in seconds.items()}
        return Timings(passes, medians, prefill)

    def _drafted(self, name: str, gammas: Sequence[int]) -> list[int]:
        """Return the γ that a draft's context has room for.

        Raises:
            UserError: there is none.
        """
        context = self.drafts[name].context
        fitting = [gamma for gamma in gammas if context is None or gamma < context]
        if not fitting:
            raise UserError(
                f"the context of {self.drafts[name].name} is {context}, too short to draft "
                f"{min(gammas)} tokens; give a smaller --gamma, or another draft"
            )
        return fitting

    def _full_blocks(self, prompts: Sequence[Tensor], lane: Lane) -> Iterator[Block]:
        """Read the prompts and return some blocks to come that draft γ in every row."""
        width = lane.gamma + 1
        models = [self.target, *(self.drafts[name] for name in (lane.draft,) if name is not None)]
        fitting = [model.context // width for model in models if model.context is not None]
        count = max(1, min([BLOCKS, *fitting]))
        tokens = count * width  # so that even the last block has γ tokens to draft
        for model in models:
            prompts = [_cut(prompt, model, tokens) for prompt in prompts]
        generators = seeded(self.seed, len(prompts))
        return itertools.islice(self._stream(prompts, lane, generators, tokens, ()), count)

    def _stream(
        self,
        prompts: Sequence[Tensor],
        lane: Lane,
        generators: Sequence[Generator],
        max_new_tokens: int,
        stop: Sequence[int] | None,
    ) -> Iterator[Block]:
        return speculate(
            self.target,
            None if lane.draft is None else self.drafts[lane.draft],
            prompts,
            gamma=lane.gamma,
            max_new_tokens=max_new_tokens,
            sampling=lane.rule.sampling,
            draft_sampling=lane.rule.draft_sampling,
            proposal=lane.rule.proposal,
            lenience=lane.rule.lenience,
            stop=stop,
            generators=generators,
        )

    def _finish_target(self, hidden: Tensor) -> None:
        self.rule.sampling.probabilities(self.target.head(hidden))

    def _finish_draft(self, draft: LanguageModel) -> Callable[[Tensor], None]:
        def finish(hidden: Tensor) -> None:
            q = self.rule.draft_sampling.probabilities(draft.head(hidden[:, -1]))
            draw(q, torch.full((len(q),), 0.5, dtype=torch.float64, device=q.device))

        return finish


def median_run(runs: Sequence[Run]) -> Run:
    """Return the run of median length; of an even number the later of the middle two."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


def _cut(prompt: Tensor, model: LanguageModel, width: int) -> Tensor:
    """Return as much of a prompt as leaves its model's context room for `width` tokens.

    The last token of a prompt is among these: a session holds it as pending.
    """
    if model.context is None:
        return prompt
    if width > model.context:
        raise UserError(
            f"timing takes {width} tokens at once, more than the context of {model.context} of "
            f"{model.name}; give a smaller --gamma"
        )
    return prompt[: model.context - width + 1]


def _time_pass(session: Session, width: int, finish: Callable[[Tensor], None]) -> float:
    """Time one pass over `width` tokens a row, `finish` included, and forget them again."""
    tokens = session.pending[:, None].expand(-1, width)
    lengths = torch.full((len(tokens),), width, dtype=torch.int64, device=tokens.device)
    _wait(tokens.device)
    start = time.perf_counter()
    finish(session.extend(tokens, lengths))
    _wait(tokens.device)
    seconds = time.perf_counter() - start
    session.rollback(lengths)
    return seconds


def _wait(device: torch.device) -> None:
    """Wait for an accelerator, whose work returns before it is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
