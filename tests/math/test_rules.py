"""Rules as values: names, and the identity that ties each one's engine form to its forecast."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.math.rules import (
    AS_SAMPLED,
    MATCHED,
    Rule,
    argmax_draft,
    exact_match,
    ratio_test,
)
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.math.verification import (
    acceptance_probability,
    linear,
    residual,
    threshold,
    typical,
)


def distribution(seed: int, size: int, *, zeros: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(size, generator=generator, dtype=torch.float64)
    if zeros:
        weights[torch.randint(size, (1,), generator=generator)] = 0
    return weights / weights.sum()


def step_law(proposal, p, q):
    """Enumerate one judged position: what is emitted, and how often it is a drafted token."""
    law, accepted = torch.zeros_like(p), torch.zeros_like(p)
    for x in range(len(q)):
        told = proposal.distribution(q, torch.tensor(x))
        a = acceptance_probability(p[x], told[x])
        accepted[x] += q[x] * a
        law += q[x] * (1 - a) * residual(p, told)
    return law + accepted, accepted


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 7), st.booleans(), st.booleans())
@pytest.mark.parametrize("proposal", [AS_SAMPLED, MATCHED])
def test_the_law_is_the_targets_and_the_forecast_its_conditional(proposal, seed, size, a, b):
    """Σ_x q(x)·… = p exactly; P(accepted, y) = p(y)·r(y); Σ_y of it is the rule's acceptance."""
    p, q = distribution(seed, size, zeros=a), distribution(seed + 1, size, zeros=b)
    law, accepted = step_law(proposal, p, q)
    torch.testing.assert_close(law, p)
    some = p > 0
    torch.testing.assert_close(accepted[some], p[some] * proposal.ratios(p[some], q[some]))
    torch.testing.assert_close(accepted.sum(), proposal.acceptance(p, q))


def test_exact_match_accepts_less_than_the_ratio_test():
    """A draft that is the target: acceptance 1 by the ratio test, Σ p² by matching."""
    p = distribution(0, 5, zeros=False)
    assert AS_SAMPLED.acceptance(p, p) == pytest.approx(1)
    assert MATCHED.acceptance(p, p) == pytest.approx(float((p * p).sum()))


def test_rules_are_named_by_what_they_are():
    assert ratio_test(GREEDY).name == "greedy"
    assert exact_match(GREEDY).name == "greedy"
    assert argmax_draft(Sampling()).name == "argmax draft"
    assert ratio_test(Sampling()).name == "ratio"
    assert exact_match(Sampling()).name == "exact match"
    # A sampled draft is judged by chance even where the target is greedy: no exact counts.
    assert ratio_test(GREEDY, Sampling()).name == "ratio"
    assert Rule(Sampling(), Sampling(), lenience=linear(0.5)).name == "ratio, linear(eps=0.5)"


def test_only_the_sampled_ratio_test_needs_the_targets_probabilities():
    assert ratio_test(Sampling()).needs_p
    for rule in (argmax_draft(Sampling()), exact_match(Sampling()), ratio_test(GREEDY)):
        assert not rule.needs_p


def test_a_threshold_accepts_the_likely_at_sight_and_judges_the_rest():
    p = torch.tensor([0.5, 0.3, 0.2])
    assert threshold(0.3)(p).tolist() == pytest.approx([1, 1, 0.2])
    assert threshold(1)(p).tolist() == p.tolist()


def test_typical_acceptance_asks_less_where_the_target_is_unsure():
    sure, unsure = torch.tensor([0.9, 0.05, 0.05]), torch.full((10,), 0.1)
    assert typical(0.09)(sure).tolist() == [1, 0, 0]
    # √ε·exp(−H) = 0.3 · 0.1 lies below ε = 0.09 and below every p.
    assert typical(0.09)(unsure).tolist() == [1] * 10
