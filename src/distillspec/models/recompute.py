"""Gradient checkpointing: activations computed a second time instead of kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from distillspec.errors import UserError


@contextmanager
def recomputing(module: nn.Module, name: str) -> Iterator[None]:
    """Within the block a pass with gradient keeps the inputs of the layers and nothing inside them.

    transformers' own switch does nothing in eval mode, in which a draft without dropout trains,
    and in train mode it drops caches. This one looks at the gradient alone: a pass without it, such
    as a rollout, keeps its cache.

    Args:
        module: A transformers model.
        name: What messages call it.

    Raises:
        UserError: if it has no layers that transformers would checkpoint.
    """
    layers = _outermost(module)
    if not layers:
        raise UserError(
            f"{name} ({type(module).__name__}) has no layers whose activations could be computed "
            "again: leave out gradient checkpointing"
        )
    own = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(_again, layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, own, strict=True):
            if forward is None:
                del layer.forward  # the class's own shows again
            else:
                layer.forward = forward


def _outermost(module: nn.Module) -> list[nn.Module]:
    """Return the layers that lie in no other."""
    if isinstance(module, GradientCheckpointingLayer):
        return [module]
    return [layer for child in module.children() for layer in _outermost(child)]


def _again(forward: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
    """Run a layer so that the backward pass runs it again."""
    if not torch.is_grad_enabled():
        return forward(*inputs, **settings)
    return checkpoint(partial(forward, **settings), *inputs, use_reentrant=False)
