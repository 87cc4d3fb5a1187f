"""From an audit's sums to its answer: corrected p-values, intervals, power, causes, a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from distillspec.math.audit import detectable, holm, p_value
from distillspec.math.sampling import Sampling
from distillspec.studies import questions
from distillspec.studies.audit import Impossible, Tally
from distillspec.studies.estimates import Estimate, ratio_where_any

POWER = 0.8
"""The chance with which a shift that is called detectable is found."""
_FAINT = 1e-9
"""A summed variance below this: nothing could well have come out otherwise."""
_ROUNDING = 1e-6
"""A summed excess below this is none."""
_HALF = 1.959963984540054
"""Half of a 95 % interval, in standard deviations."""
SHOWN = 10
"""Impossible tokens that are listed one by one, at most."""


class Test(TypedDict):
    """What one question brought."""

    name: str
    kind: str
    tokens: int
    expected: float
    excess: float
    low: float
    high: float
    z: float
    p: float
    p_corrected: float
    rejected: bool
    detectable: float


class ImpossibleToken(TypedDict):
    """A token that the sampler never draws."""

    id: str
    token: int
    emitted: int
    gap: float | None


class ImpossibleTokens(TypedDict):
    """How many there are; those that rounding explains are apart."""

    count: int
    near_ties: int
    examples: list[ImpossibleToken]


class Audit(TypedDict):
    """What an audit found."""

    tokens: int
    prompts: int
    level: float
    tolerance: float
    likelihood: Estimate | None
    z: float | None
    temperature_fitted: Estimate | None
    detectable: float | None
    tests: list[Test]
    impossible: ImpossibleTokens
    ends: dict[str, int]
    rejected: bool
    points_to: list[str]
    verdict: str


def judged(
    found: Tally,
    sampling: Sampling,
    ends: tuple[dict[str, int], list[str]],
    *,
    level: float,
    tolerance: float,
) -> Audit:
    """Put the answer together.

    Args:
        found: The sums.
        sampling: The settings the outputs are said to have been sampled at.
        ends: How they end, and what is wrong with that.
        level: The chance of any false rejection, all tests together.
        tolerance: What a token may be off by, in nats or as a share, that is not called wrong.
    """
    counts, faults = ends
    tests = _tests(found, level, tolerance)
    wrong = [one for one in found.impossible if not one.near]
    outputs = sum(counts.values())
    rejected = bool(wrong or faults or any(test["rejected"] for test in tests))
    sums = found.sums.get(questions.LIKELIHOOD)
    whole = None if sums is None else sums.sum(axis=0)
    spread = 0.0 if whole is None else float(whole[2])
    varied = sums is not None and whole is not None and spread > _FAINT
    likelihood = ratio_where_any(sums[:, 1], sums[:, 0]) if sums is not None and varied else None
    shifts = [test["detectable"] for test in tests if test["name"] == questions.LIKELIHOOD]
    smallest = shifts[0] if varied else None
    points = [*faults, *_causes(tests, wrong, sampling)] if rejected else []
    return Audit(
        tokens=found.scored,
        prompts=outputs,
        level=level,
        tolerance=tolerance,
        likelihood=likelihood,
        z=float(whole[1] / math.sqrt(spread)) if whole is not None and varied else None,
        temperature_fitted=_temperature(whole, sampling) if varied else None,
        detectable=smallest,
        tests=tests,
        impossible=ImpossibleTokens(
            count=len(wrong),
            near_ties=len(found.impossible) - len(wrong),
            examples=[_told(one) for one in wrong[:SHOWN]],
        ),
        ends=counts,
        rejected=rejected,
        points_to=points,
        verdict=_verdict(found, tests, wrong, points, likelihood, smallest, rejected, sampling),
    )


def _tests(found: Tally, level: float, tolerance: float) -> list[Test]:
    sums = {}
    for name, table in found.sums.items():
        whole = table.sum(axis=0)
        # What could not well come out otherwise is no question, unless it did
        if whole[2] > _FAINT or abs(whole[1]) > _ROUNDING:
            whole[2] = max(whole[2], _FAINT)
            sums[name] = whole
    p_values = [
        p_value(
            total,
            variance,
            third,
            counts=found.kinds[name].counts,
            tolerance=tolerance * tokens,
        )
        for name, (tokens, total, variance, third, _) in sums.items()
    ]
    corrected = holm(p_values)
    return [
        _test(name, found.kinds[name].kind, one, p, by_holm, level, tolerance, len(sums))
        for (name, one), p, by_holm in zip(sums.items(), p_values, corrected, strict=True)
    ]


def _test(
    name: str,
    kind: str,
    sums: NDArray[np.float64],
    p: float,
    corrected: float,
    level: float,
    tolerance: float,
    family: int,
) -> Test:
    tokens, total, variance, _, expected = map(float, sums)
    half = _HALF * math.sqrt(variance)
    return Test(
        name=name,
        kind=kind,
        tokens=int(tokens),
        expected=expected / tokens,
        excess=total / tokens,
        low=(total - half) / tokens,
        high=(total + half) / tokens,
        z=total / math.sqrt(variance),
        p=p,
        p_corrected=corrected,
        rejected=corrected <= level,
        detectable=tolerance + detectable(variance, level=level / family, power=POWER) / tokens,
    )


def _temperature(whole: NDArray[np.float64] | None, sampling: Sampling) -> Estimate | None:
    """Fit the temperature that the outputs look drawn at: one Newton step, good close by.

    With β = T/T' the law p^β has the score log p(y) − E log p, and information Var log p.
    """
    if whole is None:
        return None
    total, variance = float(whole[1]), float(whole[2])
    beta, half = 1 + total / variance, _HALF / math.sqrt(variance)
    if beta - half <= 0.2:  # a step this long says that it is not temperature
        return None
    T = sampling.temperature
    return Estimate(value=T / beta, low=T / (beta + half), high=T / (beta - half))


def _told(one: Impossible) -> ImpossibleToken:
    return ImpossibleToken(id=one.id, token=one.token, emitted=one.emitted, gap=one.gap)


def _causes(tests: Sequence[Test], wrong: Sequence[Impossible], sampling: Sampling) -> list[str]:
    """Say what the rejected tests have in common with faults that are known."""
    off = {test["name"]: test["excess"] for test in tests if test["rejected"]}
    kinds = {test["kind"] for test in tests if test["rejected"]}
    found = []
    if wrong:
        what = (
            "not the target's greedy choice: were they drawn at temperature 0?"
            if sampling.temperature == 0
            else "never drawn by the stated sampler: another top-k, top-p or model"
        )
        found.append(f"{len(wrong)} tokens are {what}")
    likelihood = off.get(questions.LIKELIHOOD, 0.0)
    if likelihood > 0:
        found.append("text is likelier than it should be: a lower temperature, or a truncation")
    if likelihood < -0.3:
        found.append(
            "text is far less likely than it should be: another model, another prompt (chat "
            "template), or tokens of the draft that were not verified against the target"
        )
    elif likelihood < 0:
        found.append("text is less likely than it should be: a higher temperature, or the draft's")
    named = {
        questions.SEEN: "ids that were there before are off: a repetition or presence penalty",
        questions.REPEAT: "repeated tokens are off: tokens doubled or skipped between blocks",
        questions.STOP: "stop tokens are off: they are suppressed, forced, or not the target's",
        questions.REJECTED: "the token after a rejection is off: caches are rolled back wrongly",
        questions.WHOLE: "the token after a whole block is off: a cache lacks its last token",
        questions.DRAFT: "tokens lean toward the draft or away from it: verification is not exact",
        questions.FIRST: "the first token is off: the prompt (chat template, special tokens)",
    }
    found += [said for name, said in named.items() if name in off]
    within = [name for name in off if name.startswith("block")]
    if within and len(within) < sum(test["name"].startswith("block") for test in tests):
        found.append(f"the fault depends on the place in a block: {', '.join(within)}")
    if not found and kinds:
        found.append(f"questions of {', '.join(sorted(kinds))} are off")
    return found


def _verdict(
    found: Tally,
    tests: Sequence[Test],
    wrong: Sequence[Impossible],
    points: Sequence[str],
    likelihood: Estimate | None,
    smallest: float | None,
    rejected: bool,
    sampling: Sampling,
) -> str:
    if rejected:
        or_greedy = "" if sampling.temperature == 0 else ", or at temperature 0 if that passes"
        return (
            f"Not the target's outputs: {'; '.join(points)}. If a draft was at work, audit the "
            "engine without it: where that passes, it verifies wrongly, and is to be served "
            f"without a draft{or_greedy}."
        )
    if sampling.temperature == 0:
        ties = len(found.impossible) - len(wrong)
        said = f", {ties} of them near ties" if ties else ""
        return f"Every one of {found.scored:,} tokens is the target's greedy choice{said}."
    if likelihood is None or smallest is None:
        return f"Nothing was random in these {found.scored:,} tokens: no law to hold them against."
    return (
        f"As the target would write, as far as {found.scored:,} tokens can tell: the mean "
        f"log-probability is {likelihood['value']:+.3f} [{likelihood['low']:+.3f}, "
        f"{likelihood['high']:+.3f}] nats off its expectation, and a shift of {smallest:.3f} would "
        f"have been found four times in five; none of {len(tests)} tests rejects."
    )


def unmet(result: Mapping[str, object]) -> list[str]:
    """Return the demand that is not met, if it is not: that the outputs be the target's."""
    return [str(result["verdict"])] if result["rejected"] else []
