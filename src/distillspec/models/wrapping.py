"""From a transformers model in memory to a `LanguageModel`, refusing what would go wrong later.

Two kinds of model would give wrong text instead of an error: those whose state cannot be rolled
back, and those that do to their logits something we do not know of. The first are refused by their
structure, and both by a trial on four tokens (`trial.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import DynamicCache, DynamicLayer

from distillspec.errors import UserError
from distillspec.models.adapter import Body, TransformersModel
from distillspec.models.causal import CausalBody
from distillspec.models.heads import Head
from distillspec.models.saving import Trimmed, output_layer, trim_head
from distillspec.models.seq2seq import Seq2SeqBody
from distillspec.models.text import Tokenizer
from distillspec.models.trial import try_out

HuggingFaceModel: TypeAlias = PreTrainedModel
"""A model of transformers, as other rooms call it."""
HuggingFaceTokenizer: TypeAlias = PreTrainedTokenizerBase
"""A tokenizer of transformers, as other rooms call it."""

POSITIONS = {
    "decoder": ("max_position_embeddings", "max_decoder_position_embeddings", "max_seq_len"),
    "encoder": ("max_position_embeddings", "max_encoder_position_embeddings"),
}
"""What configs call the tokens they have positions for (LED and MPT have names of their own)."""


def wrap(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> TransformersModel:
    """Make a `LanguageModel` of a model in memory.

    Args:
        module: A causal or sequence-to-sequence language model of transformers.
        tokenizer: Its tokenizer.

    Raises:
        UserError: naming the model, if it cannot serve as a target or draft.
    """
    name = module.name_or_path or type(module).__name__
    encoder_decoder = bool(module.config.is_encoder_decoder)
    return assemble(module, Tokenizer(tokenizer, encoder_decoder, name))


def as_model(
    model: TransformersModel | HuggingFaceModel, tokenizer: HuggingFaceTokenizer | None, what: str
) -> TransformersModel:
    """Take a model as it is, or wrap a transformers model that a caller holds.

    Args:
        model: Ours or transformers' own.
        tokenizer: For the latter.
        what: What messages call it.

    Raises:
        UserError: there is no tokenizer, it or a part of it is in training mode (dropout would make
            its passes differ), or it cannot be used.
    """
    if isinstance(model, TransformersModel):
        return model
    if not isinstance(model, PreTrainedModel):
        raise UserError(
            f"the {what} is a {type(model).__name__}; expected a transformers model, or one of "
            "distillspec.models.load"
        )
    if tokenizer is None:
        raise UserError(f"the {what} is a transformers model: give its tokenizer too")
    if any(part.training for part in model.modules()):
        raise UserError(f"the {what} is in training mode: call its .eval() first")
    return wrap(model, tokenizer)


def assemble(
    module: PreTrainedModel, tokenizer: Tokenizer, kept: Tensor | None = None
) -> TransformersModel:
    """Check a model, trim its head to `kept` if given, and put the parts together.

    Raises:
        UserError: naming the model, if it cannot serve as a target or draft.
    """
    name = tokenizer.name
    refuse_state(module, name)
    refuse_dtype(module.config, module.dtype, name)
    trimmed = None if kept is None else trim_head(module, kept, name)
    return put_together(module, tokenizer, trimmed)


def put_together(
    module: PreTrainedModel, tokenizer: Tokenizer, trimmed: Trimmed | None
) -> TransformersModel:
    """Find the parts of a model that has been checked, and try them.

    Raises:
        UserError: naming the model, if the trial fails.
    """
    head = _head(module, tokenizer, None if trimmed is None else trimmed.kept)
    body = _body(module, tokenizer)
    ends = eos_ids(getattr(module, "generation_config", None), module.config, tokenizer)
    model = TransformersModel(module, tokenizer, body, head, ends, trimmed)
    try_out(model, head, "with a key-value cache that is rolled back")
    return model


def refuse_state(module: PreTrainedModel, name: str) -> None:
    """Refuse a model whose state cannot be rolled back.

    Raises:
        UserError: naming the model and what it keeps.
    """
    layers = DynamicCache(config=module.config).layers
    kinds = {type(layer).__name__ for layer in layers if not isinstance(layer, DynamicLayer)} - {
        "DummyLayer"
    }
    if module._is_stateful or kinds:
        kept = f" ({', '.join(sorted(kinds))})" if kinds else ""
        raise UserError(
            f"{name} ({type(module).__name__}) keeps a recurrent state{kept}, which cannot forget "
            "rejected tokens: use a transformer whose layers all have a key-value cache"
        )


def refuse_dtype(config: PreTrainedConfig, dtype: torch.dtype | None, name: str) -> None:
    """Refuse T5 in float16, where its activations overflow (transformers#14189).

    Raises:
        UserError: naming the model.
    """
    relative = getattr(config, "relative_attention_num_buckets", None) is not None
    if config.is_encoder_decoder and relative and dtype == torch.float16:
        raise UserError(
            f"{name} is a T5 model, which overflows in float16: use bfloat16 or float32"
        )


def _body(module: PreTrainedModel, tokenizer: Tokenizer) -> Body:
    config = module.config.get_text_config(decoder=True)
    context = _context(module.config, "decoder")
    if not module.config.is_encoder_decoder:
        return CausalBody(module, tokenizer.name, context)
    settings = (module.config, getattr(module, "generation_config", None))
    start = _first(settings, "decoder_start_token_id")
    if start is None:  # T5 configs before the setting existed start from the padding token
        start = _first((module.config, config), "pad_token_id")
    if start is None:
        raise UserError(f"{tokenizer.name} has no decoder_start_token_id in its config: add it")
    source = _context(module.config, "encoder")
    return Seq2SeqBody(module, tokenizer.name, context, start, source_context=source)


def _first(settings: Iterable[PreTrainedConfig | GenerationConfig | None], key: str) -> Any:
    """Return the first value of a setting that is not None; configs of several parts lack some."""
    found = (getattr(one, key, None) for one in settings)
    return next((value for value in found if value is not None), None)


def config_of(config: PreTrainedConfig, part: str) -> PreTrainedConfig:
    """Return what configures the `decoder` or the `encoder`: the config itself, or one within."""
    own = getattr(config, part, None)
    if isinstance(own, PreTrainedConfig):
        return own.get_text_config()
    # One for both halves has no text config, and transformers would return a copy
    return config if config.is_encoder_decoder else config.get_text_config(decoder=True)


def _context(whole: PreTrainedConfig, part: str) -> int | None:
    """Return the most tokens a row of the `decoder` or `encoder` can hold, None for no limit.

    With `longrope` that is the length of the original training: once any row of a batch passes it,
    every row is turned by other angles, and what is cached already is not.
    """
    config = config_of(whole, part)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(one for one in rope.values() if isinstance(one, dict))]  # or one a layer type
    limits: list[int | None] = [
        *(getattr(config, key, None) for key in POSITIONS[part]),
        *(
            one["original_max_position_embeddings"]
            for one in kinds
            if one.get("rope_type") == "longrope"
        ),
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _head(module: PreTrainedModel, tokenizer: Tokenizer, kept: Tensor | None) -> Head:
    # Models of several parts keep what is done to the logits in the config of the one that writes
    config = module.config.get_text_config(decoder=True)
    scaled = bool(getattr(config, "scale_decoder_outputs", False))
    divisor = getattr(config, "logits_scaling", None)
    factor = getattr(config, "logit_scale", None)
    bias: Tensor | None = getattr(module, "final_logits_bias", None)
    return Head(
        output_layer(module, tokenizer.name),
        tokenizer.vocabulary,
        kept=kept,
        before=config.hidden_size**-0.5 if scaled else 1.0,
        after=(1.0 if factor is None else factor) / (1.0 if divisor is None else divisor),
        cap=getattr(config, "final_logit_softcapping", None),
        bias=None if bias is None else bias[0],
    )


def eos_ids(
    generation: GenerationConfig | None, config: PreTrainedConfig, tokenizer: Tokenizer
) -> tuple[int, ...]:
    """Collect the ids that end a sequence: the generation settings', else the config's.

    A chat model's turn also ends with its tokenizer's own end-of-sequence token.
    """
    found = _first((generation, config, config.get_text_config(decoder=True)), "eos_token_id")
    ids = [] if found is None else list(found) if isinstance(found, list) else [found]
    if (tokenizer.chat or not ids) and tokenizer.eos_id is not None:
        ids.append(tokenizer.eos_id)
    return tuple(i for i in dict.fromkeys(ids) if 0 <= i < tokenizer.vocabulary.size)
