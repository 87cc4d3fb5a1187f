"""A task with a target and a draft: quality, acceptance, latency at batch 1, throughput beyond.

The whole set is decoded twice, by the target alone and with the draft, batch by batch in
alternating order, so that a machine whose speed drifts treats both alike. Latency follows the
paper's protocol: batch 1, some random prompts, the median of repetitions (Appendix B).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from distillspec.decoding import Output
from distillspec.math.rules import Rule
from distillspec.models.protocol import LanguageModel
from distillspec.studies.clock import Lane, Race, Run, Timer
from distillspec.studies.outputs import Report, Scores, TargetOutputs, batches, score, seeded
from distillspec.studies.sameness import Difference, first_difference

WARM_UP = 8
"""Tokens decoded before the first timed batch."""


@dataclass(frozen=True)
class Plan:
    """How a pair is evaluated."""

    gamma: int
    """Drafted tokens per block, at least 1."""
    max_new_tokens: int
    """Tokens per output, at most."""
    batch_size: int
    """Prompts decoded at once where the whole set is decoded."""
    clock_prompts: int
    """Random prompts on the clock at batch 1; 0 for none."""
    repetitions: int
    """Timed runs of a kind per such prompt, of which the median counts."""
    seed: int
    """Of the sampling and of the choice of prompts."""


@dataclass(frozen=True)
class Pair:
    """One prompt decoded both ways. The outputs' states are dropped."""

    plain: Output
    """By the target alone."""
    drafted: Output
    """With the draft."""
    scores: tuple[Tensor, Tensor] | None
    """[L] chances of acceptance and [L] ratios of the draft on the target's own output (see
    `Scores`); None for a rule that changes the output's law."""
    difference: Difference | None
    """Where the two greedy outputs part; None where they are the same, or need not be."""


@dataclass(frozen=True)
class Evaluated:
    """What was decoded."""

    lane: Lane
    """The way with the draft."""
    pairs: tuple[Pair, ...]
    """One a prompt."""
    seconds: tuple[float, float]
    """Of the whole set without and with the draft, prefill included."""
    clocked: tuple[int, ...]
    """Indices of the prompts on the clock."""
    races: tuple[Race, ...]
    """Their runs; those with the draft are called by its name."""
    clocked_differences: tuple[Difference | None, ...]
    """As in `Pair`, of those runs."""

    @property
    def name(self) -> str:
        """The draft's name."""
        return str(self.lane.draft)

    @property
    def must_agree(self) -> bool:
        """Whether outputs with the draft must be the target's own: greedy ones, losslessly."""
        return _must_agree(self.lane.rule)

    @property
    def differences(self) -> tuple[Difference | None, ...]:
        """What holding outputs against the target's own found, of the whole set and the clock."""
        return (*(pair.difference for pair in self.pairs), *self.clocked_differences)

    @property
    def scores(self) -> Scores | None:
        """The draft's scores on the target's own outputs; None for a lenient rule."""
        found = [pair.scores for pair in self.pairs if pair.scores is not None]
        if not found:
            return None
        return Scores(tuple(one for one, _ in found), tuple(one for _, one in found))


class Keeper(Protocol):
    """Takes what was decoded as soon as it is, so that an interrupt does not lose it."""

    def pairs(self, lane: Lane, rows: Sequence[int], pairs: Sequence[Pair]) -> None:
        """Take one batch: the indices of its prompts, and each of them decoded both ways."""

    def race(self, lane: Lane, row: int, race: Race) -> None:
        """Take one prompt on the clock: its index, and its runs."""


def evaluate(
    target: LanguageModel,
    draft: tuple[str, LanguageModel],
    prompts: Sequence[Tensor],
    ids: Sequence[str],
    rule: Rule,
    plan: Plan,
    report: Report,
    keeper: Keeper,
) -> Evaluated:
    """Decode the whole set with and without the draft, and some prompts on the clock.

    Args:
        target: The large model.
        draft: Name and model of the small one.
        prompts: One 1-D int64 tensor each.
        ids: What the prompts are called.
        rule: That is served; a lenient one has neither α nor forecast.
        plan: How to evaluate.
        report: Called as prompts of the whole set, and then prompts on the clock, are done.
        keeper: Given them at the same moments.
    """
    name, model = draft
    timer = Timer(
        target=target,
        drafts={name: model},
        rule=rule,
        max_new_tokens=plan.max_new_tokens,
        repetitions=plan.repetitions,
        seed=plan.seed,
    )
    lane = Lane(name, plan.gamma, rule)
    size = len(prompts)
    count = min(plan.clock_prompts, size)
    pairs, seconds = _whole_set(
        timer,
        lane,
        prompts,
        ids,
        plan.batch_size,
        lambda done, _: report(done, size + count),
        keeper,
    )
    clocked = sorted(random.Random(plan.seed).sample(range(size), count))
    races, differences = _on_clock(
        timer,
        lane,
        {i: prompts[i] for i in clocked},
        ids,
        lambda done, _: report(size + done, size + count),
        keeper,
    )
    return Evaluated(
        lane=lane,
        pairs=pairs,
        seconds=seconds,
        clocked=tuple(clocked),
        races=races,
        clocked_differences=differences,
    )


