"""What must hold of a step, as plain functions: for the tests of training, and for its mutants."""

from __future__ import annotations

from itertools import combinations, islice
from unittest.mock import patch

import pytest
import torch
from torch import nn

from distillspec.models.causal import CausalBody
from distillspec.models.protocol import Batch
from distillspec.training import product
from distillspec.training.data import Batches, Example
from distillspec.training.distill import distill
from distillspec.training.optimization import AdamW, Schedule
from distillspec.training.recipes import Divergence, Mixture, Recipe
from distillspec.training.state import State
from support import random_table, tiny

EOS = 5


def recipe(divergence="forward_kl", *, fixed=0, draft=0, target=0, **settings):
    defaults = {
        "optimizer": AdamW(),
        "schedule": Schedule(),
        "learning_rate": 0.05,
        "batch_size": 4,
        "max_new_tokens": 6,
    }
    mixture = Mixture(fixed, draft, target)
    return Recipe(Divergence.parse(divergence), mixture, **{**defaults, **settings})


def run(target, draft, batches, plan, count, *, seed=0, **settings):
    state = State(draft, batches, plan, seed=seed)
    return list(islice(distill(target, draft, batches, plan, state=state, **settings), count))


def table_pair():
    target = random_table(6, seed=1, scale=2.0, eos_ids=(EOS,))
    return target, random_table(6, seed=2, eos_ids=(EOS,))


def with_dropout(model, share=0.5):
    for part in model.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = share
    return model


def check_row_by_row(divergence="forward_kl", reduction="token_mean"):
    """A step cut into passes is the whole one. Completions of 1, 3, 7 and 2 tokens."""
    g = torch.Generator().manual_seed(5)
    rows = [torch.randint(0, 6, (n,), generator=g) for n in (1, 3, 7, 2)]
    batches = Batches([Example(torch.tensor([i]), row) for i, row in enumerate(rows)], 4)
    plan = recipe(divergence, fixed=1, reduction=reduction)

    def trained(rows_at_once):
        target, draft = table_pair()
        (step,) = run(target, draft, batches, plan, 1, rows_at_once=rows_at_once)
        return step, draft.logits.detach()

    whole, expected = trained(None)
    for rows_at_once in (1, 2, 3):
        step, found = trained(rows_at_once)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        for key in ("loss", "gradient_norm", "tokens", "accepted"):
            a, b = getattr(step, key), getattr(whole, key)
            assert a == (b if b is None else pytest.approx(b, rel=1e-12)), key
    assert whole.tokens == 13


def check_sequences():
    """A mean over sequences of means over tokens, cut or whole."""
    check_row_by_row(reduction="sequence_mean")


def check_dropout():
    """Every pass of every step draws masks of its own, though seed, weights and rows are equal."""
    target, draft = tiny("t5", seed=1), with_dropout(tiny("t5", seed=2))
    draft.module.train()
    example = Example(torch.tensor([6, 7, 8, 1]), torch.tensor([9, 10, 1]))
    seen, hidden = [], draft.hidden
    plan = recipe(fixed=1, batch_size=2, learning_rate=0)
    with patch.object(draft, "hidden", lambda batch: seen.append(hidden(batch)) or seen[-1]):
        run(target, draft, Batches([example] * 2, 2), plan, 3, rows_at_once=1)
    assert len(seen) == 6
    for one, other in combinations(seen, 2):
        assert not torch.equal(one, other)


def check_blocks_of_a_product():
    """The gradient of a 16-bit matrix, made in blocks of rows of which the last is shorter."""
    rows, wide, size = 5, 8, 50
    g = torch.Generator().manual_seed(0)
    layer = nn.Linear(wide, size, dtype=torch.bfloat16)
    inputs, slope = (torch.randn(rows, n, generator=g).bfloat16() for n in (wide, size))
    with patch.object(product, "BLOCK_BYTES", 4 * wide * 16):
        sums = product.Product(layer, inputs)
        for part in (slice(0, 2), slice(2, rows)):
            sums.add(inputs[part], slope[part])
    exact = slope.double().T @ inputs.double()
    torch.testing.assert_close(sums.d_weight.double(), exact, rtol=0.01, atol=0.03)
    torch.testing.assert_close(sums.d_bias.double(), slope.double().sum(0), rtol=0.01, atol=0.03)


def check_states_of_completions():
    """Row t of a sequence is the state that predicts its token t, with and without company."""
    model = tiny("llama")
    assert isinstance(model._body, CausalBody)
    rows = [([7, 9, 12], [8, 20, 1]), ([5], [30]), ([6, 6, 6, 6, 6], [9, 1])]
    batch = Batch(*(tuple(torch.tensor(row[i]) for row in rows) for i in range(2)))
    with torch.no_grad():
        found = torch.split(model.hidden(batch), list(batch.lengths))
        for (prompt, completion), states in zip(rows, found, strict=True):
            session = model.open([torch.tensor(prompt)])
            fed = torch.tensor([[prompt[-1], *completion[:-1]]])
            stepwise = session.extend(fed, torch.tensor([len(completion)]))[0]
            torch.testing.assert_close(states, stepwise, rtol=1e-4, atol=1e-4)
