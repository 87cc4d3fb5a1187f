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
from distillspec.models.surgery import ids_covering, keep_layers, most_frequent_ids, narrow
from distillspec.studies.outputs import seeded
from distillspec.training.data import Example


def run(settings: NewDraft) -> dict[str, Any]:
    """Make the draft and save it."""
    if (settings.layers is None) == (settings.width is None):
        raise UserError("give either --layers (keep those of the target) or --width (a fresh one)")
    if settings.keep_ids is not None and settings.keep_share is not None:
        raise UserError("give either --keep-ids (how many) or --keep-share (of the tokens)")
    trimmed = settings.keep_ids is not None or settings.keep_share is not None
    if trimmed != (settings.prompts is not None):
        raise UserError(
            "--prompts goes together with --keep-ids or --keep-share: its texts choose the ids"
        )
    make_way(settings.out)
    target = load_model(settings.target)
    kept = None
    if settings.prompts is not None:
        rows = rows_of(settings.prompts, settings.limit, skip_invalid=False, training=True)
        counts = id_counts(target, examples(target.tokenizer, rows))
        kept = _chosen(target, counts, settings.keep_ids, settings.keep_share)
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


def _chosen(
    target: TransformersModel, counts: Tensor, size: int | None, share: float | None
) -> Tensor:
    """Choose so many ids, or as many as make up a share of the tokens."""
    if share is not None:
        if not 0 < share <= 1:
            raise UserError(f"--keep-share {share}: expected a share above 0 and at most 1")
        size = max(ids_covering(counts, share), len(set(target.eos_ids)))
    return _most_frequent(target, counts, size or 0)


def frequent_ids(target: TransformersModel, data: list[Example], size: int) -> Tensor:
    """Choose the [size] ids that the texts use most; the end-of-sequence ids always stay."""
    return _most_frequent(target, id_counts(target, data), size)


def id_counts(target: TransformersModel, data: list[Example]) -> Tensor:
    """Count [V] how often each id occurs in the texts, prompts and completions."""
    V = target.vocabulary.size
    counts = torch.zeros(V, dtype=torch.int64)
    for example in data:
        for ids in (example.prompt, example.completion):
            if ids is not None:
                counts += torch.bincount(ids, minlength=V)
    return counts


def _most_frequent(target: TransformersModel, counts: Tensor, size: int) -> Tensor:
    if not 1 <= size <= len(counts):
        raise UserError(f"--keep-ids {size}: expected a number from 1 to {len(counts)}")
    return most_frequent_ids(counts, size, always=target.eos_ids)


def tell(result: dict[str, Any]) -> str:
    """Say what was made."""
    head = "" if result["kept_ids"] is None else f", head trimmed to {result['kept_ids']:,} ids"
    return (
        f"{result['out']}: {result['parameters'] / 1e6:.1f}M parameters{head} "
        f"(target {result['target_parameters'] / 1e6:.1f}M)"
    )
