"""`new-model`: a model with random weights to train from scratch."""

from __future__ import annotations

from typing import Any

from distillspec.commands.new_draft import make_way
from distillspec.commands.pairs import rows_of
from distillspec.commands.study_settings import NewModel
from distillspec.errors import UserError
from distillspec.models import load_tokenizer
from distillspec.models.scratch import Sizes, new_model, train_tokenizer


def run(settings: NewModel) -> dict[str, Any]:
    """Make the model and save it."""
    if (settings.tokenizer is None) == (settings.prompts is None):
        raise UserError("give either --tokenizer (a model's) or --prompts (to train one on)")
    sizes = sizes_of(settings)
    make_way(settings.out)
    if settings.tokenizer is not None:
        tokenizer = load_tokenizer(settings.tokenizer).hf
    else:
        rows = rows_of(
            str(settings.prompts), settings.limit, skip_invalid=False, training=True, seed=0
        )
        texts = (text for row in rows for text in (row.text, row.target) if text)
        tokenizer = train_tokenizer(
            texts, settings.vocabulary, encoder_decoder=settings.family == "t5"
        )
    model = new_model(sizes, tokenizer, seed=settings.seed)
    model.save(settings.out)
    return {
        "out": str(settings.out),
        "family": settings.family,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocabulary": len(tokenizer),
    }


def sizes_of(settings: NewModel) -> Sizes:
    """Read the sizes of the model from the flags."""
    return Sizes(
        family=settings.family,
        width=settings.width,
        depth=settings.depth,
        heads=settings.heads,
        ff=4 * settings.width if settings.ff is None else settings.ff,
        context=settings.context,
    )


def tell(result: dict[str, Any]) -> str:
    """Say what was made."""
    return (
        f"{result['out']}: {result['family']}, {result['parameters'] / 1e6:.2f}M parameters, "
        f"{result['vocabulary']:,} ids, random weights"
    )
