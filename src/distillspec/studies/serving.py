"""What an engine did with a pair, held against what was promised of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distillspec.errors import UserError
from distillspec.math.rules import Rule
from distillspec.models.protocol import LanguageModel
from distillspec.studies.breakdown import calls, deviation
from distillspec.studies.estimates import Estimate, estimate, ratio
from distillspec.studies.outputs import Scores, TargetOutputs, score, teacher_forced

FIT = 4.0
"""|z| up to this is the luck of the draws: once in 16,000 by chance."""


@dataclass(frozen=True)
class Answered:
    """What an engine wrote after one prompt, and how it got there."""

    ids: Tensor
    """1-D int64 ids, the stop token included."""
    reason: str | None
    """`stop` or `length`; None where the engine does not tell."""
    calls: int
    """Target passes that put out tokens, without those of `alone`."""
    drafted: int
    """Tokens the draft wrote."""
    accepted: int
    """Drafted tokens that the engine counts as accepted."""
    seconds: float
    """From question to answer."""
    alone: int
    """First tokens that came from reading the prompt, before anything was drafted."""
    blocks: tuple[int, ...] | None
    """Tokens of every target pass; None where the engine does not tell."""


class RuleFit(TypedDict):
    """How the engine's counts fit one rule on the engine's own outputs."""

    rule: str
    tau_expected: Estimate
    z: float | None
    fits: bool


class Served(TypedDict):
    """Promised against served."""

    rule: str
    gamma: int
    prompts: int
    tokens: int
    alpha_promised: Estimate
    tau_promised: Estimate
    tau_served: Estimate
    drafted_per_call: float
    rules: list[RuleFit]
    fits: bool
    overlaps: bool | None


def held_against(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: Sequence[Tensor],
    answered: Sequence[Answered],
    promised: TargetOutputs,
    rules: Mapping[str, Rule],
    *,
    rule: str,
    gamma: int,
    batch_size: int,
) -> Served:
    """Hold an engine's counts against the exact forecast.

    Twice: on the engine's own outputs, where nothing but the draws is left to chance, and on the
    target's own outputs to the same prompts, which is what was promised. Answers that end with
    what came alone have no call to count, and are left out on both sides.

    Args:
        target: The large model.
        draft: The draft as exported.
        prompts: What was asked.
        answered: What the engine did with each.
        promised: The target's own answers to the prompts.
        rules: Rules that the engine may have, by name, the one it is said to have among them.
        rule: The name of that one.
        gamma: Drafted tokens per block.
        batch_size: Rows per teacher-forced pass.

    Raises:
        UserError: no answer of the engine's, or none of the target's own, has anything to count.
    """
    alone = [one.alone for one in answered]
    counts = _Counts.of(prompts, answered)
    states = teacher_forced(target, counts.prompts, counts.completions, batch_size=batch_size)
    fits = []
    for name, each in rules.items():
        own = TargetOutputs(counts.prompts, counts.completions, states, each.sampling)
        expected = score(target, draft, own, each, batch_size=batch_size)
        fits.append(_fit(name, expected, counts, gamma))
    scores = score(target, draft, promised, rules[rule], batch_size=batch_size)
    tau_promised, answers = _promised(scores, alone, gamma)
    tau_served = ratio(counts.lengths, counts.calls)
    several = min(answers, len(counts.prompts)) > 1
    return Served(
        rule=rule,
        gamma=gamma,
        prompts=len(counts.prompts),
        tokens=int(sum(len(ids) for ids in counts.completions)),
        alpha_promised=ratio(scores.alpha_sums, scores.lengths),
        tau_promised=tau_promised,
        tau_served=tau_served,
        drafted_per_call=counts.drafted / float(counts.calls.sum()),
        rules=fits,
        fits=next(one["fits"] for one in fits if one["rule"] == rule),
        overlaps=_overlap(tau_promised, tau_served) if several else None,
    )


@dataclass(frozen=True)
class _Counts:
    """What an engine counted, of answers with tokens beyond those that came alone."""

    prompts: tuple[Tensor, ...]
    """What was asked."""
    completions: tuple[Tensor, ...]
    """1-D int64 ids of each answer."""
    alone: tuple[int, ...]
    """First tokens of each that came alone."""
    lengths: NDArray[np.float64]
    """Tokens of each beyond those that came alone."""
    calls: NDArray[np.float64]
    """Target passes that put these out."""
    drafted: int
    """Tokens that the draft wrote, for all of them."""

    @classmethod
    def of(cls, prompts: Sequence[Tensor], answered: Sequence[Answered]) -> _Counts:
        """Keep the answers with anything to count.

        Raises:
            UserError: there is none.
        """
        enough = [
            (prompt, one)
            for prompt, one in zip(prompts, answered, strict=True)
            if len(one.ids) > one.alone
        ]
        if not enough:
            raise UserError("every answer ended with its first token: there is nothing to compare")
        kept = [one for _, one in enough]
        return cls(
            prompts=tuple(prompt for prompt, _ in enough),
            completions=tuple(one.ids for one in kept),
            alone=tuple(one.alone for one in kept),
            lengths=np.array([len(one.ids) - one.alone for one in kept], dtype=np.float64),
            calls=np.array([one.calls for one in kept], dtype=np.float64),
            drafted=sum(one.drafted for one in kept),
        )


def _fit(name: str, expected: Scores, counts: _Counts, gamma: int) -> RuleFit:
    """Hold counted calls against those that a rule lets expect of the same outputs."""
    mean, variance = calls(_without(expected, counts.alone), gamma)
    z = deviation(counts.calls, mean, variance)
    return RuleFit(
        rule=name,
        tau_expected=ratio(counts.lengths, mean),
        z=z,
        fits=abs(z) <= FIT if z is not None else _nearly(counts.calls, mean),
    )


def _promised(scores: Scores, alone: Sequence[int], gamma: int) -> tuple[Estimate, int]:
    """Return τ on the target's own answers, and how many of them have anything to count.

    Args:
        scores: Of the draft on them.
        alone: First tokens of the engine's answer to each prompt that came alone.
        gamma: Drafted tokens per block.

    Raises:
        UserError: none has.
    """
    longer = [
        (ratios, first)
        for ratios, first in zip(scores.ratios, alone, strict=True)
        if len(ratios) > first
    ]
    if not longer:
        raise UserError("every answer of the target ends with its first token: nothing is promised")
    kept = Scores(None, tuple(ratios for ratios, _ in longer), None)
    rest = _without(kept, [first for _, first in longer])
    mean, _ = calls(rest, gamma)
    return ratio(rest.lengths, mean), len(longer)


def _overlap(one: Estimate, other: Estimate) -> bool:
    """Say whether two intervals have a point in common."""
    return one["low"] <= other["high"] and other["low"] <= one["high"]


def rate(answered: Sequence[Answered]) -> Estimate:
    """Estimate tokens per second, reading the prompts included."""
    return ratio([len(one.ids) for one in answered], [one.seconds for one in answered])


def speedup(plain: Sequence[Answered], drafted: Sequence[Answered]) -> Estimate:
    """Estimate tokens per second with the draft over those without, paired by prompt."""
    columns = [
        (len(one.ids), one.seconds, len(other.ids), other.seconds)
        for one, other in zip(plain, drafted, strict=True)
    ]
    return estimate(lambda s: (s[:, 2] / s[:, 3]) / (s[:, 0] / s[:, 1]), columns)


def _without(scores: Scores, alone: Sequence[int]) -> Scores:
    """Leave out the first tokens, which nothing was drafted for."""
    parts = [ratios[n:] for ratios, n in zip(scores.ratios, alone, strict=True)]
    return Scores(None, tuple(parts), None)


def _nearly(counted: np.ndarray, mean: np.ndarray) -> bool:
    """Without variance the counts must agree; near ties may move one call in twenty."""
    return bool(abs(counted.sum() - mean.sum()) <= 0.05 * mean.sum())


def same_greedy(own: Sequence[Tensor], other: Sequence[Tensor]) -> int:
    """Count outputs that are the same, token for token."""
    return sum(torch.equal(a, b) for a, b in zip(own, other, strict=True))
