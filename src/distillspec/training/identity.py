"""By what a model is known again: a digest that costs no pass over its weights."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

SAMPLED = 64
"""Values taken of every tensor, evenly spaced from the first to the last."""


def fingerprint(module: nn.Module) -> str:
    """Return a SHA-256 of every tensor's name, shape and type, and of a sample of its values.

    Any training changes nearly every weight, so another model, another revision or another type
    is told apart; a single weight edited by hand may not be. Where the model lies plays no part:
    a folder that was moved is the same model.
    """
    total = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        total.update(f"{name} {list(tensor.shape)} {tensor.dtype}\n".encode())
        values = tensor.detach().reshape(-1)
        if len(values):
            # In float64: float32 rounds the last place of a large tensor up to one past its end.
            places = torch.linspace(
                0, len(values) - 1, min(SAMPLED, len(values)), dtype=torch.float64
            )
            at = places.long()
            chosen = values[at.to(values.device)].cpu().contiguous()
            total.update(chosen.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
