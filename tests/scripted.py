"""Models that follow a script: after a word always the same word, so that outputs are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer as Rules
from tokenizers import models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from distillspec.models import wrap
from support import seeded

SPECIAL = ("<pad>", "</s>", "<unk>")


def tokenizer_of(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer of these words, split at blanks."""
    ids = {word: i for i, word in enumerate((*SPECIAL, *words))}
    rules = Rules(models.WordLevel(ids, unk_token="<unk>"))
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=rules, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def save_scripted(
    folder: Path, script: Mapping[str, str], words: Sequence[str], *, strength: float = 20.0
) -> str:
    """Save a Llama whose layers do nothing and whose head says which word follows which.

    A word without an entry in the script ends the text. `strength` is the logit of what follows;
    all others have 0.
    """
    tokenizer = tokenizer_of(words)
    ids = tokenizer.get_vocab()
    size = len(ids)
    width = size + size % 2
    config = LlamaConfig(
        vocab_size=size,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    module = seeded(lambda: LlamaForCausalLM(config), 0)
    with torch.no_grad():
        layer = module.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        module.model.embed_tokens.weight.copy_(torch.eye(size, width))
        module.lm_head.weight.zero_()
        for word, i in ids.items():
            # The norm makes a one-hot state sqrt(width) long.
            module.lm_head.weight[ids[script.get(word, "</s>")], i] = strength / width**0.5
    wrap(module, tokenizer).save(folder)
    return str(folder)
