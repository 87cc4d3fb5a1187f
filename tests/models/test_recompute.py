"""Gradient checkpointing: the same gradient from less, and caches that stay in use."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from distillspec.errors import UserError
from distillspec.models.protocol import Batch
from distillspec.models.recompute import recomputing
from distillspec.training.data import rollout
from support import random_table, tiny

FAMILIES = ["llama", "gpt2", "t5"]


def batch():
    g = torch.Generator().manual_seed(0)
    rows = [torch.randint(6, 40, (n,), generator=g) for n in (9, 5, 7, 12)]
    return Batch((rows[0], rows[1]), (rows[2], rows[3]))


def passed(model):
    """A pass with its gradient, and the bytes kept for the backward pass."""
    kept = []

    def keep(tensor):
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    model.module.zero_grad()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        states = model.hidden(batch())
    states.square().sum().backward()
    gradients = [p.grad.clone() for p in model.module.parameters() if p.grad is not None]
    return states.detach(), gradients, sum(kept)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_the_same_and_less_is_kept(family, training):
    """In eval mode too, in which a draft without dropout trains: transformers' own switch does
    nothing there. In train mode the masks of dropout come again."""
    model = tiny(family, layers=4)
    for part in model.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.3
    model.module.train(training)
    torch.manual_seed(0)
    states, gradients, kept = passed(model)
    with recomputing(model.module, model.name):
        torch.manual_seed(0)
        again, theirs, less = passed(model)
    assert torch.equal(again, states)
    assert len(theirs) == len(gradients)
    for a, b in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert less < kept / 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rollout_keeps_its_cache_and_writes_the_same(family):
    """trl#3683: generation lost its cache without a word, ran over the whole prefix for every
    token, and for some models wrote garbage."""
    model, widths = tiny(family), []
    model.module.get_decoder().get_input_embeddings().register_forward_pre_hook(
        lambda _, inputs: widths.append(inputs[0].shape[1])
    )

    def sampled():
        widths.clear()
        outputs = rollout(
            model, batch().prompts, max_new_tokens=8, stop=(),
            generators=[torch.Generator().manual_seed(i) for i in range(2)],
        )  # fmt: skip
        return [output.ids for output in outputs], list(widths)

    ids, honest = sampled()
    model.module.train()
    with recomputing(model.module, model.name):
        assert sampled() == (ids, honest)
    assert honest[-8:] == [1] * 8
    assert len(honest) <= 9


def test_the_layers_are_as_they_were_afterwards():
    model = tiny("llama")
    layer = model.module.model.layers[0]
    layer.forward = mine = layer.forward
    with recomputing(model.module, model.name):
        assert layer.forward is not mine
    assert layer.forward is mine
    assert "forward" not in vars(model.module.model.layers[1])


def test_a_model_without_layers_is_refused():
    table = random_table(6)
    with (
        pytest.raises(UserError, match="leave out gradient checkpointing"),
        recomputing(table, "t"),
    ):
        pass
