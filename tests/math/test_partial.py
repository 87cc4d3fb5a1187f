"""A target known by k ids and a tail: lower bounds, exact at k = V, and what trimmed heads lack."""

import math

import pytest
import torch

from distillspec.math import divergences, pairs
from distillspec.math.partial import Known, known_of, lumped

V = 12
PARTS = {
    divergences.forward_kl: pairs.forward_kl_of,
    divergences.reverse_kl: pairs.reverse_kl_of,
    divergences.jsd: lambda pair: pairs.jsd_of(pair, 0.5),
    divergences.total_variation: pairs.total_variation_of,
}
ALL = [pytest.param(form, id=form.__name__) for form in PARTS]


def logits(seed, rows=40, size=V):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, size, generator=generator, dtype=torch.float64) * 2


def partly(form, p, q, k):
    return PARTS[form](lumped(known_of(p, k), q))


@pytest.mark.parametrize("form", ALL)
def test_never_above_the_whole_never_falling_in_k_and_exact_at_the_end(form):
    p, q = logits(0), logits(1)
    values = [partly(form, p, q, k) for k in range(1, V + 1)]
    for fewer, more in zip(values, values[1:], strict=False):
        assert bool((fewer <= more + 1e-12).all())
    assert bool((values[0] < form(p, q) - 1e-3).any())  # k = 1 does lose something
    torch.testing.assert_close(values[-1], form(p, q), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ALL)
def test_it_is_the_whole_form_against_a_tail_in_the_shape_of_the_drafts(form):
    p, q = logits(0), logits(1)
    known = known_of(p, 3)
    outside = torch.ones_like(p, dtype=torch.bool).scatter(-1, known.ids, False)
    own = q.masked_fill(~outside, -math.inf).log_softmax(-1) + known.tail[:, None]
    filled = torch.where(outside, own, p.log_softmax(-1))
    torch.testing.assert_close(partly(form, p, q, 3), form(filled, q), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", ALL)
def test_gradient_equals_that_of_lumping_by_hand_and_is_finite_differences(form):
    p, q = logits(0, 4), logits(1, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda q: partly(form, p, q, 4), (q,))


def test_acceptance_is_bounded_from_above_by_the_smaller_tail():
    p, q = logits(0), logits(1)
    pair = lumped(known_of(p, 3), q)
    surplus = pairs.acceptance_of(pair) - divergences.acceptance(p, q)
    smaller = torch.minimum(pair.log_p[:, -1].exp(), pair.log_q[:, -1].exp())
    assert bool((surplus >= -1e-12).all())
    assert bool((surplus <= smaller + 1e-12).all())


@pytest.mark.parametrize("form", ALL)
def test_zero_where_the_draft_is_the_target_whatever_k(form):
    p = logits(0)
    for k in (1, 5, V):
        assert float(partly(form, p, p.clone(), k).abs().max()) < 1e-12


def test_a_tiny_tail_keeps_its_digits():
    """1 − Σ of the others in float32 would be 0 or noise here."""
    p = torch.tensor([[30.0, 0.0, 0.0]])
    expected = math.log(2) - 30
    assert known_of(p, 1).tail.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", ALL)
def test_ids_that_neither_can_emit_and_a_whole_k_leave_value_and_gradient_finite(form):
    """A tail of nothing but −inf: torch's logsumexp has a gradient of nan there."""
    p, q = logits(0), logits(1)
    p[:, -2:], q[:, -2:] = -math.inf, -math.inf
    q.requires_grad_()
    for k in (V - 2, V - 1):
        value = partly(form, p, q, k)
        (gradient,) = torch.autograd.grad(value.sum(), q)
        assert bool(value.isfinite().all())
        assert bool(gradient.isfinite().all())
    torch.testing.assert_close(value, form(p, q))


@pytest.mark.parametrize("k", [1, 4, V])
def test_a_trimmed_head_is_compared_as_by_the_whole_forms(k):
    """With every id known the trimmed forms are met exactly; with fewer they bound from below."""
    kept = torch.tensor([0, 2, 3, 5, 8])
    p, q = logits(0), logits(1, size=len(kept)).requires_grad_()
    pair = lumped(known_of(p, k), q, kept=kept)
    for form, part in PARTS.items():
        ours, whole = part(pair), form(p, q, kept=kept)
        (gradient,) = torch.autograd.grad(ours.sum(), q, retain_graph=True)
        assert bool(gradient.isfinite().all())
        if k == V:
            torch.testing.assert_close(ours, whole)
        elif form is not divergences.forward_kl:  # which, trimmed, is no divergence of the two
            assert bool((ours <= whole + 1e-12).all())


def test_where_a_draft_can_emit_nothing_that_is_known_the_forward_kl_is_0():
    known = Known(torch.tensor([[1]]), torch.tensor([[0.0]]), torch.tensor([-math.inf]))
    q = torch.zeros(1, 2, requires_grad=True)
    value = pairs.forward_kl_of(lumped(known, q, kept=torch.tensor([0, 2])))
    (gradient,) = torch.autograd.grad(value.sum(), q)
    assert value.item() == 0
    assert bool(gradient.isfinite().all())


def test_rounded_numbers_still_give_a_divergence():
    """float16 log-probabilities do not add up to 1: they are normalised, and nothing is below 0."""
    p = logits(0)
    known = known_of(p, 4)
    rounded = Known(known.ids, known.logprobs.half(), known.tail.half())
    for part in PARTS.values():
        value = part(lumped(rounded, p))
        assert bool((value >= -1e-12).all())
        assert float(value.max()) < 1e-3


def test_a_k_below_1_is_refused():
    with pytest.raises(ValueError, match="k is 0"):
        known_of(logits(0), 0)
