"""Laws of the divergences, closed forms, infinities, precision, trimmed heads, reductions."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck

from distillspec.errors import UserError
from distillspec.math.divergences import (
    acceptance,
    cross_entropy,
    forward_kl,
    jsd,
    negative_log_acceptance,
    reverse_kl,
    sequence_mean,
    token_mean,
    total_variation,
)

DIVERGENCES = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jsd": jsd,
    "jsd[0.1]": partial(jsd, beta=0.1),
    "jsd[0.9]": partial(jsd, beta=0.9),
    "total_variation": total_variation,
}
every_divergence = pytest.mark.parametrize("divergence", DIVERGENCES.values(), ids=DIVERGENCES)
KEPT = torch.tensor([0, 2, 3, 6])


def logits(*shape, seed=0, dtype=torch.float64, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def gradient(divergence, target, draft, **settings):
    draft = draft.detach().requires_grad_()
    divergence(target, draft, **settings).sum().backward()
    return draft.grad


def plain(name, p, q, beta=0.5):
    """Compute a divergence of two lists with the standard library, as the paper writes it."""
    if name == "forward_kl":
        return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
    if name == "reverse_kl":
        return plain("forward_kl", q, p)
    if name == "total_variation":
        return math.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    m = [beta * a + (1 - beta) * b for a, b in zip(p, q, strict=True)]
    return beta * plain("forward_kl", p, m) + (1 - beta) * plain("forward_kl", q, m)


# --- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", ["forward_kl", "reverse_kl", "jsd", "total_variation"])
def test_values_are_the_papers_formulas(name, beta):
    target, draft = logits(6, 5), logits(6, 5, seed=1)
    divergence = partial(jsd, beta=beta) if name == "jsd" else DIVERGENCES[name]
    rows = zip(target.softmax(-1).tolist(), draft.softmax(-1).tolist(), strict=True)
    expected = [plain(name, p, q, beta) for p, q in rows]
    assert divergence(target, draft).tolist() == pytest.approx(expected, abs=1e-12)


def test_values_computed_by_hand():
    """P = (3/4, 1/4), Q = (1/4, 3/4): KL both ways ½ log 3, TVD ½, JSD ¾ log 3 − log 2."""
    target, draft = torch.tensor([3.0, 1.0]).log(), torch.tensor([1.0, 3.0]).log()
    assert forward_kl(target, draft).item() == pytest.approx(0.5 * math.log(3), abs=1e-6)
    assert reverse_kl(target, draft).item() == pytest.approx(0.5 * math.log(3), abs=1e-6)
    assert total_variation(target, draft).item() == pytest.approx(0.5, abs=1e-6)
    half = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert jsd(target, draft).item() == pytest.approx(half, abs=1e-6)
    assert acceptance(target, draft).item() == pytest.approx(0.5, abs=1e-6)


@every_divergence
class TestLaws:
    def test_zero_and_flat_at_equality(self, divergence):
        """One step of distillation from the target itself must leave the weights alone."""
        target = logits(20, 11, dtype=torch.float32)
        assert divergence(target, target).abs().max() == 0
        assert gradient(divergence, target, target).abs().max() < 1e-6

    def test_never_negative(self, divergence):
        target = logits(300, 7)
        for distance in (1.0, 1e-2, 1e-4, 1e-6):
            draft = target + distance * logits(300, 7, seed=1)
            assert divergence(target, draft).min() >= -1e-15
            assert divergence(target.float(), draft.float()).min() >= -1e-7

    def test_no_reduction(self, divergence):
        target, draft = logits(2, 3, 5), logits(2, 3, 5, seed=1)
        values = divergence(target, draft)
        assert values.shape == (2, 3)
        torch.testing.assert_close(values[1, 2], divergence(target[1, 2], draft[1, 2]))

    def test_a_constant_changes_nothing(self, divergence):
        target, draft = logits(4, 5), logits(4, 5, seed=1)
        torch.testing.assert_close(divergence(target + 3, draft - 5), divergence(target, draft))

    def test_masked_columns_change_neither_value_nor_gradient(self, divergence):
        """−inf on both sides is the same as dropping the columns. torch's kl_div(log_target=True)
        is nan there."""
        target, draft = logits(4, 7), logits(4, 7, seed=1)
        gone, rest = torch.tensor([1, 4, 5]), [0, 2, 3, 6]
        masked = [x.index_fill(-1, gone, -math.inf) for x in (target, draft)]
        dropped = [x[:, rest] for x in (target, draft)]
        torch.testing.assert_close(divergence(*masked), divergence(*dropped))
        slope = gradient(divergence, *masked)
        assert not slope[:, gone].any()
        torch.testing.assert_close(slope[:, rest], gradient(divergence, *dropped))

    def test_masked_columns_are_harmless_in_float32_with_a_trainable_target(self, divergence):
        masked = [
            logits(4, 7, seed=seed, dtype=torch.float32)
            .index_fill(-1, torch.tensor([1, 5]), -math.inf)
            .requires_grad_()
            for seed in (0, 1)
        ]
        divergence(*masked).sum().backward()
        assert all(x.grad.isfinite().all() for x in masked)

    def test_gradients_are_those_of_finite_differences(self, divergence):
        target, draft = logits(2, 4).requires_grad_(), logits(2, 4, seed=1).requires_grad_()
        assert gradcheck(divergence, (target, draft))

    def test_float64_stays_and_half_precision_is_widened(self, divergence):
        target, draft = logits(2, 4), logits(2, 4, seed=1)
        assert divergence(target, draft).dtype == torch.float64
        for dtype in (torch.bfloat16, torch.float16):
            low, high = target.to(dtype), draft.to(dtype)
            assert divergence(low, high).dtype == torch.float32
            torch.testing.assert_close(divergence(low, high), divergence(low.float(), high.float()))
            torch.testing.assert_close(divergence(low, draft), divergence(low.double(), draft))

    def test_bfloat16_logits_close_to_the_target_give_a_sound_value(self, divergence):
        target = logits(50, 4096, dtype=torch.bfloat16, scale=3)
        draft = (target.float() + 1e-2 * logits(50, 4096, seed=1).float()).bfloat16()
        values = divergence(target, draft)
        assert values.min() >= -1e-7
        exact = divergence(target.double(), draft.double())
        torch.testing.assert_close(values.double(), exact, rtol=1e-3, atol=1e-6)
        assert divergence(target, target).abs().max() == 0

    def test_gradient_is_accurate_where_the_draft_is_close(self, divergence):
        """speculators, test_divergence_loss_gradient_accurate_in_bf16. A bfloat16 softmax moves
        this gradient by 8 to 23 %; two per cent is the limit."""
        target = logits(4, 4096, dtype=torch.bfloat16, scale=3)
        draft = (target.float() + 3e-2 * logits(4, 4096, seed=1).float()).bfloat16()
        got = gradient(divergence, target.float(), draft.float())
        exact = gradient(divergence, target.double(), draft.double())
        assert (got.double() - exact).norm() <= 0.02 * exact.norm()
        through_half = gradient(divergence, target, draft)  # rounded to bfloat16 by its own dtype
        assert (through_half.double() - exact).norm() <= 0.02 * exact.norm()

    def test_shapes_that_disagree_are_named(self, divergence):
        with pytest.raises(ValueError, match=r"\(2, 5\) need draft logits \(2, 5\), got \(2, 4\)"):
            divergence(torch.zeros(2, 5), torch.zeros(2, 4))
        with pytest.raises(ValueError, match="one column for each kept id"):
            divergence(torch.zeros(2, 5), torch.zeros(2, 3), kept=torch.tensor([0, 1]))


def test_jsd_is_symmetric_and_at_most_log_two():
    target, draft = logits(50, 9, scale=20), logits(50, 9, seed=1, scale=20)
    torch.testing.assert_close(jsd(target, draft), jsd(draft, target))
    assert jsd(target, draft).max() <= math.log(2) + 1e-12
    assert jsd(target.float(), draft.float()).max() <= math.log(2) + 1e-6


@pytest.mark.parametrize(
    "types", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]
)
def test_mixed_types_keep_every_divergence_in_its_bounds(types):
    """ms-swift#10156: a JSD of −1.7e-4 from a float32 teacher and a bfloat16 student, +5.1e-4 in
    float32 alone."""
    target = logits(200, 512, dtype=torch.float32, scale=3)
    for distance in (0.0, 1e-3, 1e-1, 10.0):
        draft = target + distance * logits(200, 512, seed=1).float()
        mixed = target.to(types[0]), draft.to(types[1])
        for divergence in DIVERGENCES.values():
            values = divergence(*mixed)
            assert values.dtype == torch.float32
            assert values.min() >= -1e-7
        assert jsd(*mixed).max() <= math.log(2) + 1e-6
        assert total_variation(*mixed).max() <= 1 + 1e-6
        wide = [x.double() for x in mixed]
        torch.testing.assert_close(jsd(*mixed).double(), jsd(*wide), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("beta", [0.1, 0.3, 0.5, 0.8])
def test_jsd_swaps_with_its_weights(beta):
    """trl#3043: the mixture's weights were the wrong way round."""
    target, draft = logits(50, 9), logits(50, 9, seed=1)
    torch.testing.assert_close(jsd(target, draft, beta=beta), jsd(draft, target, beta=1 - beta))


