"""The two bounds on α: exact laws on tables small enough to enumerate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.studies.theory import Divergences, bounds, divergences
from support import random_table

V, T = 3, 3


def enumerated(target, draft, writer):
    """Expected sums over all outputs of `writer` of exactly T tokens after token 0."""
    outputs = [torch.tensor(ids) for ids in itertools.product(range(V), repeat=T)]
    law = writer.logits.detach().softmax(-1)
    weight = np.array(
        [
            np.prod([float(law[a, b]) for a, b in zip([0, *ids[:-1]], ids, strict=True)])
            for ids in (one.tolist() for one in outputs)
        ]
    )
    found = divergences(target, draft, [torch.tensor([0])] * len(outputs), outputs, batch_size=8)
    rows = (found.lengths, found.variation, found.kl, found.entropy)
    return Divergences(*(np.array([weight @ row]) for row in rows))


def tables(seed, closeness):
    target, other = random_table(V, seed=seed), random_table(V, seed=seed + 1)
    mixed = closeness * target.logits.detach() + (1 - closeness) * other.logits.detach()
    draft = random_table(V, seed=seed)
    draft.logits.data.copy_(mixed)
    return target, draft


@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.floats(0, 1))
def test_both_bounds_hold_in_expectation(seed, closeness):
    target, draft = tables(2 * seed, closeness)
    on_target, on_draft = (enumerated(target, draft, one) for one in (target, draft))
    found = bounds(on_target, on_draft, T)
    alpha = found["alpha"]["value"]
    assert found["pinsker"]["value"] <= alpha + 1e-9
    assert found["theorem"]["value"] <= alpha + 1e-9
    assert found["cross_entropy"]["value"] >= found["kl"]["value"] - 1e-9


def test_sums_are_those_of_the_definitions():
    target, draft = tables(4, 0.3)
    ids = torch.tensor([2, 1, 1])
    found = divergences(target, draft, [torch.tensor([0])], [ids], batch_size=1)
    p, q = (one.logits.detach().softmax(-1)[[0, 2, 1]] for one in (target, draft))
    assert found.lengths.tolist() == [3]
    assert found.variation[0] == pytest.approx(float((p - q).abs().sum() / 2))
    assert found.kl[0] == pytest.approx(float((p * (p / q).log()).sum()))
    assert found.entropy[0] == pytest.approx(-float((p * p.log()).sum()))


def test_a_perfect_draft_meets_both_bounds():
    target, _ = tables(7, 0.0)
    same = enumerated(target, target, target)
    found = bounds(same, same, T)
    for key in ("alpha", "pinsker", "theorem"):
        assert found[key]["value"] == pytest.approx(1.0)


def test_pinsker_holds_on_every_sample():
    """Token by token, and Jensen's inequality over the tokens: no expectation is needed."""
    target, draft = tables(9, 0.5)
    for ids in ([0, 0, 0], [2, 2, 1], [1, 0, 2]):
        one = divergences(target, draft, [torch.tensor([0])], [torch.tensor(ids)], batch_size=1)
        found = bounds(one, one, T)
        assert found["pinsker"]["value"] <= found["alpha"]["value"] + 1e-12
