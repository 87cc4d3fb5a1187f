"""The product of a few rows with a large matrix, in the form that a CPU multiplies fast.

A decoding step multiplies a handful of rows (a batch, or the tokens of a block) with every weight
matrix. In float32 a CPU's library is tuned for larger products, and what suits a few rows depends
on the processor (docs/log.md):

- elsewhere than on AMD, W · xᵀ takes a half to a third of the time of x · Wᵀ for 8 to 48 rows, and
  is no slower from 4 rows on;
- on AMD, x · Wᵀ takes longer for 2 to 4 rows than for 8, so that rows of zeros make it faster, and
  W · xᵀ gains nothing.

All sum the same terms; they differ by rounding. Timing the forms when a model is loaded would find
the best one on any machine, but another one on a busy day, and a resumed run would not repeat.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

TURNED = range(4, 64)
"""The numbers of rows for which W · xᵀ is the faster order, but on AMD: fewer go through products
with a vector, for more x · Wᵀ is as fast."""
PADDED, WIDTH = range(2, 5), 8
"""The numbers of rows that AMD's processors multiply faster as so many."""


Multiply: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""inputs [..., H], weight [R, H] and bias [R] or None -> inputs · weightᵀ + bias, contiguous."""


def multiplier(inputs: Tensor) -> Multiply:
    """Return what multiplies as many rows as these fastest, for a whole pass over them.

    That is `linear` itself but for few rows in float32 on a CPU and without gradient.
    """
    narrow = inputs.dtype == torch.float32 and inputs.device.type == "cpu"
    if not narrow or torch.is_grad_enabled():
        return functional.linear
    rows = inputs.numel() // inputs.shape[-1]
    if is_amd():
        return _padded if rows in PADDED else functional.linear
    return _turned if rows in TURNED else functional.linear


@cache
def is_amd() -> bool:
    """Tell whether the processor is one of AMD's, as Linux or `platform` names it."""
    names = Path("/proc/cpuinfo")
    told = names.read_text(encoding="utf-8") if names.exists() else platform.processor()
    return "AuthenticAMD" in told


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


def _padded(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = inputs.reshape(-1, inputs.shape[-1])
    wide = functional.pad(rows, (0, 0, 0, WIDTH - len(rows)))
    outputs = functional.linear(wide, weight, bias)[: len(rows)]
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