def test_jsd_over_beta_tends_to_the_kl_divergences():
    """trl#3043: at the ends of β the loss was 0 instead of a KL."""
    target, draft, beta = logits(5, 4, scale=1), logits(5, 4, seed=1, scale=1), 1e-6
    near_zero = jsd(target, draft, beta=beta) / beta
    near_one = jsd(target, draft, beta=1 - beta) / beta
    torch.testing.assert_close(near_zero, forward_kl(target, draft), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(near_one, reverse_kl(target, draft), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, 1.1, math.nan])
def test_a_beta_that_would_train_on_nothing_is_refused(beta):
    """verl-recipe#151: β = 1 was moved to 1 − 1e-6, a loss of next to nothing."""
    with pytest.raises(UserError, match=r"use forward_kl .* reverse_kl"):
        jsd(torch.zeros(2), torch.zeros(2), beta=beta)


def test_total_variation_is_bounded_by_one_and_by_pinsker():
    target, draft = logits(200, 9, scale=4), logits(200, 9, seed=1, scale=4)
    tvd = total_variation(target, draft)
    assert tvd.max() <= 1
    for kl in (forward_kl, reverse_kl):
        assert (tvd**2 <= kl(target, draft) / 2).all()


def test_acceptance_is_one_minus_total_variation():
    target, draft = logits(20, 9), logits(20, 9, seed=1)
    torch.testing.assert_close(acceptance(target, draft), 1 - total_variation(target, draft))
    draft = draft[:, :4]
    torch.testing.assert_close(
        acceptance(target, draft, kept=KEPT), 1 - total_variation(target, draft, kept=KEPT)
    )


