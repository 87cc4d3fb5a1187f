"""A log without its target: the same ratios as with it, and nothing where they cannot be known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from distillspec.decoding import complete
from distillspec.math.rules import argmax_draft, exact_match, ratio_test
from distillspec.math.sampling import Sampling
from distillspec.math.verification import linear
from distillspec.studies.logged import LoggedOutputs, score_logged
from distillspec.studies.outputs import TargetOutputs, logprobs, score, seeded
from support import random_table

SAMPLING = Sampling(0.8, top_k=4)


@pytest.fixture(scope="module")
def outputs():
    target = random_table(seed=0)
    prompts = [torch.tensor([i]) for i in range(5)]
    answers = complete(
        target, None, prompts, gamma=0, max_new_tokens=9, sampling=SAMPLING, stop=(3,),
        generators=seeded(0, 5),
    )  # fmt: skip
    return target, TargetOutputs.of(prompts, answers, SAMPLING)


def log_of(target, outputs, *, p=True):
    pairs = zip(outputs.states, outputs.completions, strict=True)
    told = tuple(logprobs(target, states, ids, SAMPLING) for states, ids in pairs)
    return LoggedOutputs(outputs.prompts, outputs.completions, told if p else None, outputs.limits)


@pytest.mark.parametrize("make", [ratio_test, argmax_draft, exact_match])
def test_a_log_gives_the_ratios_that_the_target_gives(outputs, make):
    target, own = outputs
    draft, rule = random_table(seed=1), make(SAMPLING)
    expected = score(target, draft, own, rule, batch_size=2)
    found = score_logged(draft, log_of(target, own, p=rule.needs_p), rule, batch_size=2)
    for one, other in zip(found.ratios, expected.ratios, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert found.limits == expected.limits
    assert found.acceptance is None


def test_what_a_log_cannot_tell_is_refused(outputs):
    target, own = outputs
    rule = ratio_test(SAMPLING)
    draft, log = random_table(seed=1), log_of(target, own)
    lenient = replace(rule, lenience=linear(0.5))
    for told, asked in ((replace(log, logprobs=None), rule), (log, lenient)):
        with pytest.raises(ValueError, match="cannot be forecast from this log"):
            score_logged(draft, told, asked, batch_size=2)
