"""The cost model, fitted to timed passes and blocks of several γ.

The races take no part in it: what they measure must be able to contradict what it forecasts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

from distillspec.math.forecast import Cost
from distillspec.studies.clock import Timings


def fit_cost(timings: Sequence[Timings], name: str) -> Cost:
    """Fit block time = t_target(γ+1) + γ·t_draft + o for one draft and one batch size.

    t_target is timed alone. What blocks of several γ take beyond it is a line in γ: its slope is
    t_draft, with a drafted token's share of verification, and its intercept is o, with the caches'
    roll-back and the draft's catching up after a wholly accepted block. Blocks of a single γ tell
    no slope: then t_draft is the draft's pass timed alone.

    Args:
        timings: Passes of every width from 1 on, and blocks, timed in turn.
        name: The draft.

    Raises:
        ValueError: no block was timed.
    """
    target = {
        k: statistics.median(one.passes.target[k] for one in timings)
        for k in sorted(timings[0].passes.target)
    }
    draft = statistics.median(one.passes.drafts[name] for one in timings)
    left: dict[int, list[float]] = {}
    plain = []
    for one in timings:
        for (drafted_by, gamma), seconds in one.blocks.items():
            beyond = seconds - one.passes.target[gamma + 1]
            if drafted_by is None:
                plain.append(beyond)
            elif drafted_by == name:
                left.setdefault(gamma, []).append(beyond)
    if not left or not plain:
        raise ValueError(f"no block of {name!r}, or none without a draft, was timed")
    draft, overhead = _line({gamma: statistics.median(of) for gamma, of in left.items()}, draft)
    # Noise can make passes look dearer than the blocks that contain them: no less than 0.
    return Cost(
        target=tuple(target.values()),
        draft=draft,
        overhead=overhead,
        overhead_plain=max(0.0, statistics.median(plain)),
    )


def _line(left: Mapping[int, float], alone: float) -> tuple[float, float]:
    """Fit seconds ≈ γ·slope + intercept with both ≥ 0; `alone` is the slope of a single γ."""
    if len(left) == 1:
        ((gamma, seconds),) = left.items()
        return alone, max(0.0, seconds - gamma * alone)
    gammas = np.array(list(left), dtype=np.float64)
    beyond = np.array(list(left.values()))
    design = np.stack([gammas, np.ones(len(gammas))], axis=1)
    # Errors count relative to γ, so that a short block is forecast as closely as a long one.
    (slope, intercept), _ = nnls(design / gammas[:, None], beyond / gammas)
    return float(slope), float(intercept)
