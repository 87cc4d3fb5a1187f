"""Drafts against each other on the same target outputs: every difference is paired by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from distillspec.studies.breakdown import calls, kinds
from distillspec.studies.clock import Run
from distillspec.studies.estimates import Estimate, estimate, ratio_difference
from distillspec.studies.measure import Measured
from distillspec.studies.outputs import Scores

WORST = 10
"""Prompts that got worse which are named, the worst first."""


class Comparison(TypedDict):
    """One draft against another on the same target outputs, first minus second."""

    alpha_difference: Estimate
    tau_difference: Estimate
    gamma: int


class WorseRow(TypedDict):
    """A prompt on which the draft does worse than the one it is held against."""

    id: str
    domain: str | None
    tau: float
    tau_against: float


class DomainDifference(TypedDict):
    """One kind of prompt."""

    domain: str
    prompts: int
    alpha_difference: Estimate
    tau_difference: Estimate


class Against(Comparison):
    """The same, prompt by prompt."""

    draft: str
    against: str
    speedup_difference: Estimate | None
    by_domain: list[DomainDifference]
    improved: int
    equal: int
    worsened: int
    worse: list[WorseRow]


class PromptName(TypedDict):
    """What a prompt is called."""

    id: str
    domain: str | None


def compare(first: Scores, second: Scores, gamma: int) -> Comparison:
    """Estimate the paired differences in α and in τ at γ of two drafts."""
    expected = (calls(first, gamma)[0], calls(second, gamma)[0])
    return _difference((first, second), expected, gamma, range(len(first.lengths)))


def against(
    drafts: tuple[str, str],
    scores: tuple[Scores, Scores],
    gamma: int,
    prompts: Sequence[PromptName],
    runs: tuple[Sequence[Run], Sequence[Run], Sequence[Run]] | None,
) -> Against:
    """Hold one draft against another, prompt by prompt.

    Args:
        drafts: Names of the draft and of the one it is held against.
        scores: Theirs, on the same outputs.
        gamma: Of τ, for both.
        prompts: What the prompts are called.
        runs: On the same prompts, of the draft, of the other and of the target alone, each draft
            at its own γ; None where none ran.
    """
    expected = (calls(scores[0], gamma)[0], calls(scores[1], gamma)[0])
    tau = [one.lengths / of_one for one, of_one in zip(scores, expected, strict=True)]
    change = tau[0] - tau[1]
    worse = [i for i in np.argsort(change) if change[i] < -_ROUNDING]
    by_domain = []
    for domain, inside in kinds([one["domain"] for one in prompts]):
        found = _difference(scores, expected, gamma, inside)
        by_domain.append(
            DomainDifference(
                domain=domain,
                prompts=len(inside),
                alpha_difference=found["alpha_difference"],
                tau_difference=found["tau_difference"],
            )
        )
    return Against(
        draft=drafts[0],
        against=drafts[1],
        **_difference(scores, expected, gamma, range(len(prompts))),
        speedup_difference=None if runs is None else _speedup_difference(*runs),
        by_domain=by_domain,
        improved=int((change > _ROUNDING).sum()),
        equal=int((np.abs(change) <= _ROUNDING).sum()),
        worsened=len(worse),
        worse=[
            WorseRow(
                id=prompts[i]["id"],
                domain=prompts[i]["domain"],
                tau=float(tau[0][i]),
                tau_against=float(tau[1][i]),
            )
            for i in worse[:WORST]
        ],
    )


def held_against(
    measured: Measured, name: str, first: str, prompts: Sequence[PromptName]
) -> Against:
    """Hold one draft against another of the same measuring, at the one's best γ."""
    one, other = measured.findings[name], measured.findings[first]
    runs = (
        (
            [race.runs[one.lanes[0]] for race in measured.races],
            [race.runs[other.lanes[0]] for race in measured.races],
            [race.plain for race in measured.races],
        )
        if measured.races
        else None
    )
    gamma = one.result["best_gamma"]
    return against((name, first), (one.scores, other.scores), gamma, prompts, runs)


_ROUNDING = 1e-9


def _difference(
    scores: tuple[Scores, Scores],
    expected: tuple[NDArray[np.float64], NDArray[np.float64]],
    gamma: int,
    inside: Sequence[int],
) -> Comparison:
    """Estimate the differences over some prompts, given the expected calls of all."""
    rows = list(inside)
    lengths = scores[0].lengths[rows]
    alphas = (scores[0].alpha_sums[rows], scores[1].alpha_sums[rows])
    taus = (expected[0][rows], expected[1][rows])
    return Comparison(
        alpha_difference=ratio_difference(alphas, (lengths, lengths)),
        tau_difference=ratio_difference((lengths, lengths), taus),
        gamma=gamma,
    )


def _speedup_difference(
    first: Sequence[Run], second: Sequence[Run], plain: Sequence[Run]
) -> Estimate:
    """Estimate the difference of two speed-ups over the same runs of the target alone."""
    columns = [
        [value for run in runs for value in (len(run.output.ids), run.seconds)]
        for runs in zip(first, second, plain, strict=True)
    ]
    return estimate(
        lambda s: (s[:, 0] / s[:, 1] - s[:, 2] / s[:, 3]) / (s[:, 4] / s[:, 5]), columns
    )
