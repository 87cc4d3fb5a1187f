"""What was promised of a pair and what an engine did are counted over the same kind of answers."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from decoding_checks import seeded
from distillspec.decoding import complete
from distillspec.errors import UserError
from distillspec.math.rules import ratio_test
from distillspec.math.sampling import Sampling
from distillspec.models.toy import TableModel
from distillspec.studies.outputs import TargetOutputs
from distillspec.studies.serving import Answered, held_against, long_enough
from support import random_table

COUNT = 24


def served(target, answers, prompts):
    """An engine that put out these very answers, the first token of each alone."""
    answered = [
        Answered(torch.tensor(one.ids), one.finish_reason, len(one.ids) - 1, 0, 0, 1.0, 1, None)
        for one in answers
    ]
    enough = long_enough(answered)
    return held_against(
        target, random_table(6, seed=2), [prompts[i] for i in enough],
        [answered[i] for i in enough], TargetOutputs.of(prompts, answers, Sampling()),
        {"ratio": ratio_test(Sampling())}, rule="ratio", gamma=3, batch_size=8,
    )  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    logits = random_table(6, seed=1).logits.clone()
    logits[:, 0] += 1.5
    return TableModel(logits), [torch.tensor([1 + i % 5]) for i in range(COUNT)]


@pytest.fixture(scope="module")
def answers(pair):
    target, prompts = pair
    return complete(
        target, None, prompts, gamma=0, max_new_tokens=12, sampling=Sampling(), stop=(0,),
        generators=seeded(COUNT, 4),
    )  # fmt: skip


def test_the_promise_on_the_engines_own_answers_is_what_is_expected_of_it(pair, answers):
    """Answers of a single token were left out of what was served, and counted as promised."""
    target, prompts = pair
    assert 0 < sum(len(one.ids) == 1 for one in answers) < COUNT
    found = served(target, answers, prompts)
    assert found["tau_promised"] == pytest.approx(found["rules"][0]["tau_expected"])


def test_a_target_that_only_ends_promises_nothing(pair, answers):
    target, prompts = pair
    ended = [dataclasses.replace(one, ids=one.ids[:1], states=one.states[:1]) for one in answers]
    with pytest.raises(UserError, match="nothing is promised"):
        held_against(
            target, target, prompts[:1],
            [Answered(torch.tensor([1, 2]), "length", 1, 0, 0, 1.0, 1, None)],
            TargetOutputs.of(prompts, ended, Sampling()), {"ratio": ratio_test(Sampling())},
            rule="ratio", gamma=3, batch_size=8,
        )  # fmt: skip
