"""What a saved model looks like on disk, whole heads and trimmed ones alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast
from unittest.mock import patch

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME

from distillspec.errors import UserError
from distillspec.models.bare import bare
from distillspec.models.quiet import quiet
from distillspec.models.text import Tokenizer

KEPT_FILE = "kept_ids.json"
"""Beside a trimmed draft: {"kept_ids": [ascending ids]}."""


class _Outer(Protocol):
    """How transformers names the output layer."""

    def get_output_embeddings(self) -> nn.Module | None: ...

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None: ...


LEFT_OUT = {"weight": 0.0, "bias": -1e4}
"""What a saved output layer has where trimming left a row out, by parameter.

The rows cannot stay what they were: nothing trains them while the states move on, and in a plain
folder they would take most of the mass (0.72 of it on a draft distilled for an hour, docs/log.md).
A logit of 0 stands far below those of trained rows (0.004 of the mass there).
"""


@dataclass(frozen=True)
class Trimmed:
    """How a trimmed head was cut."""

    kept: Tensor
    """[K] int64 ascending ids of the rows that were kept."""
    rows: int
    """R, rows of the output layer before."""


def output_layer(module: PreTrainedModel, name: str) -> nn.Linear:
    """Return the linear layer from hidden states to logits.

    Raises:
        UserError: naming the model, if it has none that we could apply ourselves.
    """
    layer = cast(_Outer, module).get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        raise UserError(
            f"{name} ({type(module).__name__}) has no plain output layer over its vocabulary: "
            "use a causal or sequence-to-sequence language model"
        )
    return layer


def trim_head(module: PreTrainedModel, kept: Tensor, name: str) -> Trimmed:
    """Replace the output layer by one with only the rows of `kept`, untied from the embedding.

    Args:
        module: Changed in place; its input embedding stays whole.
        kept: [K] int64 ascending ids.
        name: What messages call the model.

    Raises:
        UserError: naming the model, if more than its output layer depends on the ids.
    """
    if getattr(module, "final_logits_bias", None) is not None:
        raise UserError(
            f"{name} adds a bias to its logits beside its head, so the head stays whole"
        )
    whole = output_layer(module, name)
    narrow = nn.Linear(
        whole.in_features,
        len(kept),
        bias=whole.bias is not None,
        device="meta",
        dtype=whole.weight.dtype,
    )
    rows = kept.to(whole.weight.device)
    narrow.weight = nn.Parameter(whole.weight.detach()[rows].clone())
    if whole.bias is not None:
        narrow.bias = nn.Parameter(whole.bias.detach()[rows].clone())
    cast(_Outer, module).set_output_embeddings(narrow)
    # T5's configs use this flag to say whether hidden states are scaled, tied or not
    if not hasattr(module.config, "scale_decoder_outputs"):
        module.config.tie_word_embeddings = False
    key = f"{_prefix(module, narrow)}.weight"
    tied = module.all_tied_weights_keys.items()
    module.all_tied_weights_keys = {a: b for a, b in tied if key not in (a, b)}
    return Trimmed(kept.cpu(), len(whole.weight))


def write_folder(
    folder: Path, module: PreTrainedModel, tokenizer: Tokenizer, trimmed: Trimmed | None
) -> None:
    """Write weights, configs, tokenizer and, for a trimmed head, `kept_ids.json`.

    That of a trimmed draft which was saved there before would trim a whole one: it goes.
    """
    state = None if trimmed is None else _whole_state(module, trimmed, tokenizer.name)
    write_module(folder, module, state)
    if trimmed is None:
        (folder / KEPT_FILE).unlink(missing_ok=True)
    else:
        kept = {"kept_ids": trimmed.kept.tolist()}
        (folder / KEPT_FILE).write_text(json.dumps(kept), encoding="utf-8")
    tokenizer.save(folder)


def write_module(folder: Path, module: PreTrainedModel, state: dict[str, Tensor] | None) -> None:
    """Write weights and configs, the generation config as it stands.

    transformers refuses to write settings that mean nothing together, such as a temperature
    without `do_sample`, which published models have: 5.0 always, later where one was changed.

    Args:
        folder: Where to.
        module: The model.
        state: Weights to write in place of its own; None for these.
    """
    settings: GenerationConfig | None = getattr(module, "generation_config", None)
    with quiet(), patch.object(module, "generation_config", bare(None), create=True):
        module.save_pretrained(folder, state_dict=state)
    if settings is not None and module.can_generate():
        settings.to_json_file(folder / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def find_kept(source: str) -> Path | None:
    """Find the kept ids of a trimmed draft, None for a model with a whole head.

    Args:
        source: A folder or a hub name.
    """
    if Path(source).is_dir():
        file = Path(source) / KEPT_FILE
        return file if file.exists() else None
    try:
        return Path(hf_hub_download(source, KEPT_FILE))
    except EntryNotFoundError:
        return None


def read_kept(file: Path, size: int) -> Tensor:
    """Return the [K] int64 kept ids of a trimmed draft.

    Raises:
        UserError: if the file does not hold ascending ids below `size`.
    """
    try:
        ids = json.loads(file.read_text(encoding="utf-8"))["kept_ids"]
        kept = torch.tensor(ids, dtype=torch.int64)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f'{file}: expected {{"kept_ids": [ids]}}: {error}') from error
    if kept.dim() != 1 or len(kept) == 0 or bool((kept.diff() <= 0).any()) or int(kept[0]) < 0:
        raise UserError(f"{file}: kept_ids must be a list of ascending ids")
    if int(kept[-1]) >= size:
        raise UserError(f"{file}: kept id {int(kept[-1])} is not among the tokenizer's {size} ids")
    return kept


def _whole_state(module: PreTrainedModel, trimmed: Trimmed, name: str) -> dict[str, Tensor]:
    """Return the state dict with the trimmed head's rows in their places, between `LEFT_OUT`."""
    prefix = _prefix(module, output_layer(module, name))
    state: dict[str, Tensor] = dict(module.state_dict())
    for part, value in LEFT_OUT.items():
        trained = state.get(f"{prefix}.{part}")
        if trained is not None:
            rows = trained.new_full((trimmed.rows, *trained.shape[1:]), value, device="cpu")
            state[f"{prefix}.{part}"] = rows.index_copy(0, trimmed.kept, trained.detach().cpu())
    return state


def _prefix(module: nn.Module, layer: nn.Module) -> str:
    """Return the name of a layer within a module."""
    return next(str(name) for name, part in module.named_modules() if part is layer)
