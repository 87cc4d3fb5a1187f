"""Heads of several sizes from one pass, held against drafts that really have them."""

from __future__ import annotations

import pytest
import torch

import decoding_checks as checks
from distillspec.decoding import complete
from distillspec.errors import UserError
from distillspec.math.rules import argmax_draft, ratio_test
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models.surgery import trim, with_special
from distillspec.studies.outputs import TargetOutputs, score
from distillspec.studies.trimming import WHOLE, score_trimmed, trimmed_costs
from support import perturbed

PROMPTS = [torch.tensor(ids) for ids in ([7, 9], [5], [8, 8, 3, 20])]
KEPT = {"8": torch.arange(6, 14), "24": torch.arange(6, 30)}


def outputs_of(target, sampling):
    outputs = complete(
        target,
        None,
        PROMPTS,
        gamma=0,
        max_new_tokens=10,
        sampling=sampling,
        generators=checks.seeded(3),
    )
    return TargetOutputs.of(PROMPTS, outputs, sampling)


@pytest.mark.parametrize(
    ("family", "rule"),
    [
        ("llama", ratio_test(GREEDY)),
        ("gpt2", argmax_draft(Sampling())),
        ("t5", ratio_test(Sampling(1.5, top_p=0.9))),
        ("t5-untied", ratio_test(Sampling(1.5, top_p=0.9))),
    ],
    ids=["greedy", "argmax draft", "top-p, tied", "top-p, untied"],
)
def test_a_forecast_head_scores_as_a_trimmed_draft_does(family, rule):
    """T5 with tied and with its own output layer among them."""
    target = checks.lively(family)
    draft = perturbed(target, 0.05)
    outputs = outputs_of(target, rule.sampling)
    heads = {name: with_special(target, kept) for name, kept in KEPT.items()}
    found = score_trimmed(target, draft, outputs, rule, {**heads, WHOLE: None}, batch_size=2)
    really = {name: trim(draft, KEPT[name]) for name in heads} | {WHOLE: draft}
    for name, model in really.items():
        expected = score(target, model, outputs, rule, batch_size=2)
        for ours, theirs in zip(found[name].scores.acceptance, expected.acceptance, strict=True):
            assert torch.allclose(ours, theirs, atol=2e-4)
        for ours, theirs in zip(found[name].scores.ratios, expected.ratios, strict=True):
            assert torch.allclose(ours, theirs, atol=2e-4)


def test_what_a_head_covers_bounds_what_any_draft_with_it_can_accept():
    """The target itself, trimmed, reaches p(K) where p renormalised on K stays above p: always."""
    target = checks.lively("llama")
    rule = ratio_test(Sampling(2.0))
    outputs = outputs_of(target, rule.sampling)
    heads = {name: with_special(target, kept) for name, kept in KEPT.items()}
    of_itself, of_another = (
        score_trimmed(target, draft, outputs, rule, {**heads, WHOLE: None}, batch_size=4)
        for draft in (target, perturbed(target, 0.05))
    )
    for name in heads:
        ceiling = torch.tensor(of_itself[name].coverage, dtype=torch.float64)
        assert torch.allclose(torch.tensor(of_itself[name].scores.alpha_sums), ceiling, atol=1e-4)
        assert bool((torch.tensor(of_another[name].scores.alpha_sums) < ceiling).all())
    few, more = (sum(of_itself[name].coverage) for name in ("8", "24"))
    assert few < more < sum(of_itself[WHOLE].coverage) * (1 + 1e-6)
    assert sum(of_itself[WHOLE].coverage) == pytest.approx(float(outputs.lengths.sum()), rel=1e-5)


def test_every_head_is_timed():
    target = checks.lively("llama")
    heads = {"8": with_special(target, KEPT["8"]), WHOLE: None}
    costs = trimmed_costs(
        target, perturbed(target, 0.05), PROMPTS[:1], ratio_test(GREEDY), heads, [1, 2]
    )
    assert set(costs) == {"8", WHOLE}
    assert all(len(cost.target) == 3 for cost in costs.values())


def test_a_rule_of_another_sampler_is_refused():
    target = checks.lively("llama")
    outputs = outputs_of(target, GREEDY)
    with pytest.raises(ValueError, match="does not forecast outputs sampled at"):
        score_trimmed(target, target, outputs, ratio_test(Sampling()), {WHOLE: None}, batch_size=2)


def test_a_trimmed_draft_is_not_trimmed_again():
    draft = trim(checks.lively("llama"), KEPT["8"])
    assert draft.kept.tolist() == [0, 1, 2, 3, *range(6, 14)]
    with pytest.raises(UserError, match="has a trimmed head already"):
        trim(draft, KEPT["8"])
