"""`new-draft`: a draft from a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distillspec.commands.pairs import examples, load_model, rows_of
from distillspec.commands.settings import NewDraft
from distillspec.errors import UserError
from distillspec.models.adapter import TransformersModel
from distillspec.models.surgery import keep_layers, most_frequent_ids, narrow
from distillspec.studies.outputs import seeded
from distillspec.training.data import Example


def run(settings: NewDraft) -> dict[str, Any]:
    """Make the draft and save it."""
    if (settings.layers is None) == (settings.width is None):
        raise UserError("give either --layers (keep those of the target) or --width (a fresh one)")
    if (settings.keep_ids is None) != (settings.prompts is None):
        raise UserError("--keep-ids and --prompts go together: the ids are chosen by their texts")
    make_way(settings.out)
    target = load_model(settings.target)
    kept = None
    if settings.keep_ids is not None and settings.prompts is not None:
        rows = rows_of(settings.prompts, settings.limit, skip_invalid=False, training=True)
        kept = frequent_ids(target, examples(target.tokenizer, rows), settings.keep_ids)
    if settings.layers is not None:
        draft = keep_layers(target, settings.layers, kept=kept)
    else:
        draft = narrow(
            target,
            width=settings.width or 0,
            layers=settings.depth,
            heads=max(1, (settings.width or 0) // 64),
            generator=seeded(settings.seed, 1)[0],
            kept=kept,
        )
    draft.save(settings.out)
    return {
        "out": str(settings.out),
        "parameters": sum(parameter.numel() for parameter in draft.parameters()),
        "target_parameters": sum(parameter.numel() for parameter in target.parameters()),
        "kept_ids": None if draft.kept is None else len(draft.kept),
    }


def make_way(out: Path) -> None:
    """Make the folder, or refuse one that holds anything or cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made a folder: {error.strerror}") from error
    if any(out.iterdir()):
        raise UserError(f"{out}: is not empty; give --out a new folder")


def frequent_ids(target: TransformersModel, data: list[Example], size: int) -> Tensor:
    """Choose the [size] ids that the texts use most; the end-of-sequence ids always stay."""
    V = target.vocabulary.size
    if not 1 <= size <= V:
        raise UserError(f"--keep-ids {size}: expected a number from 1 to {V}")
    counts = torch.zeros(V, dtype=torch.int64)
    for example in data:
        for ids in (example.prompt, example.completion):
            if ids is not None:
                counts += torch.bincount(ids, minlength=V)
    return most_frequent_ids(counts, size, always=target.eos_ids)


def tell(result: dict[str, Any]) -> str:
    """Say what was made."""
    head = "" if result["kept_ids"] is None else f", head trimmed to {result['kept_ids']:,} ids"
    return (
        f"{result['out']}: {result['parameters'] / 1e6:.1f}M parameters{head} "
        f"(target {result['target_parameters'] / 1e6:.1f}M)"
    )
