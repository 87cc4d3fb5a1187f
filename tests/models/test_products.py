"""Products of a few rows: the same numbers in another order, and only where that is allowed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from distillspec.models import products
from distillspec.models.products import FEW, multiplier, product


@pytest.fixture
def orders(monkeypatch):
    """Record the row counts that went through W · xᵀ."""
    seen = []
    plain = torch.mm

    def mm(weight, rows):
        seen.append(rows.shape[1])
        return plain(weight, rows)

    monkeypatch.setattr(products.torch, "mm", mm)
    return seen


@pytest.mark.parametrize("shape", [(1,), (4,), (63,), (64,), (2, 3), (4, 1), (3, 2, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_the_linear_layer(shape, bias, orders):
    torch.manual_seed(0)
    layer = nn.Linear(24, 40, bias=bias)
    inputs = torch.randn(*shape, 24)
    with torch.no_grad():
        found = product(layer, inputs, multiplier(inputs))
        wanted = linear(
            inputs.double(), layer.weight.double(), layer.bias.double() if bias else None
        )
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    assert found.shape == (*shape, 40)
    assert found.is_contiguous()
    rows = inputs.numel() // 24
    assert orders == ([rows] if rows in FEW else [])


def test_inputs_that_are_views_are_taken_as_they_stand():
    torch.manual_seed(0)
    weight, wide = torch.randn(40, 24), torch.randn(5, 48)
    view = wide[:, ::2]
    torch.testing.assert_close(multiplier(view)(view, weight), linear(view, weight))


def test_gradients_go_through_the_layer_itself(orders):
    layer, inputs = nn.Linear(24, 40), torch.randn(8, 24)
    product(layer, inputs, multiplier(inputs)).sum().backward()
    assert layer.weight.grad is not None
    assert orders == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_keep_their_order(dtype, orders):
    layer, inputs = nn.Linear(24, 40, dtype=dtype), torch.randn(8, 24, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(product(layer, inputs, multiplier(inputs)), layer(inputs))
    assert orders == []


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_on_the_layer_is_obeyed(kind, orders):
    calls = []
    layer, inputs = nn.Linear(24, 40), torch.randn(8, 24)
    getattr(layer, kind)(lambda *_: calls.append(kind))
    with torch.no_grad():
        product(layer, inputs, multiplier(inputs))
    assert calls == [kind]
    assert orders == []


def test_another_kind_of_layer_is_called():
    class Doubled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    layer, inputs = Doubled(24, 40), torch.randn(8, 24)
    with torch.no_grad():
        assert torch.equal(product(layer, inputs, multiplier(inputs)), layer(inputs))


def test_a_weight_that_knows_linear_alone_is_left_to_its_layer(orders):
    """As quantized weights in plain layers do: one row went through, four failed."""

    class Quantized(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), named=None):
            if function in (torch.mm, torch.Tensor.t):
                raise NotImplementedError(function.__name__)
            return super().__torch_function__(function, types, arguments, named or {})

    layer, inputs = nn.Linear(24, 40), torch.randn(8, 24)
    plain = layer(inputs)
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Quantized), requires_grad=False)
    with torch.no_grad():
        found = product(layer, inputs, multiplier(inputs))
    assert torch.equal(found.as_subclass(torch.Tensor), plain)
    assert orders == []


def test_a_replaced_forward_pass_is_obeyed(orders):
    """Accelerate's offloading replaces `forward` of a layer whose weights lie elsewhere."""
    layer, inputs = nn.Linear(24, 40), torch.randn(8, 24)
    layer.forward = lambda given: given.new_zeros(len(given), 40)
    with torch.no_grad():
        assert not product(layer, inputs, multiplier(inputs)).any()
    assert orders == []
