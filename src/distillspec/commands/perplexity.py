"""`perplexity`: how well models predict the targets of a file."""

from __future__ import annotations

from typing import Any

import numpy as np

from distillspec.commands.pairs import (
    at_least,
    check_fit,
    device_of,
    examples,
    load_model,
    names_of,
    rows_of,
)
from distillspec.commands.study_settings import Perplexity
from distillspec.commands.tables import interval
from distillspec.errors import UserError
from distillspec.models.adapter import TransformersModel
from distillspec.settings import as_dict
from distillspec.studies.perplexity import perplexity, surprisals
from distillspec.studies.store import RESULT, Run
from distillspec.tasks import Row


def run(settings: Perplexity) -> dict[str, Any]:
    """Score the targets with every model, and return what `--json` prints."""
    at_least(1, settings, "batch_size", "limit")
    rows = rows_of(settings.prompts, settings.limit, skip_invalid=False, seed=settings.seed)
    for row in rows:
        if row.target is None and row.target_ids is None:
            raise UserError(f"{row.id}: no target to score; give rows with one")
    names = names_of("--models", settings.models)
    store = Run.create(
        settings.out,
        verb="perplexity",
        config=as_dict(settings),
        seed=settings.seed,
        device=device_of(settings.device),
    )
    found = []
    for name, path in names.items():  # one at a time: none needs another
        model = load_model(path, dtype=settings.dtype, device=settings.device)
        found.append({"model": name, **_scored(model, rows, settings.batch_size)})
    result = {"prompts": settings.prompts, "texts": len(rows), "models": found}
    store.write_json(RESULT, result)
    return result


def _scored(model: TransformersModel, rows: list[Row], batch_size: int) -> dict[str, Any]:
    made = examples(model.tokenizer, rows)
    check_fit(model, rows, made)
    completions = [one.completion for one in made if one.completion is not None]
    texts = [
        row.target if row.target is not None else model.tokenizer.decode(row.target_ids or ())
        for row in rows
    ]
    for row, text in zip(rows, texts, strict=True):
        if not text:
            raise UserError(f"{row.id}: the target is empty; leave the row out")
    nats = surprisals(model, [one.prompt for one in made], completions, batch_size=batch_size)
    for row, value in zip(rows, nats, strict=True):
        if not np.isfinite(value):
            raise UserError(
                f"{model.name} gives the target of {row.id} no probability at all; a draft with a "
                "trimmed head cannot write every text"
            )
    return {**perplexity(nats, completions, texts)}


def tell(result: dict[str, Any]) -> str:
    """Show a line per model."""
    lines = [
        f"{result['texts']} texts of {result['prompts']}",
        f"{'model':<32} {'perplexity':<24} {'nats a token':<22} {'bits a byte':<22} unigrams",
    ]
    for one in result["models"]:
        lines.append(
            f"{one['model']:<32} {interval(one['perplexity'], 1):<24} "
            f"{interval(one['nats_per_token'], 3):<22} {interval(one['bits_per_byte'], 3):<22} "
            f"{one['unigram_perplexity']:.1f}"
        )
    return "\n".join(lines)