def test_negative_log_acceptance_is_what_its_name_says():
    target, draft = logits(20, 9), logits(20, 9, seed=1)
    values = negative_log_acceptance(target, draft)
    torch.testing.assert_close(values, -acceptance(target, draft).log())
    assert (values >= 0).all()
    assert negative_log_acceptance(target, target).abs().max() < 1e-12
    assert gradient(negative_log_acceptance, target, target).abs().max() < 1e-12
    trimmed = negative_log_acceptance(target, draft[:, :4], kept=KEPT)
    torch.testing.assert_close(trimmed, -acceptance(target, draft[:, :4], kept=KEPT).log())


def test_its_gradient_is_that_of_total_variation_over_the_acceptance():
    target, draft = logits(20, 9), logits(20, 9, seed=1)
    expected = gradient(total_variation, target, draft) / acceptance(target, draft)[:, None]
    torch.testing.assert_close(gradient(negative_log_acceptance, target, draft), expected)
    target, draft = logits(2, 4).requires_grad_(), logits(2, 4, seed=1).requires_grad_()
    assert gradcheck(negative_log_acceptance, (target, draft))


def test_where_the_two_hardly_overlap_the_negative_log_acceptance_still_pulls():
    """Total variation's gradient vanishes there, and Σ min(P, Q) itself would underflow."""
    target, draft = torch.tensor([[0.0, -200.0]]), torch.tensor([[-200.0, 0.0]])
    assert negative_log_acceptance(target, draft).item() == pytest.approx(200 - math.log(2))
    assert gradient(total_variation, target, draft).abs().max() < 1e-6
    assert gradient(negative_log_acceptance, target, draft).tolist()[0][0] < -0.4
    apart = negative_log_acceptance(torch.tensor([0.0, -math.inf]), torch.tensor([-math.inf, 0.0]))
    assert apart.item() == math.inf


