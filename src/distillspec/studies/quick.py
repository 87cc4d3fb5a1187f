"""The cost of a pair in a second or two: enough to choose γ by, too little to publish."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from distillspec.math.forecast import Cost
from distillspec.math.rules import Rule, ratio_test
from distillspec.math.sampling import GREEDY
from distillspec.models.protocol import LanguageModel
from distillspec.studies.clock import Timer
from distillspec.studies.cost import fit_cost

BLOCKS = 3
"""Timed blocks of a kind."""


def measure_cost(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: Sequence[Tensor],
    *,
    limit: int = 6,
    rule: Rule | None = None,
) -> Cost:
    """Time a loaded pair, so that `Optimal(cost)` can choose γ.

    It takes three target passes of every width up to limit + 1 and three blocks without a draft,
    of γ = 1 and of γ = limit. For figures with intervals there is `distillspec measure`.

    Args:
        target: The large model.
        draft: The small one.
        prompts: 1-D int64 ids, as many as will be decoded at once: the cost is that of this batch
            size.
        limit: The largest γ to choose from.
        rule: The samplers; greedy for None.

    Raises:
        UserError: the target's context has no room for limit + 1 tokens.
    """
    timer = Timer(
        target,
        {"draft": draft},
        ratio_test(GREEDY, GREEDY) if rule is None else rule,
        max_new_tokens=limit + 1,
        repetitions=1,
        seed=0,
    )
    timer.passes(prompts, (1, limit + 1), repetitions=1)  # what the first passes set up is no cost
    widths, gammas = range(1, limit + 2), sorted({1, limit})
    return fit_cost([timer.timings(prompts, widths, gammas, blocks=BLOCKS)], "draft")
