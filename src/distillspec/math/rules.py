"""Verification rules as values: what the engine takes them for, and what they forecast.

A rule is the two samplers, a *proposal* (what verification takes for the distribution that a
drafted token came from) and a lenience. Every rule in common use is one of these values, so the
engine has a single acceptance test and no branch for any of them:

    ratio          q as sampled from (Leviathan et al., 2023; DistillSpec, Algorithm A.1)
    argmax draft   a greedy draft: q is one-hot. Servers often draft so
    greedy         both models greedy
    exact match    accept iff the target's own sample equals the drafted token, whose
                   probability is p(x): the ratio test with q := one-hot of the drafted token
    lenient        f(p) in place of p (DistillSpec, section 5.3), or a threshold; lossy
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from distillspec.math.forecast import acceptance_ratios
from distillspec.math.precision import at_least_float32
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.math.verification import Lenience, expected_acceptance, lossless


class Proposal(Protocol):
    """What verification takes for the distribution that a drafted token came from."""

    def distribution(self, q: Tensor, drafted: Tensor) -> Tensor:
        """Return what `verify` is given for q.

        Args:
            q: [..., V] the draft's probabilities.
            drafted: [...] int64 tokens drawn from them.

        Returns:
            [..., V] probabilities.
        """
        ...

    def acceptance(self, p: Tensor, q: Tensor) -> Tensor:
        """Return [...] the chance that a token drawn from q is accepted, of [..., V] p and q."""
        ...

    def ratios(self, p_of_y: Tensor, q_of_y: Tensor) -> Tensor:
        """Return [...] float64: how likely an emitted y is accepted where one is judged.

        See `distillspec.math.forecast`.
        """
        ...


@dataclass(frozen=True)
class AsSampled:
    """The draft's own distribution: the ratio test min(1, p / q)."""

    def distribution(self, q: Tensor, drafted: Tensor) -> Tensor:
        """Return q itself."""
        return q

    def acceptance(self, p: Tensor, q: Tensor) -> Tensor:
        """Return Σ_v min(p, q)."""
        return expected_acceptance(p, q)

    def ratios(self, p_of_y: Tensor, q_of_y: Tensor) -> Tensor:
        """Return min(1, q(y) / p(y))."""
        return acceptance_ratios(p_of_y, q_of_y)


@dataclass(frozen=True)
class Matched:
    """All mass on the drafted token: accepted with p(x), as if the target's sample had matched."""

    def distribution(self, q: Tensor, drafted: Tensor) -> Tensor:
        """Return the one-hot distribution of the drafted tokens."""
        return torch.zeros_like(q).scatter_(-1, drafted.unsqueeze(-1), 1.0)

    def acceptance(self, p: Tensor, q: Tensor) -> Tensor:
        """Return Σ_v p·q: never more than the ratio test's."""
        return (at_least_float32(p) * at_least_float32(q)).sum(-1)

    def ratios(self, p_of_y: Tensor, q_of_y: Tensor) -> Tensor:
        """Return q(y): given y, it was drafted with that probability, and then it matched."""
        return q_of_y.double()


AS_SAMPLED = AsSampled()
MATCHED = Matched()


@dataclass(frozen=True)
class Rule:
    """A target's sampler, a draft's sampler, and how the drafted tokens are judged."""

    sampling: Sampling
    """The target's settings."""
    draft_sampling: Sampling
    """The draft's."""
    proposal: Proposal = AS_SAMPLED
    """What the drafted tokens are taken to come from."""
    lenience: Lenience = lossless
    """What takes the place of p; all but `lossless` change the output's law."""

    @property
    def name(self) -> str:
        """Name it: ratio, argmax draft, greedy, exact match; a lenience is named behind it."""
        if self.draft_sampling.temperature == 0:
            base = "argmax draft" if self.sampling.temperature > 0 else "greedy"
        else:
            base = "ratio" if self.proposal == AS_SAMPLED else "exact match"
        return base if self.lossless else f"{base}, {self.lenience!r}"

    @property
    def lossless(self) -> bool:
        """Whether the output keeps the target's law, so that the forecast holds."""
        return self.lenience is lossless

    @property
    def needs_p(self) -> bool:
        """Whether the forecast needs p(y), and not only that the target emitted y."""
        sampled = self.draft_sampling.temperature > 0 and self.sampling.temperature > 0
        return sampled and self.proposal == AS_SAMPLED

    @property
    def suits(self) -> str:
        """Say which divergence the rule asks for, and why; docs/rules.md has the evidence."""
        if self.draft_sampling.temperature == 0:
            return (
                "forward KL or JSD: only the draft's argmax counts, and these fit it best; "
                "1 − TVD is not this rule's α"
            )
        if self.proposal == MATCHED:
            return (
                "reverse KL or total variation: α = Σ p·q grows as q concentrates where p is "
                "large, and these concentrate it"
            )
        return "JSD or total variation: α is exactly 1 − TVD, and JSD gets there from further away"


def ratio_test(sampling: Sampling, draft_sampling: Sampling | None = None) -> Rule:
    """Make the paper's rule; the draft samples as the target does unless it is told otherwise."""
    return Rule(sampling, sampling if draft_sampling is None else draft_sampling)


def argmax_draft(sampling: Sampling) -> Rule:
    """Make the rule of a greedy draft beside a target of any sampler."""
    return Rule(sampling, GREEDY)


def exact_match(sampling: Sampling, draft_sampling: Sampling | None = None) -> Rule:
    """Make the rule that accepts what the target's own sample equals."""
    return Rule(sampling, sampling if draft_sampling is None else draft_sampling, MATCHED)
