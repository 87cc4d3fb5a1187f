"""The product of a few rows with a large matrix, in the order that a CPU multiplies it fast.

A decoding step multiplies a handful of rows (a batch, or the tokens of a block) with every weight
matrix. In float32 a CPU's library is tuned for products whose first factor is large: written as
W · xᵀ the same product takes a half to a third of the time of x · Wᵀ for 8 to 48 rows, and is no
slower from 4 rows on (docs/log.md). Both sum the same terms; they differ by rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

FEW = range(4, 64)
"""The numbers of rows for which W · xᵀ is the faster order: fewer go through products with a
vector, for more x · Wᵀ is as fast."""


Multiply: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""inputs [..., H], weight [R, H] and bias [R] or None -> inputs · weightᵀ + bias, contiguous."""


def multiplier(inputs: Tensor) -> Multiply:
    """Return what multiplies as many rows as these fastest, for a whole pass over them.

    That is `linear` itself but for few rows in float32 on a CPU and without gradient.
    """
    few = (
        inputs.device.type == "cpu"
        and inputs.dtype == torch.float32
        and not torch.is_grad_enabled()
        and inputs.numel() // inputs.shape[-1] in FEW
    )
    return _turned if few else functional.linear


def product(layer: nn.Module, inputs: Tensor, multiply: Multiply) -> Tensor:
    """Return `layer(inputs)`, [..., H] -> [..., R].

    A plain linear layer is multiplied as `multiply` says, anything else is called as it is.
    """
    plain = plain_linear(layer)
    if plain is not None:
        return multiply(inputs, plain.weight, plain.bias)
    outputs: Tensor = layer(inputs)
    return outputs


def _turned(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = inputs.reshape(-1, inputs.shape[-1])
    outputs = torch.mm(weight, rows.t().contiguous()).t().contiguous()
    if bias is not None:
        outputs += bias
    return outputs.view(*inputs.shape[:-1], len(weight))


def plain_linear(layer: nn.Module | None) -> nn.Linear | None:
    """Return the layer if it is nothing but a product: no adapter, hook or parametrization.

    Nor a weight of a type of its own, as quantized ones are: it may know `linear` alone.
    """
    if type(layer) is not nn.Linear or not untouched(layer):
        return None
    if type(layer.weight) is not nn.Parameter:  # which keeps the type of any other tensor
        return None
    return layer


def untouched(part: nn.Module) -> bool:
    """Tell whether calling a module is running its class's forward pass: no hook, none replaced."""
    hooked = part._forward_hooks or part._forward_pre_hooks or part._backward_hooks
    return not hooked and "forward" not in vars(part)