# --- infinities -----------------------------------------------------------------------------


def one_sided(*, in_target):
    """Logits of which one column is −inf on one side only."""
    target, draft = logits(3, 5, dtype=torch.float32), logits(3, 5, seed=1, dtype=torch.float32)
    (target if in_target else draft)[:, 2] = -math.inf
    return target, draft


def test_only_the_kl_that_is_infinite_is_infinite():
    beyond_draft, beyond_target = one_sided(in_target=False), one_sided(in_target=True)
    assert forward_kl(*beyond_draft).tolist() == [math.inf] * 3
    assert reverse_kl(*beyond_target).tolist() == [math.inf] * 3
    for divergence, pair in ((reverse_kl, beyond_draft), (forward_kl, beyond_target)):
        assert divergence(*pair).isfinite().all()
        assert gradient(divergence, *pair).isfinite().all()


@pytest.mark.parametrize("in_target", [True, False])
@pytest.mark.parametrize("divergence", [jsd, total_variation], ids=["jsd", "total_variation"])
def test_jsd_and_total_variation_stay_finite(divergence, in_target):
    target, draft = one_sided(in_target=in_target)
    values, exact = divergence(target, draft), divergence(target.double(), draft.double())
    torch.testing.assert_close(values.double(), exact, rtol=1e-5, atol=1e-6)
    assert gradient(divergence, target, draft).isfinite().all()


def test_disjoint_support_reaches_the_upper_bounds():
    target = torch.tensor([0.0, -math.inf])
    draft = torch.tensor([-math.inf, 0.0])
    assert jsd(target, draft).item() == pytest.approx(math.log(2))
    weighed = -0.1 * math.log(0.1) - 0.9 * math.log(0.9)
    assert jsd(target, draft, beta=0.1).item() == pytest.approx(weighed)
    assert total_variation(target, draft).item() == 1
    assert forward_kl(target, draft).item() == math.inf
    assert reverse_kl(target, draft).item() == math.inf


@every_divergence
def test_far_tails_neither_overflow_nor_turn_nan(divergence):
    """Logits 300 apart: the probabilities underflow in float32, the divergence does not break."""
    target = torch.tensor([[0.0, -300.0, -5.0], [0.0, 0.0, -120.0]])
    draft = torch.tensor([[-300.0, 0.0, -5.0], [-120.0, 0.0, 0.0]])
    values = divergence(target, draft)
    exact = divergence(target.double(), draft.double())
    torch.testing.assert_close(values.double(), exact, rtol=1e-5, atol=1e-6)
    assert gradient(divergence, target, draft).isfinite().all()


# --- trimmed heads --------------------------------------------------------------------------


def trimmed_pair(seed=0):
    """Return target [6, 7], a trimmed draft [6, 4], and the same draft with −inf outside K."""
    target, draft = logits(6, 7, seed=seed), logits(6, 4, seed=seed + 1)
    whole = torch.full((6, 7), -math.inf, dtype=torch.float64).index_copy(-1, KEPT, draft)
    return target, draft, whole


@pytest.mark.parametrize("name", [name for name in DIVERGENCES if name != "forward_kl"])
def test_a_trimmed_head_is_a_whole_one_with_minus_infinity_outside(name):
    divergence = DIVERGENCES[name]
    target, draft, whole = trimmed_pair()
    torch.testing.assert_close(divergence(target, draft, kept=KEPT), divergence(target, whole))
    torch.testing.assert_close(
        gradient(divergence, target, draft, kept=KEPT),
        gradient(divergence, target, whole)[:, KEPT],
    )


