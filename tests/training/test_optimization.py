"""The schedule's corners, and that what the schedule says is what the optimizer does."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from distillspec.errors import UserError
from distillspec.training.optimization import Adafactor, AdamW, Schedule
from distillspec.training.recipes import GKD
from distillspec.training.state import make_optimizer

PAPER = GKD.schedule


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        (1, 1 / 5000),
        (2500, 0.5),
        (4999, 4999 / 5000),
        (5000, 1),
        (5001, 1),
        (150_000, 1),
        (150_001, 1 - 0.45 * (1 - math.cos(math.pi / 150_000))),
        (225_000, 0.55),
        (300_000, 0.1),
        (10**9, 0.1),
    ],
)
def test_the_papers_schedule_at_its_corners(step, factor):
    assert PAPER.factor(step) == pytest.approx(factor, abs=1e-12)


def test_a_schedule_without_corners_is_constant():
    assert [Schedule().factor(step) for step in (0, 1, 10**9)] == [1, 1, 1]


@given(st.floats(0, 400_000), st.floats(0, 400_000))
@settings(deadline=None, derandomize=True)
def test_the_rate_rises_before_the_warm_up_ends_and_never_afterwards(a, b):
    early, late = sorted((a, b))
    if late <= PAPER.warmup:
        assert PAPER.factor(early) <= PAPER.factor(late)
    if early >= PAPER.warmup:
        assert PAPER.factor(early) >= PAPER.factor(late) >= PAPER.floor


@pytest.mark.parametrize(
    "corners",
    [
        {"warmup": 5, "decay_from": 4, "decay_to": 9},
        {"decay_from": 9, "decay_to": 4},
        {"decay_from": 9},
        {"warmup": -1},
        {"warmup": float("nan")},
        {"floor": 1.5},
        {"unit": "epochs"},
    ],
)
def test_a_schedule_that_means_nothing_is_refused(corners):
    with pytest.raises(UserError, match="schedule"):
        Schedule(**corners)


def update(weights, gradients, spec, rate, steps=1):
    parameters = [nn.Parameter(w.clone()) for w in weights]
    optimizer = make_optimizer(spec, parameters, rate)
    for _ in range(steps):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == [rate]
    return [p.detach() - w for p, w in zip(parameters, weights, strict=True)]


def rms(x):
    return float(x.square().mean().sqrt())


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 1e3])
def test_adafactors_first_update_is_the_rate_times_the_weights_whatever_the_gradient(scale):
    """torch's default floor on the squared gradient bends the update below a scale of 1e-4."""
    g = torch.Generator().manual_seed(0)
    weights, gradient = torch.randn(8, 16, generator=g), torch.randn(8, 16, generator=g)
    (small,) = update([weights], [gradient * scale], Adafactor(), 3e-4)
    (unit,) = update([weights], [gradient], Adafactor(), 3e-4)
    torch.testing.assert_close(small, unit, rtol=1e-4, atol=1e-9)
    assert 0.8 < rms(small) / (3e-4 * rms(weights)) <= 1.001


def test_a_parameter_of_another_scale_does_not_change_adafactors_rate():
    g = torch.Generator().manual_seed(1)
    a, b = torch.randn(4, 4, generator=g), 1e4 * torch.randn(4, 4, generator=g)
    da, db = torch.randn(4, 4, generator=g), 1e-5 * torch.randn(4, 4, generator=g)
    together = update([a, b], [da, db], Adafactor(), 1e-3, steps=3)
    assert torch.equal(together[0], update([a], [da], Adafactor(), 1e-3, steps=3)[0])
    assert torch.equal(together[1], update([b], [db], Adafactor(), 1e-3, steps=3)[0])


def test_a_row_without_gradient_stays_finite_under_adafactor():
    gradient = torch.zeros(4, 4)
    gradient[0] = 1
    (moved,) = update([torch.ones(4, 4)], [gradient], Adafactor(), 1e-2)
    assert torch.isfinite(moved).all()
    assert torch.equal(moved[1:], torch.zeros(3, 4))


def test_adamws_settings_reach_the_optimizer():
    spec = AdamW(weight_decay=0.1, beta1=0.8, beta2=0.9)
    optimizer = make_optimizer(spec, [nn.Parameter(torch.ones(1))], 0.5)
    assert optimizer.defaults["betas"] == (0.8, 0.9)
    assert (optimizer.defaults["weight_decay"], optimizer.defaults["lr"]) == (0.1, 0.5)
