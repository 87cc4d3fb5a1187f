"""Builders that every test module shares: random tables, tiny random models, tiny tokenizers."""

from __future__ import annotations

import torch

from distillspec.models.toy import TableModel


def random_table(
    size: int = 5, *, seed: int = 0, order: int = 1, scale: float = 1.0, **settings
) -> TableModel:
    """Make a float64 Markov table; `settings` go to `TableModel` (eos_ids, context, kept, name)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((size,) * (order + 1), generator=generator, dtype=torch.float64)
    return TableModel(logits * scale, **settings)
