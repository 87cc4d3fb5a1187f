"""The forecast of one draft: its scores and a cost, put together for every γ and batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distillspec.math.forecast import (
    Cost,
    best_gamma,
    block_efficiency_iid,
    break_even_alpha,
    headroom,
    needed_alpha,
)
from distillspec.math.rules import Rule
from distillspec.studies.answer import (
    BatchGammaRow,
    BatchRow,
    CostRow,
    GammaRow,
    Measurement,
    NeededRow,
    Ran,
    verdict,
)
from distillspec.studies.breakdown import blocks, by_context, by_domain, by_position
from distillspec.studies.estimates import Estimate, ratio
from distillspec.studies.outputs import Scores

WANTED = (1.0, 1.2, 1.5, 2.0)
"""Speed-ups of which it is said what α they need."""


@dataclass(frozen=True)
class Prompts:
    """What is known of the prompts of some outputs beside their ids."""

    lengths: tuple[int, ...]
    """Tokens of each."""
    domains: tuple[str | None, ...]
    """What kind each is of."""


def forecast(
    scores: Scores,
    prompts: Prompts,
    rule: Rule,
    costs: Mapping[int, Cost],
    gammas: Sequence[int],
    *,
    ran: Mapping[int, Ran] | None = None,
    clocked: int = 0,
) -> Measurement:
    """Put the scores and the cost of one draft together, with what its runs brought.

    Args:
        scores: Of the draft.
        prompts: On which it was scored.
        rule: That is served.
        costs: By batch size, 1 among them.
        gammas: The γ to forecast, ascending.
        ran: What the engine brought, by γ; None where it ran nowhere.
        clocked: On how many prompts it ran.
    """
    alpha = ratio(scores.alpha_sums, scores.lengths)
    expected = {gamma: blocks(scores, gamma) for gamma in gammas}
    batches = [
        _batch(size, costs[size], _at_batch(size, scores, expected, costs[size]))
        for size in sorted(costs)
    ]
    one = batches[0]  # at batch size 1
    rows = [
        GammaRow(
            gamma=row["gamma"],
            tau_forecast=ratio(scores.lengths, expected[row["gamma"]].sum(axis=1)),
            tau_iid=block_efficiency_iid(alpha["value"], row["gamma"]),
            speedup_forecast=row["speedup_forecast"],
            **((ran or {}).get(row["gamma"]) or Ran()),
        )
        for row in one["gammas"]
    ]
    best = one["best_gamma"]
    return Measurement(
        alpha=alpha,
        alpha_estimator=scores.estimator,
        alpha_ratio=ratio([float(one.sum()) for one in scores.ratios], scores.lengths),
        rule=rule.name,
        suits=rule.suits,
        temperature=rule.sampling.temperature,
        prompts=len(scores.lengths),
        tokens=int(scores.lengths.sum()),
        gammas=rows,
        cost=one["cost"],
        alpha_needed=needed(costs[1], gammas),
        best_gamma=best,
        break_even_alpha=one["break_even_alpha"],
        headroom=one["headroom"],
        by_position=by_position(scores, best),
        by_context=by_context(scores, prompts.lengths),
        by_domain=by_domain(scores, best, prompts.domains),
        batches=batches,
        verdict=verdict(
            rows,
            best,
            alpha["value"],
            one["break_even_alpha"],
            prompts=clocked if ran else len(scores.lengths),
            # A single prompt spans no interval, and without one nothing is said of batches.
            batches=[row for row in batches if row["batch_size"] > 1 and len(scores.lengths) > 1],
        ),
    )


def needed(cost: Cost, gammas: Sequence[int]) -> list[NeededRow]:
    """Say what acceptance rate a draft of this cost would need for some speed-ups."""
    return [
        NeededRow(speedup=factor, alpha=needed_alpha(cost, gammas, factor)) for factor in WANTED
    ]


def gain(scores: Scores, expected: NDArray[np.float64], cost: Cost) -> Estimate:
    """Estimate the speed-up at batch 1: seconds of γ = 0 over those of the expected blocks.

    Args:
        scores: Of the draft.
        expected: [prompts, γ+1] from `blocks`.
        cost: The seconds of this machine.
    """
    by_drafted = [cost.block(drafted) for drafted in range(expected.shape[1])]
    return ratio(scores.lengths * cost.block(0), expected @ by_drafted)


def _at_batch(
    size: int, scores: Scores, expected: Mapping[int, NDArray[np.float64]], cost: Cost
) -> list[BatchGammaRow]:
    """Forecast every γ; beside other rows a block that is cut short in one saves nothing."""
    rows = []
    for gamma, by_drafted in expected.items():
        full = np.zeros_like(by_drafted)
        full[:, gamma] = by_drafted.sum(axis=1)
        factor = gain(scores, by_drafted if size == 1 else full, cost)
        rows.append(BatchGammaRow(gamma=gamma, speedup_forecast=factor))
    return rows


def _batch(size: int, cost: Cost, rows: list[BatchGammaRow]) -> BatchRow:
    gammas = [row["gamma"] for row in rows]
    return BatchRow(
        batch_size=size,
        cost=_cost_row(cost),
        gammas=rows,
        best_gamma=best_gamma({row["gamma"]: row["speedup_forecast"]["value"] for row in rows}),
        break_even_alpha=break_even_alpha(cost, gammas),
        headroom=headroom(cost, gammas),
    )


def _cost_row(cost: Cost) -> CostRow:
    return CostRow(
        target_ms=1e3 * cost.target[0],
        draft_ms=1e3 * cost.draft,
        overhead_ms=1e3 * cost.overhead,
        overhead_plain_ms=1e3 * (cost.block(0) - cost.target[0]),
        c=cost.c,
        target_ms_by_tokens=[1e3 * seconds for seconds in cost.target],
    )
