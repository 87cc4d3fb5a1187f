"""Models with random weights."""

from __future__ import annotations

import math

import pytest
import torch

from distillspec.models.protocol import Batch
from distillspec.models.scratch import Sizes, new_model, train_tokenizer
from distillspec.training.cache import states_of


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_a_new_model_begins_near_the_uniform_distribution(family):
    """transformers gives an untied T5 logits of standard deviation √width: 60 nats to unlearn."""
    tokenizer = train_tokenizer(["some text"], 300, encoder_decoder=family == "t5")
    sizes = Sizes(family=family, width=64, depth=2, heads=4, ff=128, context=64)
    model = new_model(sizes, tokenizer, seed=0)
    ids = torch.arange(10, 30)
    with torch.inference_mode():
        states = states_of(model, Batch((ids,), (ids.flip(0),)))
        logits = model.head(states)
    loss = float(torch.nn.functional.cross_entropy(logits, ids.flip(0)))
    assert loss == pytest.approx(math.log(model.vocabulary.size), abs=1.0)
