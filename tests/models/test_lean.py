"""The lean Llama pass against transformers' own, on ragged rows, in float32 and bfloat16."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from distillspec.models import causal, wrap
from distillspec.models.lean import is_lean
from support import SIZE, SPREAD, module, seeded, tiny, word_tokenizer

PROMPTS = [[7], [8, 9, 10, 11, 12, 13, 14, 15, 16], [30, 31, 32, 33]]
SIZES = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": SPREAD,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 3,
}
VARIANTS = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one group": {"num_key_value_heads": 1},
    "no groups": {"num_key_value_heads": 4},
    "wide heads": {"head_dim": 16, "hidden_act": "gelu"},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "rope_theta": 1e4,
            "original_max_position_embeddings": 32,
        }
    },
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "rope_theta": 1e4,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
}
RELATIVES = {
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, residual_multiplier=0.5)),
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
"""Relative in the 2-norm over all states: a few roundings in float32, one or two in bfloat16,
where most states are bitwise equal."""


def llama(**variant):
    """A tiny Llama whose norms and biases are no longer ones and zeros."""
    made = seeded(lambda: LlamaForCausalLM(LlamaConfig(**SIZES | variant)), 0)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return made


def ragged_states(model):
    """Every real state of rows that grow, shrink, leave and join: left-padded at nearly each."""
    generator = torch.Generator().manual_seed(1)
    session, found = model.open([torch.tensor(p) for p in PROMPTS]), []
    for _ in range(5):
        width = int(torch.randint(1, 6, (), generator=generator))
        lengths = torch.randint(0, width + 1, (3,), generator=generator)
        tokens = torch.randint(4, SIZE, (3, width), generator=generator)
        states = session.extend(tokens, lengths)
        found += [states[row, :n] for row, n in enumerate(lengths.tolist())]
        session.rollback(torch.minimum(lengths, torch.tensor([0, 1, 2])))
    session.keep(torch.tensor([2, 1]))
    session.join(model.open([torch.tensor([9, 10, 11])]))
    found.append(session.extend(torch.tensor([[5, 6]] * 3), torch.tensor([2, 2, 2])).flatten(0, 1))
    return torch.cat(found).float()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_ragged_states_equal_transformers_own(variant, dtype, monkeypatch):
    made = llama(**VARIANTS[variant]).to(dtype)
    assert is_lean(made)
    model = wrap(made, word_tokenizer())
    ours = ragged_states(model)
    monkeypatch.setattr(causal, "is_lean", lambda _: False)
    theirs = ragged_states(model)
    assert (ours - theirs).norm() <= TOLERANCE[dtype] * theirs.norm()


def test_a_wrapped_projection_is_not_passed_by(monkeypatch):
    """What adapters do: a projection replaced by one that adds to it."""

    class Adapted(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.down = base, torch.nn.Linear(base.in_features, 2)
            self.up = torch.nn.Linear(2, base.out_features)

        def forward(self, states):
            return self.base(states) + self.up(self.down(states))

    made = llama()
    plain = ragged_states(wrap(copy.deepcopy(made), word_tokenizer()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for layer in made.model.layers:
            layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
            layer.mlp.down_proj = Adapted(layer.mlp.down_proj)
    model = wrap(made, word_tokenizer())
    ours = ragged_states(model)
    monkeypatch.setattr(causal, "is_lean", lambda _: False)
    theirs = ragged_states(model)
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
    assert (ours - plain).norm() > 0.01 * plain.norm()


@pytest.mark.parametrize("part", ["model", "model.norm", "model.layers.1", "model.layers.0.mlp"])
def test_a_hook_after_wrapping_is_obeyed(part):
    """Hooks that steer or watch a layer were passed by in silence, though not by transformers."""
    made = llama()
    model, calls = wrap(made, word_tokenizer()), []
    hook = made.get_submodule(part).register_forward_hook(lambda *_: calls.append(part))
    ragged_states(model)
    assert calls
    hook.remove()
    assert is_lean(made)


def test_a_config_that_uses_fewer_layers_is_obeyed(monkeypatch):
    made = llama()
    made.config.num_hidden_layers = 1
    model = wrap(made, word_tokenizer())
    ours = ragged_states(model)
    monkeypatch.setattr(causal, "is_lean", lambda _: False)
    assert torch.allclose(ours, ragged_states(model), atol=1e-4)


@pytest.mark.parametrize("family", RELATIVES)
def test_relatives_take_transformers_own_pass(family, monkeypatch):
    made = seeded(RELATIVES[family], 0)
    assert not is_lean(made)

    def unwanted(*_):
        raise AssertionError("the lean pass ran")

    monkeypatch.setattr(causal, "lean_states", unwanted)
    ragged_states(wrap(made, word_tokenizer()))
    with pytest.raises(AssertionError, match="the lean pass ran"):
        ragged_states(tiny("llama"))


def test_a_subclass_another_attention_and_another_device_are_not_lean():
    class Strange(LlamaForCausalLM):
        pass

    assert is_lean(module("llama"))
    assert not is_lean(seeded(lambda: Strange(LlamaConfig(**SIZES)), 0))
    assert not is_lean(llama(attn_implementation="eager"))
    assert not is_lean(module("llama").to("meta"))  # stands for a GPU
    odd = module("llama")
    odd.model.__class__ = type("StrangeModel", (type(odd.model),), {})
    assert not is_lean(odd)
