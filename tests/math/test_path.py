"""The differentiable count of target calls against the forecast, and its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from distillspec.errors import UserError
from distillspec.math.forecast import expected_calls
from distillspec.math.path import path_calls, path_ratios

probability = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)


def row(*ratios):
    return torch.tensor([ratios], dtype=torch.float64)


@given(st.lists(probability, min_size=1, max_size=12), st.integers(1, 8))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_the_calls_are_the_forecasts(ratios, gamma):
    calls = path_calls(row(*ratios), torch.tensor([len(ratios)]), gamma)
    expected = expected_calls(torch.tensor(ratios, dtype=torch.float64), gamma).mean
    assert calls.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("gamma", [1, 3, 20])
def test_rows_of_a_ragged_batch_are_counted_as_alone(gamma):
    ratios = torch.rand(3, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths = torch.tensor([9, 4, 1])
    ratios[1, 4:], ratios[2, 1:] = math.nan, 0.7  # what lies past a row's length
    expected = [expected_calls(r[:n], gamma).mean for r, n in zip(ratios, lengths, strict=True)]
    assert path_calls(ratios, lengths, gamma).tolist() == pytest.approx(expected, abs=1e-12)


def test_calls_by_hand():
    """γ = 1, two tokens: one call if the first is accepted, else two; the last is a bonus."""
    ratios = row(0.25, 0.9).requires_grad_()
    (calls,) = path_calls(ratios, torch.tensor([2]), 1)
    calls.backward()
    assert calls.item() == 1.75
    assert ratios.grad.tolist() == [[-1.0, 0.0]]


@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_the_gradient_is_that_of_finite_differences(gamma):
    ratios = torch.rand(2, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ratios[0, 2] = 0.0  # a product through a zero
    lengths = torch.tensor([7, 5])
    assert gradcheck(lambda r: path_calls(r, lengths, gamma), ratios.requires_grad_())


def test_the_gradient_reaches_the_drafts_logits():
    g = torch.Generator().manual_seed(2)
    target, draft = (torch.randn(6, 4, generator=g, dtype=torch.float64) for _ in range(2))
    tokens = torch.randint(0, 4, (6, 1), generator=g)
    log_p = target.log_softmax(-1).gather(-1, tokens).squeeze(-1)

    def calls(logits):
        log_q = logits.log_softmax(-1).gather(-1, tokens).squeeze(-1)
        return path_calls(path_ratios(log_p, log_q)[None], torch.tensor([6]), 2)

    assert gradcheck(calls, draft.requires_grad_())


def test_ratios_end_at_one_and_begin_at_zero():
    log_p = torch.tensor([0.5, 0.5, 0.5]).log()
    log_q = torch.tensor([0.8, 0.25, 0.0]).log().requires_grad_()
    ratios = path_ratios(log_p, log_q)
    ratios.sum().backward()
    assert ratios.tolist() == pytest.approx([1, 0.5, 0])
    assert log_q.grad.tolist() == pytest.approx([0, 0.5, 0])


def test_what_the_target_cannot_have_written_is_refused():
    with pytest.raises(UserError, match="target probability 0: train it on target data"):
        path_ratios(torch.tensor([-math.inf]), torch.tensor([0.0]))


def test_a_block_needs_a_drafted_token():
    with pytest.raises(ValueError, match="gamma is 0"):
        path_calls(row(0.5), torch.tensor([1]), 0)
