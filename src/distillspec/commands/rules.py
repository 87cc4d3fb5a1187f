"""From a rule's flags to the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from distillspec.errors import UserError
from distillspec.math.rules import Rule, argmax_draft, exact_match, ratio_test
from distillspec.math.sampling import Sampling
from distillspec.math.verification import (
    Lenience,
    exponential,
    linear,
    squared,
    threshold,
    typical,
)

LENIENCES: dict[str, Callable[[float], Lenience]] = {
    "linear": linear,
    "squared": squared,
    "exponential": exponential,
    "threshold": threshold,
    "typical": typical,
}
"""Rules that take an ε and change the output's law, by the name they have on the command line."""


def rule_of(
    name: str, sampling: Sampling, *, draft_temperature: float | None, epsilon: float | None
) -> Rule:
    """Make the rule that the flags name.

    Args:
        name: `ratio`, `argmax`, `exact-match`, or a lenience.
        sampling: The target's settings.
        draft_temperature: The draft's; None for the target's.
        epsilon: ε of a lenience; None for rules without one.

    Raises:
        UserError: the flags contradict one another.
    """
    if epsilon is not None and name not in LENIENCES:
        raise UserError(f"--epsilon {epsilon:g} does nothing with --rule {name}; leave it out")
    if name == "argmax":
        if draft_temperature:
            raise UserError(
                f"--draft-temperature {draft_temperature:g} contradicts --rule argmax, whose draft "
                "is greedy; leave one out"
            )
        return argmax_draft(sampling)
    draft = (
        sampling if draft_temperature is None else replace(sampling, temperature=draft_temperature)
    )
    if name == "exact-match":
        return exact_match(sampling, draft)
    if name == "ratio":
        return ratio_test(sampling, draft)
    if epsilon is None:
        raise UserError(f"--rule {name} needs --epsilon, above 0 and at most 1")
    return Rule(sampling, draft, lenience=LENIENCES[name](epsilon))
