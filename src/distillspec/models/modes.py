"""Training and evaluation mode, which every part of a module has for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch every submodule to eval mode and give each its own mode back afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.train(False)
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
