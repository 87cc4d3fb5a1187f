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
from distillspec.studies.serving import Answered, held_against
from support import random_table

COUNT = 24


def served(target, answers, prompts, alone=None):
    """An engine that put out these very answers, the first tokens of each alone."""
    alone = [1] * len(answers) if alone is None else alone
    answered = [
        Answered(torch.tensor(one.ids), one.finish_reason, len(one.ids) - n, 0, 0, 1.0, n, None)
        for one, n in zip(answers, alone, strict=True)
    ]
    return held_against(
        target, random_table(6, seed=2), prompts, answered,
        TargetOutputs.of(prompts, answers, Sampling()), {"ratio": ratio_test(Sampling())},
        rule="ratio", gamma=3, batch_size=8,
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
    assert found["overlaps"] is not None


def test_what_came_alone_is_left_out_of_every_answer_by_itself(pair, answers):
    """The first answer's count of such tokens stood for all, in what was promised."""
    target, prompts = pair
    found = served(target, answers, prompts, [i % 3 for i in range(COUNT)])
    assert found["tau_promised"] == pytest.approx(found["rules"][0]["tau_expected"])


def test_one_answer_gives_no_interval_to_hold_another_against(pair, answers):
    """Two intervals without width hardly ever overlap: one prompt always failed."""
    target, prompts = pair
    (i, *_) = [i for i, one in enumerate(answers) if len(one.ids) > 4]
    found = served(target, answers[i : i + 1], prompts[i : i + 1])
    assert found["tau_served"] != found["tau_promised"]
    assert found["overlaps"] is None


def test_a_target_that_only_ends_promises_nothing(pair, answers):
    target, prompts = pair
    ended = [dataclasses.replace(one, ids=one.ids[:1], states=one.states[:1]) for one in answers]
    with pytest.raises(UserError, match="nothing is promised"):
        held_against(
            target, target, prompts,
            [Answered(torch.tensor([1, 2]), "length", 1, 0, 0, 1.0, 1, None)] * COUNT,
            TargetOutputs.of(prompts, ended, Sampling()), {"ratio": ratio_test(Sampling())},
            rule="ratio", gamma=3, batch_size=8,
        )  # fmt: skip
