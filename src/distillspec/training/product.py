"""The draft's output matrix, multiplied by chunk after chunk, with its gradient in one buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from distillspec.math.precision import wide_dtype

BLOCK_BYTES = 1 << 26
"""What a block of the matrix's gradient may take in float32 where it is made in 16 bits."""


class Product:
    """A linear layer that sums up the gradient of its matrix in one buffer, in float32 or wider."""

    def __init__(self, layer: nn.Linear, hidden: Tensor) -> None:
        """Cast the matrix once, as autocast would in every chunk."""
        kind = hidden.device.type
        self._layer = layer
        self._dtype = (
            torch.get_autocast_dtype(kind)
            if torch.is_autocast_enabled(kind)
            else layer.weight.dtype
        )
        self.weight = layer.weight.detach().to(self._dtype)
        self.bias = None if layer.bias is None else layer.bias.detach().to(self._dtype)
        self.d_weight = _sum_for(layer.weight)
        self.d_bias = None if layer.bias is None else _sum_for(layer.bias)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Map [C, H] to [C, R]."""
        apply: Callable[..., Tensor] = _Linear.apply
        return apply(inputs.to(self._dtype), self)

    def add(self, inputs: Tensor, slope: Tensor) -> None:
        """Add the gradients of one chunk: inputs [C, H], slope [C, R]."""
        if self.d_weight is not None and self.d_weight.dtype == slope.dtype:
            self.d_weight.addmm_(slope.T, inputs)
        elif self.d_weight is not None:
            # By blocks of rows, so that the 16-bit product is never a second whole matrix.
            block = max(1, BLOCK_BYTES // (4 * inputs.shape[1]))
            for i in range(0, len(self.d_weight), block):
                self.d_weight[i : i + block] += slope[:, i : i + block].T @ inputs
        if self.d_bias is not None:
            self.d_bias += slope.sum(0, dtype=self.d_bias.dtype)

    def release(self) -> list[Tensor]:
        """Return what was summed up, in the order and the types of the layer's parameters.

        Nothing is kept: autograd copies a gradient that anyone else still holds.
        """
        pairs = ((self.d_weight, self._layer.weight), (self.d_bias, self._layer.bias))
        found = [total.to(parameter.dtype) for total, parameter in pairs if total is not None]
        self.d_weight = self.d_bias = None
        return found


class _Linear(torch.autograd.Function):
    """x Wᵀ + b, whose backward pass adds to the sums of a `Product`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, product: Product) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.product = product
        return nn.functional.linear(inputs, product.weight, product.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (inputs,) = ctx.saved_tensors
        ctx.product.add(inputs, slope)
        return slope @ ctx.product.weight, None


def _sum_for(parameter: Tensor) -> Tensor | None:
    if not parameter.requires_grad:
        return None
    return torch.zeros_like(parameter, dtype=wide_dtype(parameter))
