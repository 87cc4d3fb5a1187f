"""A draft as engines want it: a plain folder, whole head, the target's tokenizer and row count.

What our own loader knows and others do not is undone here: a trimmed head becomes whole, adapters
are merged, rows are added or cut so that both models of a pair have as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedModel,
)

from distillspec.errors import UserError
from distillspec.models.adapter import TransformersModel
from distillspec.models.bare import bare
from distillspec.models.places import find_place, read_config
from distillspec.models.quiet import quiet
from distillspec.models.saving import write_module
from distillspec.models.text import Tokenizer

PROBE = (
    "Explain what this function does: def add(a, b): return a + b. It takes two numbers and "
    "returns their sum, so add(2, 3) is 5."
)
"""A short text to try a head on."""
MOST_DROPPED = 0.02
"""A head that gives more than this to ids left out is warned of."""


@dataclass(frozen=True)
class Shape:
    """What an engine must know of a model beside its weights."""

    rows: int
    """Ids its tables have rows for (`vocab_size`), the padding included."""
    context: int | None
    """Tokens it has positions for; None where there is no limit."""
    use_cache: bool
    """Whether its config lets engines keep a cache."""
    encoder_decoder: bool
    """Whether it is an encoder-decoder."""
    dtype: str | None
    """Type of its weights, such as float32; None where the config names none."""
    layers: int
    """Of its decoder."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    rows: int
    """Rows of its tables."""
    rows_before: int
    """Rows the draft had."""
    kept: int | None
    """Ids of the trimmed head it came from; None for a whole one."""
    dtype: str
    """Type of its weights."""
    dropped_mass: float | None
    """Mean probability that the whole head gives to ids that trimming left out, over the tokens of
    a short text; None for a head that was whole."""
    tied: bool
    """Whether output and input embedding are one tensor."""
    parameters: int
    """Numbers in its weights, tied ones once."""


def shape_of(path_or_name: str | Path) -> Shape:
    """Read a model's config, and nothing of its weights.

    Raises:
        UserError: if there is no such model.
    """
    whole = read_config(find_place(path_or_name))
    config = whole.get_text_config(decoder=True)
    dtype = getattr(whole, "dtype", None)
    return Shape(
        rows=int(config.vocab_size),
        context=getattr(config, "max_position_embeddings", None),
        use_cache=bool(getattr(config, "use_cache", True)),
        encoder_decoder=bool(whole.is_encoder_decoder),
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        layers=int(config.num_hidden_layers),
    )


def export_draft(
    draft: TransformersModel,
    folder: Path,
    *,
    tokenizer: Tokenizer,
    shape: Shape,
    dtype: torch.dtype | None,
    gamma: int,
) -> Exported:
    """Write a draft as a plain transformers folder.

    Args:
        draft: The model; left as it is.
        folder: Where to write; an empty folder.
        tokenizer: The target's.
        shape: The target's.
        dtype: Of the weights; None for the draft's own.
        gamma: Drafted tokens per block, written where transformers looks for it.

    Raises:
        UserError: if the target has fewer rows than the draft's tokenizer has ids, or what was
            written does not give the same logits when it is loaded again.
    """
    if shape.rows < tokenizer.vocabulary.size:
        raise UserError(
            f"{tokenizer.name} has {shape.rows} rows for {tokenizer.vocabulary.size} ids: its "
            "config and its tokenizer do not fit each other"
        )
    module = _plain(draft, dtype)
    before = _rows(module)
    _resize(module, shape.rows)
    module.config.use_cache = shape.use_cache
    if module.can_generate():
        module.generation_config = _assisting(module.generation_config, gamma, shape.use_cache)
    write_module(folder, module, None)
    tokenizer.save(folder)
    _check(module, folder)
    return Exported(
        rows=shape.rows,
        rows_before=before,
        kept=None if draft.kept is None else len(draft.kept),
        dropped_mass=_dropped_mass(module, draft, tokenizer),
        dtype=str(module.dtype).removeprefix("torch."),
        tied=_tied(module),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
    )


def _plain(draft: TransformersModel, dtype: torch.dtype | None) -> PreTrainedModel:
    """Return a copy without anything of ours: adapters merged, the head whole."""
    with TemporaryDirectory() as scratch:
        draft.save(scratch)
        module = _loaded(Path(scratch), dtype or draft.dtype)
    if draft.kept is not None and _tied(module):
        raise UserError(
            f"{draft.name}: its head is trimmed and loads tied to its embedding, so that no plain "
            "folder can leave ids out; export a draft with a whole head"
        )
    return module


def _assisting(own: GenerationConfig | None, gamma: int, use_cache: bool) -> GenerationConfig:
    """Return the settings of a draft: its ids, and how transformers is to let it assist.

    Of the others, those that the target leaves unset would change what is drafted (a `min_p`,
    tokens that are suppressed), as it was not measured.
    """
    settings = bare(own)
    settings.use_cache = use_cache
    # Only read where the model assists another: drafts of constant length, none cut short by
    # a threshold of confidence, which would change acceptance and what it is measured by.
    settings.num_assistant_tokens = gamma
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    return settings


def _loaded(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    config = read_config(find_place(folder))
    family: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with quiet():
        module: PreTrainedModel = family.from_pretrained(
            folder, dtype=dtype, trust_remote_code=False
        )
    # What was read from the file may be mapped into memory, and the file is about to go
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
    module.train(False)
    return module


@torch.no_grad()
def _dropped_mass(
    module: PreTrainedModel, draft: TransformersModel, tokenizer: Tokenizer
) -> float | None:
    if draft.kept is None:
        return None
    ids = tokenizer.prompt(PROBE)[None]
    p = _logits(module, ids).float().softmax(-1)
    return float(1 - p[..., draft.kept.cpu()].sum(-1).mean().clamp(0, 1))


def _tables(module: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    inputs: Callable[[], nn.Module] = module.get_input_embeddings
    outputs: Callable[[], nn.Module] = module.get_output_embeddings
    return inputs(), outputs()


def _tied(module: PreTrainedModel) -> bool:
    inputs, outputs = _tables(module)
    return inputs.get_parameter("weight") is outputs.get_parameter("weight")


def _rows(module: PreTrainedModel) -> int:
    return len(_tables(module)[0].get_parameter("weight"))


@torch.no_grad()
def _resize(module: PreTrainedModel, rows: int) -> None:
    """Give both tables as many rows; new ones are 0, since they stand for nothing."""
    before = _rows(module)
    if rows == before:
        return
    resize = cast(Callable[..., object], module.resize_token_embeddings)
    with quiet():
        resize(rows, mean_resizing=False)
    for table in _tables(module):
        table.get_parameter("weight")[before:] = 0


@torch.no_grad()
def _check(module: PreTrainedModel, folder: Path) -> None:
    """Load what was written and compare logits, bit for bit.

    Raises:
        UserError: they differ.
    """
    again = _loaded(folder, module.dtype)
    ids = torch.arange(8)[None] * (_rows(module) // 8)
    same = bool(torch.equal(_logits(module, ids), _logits(again, ids)))
    if not same or _tied(module) != _tied(again):
        raise UserError(
            f"{folder}: what was written gives other logits when it is loaded again; this "
            f"{type(module).__name__} cannot be exported"
        )


def _logits(module: PreTrainedModel, ids: Tensor) -> Tensor:
    extra = {"decoder_input_ids": ids} if module.config.is_encoder_decoder else {}
    logits: Tensor = module(input_ids=ids, **extra).logits
    return logits
