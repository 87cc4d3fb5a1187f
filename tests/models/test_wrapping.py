"""Which models are taken, which are refused by name, and what their heads do."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    LEDConfig,
    LEDForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MptConfig,
    MptForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from distillspec.decoding import complete
from distillspec.errors import UserError
from distillspec.math.sampling import GREEDY
from distillspec.models import wrap
from distillspec.models.protocol import Batch
from families import family_module, made_t5gemma
from support import FAMILIES, SIZE, SPREAD, module, perturbed, seeded, tiny, word_tokenizer

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


def t5gemma(cap, start=3):
    """An encoder-decoder whose soft-capping stands in the config of its decoder."""
    return seeded(lambda: made_t5gemma(final_logit_softcapping=cap, start=start), 0)


TAKEN = {
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=8, sliding_window=4, final_logit_softcapping=3.0)
    ),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.25)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=8.0)),
}
RECURRENT = {
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=SIZE, hidden_size=32, num_hidden_layers=2, state_size=4)
    ),
    "recurrentgemma": lambda: RecurrentGemmaForCausalLM(
        RecurrentGemmaConfig(**SIZES, head_dim=8, lru_width=32)
    ),
    "rwkv": lambda: RwkvForCausalLM(
        RwkvConfig(vocab_size=SIZE, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2)
    ),
    "jamba": lambda: JambaForCausalLM(JambaConfig(**SIZES, num_experts=1, use_mamba_kernels=False)),
}
BATCH = Batch(
    (torch.tensor([7, 8, 9, 10, 11, 12]), torch.tensor([13])),
    (torch.tensor([20, 21, 1]), torch.tensor([22])),
)


@pytest.mark.parametrize("family", TAKEN)
def test_what_a_family_does_to_its_logits_is_done_here_too(family):
    made = seeded(TAKEN[family], 0)
    model = wrap(made, word_tokenizer())
    ids = torch.tensor([[7, 8, 9, 10, 11, 12, 20, 21]])
    expected = made(input_ids=ids).logits[0, 5:]
    ours = model.head(model.hidden(BATCH))[:3]
    assert torch.allclose(ours, expected, atol=1e-5)
    changed = (ours - made.lm_head(model.hidden(BATCH))[:3]).abs().max()
    assert changed > 0.1


def test_a_model_of_several_parts_is_known_by_its_text_config():
    """Its own has no size and no end token; a prompt of one token, which fills no cache, failed."""
    made = family_module("gemma3-vision")
    made.generation_config.eos_token_id = None
    model = wrap(made, word_tokenizer())
    assert (model.eos_ids, model.context) == ((1,), 128)
    states = model.open([torch.tensor([13])]).extend(torch.tensor([[13]]), torch.tensor([1]))
    assert torch.allclose(states[0], model.hidden(BATCH.part([1])), atol=1e-5)
    with pytest.raises(UserError, match="window"):
        model.static(lambda forward: forward)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
def test_soft_capping_in_the_config_of_a_part_is_found(dtype, near):
    """It was read from the whole model's config alone, and 16 bits let the wrong logits pass."""
    made = t5gemma(3.0).to(dtype)
    model = wrap(made, word_tokenizer())
    source, text = BATCH.prompts[0][None], torch.tensor([[3, 20, 21]])
    with torch.no_grad():
        expected = made(input_ids=source, decoder_input_ids=text).logits[0]
        states = model.hidden(BATCH.part([0]))
        ours = model.head(states)
        bare = made.get_output_embeddings()(states)
    assert (ours - expected).norm() <= near * expected.norm()
    assert (ours - bare).norm() > 0.3 * bare.norm()


def test_a_start_token_that_is_the_padding_is_seen_in_teacher_forced_passes():
    """Without a mask T5Gemma's decoder hides the padding id, though not where it has a cache."""
    made = t5gemma(None, start=0)
    model = wrap(made, word_tokenizer())
    session = model.open(BATCH.prompts[:1])
    cached = session.extend(torch.tensor([[0, 20, 21]]), torch.tensor([3]))[0]
    assert torch.allclose(model.hidden(BATCH.part([0])), cached, atol=1e-5)


def strange(factor):
    """Make a model that multiplies its logits, which no config tells."""

    class Strange(type(module("llama"))):
        def forward(self, **arguments):
            output = super().forward(**arguments)
            output.logits = output.logits * factor
            return output

    made = module("llama")
    made.__class__ = Strange
    return made


def test_a_head_that_is_off_by_a_tenth_is_refused_in_16_bits():
    """That much is let through after a rollback, for models of experts, but not on equal states."""

    made = strange(0.9).bfloat16()
    with pytest.raises(UserError, match=r"Strange.*unknown way \(off by 0.1"):
        wrap(made, word_tokenizer())


@pytest.mark.parametrize("family", RECURRENT)
def test_a_recurrent_model_is_refused_by_name_before_the_first_token(family):
    """A rollback that silently does nothing raises acceptance and is wrong (rMLX#436)."""
    made = seeded(RECURRENT[family], 0)
    calls = []
    made.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(UserError, match=f"{type(made).__name__}.*(recurrent state|no cache)"):
        wrap(made, word_tokenizer())
    assert not calls


