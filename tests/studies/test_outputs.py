"""Hidden states along outputs: those of a few at a time, however many there are."""

from __future__ import annotations

import weakref

import pytest
import torch

from distillspec.math.rules import ratio_test
from distillspec.math.sampling import Sampling
from distillspec.studies import outputs
from distillspec.studies.outputs import TargetOutputs, each_forced, score, teacher_forced
from distillspec.studies.perplexity import surprisals
from distillspec.studies.theory import divergences
from support import random_table

GROUP, COUNT = 3, 11


@pytest.fixture
def alive(monkeypatch):
    """Count the states in memory whenever some were made."""
    made, counts = [], []

    def watched(*args, **named):
        states = tuple(one.clone() for one in teacher_forced(*args, **named))
        made.extend(map(weakref.ref, states))
        counts.append(sum(one() is not None for one in made))
        return states

    monkeypatch.setattr(outputs, "teacher_forced", watched)
    monkeypatch.setattr(outputs, "GROUP", GROUP)
    return counts


def texts():
    generator = torch.Generator().manual_seed(0)
    sizes = [1 + i % 4 for i in range(COUNT)]
    return [torch.tensor([0])] * COUNT, [
        torch.randint(5, (size,), generator=generator) for size in sizes
    ]


def test_states_come_in_order_and_as_they_come_at_once(alive):
    models = random_table(5, seed=0), random_table(5, seed=1)
    found = list(each_forced(models, *texts(), batch_size=2))
    for states, model in zip(zip(*found, strict=True), models, strict=True):
        for one, other in zip(states, teacher_forced(model, *texts(), batch_size=2), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("what", ["surprisals", "divergences", "score"])
def test_few_are_in_memory(what, alive):
    """All of them were: 21 GB a model for 10,000 answers of 256 tokens at H = 4,096."""
    target, draft = random_table(5, seed=0), random_table(5, seed=1)
    prompts, completions = texts()
    if what == "surprisals":
        surprisals(target, prompts, completions, batch_size=2)
    elif what == "divergences":
        divergences(target, draft, prompts, completions, batch_size=2)
    else:
        states = teacher_forced(target, prompts, completions, batch_size=2)
        given = TargetOutputs(tuple(prompts), tuple(completions), states, Sampling())
        score(target, draft, given, ratio_test(Sampling()), batch_size=2)
    # A group of each of two models at most; loops hold the first and the last of the one before.
    assert len(alive) >= COUNT // GROUP
    assert max(alive) <= 2 * (GROUP + 2)
