"""Where acceptance comes from: position in the block, length of the context, kind of prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distillspec.math.forecast import expected_blocks, expected_calls, expected_positions
from distillspec.studies.answer import ContextRow, DomainRow, PositionRow, Positions
from distillspec.studies.estimates import ratio, ratio_where_any
from distillspec.studies.outputs import Scores

SHORTEST = 32
"""Upper end of the first bin of context lengths, in tokens; each further bin doubles it."""


def calls(scores: Scores, gamma: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return [prompts] expected target calls and their variances at γ, by the exact recursion."""
    found = [expected_calls(ratios, gamma) for ratios in scores.ratios]
    return np.array([one.mean for one in found]), np.array([one.variance for one in found])


def agree(counted: NDArray[np.float64], mean: NDArray[np.float64]) -> bool:
    """Say whether counted calls are those expected, to rounding, as they are where none vary."""
    return bool(np.abs(counted - mean).max() < 1e-6)


def deviation(
    counted: NDArray[np.float64], mean: NDArray[np.float64], variance: NDArray[np.float64]
) -> float | None:
    """Return z = Σ (counted − expected) / √Σ variance of target calls on the outputs they put out.

    Without variance there is no law to hold a difference against: 0 where they agree, else None.
    """
    spread = float(variance.sum())
    if spread > 1e-9:  # below it, rounding
        return float((counted - mean).sum() / np.sqrt(spread))
    return 0.0 if agree(counted, mean) else None


def blocks(scores: Scores, gamma: int) -> NDArray[np.float64]:
    """Return [prompts, γ+1] expected blocks by how many tokens they draft; their sum is the calls.

    Where it is not known that an output was cut, all its blocks draft γ tokens.
    """
    limits = scores.limits or (None,) * len(scores.ratios)
    return np.array(
        [
            expected_blocks(ratios, gamma, limit)
            for ratios, limit in zip(scores.ratios, limits, strict=True)
        ]
    )


def by_position(scores: Scores, gamma: int) -> Positions:
    """Say how often the drafted token at each position of a block is accepted when judged there.

    Expected counts by the exact recursion; positions that no block reaches are left out.
    """
    found = [expected_positions(ratios, gamma) for ratios in scores.ratios]
    judged = np.array([one.judged for one in found])  # [prompts, γ]
    accepted = np.array([one.accepted for one in found])
    rows = [
        PositionRow(
            position=k + 1,
            judged=float(judged[:, k].sum()),
            rate=ratio_where_any(accepted[:, k], judged[:, k]),
        )
        for k in range(gamma)
        if judged[:, k].any()
    ]
    return Positions(gamma=gamma, positions=rows)


def by_context(scores: Scores, prompt_lengths: Sequence[int]) -> list[ContextRow]:
    """Say α by how many tokens, prompt and answer, came before, in bins that double."""
    values = [one.numpy() for one in scores.by_token]
    before = [
        np.arange(length, length + len(one))
        for length, one in zip(prompt_lengths, values, strict=True)
    ]
    rows: list[ContextRow] = []
    least = 0
    while least <= max(int(one[-1]) for one in before if len(one)):
        most = max(SHORTEST, 2 * least) - 1
        inside = [(one >= least) & (one <= most) for one in before]
        tokens = np.array([int(one.sum()) for one in inside])
        if tokens.any():
            inside_sums = [float(v[one].sum()) for v, one in zip(values, inside, strict=True)]
            alpha = ratio_where_any(np.array(inside_sums), tokens)
            row: ContextRow = {
                "from": least,
                "to": most,
                "tokens": int(tokens.sum()),
                "alpha": alpha,
            }
            rows.append(row)
        least = most + 1
    return rows


def kinds(domains: Sequence[str | None]) -> list[tuple[str, list[int]]]:
    """Return every kind of prompt with its prompts' indices; none where there are not two kinds."""
    named = sorted({domain for domain in domains if domain is not None})
    if len(named) < 2:
        return []
    return [(name, [i for i, one in enumerate(domains) if one == name]) for name in named]


def by_domain(scores: Scores, gamma: int, domains: Sequence[str | None]) -> list[DomainRow]:
    """Say α and τ of every kind of prompt; nothing where there are not two kinds."""
    found = kinds(domains)
    if not found:
        return []
    expected, _ = calls(scores, gamma)
    rows = []
    for domain, inside in found:
        lengths = scores.lengths[inside]
        rows.append(
            DomainRow(
                domain=domain,
                prompts=len(inside),
                tokens=int(lengths.sum()),
                alpha=ratio(scores.alpha_sums[inside], lengths),
                tau=ratio(lengths, expected[inside]),
            )
        )
    return rows