def test_the_trimmed_forward_objective_renormalises_the_target():
    target, draft, _ = trimmed_pair()
    p = target.softmax(-1)[:, KEPT]
    expected = (p * (p / p.sum(-1, keepdim=True) / draft.softmax(-1)).log()).sum(-1)
    torch.testing.assert_close(forward_kl(target, draft, kept=KEPT), expected)
    # Its gradient is that of the cross-entropy of what the draft can reach, Σ_K P log(1/Q).
    reachable = gradient(lambda t, d: -(p * d.log_softmax(-1)).sum(-1), target, draft)
    torch.testing.assert_close(gradient(forward_kl, target, draft, kept=KEPT), reachable)


@every_divergence
def test_keeping_every_id_is_keeping_a_whole_head(divergence):
    target, draft = (logits(6, 7, seed=seed, dtype=torch.float32) for seed in (0, 1))
    torch.testing.assert_close(
        divergence(target, draft, kept=torch.arange(7)), divergence(target, draft)
    )


@every_divergence
def test_trimmed_gradients_are_those_of_finite_differences(divergence):
    target, draft, _ = trimmed_pair()
    target, draft = target[:2].requires_grad_(), draft[:2].requires_grad_()
    assert gradcheck(lambda t, d: divergence(t, d, kept=KEPT), (target, draft))


def test_a_target_with_nothing_inside_the_kept_ids():
    target, draft, _ = trimmed_pair()
    target = target.index_fill(-1, KEPT, -math.inf)
    assert forward_kl(target, draft, kept=KEPT).tolist() == [0.0] * 6
    assert not gradient(forward_kl, target, draft, kept=KEPT).any()
    assert jsd(target, draft, kept=KEPT).tolist() == pytest.approx([math.log(2)] * 6)
    assert total_variation(target, draft, kept=KEPT).tolist() == pytest.approx([1.0] * 6)
    assert reverse_kl(target, draft, kept=KEPT).tolist() == [math.inf] * 6


# --- hard labels ----------------------------------------------------------------------------


def test_cross_entropy_is_minus_log_q():
    draft, targets = logits(2, 3, 5), torch.tensor([[0, 4, 2], [1, 1, 3]])
    expected = -draft.softmax(-1).log().gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(cross_entropy(draft, targets), expected)
    assert gradcheck(lambda x: cross_entropy(x, targets), draft.requires_grad_())
    assert cross_entropy(draft.bfloat16(), targets).dtype == torch.float32
    with pytest.raises(ValueError, match="need targets"):
        cross_entropy(draft, targets[:1])


def test_cross_entropy_of_a_trimmed_head_is_that_of_the_whole_one():
    _, draft, whole = trimmed_pair()
    targets = torch.tensor([0, 1, 2, 3, 6, 5])
    values = cross_entropy(draft, targets, kept=KEPT)
    torch.testing.assert_close(values, cross_entropy(whole, targets))
    assert values.isinf().tolist() == [False, True, False, False, False, True]


def test_a_label_the_draft_cannot_emit_costs_infinity_and_can_be_masked():
    _, draft, _ = trimmed_pair()
    draft.requires_grad_()
    values = cross_entropy(draft, torch.tensor([0, 1, 2, 3, 6, 5]), kept=KEPT)
    assert values[1].item() == math.inf
    token_mean(values, values.isfinite()).backward()
    assert draft.grad.isfinite().all()
    assert not draft.grad[[1, 5]].any()
    assert draft.grad[[0, 2, 3, 4]].any(-1).all()


# --- reductions -----------------------------------------------------------------------------

VALUES = torch.tensor([[1.0, 9.0, 9.0], [2.0, 3.0, 4.0]])
MASK = torch.tensor([[True, False, False], [True, True, True]])


def test_sequence_mean_weighs_sequences_equally_and_token_mean_tokens():
    """1 and (2 + 3 + 4) / 3: mean of means 2.0, of the tokens 2.5."""
    assert sequence_mean(VALUES, MASK).item() == 2.0
    assert token_mean(VALUES, MASK).item() == 2.5