def _on_clock(
    timer: Timer,
    lane: Lane,
    prompts: Mapping[int, Tensor],
    ids: Sequence[str],
    report: Report,
    keeper: Keeper,
) -> tuple[tuple[Race, ...], tuple[Difference | None, ...]]:
    """Race both ways on some prompts by their indices, and hold greedy outputs together."""
    name = str(lane.draft)
    races: list[Race] = []
    differences: list[Difference | None] = []
    runs = timer.race(list(prompts.values()), {name: lane}, report)
    for row, race in zip(prompts, runs, strict=True):
        if _must_agree(lane.rule):
            own, other = race.plain.output, race.runs[name].output
            differences.append(first_difference(timer.target, own, other, ids[row]))
        races.append(race.bare())
        keeper.race(lane, row, races[-1])
    return tuple(races), tuple(differences)


def _whole_set(
    timer: Timer,
    lane: Lane,
    prompts: Sequence[Tensor],
    ids: Sequence[str],
    batch_size: int,
    report: Report,
    keeper: Keeper,
) -> tuple[tuple[Pair, ...], tuple[float, float]]:
    """Decode all prompts both ways, batch by batch, and return seconds of either way."""
    ways = (Lane(None, 0, timer.rule), lane)
    grouped = list(batches([len(prompt) for prompt in prompts], batch_size))
    warm = dataclasses.replace(timer, max_new_tokens=min(WARM_UP, timer.max_new_tokens))
    for way in ways:
        warm.run([prompts[i] for i in grouped[0]], way, seeded(timer.seed, len(grouped[0])))
    # A prompt's own, whatever batch it is in, and the same both ways
    generators = [seeded(timer.seed, len(prompts)) for _ in ways]
    found: dict[int, Pair] = {}
    seconds = [0.0, 0.0]
    for number, rows in enumerate(grouped):
        asked = [prompts[i] for i in rows]
        runs: dict[int, Run] = {}
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            runs[which] = timer.run(asked, ways[which], [generators[which][i] for i in rows])
            seconds[which] += runs[which].prefill + runs[which].seconds
        named = [ids[i] for i in rows]
        pairs = _pairs(timer, lane, asked, named, (runs[0].outputs, runs[1].outputs))
        found.update(zip(rows, pairs, strict=True))
        keeper.pairs(lane, rows, pairs)
        report(len(found), len(prompts))
    return tuple(found[i] for i in range(len(prompts))), (seconds[0], seconds[1])


def _pairs(
    timer: Timer,
    lane: Lane,
    prompts: Sequence[Tensor],
    ids: Sequence[str],
    outputs: tuple[Sequence[Output], Sequence[Output]],
) -> list[Pair]:
    """Score and compare one batch, so that the states of only one batch are ever kept."""
    rule = lane.rule
    scores: list[tuple[Tensor, Tensor] | None] = [None] * len(prompts)
    if rule.lossless:
        own = TargetOutputs.of(prompts, outputs[0], rule.sampling)
        draft = timer.drafts[str(lane.draft)]
        scored = score(timer.target, draft, own, rule, batch_size=len(prompts))
        scores = list(zip(scored.by_token, scored.ratios, strict=True))
    return [
        Pair(
            plain=plain.bare(),
            drafted=drafted.bare(),
            scores=of_both,
            difference=first_difference(timer.target, plain, drafted, id)
            if _must_agree(rule)
            else None,
        )
        for plain, drafted, of_both, id in zip(*outputs, scores, ids, strict=True)
    ]


def _must_agree(rule: Rule) -> bool:
    return rule.lossless and rule.sampling.temperature == 0
