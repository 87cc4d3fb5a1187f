"""A tiny random model of every family the engine is tested on."""

from __future__ import annotations

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5GemmaConfig,
    T5GemmaForConditionalGeneration,
)

from distillspec.models import wrap
from distillspec.models.adapter import TransformersModel
from support import SIZE, SPREAD, seeded, word_tokenizer

DECODER = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": SPREAD,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 3,
}
GROUPED = {**DECODER, "num_key_value_heads": 2}
ENCODER_DECODER = {
    "vocab_size": SIZE,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "init_std": SPREAD,
    "scale_embedding": True,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 3,
    "forced_eos_token_id": None,
}
WINDOW = 5
"""Tokens that a layer with a window sees: far fewer than the texts have."""


def made_t5gemma(*, start: int = 0, **settings: float | None) -> PreTrainedModel:
    """Make an encoder-decoder with a config for each half; `settings` go to both."""
    half = {
        **GROUPED,
        "head_dim": 8,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        **settings,
    }
    config = T5GemmaConfig(
        encoder=half,
        decoder=half,
        vocab_size=SIZE,
        eos_token_id=1,
        pad_token_id=0,
        decoder_start_token_id=start,
    )
    return T5GemmaForConditionalGeneration(config)


MADE = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=8)),
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(**GROUPED, head_dim=8, sliding_window=WINDOW)
    ),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **GROUPED,
            head_dim=8,
            sliding_window=WINDOW,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
            attn_implementation="eager",  # the one that caps
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **GROUPED,
            head_dim=8,
            sliding_window=WINDOW,
            query_pre_attn_scalar=8,
            layer_types=["sliding_attention", "full_attention"],
        )
    ),
    # Of several parts: what is asked of a model of text stands in a config within its config
    "gemma3-vision": lambda: Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config={
                **GROUPED,
                "head_dim": 8,
                "sliding_window": WINDOW,
                "query_pre_attn_scalar": 8,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            vision_config={
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
        )
    ),
    "gpt-neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**DECODER)),
    "t5gemma": made_t5gemma,
    "bart": lambda: BartForConditionalGeneration(BartConfig(**ENCODER_DECODER)),
    "marian": lambda: MarianMTModel(MarianConfig(**ENCODER_DECODER)),
}
ALONE = ("bart", "marian")
"""Families whose decoders number all rows of a batch alike."""
UNTIED = ("gemma2", "gemma3", "gemma3-vision", "t5gemma", "bart", "marian")
"""Families that get an output layer of their own: tied to a large embedding they repeat one token,
which hides errors."""
SEEDS = {"gemma2": 1, "gemma3": 1, "marian": 2}
"""Of models whose greedy text wanders, where 0 does not do."""


@torch.no_grad()
def family_module(family: str) -> PreTrainedModel:
    """Build the model, its biases and norms random too, where a fresh one has zeros and ones."""
    made = seeded(MADE[family], SEEDS.get(family, 0))
    generator = torch.Generator().manual_seed(5)
    if family in UNTIED:
        head = made.get_output_embeddings()
        head.weight = torch.nn.Parameter(
            torch.randn(head.weight.shape, generator=generator) * SPREAD
        )
        kept = {a: b for a, b in made.all_tied_weights_keys.items() if "lm_head" not in a}
        made.all_tied_weights_keys = kept
    for name, parameter in made.named_parameters():
        if parameter.dim() == 1:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        elif family in ALONE and name.endswith(("out_proj.weight", "fc2.weight")):
            parameter *= 0.15  # the source is the same at every position, and would drown the text
        elif family == "bart" and "embed_positions" in name:
            parameter *= 4
    if family in ALONE:
        made.final_logits_bias.copy_(0.3 * torch.randn(1, SIZE, generator=generator))
    return made


def family_model(family: str) -> TransformersModel:
    """Build a `LanguageModel` of it."""
    return wrap(family_module(family), word_tokenizer())