def test_doubling_the_batch_or_the_padding_keeps_both_means():
    padded = torch.cat([VALUES, torch.full((2, 4), math.nan)], dim=1)
    longer = torch.cat([MASK, torch.zeros(2, 4, dtype=torch.bool)], dim=1)
    for mean in (sequence_mean, token_mean):
        once = mean(VALUES, MASK)
        assert mean(VALUES.repeat(2, 1), MASK.repeat(2, 1)) == once
        assert mean(padded, longer) == once


@every_divergence
def test_masked_vocabulary_columns_do_not_enter_the_mean(divergence):
    """trl#4105. "batchmean" once divided by the vocabulary too."""
    target, draft = logits(2, 3, 5), logits(2, 3, 5, seed=1)
    wider = [torch.nn.functional.pad(x, (0, 4), value=-math.inf) for x in (target, draft)]
    torch.testing.assert_close(
        sequence_mean(divergence(*wider), MASK), sequence_mean(divergence(target, draft), MASK)
    )


def test_parts_of_a_step_add_up_to_its_token_mean():
    """trl#4719, ms-swift#10076. Losses of 1 over one token and 9 over three give 10 / 4, not (1 +
    3) / 2."""
    parts = [token_mean(VALUES[row], MASK[row], count=4) for row in (0, 1)]
    assert sum(parts).item() == token_mean(VALUES, MASK).item()
    nothing = token_mean(VALUES[0], torch.zeros(3, dtype=torch.bool), count=4)
    assert nothing.item() == 0


@pytest.mark.parametrize("mean", [sequence_mean, token_mean])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_masked_values_do_no_harm(mean, bad):
    values = VALUES.masked_fill(~MASK, bad).requires_grad_()
    mean(values, MASK).backward()
    assert mean(values, MASK) == mean(VALUES, MASK)
    assert values.grad.isfinite().all()
    assert not values.grad[~MASK].any()
    assert (values.grad[MASK] > 0).all()


@pytest.mark.parametrize("divergence", [forward_kl, reverse_kl])
def test_a_masked_divergence_that_is_infinite_does_no_harm(divergence):
    """The bug: 0 · ∞ made the gradient of every id of that position nan."""
    one_side = torch.randn(2, 3, 4)
    one_side[1, 2, 0] = -math.inf
    other = torch.randn(2, 3, 4)
    target, draft = (one_side, other) if divergence is reverse_kl else (other, one_side)
    draft.requires_grad_()
    values = divergence(target, draft)
    assert values[1, 2] == math.inf
    mask = values.isfinite()
    token_mean(values, mask).backward()
    assert draft.grad.isfinite().all()
    assert draft.grad[mask].abs().sum() > 0
    assert not draft.grad[~mask].any()


@pytest.mark.parametrize("mean", [sequence_mean, token_mean])
def test_a_value_that_counts_is_not_hidden(mean):
    values = VALUES.clone()
    values[1, 1] = math.nan
    assert mean(values, MASK).isnan()


def test_an_empty_mask_is_an_error_never_nan():
    with pytest.raises(ValueError, match=r"in sequences \[1\] of 2"):
        sequence_mean(VALUES, torch.tensor([[True] * 3, [False] * 3]))
    with pytest.raises(ValueError, match="of 0"):
        sequence_mean(VALUES[:0], MASK[:0])
    with pytest.raises(ValueError, match="at least one"):
        token_mean(VALUES, torch.zeros_like(MASK))
    with pytest.raises(ValueError, match="at least one"):
        token_mean(VALUES, MASK, count=0)


@pytest.mark.parametrize("mean", [sequence_mean, token_mean])
@pytest.mark.parametrize("mask", [MASK[:1], MASK.long()], ids=["shape", "dtype"])
def test_a_mask_of_another_shape_or_type_is_an_error(mean, mask):
    with pytest.raises(ValueError, match="need a bool mask of that shape"):
        mean(VALUES, mask)


def test_half_precision_values_are_summed_in_float32():
    values = torch.full((1, 4096), 1.0078125, dtype=torch.bfloat16)
    mask = torch.ones(1, 4096, dtype=torch.bool)
    for mean in (sequence_mean, token_mean):
        assert mean(values, mask).item() == 1.0078125
        assert mean(values, mask).dtype == torch.float32
