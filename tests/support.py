"""Builders that every test module shares: random tables, tiny random models, tiny tokenizers.

The models are drawn with a large spread (0.4): at the usual 0.02 greedy text repeats a few tokens
and hides errors. No builder touches the global random state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from tokenizers import Tokenizer as Rules
from tokenizers import decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from distillspec.models import wrap
from distillspec.models.adapter import TransformersModel
from distillspec.models.lora import add_lora
from distillspec.models.surgery import keep_layers
from distillspec.models.toy import TableModel

SIZE = 48
"""Ids of the tiny tokenizer, and rows of the tiny models unless said otherwise."""
CHAT = (
    "{% for message in messages %}{{ '<s>' if loop.first else '' }}{{ message['role'] }} "
    "{{ message['content'] }} </s> {% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
)
SPREAD = 0.4
FAMILIES = ("llama", "gpt2", "t5", "t5-untied")
ADAPTER_RANK = 3


def random_table(
    size: int = 5, *, seed: int = 0, order: int = 1, scale: float = 1.0, **settings
) -> TableModel:
    """Make a float64 Markov table; `settings` go to `TableModel` (eos_ids, context, kept, name)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((size,) * (order + 1), generator=generator, dtype=torch.float64)
    return TableModel(logits * scale, **settings)


def word_tokenizer(size: int = SIZE, *, chat: bool = False) -> PreTrainedTokenizerFast:
    """Make a tokenizer of `size` words: <pad> 0, </s> 1, <unk> 2, <s> 3, roles, then w6, w7…"""
    words = ["<pad>", "</s>", "<unk>", "<s>", "user", "assistant"]
    words += [f"w{i}" for i in range(len(words), size)]
    rules = Rules(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=rules,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<s>",
    )
    if chat:
        tokenizer.chat_template = CHAT
    return tokenizer


def byte_tokenizer(*, merges: tuple[tuple[str, str], ...] = ()) -> PreTrainedTokenizerFast:
    """Make a tokenizer of one id per byte and an end token: characters split over tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, "<|endoftext|>", *(a + b for a, b in merges)]
    rules = Rules(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges=list(merges)))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=rules, eos_token="<|endoftext|>")


def seeded(make: Callable[[], PreTrainedModel], seed: int) -> PreTrainedModel:
    """Build a module from its own seed, in float32 and eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().float().eval()


def module(
    family: str, *, seed: int = 0, rows: int = SIZE, layers: int = 2, context: int = 128
) -> PreTrainedModel:
    """Build a tiny random model of a family of `FAMILIES` with `rows` rows in its head."""
    common = {"vocab_size": rows, "eos_token_id": 1, "pad_token_id": 0}
    if family == "llama":
        config = LlamaConfig(
            **common,
            bos_token_id=3,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=context,
            initializer_range=SPREAD,
            tie_word_embeddings=True,
        )
        return seeded(lambda: LlamaForCausalLM(config), seed)
    if family == "gpt2":
        config = GPT2Config(
            vocab_size=rows,
            eos_token_id=1,
            bos_token_id=3,
            n_embd=32,
            n_layer=layers,
            n_head=4,
            n_positions=context,
            initializer_range=SPREAD,
        )
        return seeded(lambda: GPT2LMHeadModel(config), seed)
    tied = family == "t5"
    config = T5Config(
        **common,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=layers,
        num_heads=4,
        feed_forward_proj="relu" if tied else "gated-gelu",
        decoder_start_token_id=0,
        tie_word_embeddings=tied,
        initializer_factor=1.0 if tied else 0.4,
        dropout_rate=0.0,
    )
    made = seeded(lambda: T5ForConditionalGeneration(config), seed)
    return made if tied else _untie(made, seed)


def tiny(family: str, *, seed: int = 0, rows: int = SIZE, **settings) -> TransformersModel:
    """Build a tiny random `LanguageModel`; `settings` go to `module`."""
    return wrap(module(family, seed=seed, rows=rows, **settings), word_tokenizer())


def perturbed(model: TransformersModel, scale: float, *, seed: int = 0) -> TransformersModel:
    """Copy a model and add `scale`·std·noise to each parameter: a draft that is partly right.

    At 0.02 a greedy draft of these tiny models agrees about five times in six, at 0.05 in two of
    five.
    """
    generator = torch.Generator().manual_seed(seed)
    noisy = copy.deepcopy(model.module)
    with torch.no_grad():
        for parameter in noisy.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            spread = parameter.std() if parameter.numel() > 1 else 0.0
            parameter.add_(noise * spread * scale)
    return wrap(noisy, model.tokenizer.hf)


def adapted(family, *, trained=True, kept=None, dtype=torch.float32):
    """A tiny model with adapters; where `trained`, with other values than they begin with."""
    model = tiny(family)
    if kept is not None:
        model = keep_layers(model, range(2), kept=kept)
    model.module.to(dtype)
    add_lora(model.module, ADAPTER_RANK, seed=5)
    if trained:
        generator = torch.Generator().manual_seed(1)
        for parameter in model.module.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.data.add_(noise.to(parameter.dtype) * 0.3)
    return model


def _untie(made: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Give T5 an output layer of its own, as version 1.1 has."""
    generator = torch.Generator().manual_seed(seed)
    made.lm_head.weight = torch.nn.Parameter(
        torch.randn(made.lm_head.weight.shape, generator=generator) * SPREAD
    )
    made.all_tied_weights_keys = {
        a: b for a, b in made.all_tied_weights_keys.items() if "lm_head" not in a
    }
    return made
