"""Products of a few rows: the same numbers in another order, and only where that is allowed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from distillspec.models import products
from distillspec.models.products import PADDED, TURNED, multiplier, product


@pytest.fixture(params=[False, True], ids=["other", "amd"])
def amd(request, monkeypatch):
    """Both kinds of processor, whichever runs this."""
    monkeypatch.setattr(products, "is_amd", lambda: request.param)
    return request.param


@pytest.fixture
def forms(amd, monkeypatch):
    """Record what did not go through x · Wᵀ as it is: the form and its number of rows."""
    seen = []
    for name in ("_turned", "_padded"):
        plain = getattr(products, name)

        def form(inputs, *rest, name=name, plain=plain):
            seen.append((name, inputs.numel() // inputs.shape[-1]))
            return plain(inputs, *rest)

        monkeypatch.setattr(products, name, form)
    return seen


@pytest.mark.parametrize("shape", [(1,), (4,), (63,), (64,), (2, 3), (3, 1), (4, 1), (3, 2, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_the_linear_layer(shape, bias, amd, forms):
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
    name, fast = ("_padded", PADDED) if amd else ("_turned", TURNED)
    assert forms == ([(name, rows)] if rows in fast else [])


@pytest.mark.parametrize(
    ("told", "found"), [("vendor_id\t: AuthenticAMD\n", True), ("vendor_id\t: GenuineIntel", False)]
)
@pytest.mark.parametrize("linux", [True, False])
def test_the_processor_is_known_by_its_name(told, found, linux, tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    if linux:
        file.write_text(told)
    monkeypatch.setattr(products, "Path", lambda name: file)
    monkeypatch.setattr(products.platform, "processor", lambda: told)
    assert products.is_amd.__wrapped__() is found


def test_inputs_that_are_views_are_taken_as_they_stand(amd):
    torch.manual_seed(0)
    weight, wide = torch.randn(40, 24), torch.randn(4, 48)
    view = wide[:, ::2]
    torch.testing.assert_close(multiplier(view)(view, weight), linear(view, weight))


def test_gradients_go_through_the_layer_itself(forms):
    layer, inputs = nn.Linear(24, 40), torch.randn(4, 24)
    product(layer, inputs, multiplier(inputs)).sum().backward()
    assert layer.weight.grad is not None
    assert forms == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_keep_their_order(dtype, forms):
    layer, inputs = nn.Linear(24, 40, dtype=dtype), torch.randn(4, 24, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(product(layer, inputs, multiplier(inputs)), layer(inputs))
    assert forms == []


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_on_the_layer_is_obeyed(kind, forms):
    calls = []
    layer, inputs = nn.Linear(24, 40), torch.randn(4, 24)
    getattr(layer, kind)(lambda *_: calls.append(kind))
    with torch.no_grad():
        product(layer, inputs, multiplier(inputs))
    assert calls == [kind]
    assert forms == []


def test_another_kind_of_layer_is_called():
    class Doubled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    layer, inputs = Doubled(24, 40), torch.randn(4, 24)
    with torch.no_grad():
        assert torch.equal(product(layer, inputs, multiplier(inputs)), layer(inputs))


def test_a_weight_that_knows_linear_alone_is_left_to_its_layer(forms):
    """As quantized weights in plain layers do: one row went through, four failed."""

    class Quantized(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), named=None):
            if function in (torch.mm, torch.Tensor.t):
                raise NotImplementedError(function.__name__)
            return super().__torch_function__(function, types, arguments, named or {})

    layer, inputs = nn.Linear(24, 40), torch.randn(4, 24)
    plain = layer(inputs)
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Quantized), requires_grad=False)
    with torch.no_grad():
        found = product(layer, inputs, multiplier(inputs))
    assert torch.equal(found.as_subclass(torch.Tensor), plain)
    assert forms == []


def test_a_replaced_forward_pass_is_obeyed(forms):
    """Accelerate's offloading replaces `forward` of a layer whose weights lie elsewhere."""
    layer, inputs = nn.Linear(24, 40), torch.randn(4, 24)
    layer.forward = lambda given: given.new_zeros(len(given), 40)
    with torch.no_grad():
        assert not product(layer, inputs, multiplier(inputs)).any()
    assert forms == []
