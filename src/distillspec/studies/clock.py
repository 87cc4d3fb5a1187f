"""The clock: timed passes of the models, and the engine timed with and without each draft.

Everything that is compared is timed in turn on the same prompt, because a machine's speed drifts
by more than the differences that matter. Batch 1; prefill is timed apart from decoding.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from distillspec.decoding import Block, Output, collect, speculate
from distillspec.errors import UserError
from distillspec.math.forecast import Cost
from distillspec.math.sampling import Sampling, draw
from distillspec.models.protocol import LanguageModel, Session
from distillspec.studies.outputs import Report, seeded

PASSES = 3
"""Timed passes of a kind per prompt, of which the median counts."""


@dataclass(frozen=True)
class Passes:
    """Median seconds of single passes on one prompt, in turn."""

    target: dict[int, float]
    """Of one target pass over k tokens, by k; head and distribution included."""
    drafts: dict[str, float]
    """Of one pass over one token of each draft; head, distribution and draw included."""


@dataclass(frozen=True)
class Run:
    """One prompt decoded by the engine, on the clock."""

    output: Output
    """What came out, with its counts."""
    prefill: float
    """Seconds until the models had read the prompt."""
    blocks: tuple[float, ...]
    """Seconds of each block."""

    @property
    def seconds(self) -> float:
        """Seconds of decoding, prefill not included."""
        return sum(self.blocks)


@dataclass(frozen=True)
class Race:
    """Autoregressive and speculative runs of one prompt, timed in turn."""

    plain: Run
    """The target alone: γ = 0."""
    runs: dict[str, Run]
    """With each draft, at that draft's γ."""
    passes: Passes
    """Single passes timed beside the runs."""


@dataclass(frozen=True)
class Timer:
    """What is timed, and under which settings."""

    target: LanguageModel
    """The large model."""
    drafts: Mapping[str, LanguageModel]
    """The small ones, by name."""
    sampling: Sampling
    """The target's settings."""
    draft_sampling: Sampling
    """The drafts' settings."""
    max_new_tokens: int
    """Tokens per run, at most."""
    repetitions: int
    """Timed runs of a kind per prompt, of which the median counts."""
    seed: int
    """Of the runs: every run of a prompt has the same."""

    @torch.inference_mode()
    def passes(self, prompt: Tensor, widths: Sequence[int], repetitions: int = PASSES) -> Passes:
        """Time single passes on sessions that hold the prompt, rolled back after each pass.

        Of a prompt that leaves no room for the widest pass, as much is held as leaves it.

        Raises:
            UserError: a pass is wider than the target's context.
        """
        target = self.target.open([_cut(prompt, self.target, max(widths))])
        drafts = {name: draft.open([_cut(prompt, draft, 1)]) for name, draft in self.drafts.items()}
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
        self, prompts: Sequence[Tensor], gammas: Mapping[str, int], report: Report
    ) -> list[Race]:
        """Run every prompt without a draft and with each, in alternating order, after a warm-up.

        Args:
            prompts: One 1-D int64 tensor each.
            gammas: The γ of each draft.
            report: Called after each prompt.
        """
        lanes: list[tuple[str | None, int]] = [(None, 0), *gammas.items()]
        for name, gamma in lanes:
            self.run(prompts[0], name, gamma, self.seed)
        widths = sorted({1, *(gamma + 1 for gamma in gammas.values())})
        races = []
        for i, prompt in enumerate(prompts):
            passes = self.passes(prompt, widths)
            runs: dict[str | None, list[Run]] = {name: [] for name, _ in lanes}
            for repetition in range(self.repetitions):
                shift = (i + repetition) % len(lanes)
                for name, gamma in lanes[shift:] + lanes[:shift]:
                    runs[name].append(self.run(prompt, name, gamma, self.seed + i))
            middle = {name: _median_run(of_lane) for name, of_lane in runs.items()}
            plain = middle.pop(None)
            races.append(
                Race(plain, {name: run for name, run in middle.items() if name is not None}, passes)
            )
            report(i + 1, len(prompts))
        return races

    def run(self, prompt: Tensor, name: str | None, gamma: int, seed: int) -> Run:
        """Decode one prompt on the clock, with the draft of that name, or None."""
        ticks = [time.perf_counter()]
        found: list[Block] = []
        stream = speculate(
            self.target,
            None if name is None else self.drafts[name],
            [prompt],
            gamma=gamma,
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            draft_sampling=self.draft_sampling,
            generators=seeded(seed, 1),
        )
        ticks.append(time.perf_counter())
        for block in stream:
            found.append(block)
            ticks.append(time.perf_counter())
        prefill, *blocks = [after - before for before, after in pairwise(ticks)]
        return Run(collect(found, 1)[0], prefill, tuple(blocks))

    def _finish_target(self, hidden: Tensor) -> None:
        self.sampling.probabilities(self.target.head(hidden))

    def _finish_draft(self, draft: LanguageModel) -> Callable[[Tensor], None]:
        def finish(hidden: Tensor) -> None:
            q = self.draft_sampling.probabilities(draft.head(hidden[:, -1]))
            draw(q, torch.full((1,), 0.5, dtype=torch.float64, device=q.device))

        return finish


def fit_cost(table: Sequence[Passes], races: Sequence[Race], name: str, gamma: int) -> Cost:
    """Fit block time = t_target(γ+1) + γ·t_draft + o for one draft.

    The passes give t_target and t_draft; o is what they leave unexplained of the runs: verifying,
    rolling caches back, and the draft's catching up after a fully accepted block.

    Args:
        table: Passes at every width from 1 on.
        races: Runs at γ = 0 and at `gamma`; none leaves o at 0.
        name: The draft.
        gamma: The γ it ran at.
    """
    passes = [*table, *(race.passes for race in races)]
    # Noise can make passes look dearer than the blocks that contain them: no less than 0.
    return Cost(
        target=tuple(
            statistics.median(one.target[k] for one in passes if k in one.target)
            for k in sorted(table[0].target)
        ),
        draft=statistics.median(one.drafts[name] for one in passes),
        overhead=max(0.0, _unexplained(races, name, gamma)) if races else 0.0,
        overhead_plain=max(0.0, _unexplained(races, None, 0)) if races else None,
    )


def _unexplained(races: Sequence[Race], name: str | None, gamma: int) -> float:
    """Return the median seconds of a block that the passes timed beside it do not explain."""
    left = []
    for race in races:
        run = race.plain if name is None else race.runs[name]
        drafted = 0.0 if name is None else gamma * race.passes.drafts[name]
        left.append(statistics.median(run.blocks) - race.passes.target[gamma + 1] - drafted)
    return statistics.median(left)


def _median_run(runs: Sequence[Run]) -> Run:
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


def _cut(prompt: Tensor, model: LanguageModel, width: int) -> Tensor:
    """Return as much of a prompt as leaves its model's context room for `width` tokens.

    The last token of a prompt is among these: a session holds it as pending.
    """
    if model.context is None:
        return prompt
    if width > model.context:
        raise UserError(
            f"gamma {width - 1} takes target passes over {width} tokens, more than the context of "
            f"{model.context} of {model.name}; give a smaller gamma"
        )
    return prompt[: model.context - width + 1]


def _time_pass(session: Session, width: int, finish: Callable[[Tensor], None]) -> float:
    """Time one pass over `width` tokens, `finish` included, and forget them again."""
    tokens = session.pending[:, None].expand(1, width)
    lengths = torch.full((1,), width, dtype=torch.int64, device=tokens.device)
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
