"""Models from a folder, a hub name or a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from distillspec.errors import UserError
from distillspec.models.adapter import TransformersModel
from distillspec.models.places import Place, explained, find_place, read_config
from distillspec.models.quiet import quiet
from distillspec.models.saving import find_kept, read_kept
from distillspec.models.text import Tokenizer
from distillspec.models.vocabulary import check_same
from distillspec.models.wrapping import assemble, eos_ids, refuse_dtype


def load(
    path_or_name: str | Path, *, dtype: torch.dtype | None = None, device: str = "cpu"
) -> TransformersModel:
    """Load a model for decoding or training.

    Args:
        path_or_name: A local folder, a GGUF file, or a name on the hub.
        dtype: The type of the parameters; None for the one they are stored in (float32 for GGUF).
        device: Where to put them, such as "cpu" or "cuda".

    Raises:
        UserError: if there is no such model, or it is one that we refuse.
    """
    place = find_place(path_or_name)
    config = read_config(place)
    return _load(place, config, _read_tokenizer(place, config), dtype, device)


def load_tokenizer(path_or_name: str | Path) -> Tokenizer:
    """Load a model's tokenizer alone.

    Raises:
        UserError: if there is no such model, or it has no tokenizer.
    """
    place = find_place(path_or_name)
    return _read_tokenizer(place, read_config(place))


def load_writer(path_or_name: str | Path) -> tuple[Tokenizer, tuple[int, ...]]:
    """Load what is needed to ask a server of a model: its tokenizer, and the ids that end it.

    Raises:
        UserError: if there is no such model, or it has no tokenizer.
    """
    place = find_place(path_or_name)
    config = read_config(place)
    tokenizer = _read_tokenizer(place, config)
    try:
        with quiet():
            generation = GenerationConfig.from_pretrained(place.source)
    except OSError:  # a model need not have the file
        generation = None
    return tokenizer, eos_ids(generation, config, tokenizer)


def load_pair(
    target: str | Path,
    draft: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> tuple[TransformersModel, TransformersModel]:
    """Load a target and its draft, after checking from their tokenizers that they fit.

    Raises:
        UserError: as `load_together`.
    """
    first, second = load_together(target, [draft], dtype=dtype, device=device)
    return first, second


def load_together(
    target: str | Path,
    others: Sequence[str | Path],
    *,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> list[TransformersModel]:
    """Load a target and models that share its tokens, after checking from their tokenizers.

    Returns:
        The target, then the others.

    Raises:
        UserError: if vocabularies differ, before any weight is read; and as `load`.
    """
    places = [find_place(target), *map(find_place, others)]
    configs = [read_config(place) for place in places]
    tokenizers = [_read_tokenizer(*pair) for pair in zip(places, configs, strict=True)]
    for place, config, tokenizer in zip(places[1:], configs[1:], tokenizers[1:], strict=True):
        check_same(
            tokenizers[0].vocabulary,
            tokenizer.vocabulary,
            names=(tokenizers[0].name, tokenizer.name),
        )
        check_kinds(
            configs[0].is_encoder_decoder,
            config.is_encoder_decoder,
            names=(places[0].name, place.name),
        )
    return [_load(*parts, dtype, device) for parts in zip(places, configs, tokenizers, strict=True)]


def check_kinds(target: bool, draft: bool, *, names: tuple[str, str]) -> None:
    """Refuse a pair of which one alone is an encoder-decoder.

    Args:
        target: Whether the target is one.
        draft: Whether the draft is.
        names: Of the two.

    Raises:
        UserError: naming both.
    """
    if target != draft:
        kinds = ["encoder-decoder" if kind else "decoder-only" for kind in (target, draft)]
        raise UserError(
            f"target {names[0]} is {kinds[0]} and draft {names[1]} is {kinds[1]}: "
            "both must be of the same kind"
        )


def _read_tokenizer(place: Place, config: PreTrainedConfig) -> Tokenizer:
    with explained(place, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(place.source, **place.arguments)
    found = Tokenizer(tokenizer, bool(config.is_encoder_decoder), place.name)
    rows = int(config.get_text_config(decoder=True).vocab_size)
    if place.gguf and found.vocabulary.size > rows:
        # transformers 5.0 adds ids of its own for the special tokens that it expects
        raise UserError(
            f"{place.name} has {rows} tokens, and transformers {transformers.__version__} reads "
            f"{found.vocabulary.size}: its ids would mean other text; upgrade transformers"
        )
    return found


def _load(
    place: Place,
    config: PreTrainedConfig,
    tokenizer: Tokenizer,
    dtype: torch.dtype | None,
    device: str,
) -> TransformersModel:
    """Read the weights and put the model together."""
    refuse_dtype(config, dtype, place.name)
    family: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    wanted = dtype if dtype is not None else torch.float32 if place.gguf else "auto"
    # Unpacking a GGUF file draws a bar of its own that no setting hides
    bar = redirect_stderr(StringIO()) if place.gguf else nullcontext()
    with explained(place, "model"), bar:
        module, report = family.from_pretrained(
            place.source,
            config=config,  # reading it from a large GGUF file again takes a quarter of the time
            dtype=wanted,
            output_loading_info=True,
            **place.arguments,
        )
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise UserError(
            f"{place.name} lacks weights of a {type(module).__name__}, {lacking[0]} among "
            f"{len(lacking)}: the folder is incomplete or not a language model"
        )
    if place.gguf:
        _forget_quantization(module)
    with explained(place, "kept ids"):
        file = None if place.gguf else find_kept(place.source)
    kept = None if file is None else read_kept(file, tokenizer.vocabulary.size)
    return assemble(module.to(device), tokenizer, kept)


def _forget_quantization(module: PreTrainedModel) -> None:
    """Make a model that was unpacked from a GGUF file an ordinary one, which can be saved."""
    if not all(parameter.is_floating_point() for parameter in module.parameters()):
        raise TypeError("the GGUF file was loaded without unpacking its weights")
    for attribute in ("quantization_config", "_pre_quantization_dtype"):
        if attribute in vars(module.config):
            delattr(module.config, attribute)
    for attribute in ("hf_quantizer", "quantization_method", "is_quantized"):
        if attribute in vars(module):
            delattr(module, attribute)
