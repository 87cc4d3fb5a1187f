"""The audit's mathematics: exact moments by enumeration, tails against exact laws, Holm."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from distillspec.math.audit import (
    detectable,
    excess,
    excess_of_events,
    holm,
    p_value,
    ranks,
    times,
)


def rows(n=4, v=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, v, generator=generator, dtype=torch.float64).softmax(-1)


def test_moments_are_those_of_the_enumerated_law():
    p, f = rows(), rows(seed=1) * 5
    for y in itertools.product(range(6), repeat=1):
        found = excess(p, f, torch.tensor(y * 4))
        mean = (p * f).sum(-1)
        centred = f - mean[:, None]
        assert torch.allclose(found.value, centred[:, y[0]])
        assert torch.allclose(found.variance, (p * centred**2).sum(-1))
        assert torch.allclose(found.third, (p * centred**3).sum(-1))
    every = torch.stack([excess(p, f, torch.full((4,), y)).value for y in range(6)], 1)
    assert torch.allclose((p * every).sum(-1), torch.zeros(4, dtype=torch.float64), atol=1e-12)


def test_an_event_is_the_indicator_function():
    p, event = rows(), torch.tensor([True, False, True, False, False, True])
    y = torch.tensor([0, 1, 2, 5])
    by_function = excess(p, event.double(), y)
    by_mass = excess_of_events(p @ event.double(), event[y])
    for one, other in zip(vars(by_function).values(), vars(by_mass).values(), strict=True):
        assert torch.allclose(one, other)


def test_a_weight_scales_the_function():
    p, f, y = rows(), rows(seed=1), torch.tensor([1, 2, 3, 4])
    weight = torch.tensor([2.0, -1.0, 0.0, 0.5], dtype=torch.float64)
    scaled, direct = times(weight, excess(p, f, y)), excess(p, weight[:, None] * f, y)
    for one, other in zip(vars(scaled).values(), vars(direct).values(), strict=True):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("expected", [0.05, 0.5, 3.0, 40.0])
def test_rare_counts_have_nearly_their_exact_tail_or_a_longer_one(expected):
    """1,000 events of equal chance: the sum is binomial."""
    n, chance = 1000, expected / 1000
    variance = n * chance * (1 - chance)
    for count in range(math.ceil(expected) + 1, math.ceil(expected + 6 * math.sqrt(expected)) + 2):
        exact = stats.binom.sf(count - 1, n, chance)
        ours = p_value(count - expected, variance, variance * (1 - 2 * chance), counts=True) / 2
        if 1e-6 < exact < 0.4:
            assert 0.5 * exact <= ours
        if 1e-3 < exact < 0.4:
            assert ours <= 4 * exact


def test_too_few_rare_events_are_no_alarm_before_they_are_one():
    """The chance of no event where λ are expected is e^−λ; twice it is the p-value, or more."""
    for expected in (0.5, 2.0, 5.0, 12.0):
        ours = p_value(-expected, expected, expected, counts=True)
        assert min(1, 0.9 * math.exp(-expected)) <= ours


def test_a_straight_sum_has_the_normal_tail_and_its_two_sides_are_alike():
    for z in (0.0, 1.0, 1.96, 4.0):
        ours = p_value(z, 1.0, 0.0, counts=False)
        assert ours == pytest.approx(2 * stats.norm.sf(z))
        assert ours == p_value(-z, 1.0, 0.0, counts=False)
        assert p_value(z, 1.0, 2e-3, counts=False) == pytest.approx(ours, rel=0.03)
    assert p_value(3.0, 1.0, 0.5, counts=False) == p_value(-3.0, 1.0, -0.5, counts=False)
    assert p_value(3.0, 1.0, 0.5, counts=False) > p_value(-3.0, 1.0, 0.5, counts=False)


def test_a_tolerance_is_taken_off_the_distance():
    assert p_value(5.0, 1.0, 0.0, counts=False, tolerance=3.0) == pytest.approx(
        p_value(2.0, 1.0, 0.0, counts=False)
    )
    assert p_value(-1.0, 1.0, 0.0, counts=False, tolerance=3.0) == 1


def test_p_values_are_uniform_enough_where_y_is_drawn_from_p():
    """The skewed case: 40 tokens of long-tailed laws. False alarms at 1 %: at most 2 % of 4,000."""
    p = rows(40, 50, seed=3).pow(4)
    p = p / p.sum(-1, keepdim=True)
    generator = torch.Generator().manual_seed(5)
    y = torch.multinomial(p, 4000, replacement=True, generator=generator).T  # [4000, 40]
    f = p.log()
    alarms = 0
    one = excess(p, f, torch.zeros(40, dtype=torch.int64))
    variance, third = float(one.variance.sum()), float(one.third.sum())
    mean = (p * f).sum(-1)
    totals = (f[torch.arange(40), y] - mean).sum(-1)
    for total in totals.tolist():
        alarms += p_value(total, variance, third, counts=False) <= 0.01
    assert 4 <= alarms <= 80  # chance of more, were it exactly 1 %: below 1e-8


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.2]) == [0.2]


def test_what_is_detectable_is_detected_as_often_as_said():
    shift = detectable(9.0, level=0.05, power=0.8)
    assert shift == pytest.approx(3 * (1.959964 + 0.841621), rel=1e-6)
    draws = np.random.default_rng(0).normal(shift, 3.0, 4000)
    found = np.mean([p_value(x, 9.0, 0.0, counts=False) <= 0.05 for x in draws])
    assert found == pytest.approx(0.8, abs=0.03)  # 4.7 standard deviations


def test_ranks_count_what_is_likelier_and_lower_ids_among_equals():
    p = torch.tensor([[0.1, 0.3, 0.3, 0.2, 0.1]])
    assert [int(ranks(p, torch.tensor([y]))) for y in range(5)] == [3, 0, 1, 2, 4]
