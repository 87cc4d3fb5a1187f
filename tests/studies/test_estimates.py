from __future__ import annotations

import numpy as np
import pytest

from distillspec.studies.estimates import estimate, ratio, ratio_difference


def test_a_ratio_is_of_sums_not_a_mean_of_ratios():
    assert ratio([1, 9], [1, 3])["value"] == 10 / 4


def test_equal_prompts_leave_no_doubt():
    found = ratio([2, 2, 2], [4, 4, 4])
    assert found == {"value": 0.5, "low": 0.5, "high": 0.5}


def test_the_interval_is_that_of_a_mean():
    """On a ratio with constant denominators the bootstrap must give the mean's standard error."""
    values = np.random.default_rng(0).normal(3.0, 1.0, size=400)
    found = ratio(values, np.ones(400))
    error = values.std() / np.sqrt(400)
    assert found["low"] == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert found["high"] == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)


@pytest.mark.parametrize("prompts", [5, 8])
def test_few_prompts_are_covered_as_often_as_many(prompts):
    """Plain percentiles of five prompts hold the mean 84 times in a hundred."""
    draws = np.random.default_rng(0).normal(1.0, 0.3, size=(600, prompts))
    found = [ratio(values, np.ones(prompts), seed=i) for i, values in enumerate(draws)]
    covered = np.mean([one["low"] <= 1.0 <= one["high"] for one in found])
    assert covered == pytest.approx(0.95, abs=0.04)


def test_one_prompt_gives_no_width():
    assert ratio([3.0], [2.0]) == {"value": 1.5, "low": 1.5, "high": 1.5}


def test_a_difference_is_paired():
    """Prompts differ by far more than the drafts do; pairing takes that out of the interval."""
    noise = np.random.default_rng(0).normal(0, 10, size=50)
    lengths = np.full(50, 20.0)
    found = ratio_difference((noise + 1, noise), (lengths, lengths))
    assert found["value"] == pytest.approx(1 / 20)
    assert found["high"] - found["low"] < 1e-9


def test_the_same_seed_gives_the_same_interval_and_another_another():
    values, ones = np.arange(10.0), np.ones(10)
    assert ratio(values, ones, seed=1) == ratio(values, ones, seed=1)
    assert ratio(values, ones, seed=1) != ratio(values, ones, seed=2)


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="at least one prompt"):
        estimate(lambda s: s[:, 0], np.zeros((0, 1)))
    with pytest.raises(ValueError, match="nothing was measured"), np.errstate(invalid="ignore"):
        ratio([0.0], [0.0])
