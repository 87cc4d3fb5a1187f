"""The one rule about number formats in this room: compute in float32 or wider, never cast down."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the widest dtype among `tensors`, and at least float32.

    Half-precision softmaxes move the gradient of every divergence by 8 to 23 % just where the
    draft is close to the target, and `.float()` would silently cast float64 down.
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return `tensor` in float32 or wider: itself where it is already."""
    return tensor.to(wide_dtype(tensor))
