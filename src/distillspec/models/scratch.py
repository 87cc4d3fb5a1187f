"""Models of chosen sizes with random weights, and tokenizers trained on texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from tokenizers import Tokenizer as Rules
from tokenizers import decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from distillspec.errors import UserError
from distillspec.models.adapter import TransformersModel
from distillspec.models.quiet import quiet
from distillspec.models.seeds import globally_seeded
from distillspec.models.wrapping import wrap

Family = Literal["gpt2", "llama", "t5"]
PAD, END = "<pad>", "</s>"
"""The special tokens of a trained tokenizer, ids 0 and 1."""
_SHORTEST = 4
"""A model is tried on as many tokens when it is made."""
_SMALLEST = 2 + 256
"""Special tokens and bytes: no text is without ids."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model."""

    family: Family
    """Its architecture."""
    width: int
    """Size of the hidden states."""
    depth: int
    """Layers; of an encoder-decoder in each half."""
    heads: int
    """Attention heads; they divide the width."""
    ff: int
    """Size of the feed-forward layers."""
    context: int
    """Longest sequence in tokens, where the family has a limit."""


def train_tokenizer(
    texts: Iterable[str], size: int, *, encoder_decoder: bool
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer.

    Args:
        texts: What it shall be good at.
        size: Ids, special ones included; fewer where the texts give no more.
        encoder_decoder: Whether texts end with the end-of-sequence token, as T5's do.

    Raises:
        UserError: the size leaves no room for the bytes.
    """
    if size < _SMALLEST:
        raise UserError(f"a vocabulary of {size}: expected at least {_SMALLEST}, the bytes and two")
    rules = Rules(BPE())
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    rules.train_from_iterator(texts, trainer)
    if encoder_decoder:
        rules.post_processor = processors.TemplateProcessing(
            single=f"$A {END}", special_tokens=[(END, 1)]
        )
    make: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    return make(tokenizer_object=rules, pad_token=PAD, eos_token=END)


def new_model(sizes: Sizes, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> TransformersModel:
    """Make a model with random weights, whose head has a row an id of the tokenizer.

    The global generator is left as it was.

    Raises:
        UserError: the heads do not divide the width, or a size is below 1.
    """
    with globally_seeded(torch.device("cpu"), seed), quiet():
        module = architecture(sizes, len(tokenizer), _ids(tokenizer))
    nn.Module.train(module, False)
    return wrap(module, tokenizer)


def parameters(sizes: Sizes, vocabulary: int) -> int:
    """Count the parameters that a model of these sizes would have; nothing is allocated."""
    with torch.device("meta"), quiet():
        module = architecture(sizes, vocabulary, (0, 1))
    return sum(parameter.numel() for parameter in module.parameters())


def architecture(sizes: Sizes, rows: int, ids: tuple[int, int]) -> PreTrainedModel:
    """Build the module, initialised from the global generator.

    Args:
        sizes: Of the model.
        rows: Ids it knows.
        ids: Of padding and of the end.

    Raises:
        UserError: a size that such a model cannot have.
    """
    _check(sizes)
    if sizes.family == "gpt2":
        return _gpt2(sizes, rows, *ids)
    if sizes.family == "llama":
        return _llama(sizes, rows, *ids)
    return _t5(sizes, rows, *ids)


def _check(sizes: Sizes) -> None:
    if min(sizes.width, sizes.depth, sizes.heads, sizes.ff) < 1 or sizes.width % sizes.heads:
        raise UserError(
            f"a model of width {sizes.width}, depth {sizes.depth}, {sizes.heads} heads and "
            f"feed-forward size {sizes.ff}: expected numbers of at least 1, the width a multiple "
            "of the heads"
        )
    if sizes.family == "llama" and sizes.width // sizes.heads % 2:
        raise UserError(
            f"heads of size {sizes.width // sizes.heads}: llama's rotary positions turn pairs of "
            "numbers, so the width must be an even multiple of the heads"
        )
    if sizes.family != "t5" and sizes.context < _SHORTEST:
        raise UserError(f"a context of {sizes.context}: expected at least {_SHORTEST} tokens")


def _gpt2(sizes: Sizes, rows: int, pad: int, end: int) -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=rows,
            n_positions=sizes.context,
            n_embd=sizes.width,
            n_layer=sizes.depth,
            n_head=sizes.heads,
            n_inner=sizes.ff,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=pad,
        )
    )


def _llama(sizes: Sizes, rows: int, pad: int, end: int) -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=rows,
            hidden_size=sizes.width,
            intermediate_size=sizes.ff,
            num_hidden_layers=sizes.depth,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.heads,
            max_position_embeddings=sizes.context,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=pad,
            tie_word_embeddings=True,
        )
    )


def _t5(sizes: Sizes, rows: int, pad: int, end: int) -> PreTrainedModel:
    make: Callable[..., T5Config] = T5Config  # its base's settings are not in its signature
    module = T5ForConditionalGeneration(
        make(
            vocab_size=rows,
            d_model=sizes.width,
            d_kv=sizes.width // sizes.heads,
            d_ff=sizes.ff,
            num_layers=sizes.depth,
            num_heads=sizes.heads,
            # T5 v1.1: gated, and no dropout in training, as the paper's.
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            tie_word_embeddings=False,
            decoder_start_token_id=pad,
            eos_token_id=end,
            pad_token_id=pad,
        )
    )
    # transformers draws the rows of an untied head from N(0, 1), as tied ones need that are scaled
    # by 1 / √width in the forward pass. Untied ones are not: losses would begin at tens of nats.
    with torch.no_grad():
        module.lm_head.weight.mul_(sizes.width**-0.5)
    return module


def _ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Return the ids of padding and of the end; a tokenizer without padding pads with the end."""
    end = tokenizer.eos_token_id
    if not isinstance(end, int):
        raise UserError("the tokenizer has no end-of-sequence token; name another, or train one")
    pad = tokenizer.pad_token_id
    return (pad if isinstance(pad, int) else end), end
