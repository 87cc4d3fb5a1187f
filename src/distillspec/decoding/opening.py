"""How rows are opened: a prompt that is asked for several samples is read once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distillspec.models.protocol import LanguageModel, Session


def open_rows(model: LanguageModel, prompts: Sequence[Tensor]) -> Session:
    """Start one row per prompt, running the model once over each different prompt.

    Rows of equal prompts start from copies of one cache and then go their own ways.
    """
    places: dict[tuple[int, ...], int] = {}
    index = [places.setdefault(tuple(prompt.tolist()), len(places)) for prompt in prompts]
    if len(places) == len(prompts):
        return model.open(prompts)
    session = model.open([torch.tensor(ids) for ids in places])
    session.keep(torch.tensor(index, device=session.pending.device))
    return session