def test_a_model_without_a_cache_is_refused_by_name():
    made = seeded(
        lambda: OpenAIGPTLMHeadModel(
            OpenAIGPTConfig(vocab_size=SIZE, n_embd=32, n_layer=1, n_head=2, n_positions=32)
        ),
        0,
    )
    with pytest.raises(UserError, match="OpenAIGPTModel.*keeps no cache"):
        wrap(made, word_tokenizer())


def test_a_config_that_switches_the_cache_off_is_overruled():
    """`use_cache=False` used to fail deep inside (transformers#24072)."""
    made = module("llama")
    made.config.use_cache = False
    made.generation_config.use_cache = False
    session = wrap(made, word_tokenizer()).open([torch.tensor([7, 8, 9])])
    assert session.cache.own.get_seq_length() == 2


def test_a_hook_on_the_output_layer_is_obeyed_for_some_ids_too():
    made = module("llama")
    model, states = wrap(made, word_tokenizer()), torch.ones(2, 32)
    made.lm_head.register_forward_hook(lambda _layer, _inputs, outputs: outputs * 2)
    ids = torch.tensor([5, 7])
    assert torch.equal(model.head_at(ids)(states), model.head(states)[:, ids])


def test_an_unknown_treatment_of_logits_is_refused_by_name():
    made = strange(3.0)
    with pytest.raises(UserError, match="Strange.*unknown way"):
        wrap(made, word_tokenizer())


def test_a_model_without_an_output_layer_is_refused_by_name():
    with pytest.raises(UserError, match="LlamaModel.*no plain output layer"):
        wrap(module("llama").model, word_tokenizer())


def test_t5_in_float16_is_refused_and_bfloat16_is_not():
    """T5 overflows in float16 (transformers#14189)."""
    made = module("t5")
    with pytest.raises(UserError, match="overflows in float16: use bfloat16 or float32"):
        wrap(copy.deepcopy(made).half(), word_tokenizer())
    assert wrap(copy.deepcopy(made).bfloat16(), word_tokenizer()).dtype == torch.bfloat16


@pytest.mark.parametrize("family", FAMILIES)
def test_training_modes_and_global_randomness_survive_the_trial(family):
    """Part by part: a trial that gave all of them the mode of the whole woke frozen dropout."""
    made = module(family)
    made.train()
    made.get_input_embeddings().eval()
    modes = [part.training for part in made.modules()]
    before = torch.random.get_rng_state()
    model = wrap(made, word_tokenizer())
    assert [part.training for part in made.modules()] == modes
    assert len(set(modes)) == 2
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_every_end_token_is_found_and_impossible_ones_are_dropped():
    made = module("llama")
    assert wrap(made, word_tokenizer()).eos_ids == (1,)
    made.generation_config.eos_token_id = [9, 10, 999]
    assert wrap(made, word_tokenizer()).eos_ids == (9, 10)
    assert wrap(made, word_tokenizer(chat=True)).eos_ids == (9, 10, 1)
    made.generation_config.eos_token_id = made.config.eos_token_id = None
    assert wrap(made, word_tokenizer()).eos_ids == (1,)


def test_the_context_is_the_models_own():
    assert tiny("gpt2", context=64).context == 64
    assert tiny("llama", context=96).context == 96
    assert tiny("t5").context is None


def test_the_contexts_other_names_are_known():
    """Decoding past an MPT's ended in a RuntimeError about sizes of tensors."""
    config = MptConfig(vocab_size=SIZE, d_model=32, n_layers=1, n_heads=4, max_seq_len=16)
    model = wrap(seeded(lambda: MptForCausalLM(config), 0), word_tokenizer())
    prompt = [torch.tensor([7, 9])]
    (output,) = complete(model, None, prompt, gamma=0, max_new_tokens=40, sampling=GREEDY, stop=())
    assert (model.context, len(output.ids)) == (16, 15)


def test_a_source_has_the_encoders_limit_and_a_text_the_decoders():
    config = LEDConfig(
        vocab_size=SIZE,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_encoder_position_embeddings=32,
        max_decoder_position_embeddings=16,
        attention_window=[8],
        decoder_start_token_id=2,
    )
    model = wrap(seeded(lambda: LEDForConditionalGeneration(config), 0), word_tokenizer())
    assert model.context == 16
    assert model.open([torch.arange(4, 36)]).room.tolist() == [16]
    with pytest.raises(UserError, match="source of 33 tokens is more than the 32"):
        model.open([torch.arange(4, 37)])


def test_longrope_ends_where_it_would_change_its_angles():
    """Past that length every row is turned by other angles, and cached keys are not.

    Greedy speculation then departs from greedy decoding, and rows feel their neighbours.
    """
    rope = {
        "rope_type": "longrope",
        "factor": 4.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 24,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
    }
    config = LlamaConfig(**SIZES, max_position_embeddings=96, rope_parameters=rope)
    model = wrap(seeded(lambda: LlamaForCausalLM(config), 0), word_tokenizer())
    assert model.context == 24
    settings = {"max_new_tokens": 40, "sampling": GREEDY, "stop": ()}
    prompts = [torch.tensor([7, 8, 9]), torch.arange(4, 24)]
    (alone,) = complete(model, None, prompts[:1], gamma=0, **settings)
    together = complete(model, perturbed(model, 0.05), prompts, gamma=3, **settings)
    assert together[0].ids == alone.ids
    assert [len(output.ids) for output in together] == [22, 5]
