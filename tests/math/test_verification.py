"""Acceptance, residual and the verification step: exact laws first, then forced outcomes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from distillspec.errors import UserError
from distillspec.math.sampling import GREEDY, Sampling, draw
from distillspec.math.verification import (
    acceptance_probability,
    expected_acceptance,
    exponential,
    lenient_score,
    linear,
    lossless,
    residual,
    squared,
    verify,
)

exact = settings(deadline=None, derandomize=True, max_examples=100)
LAST_BELOW_ONE = 1 - 2**-53
LENIENCES = {linear: lambda p, e: p / e, squared: lambda p, e: p / e**2, exponential: pow}


def normalised(row):
    row = torch.tensor(row, dtype=torch.float64)
    return row / row.sum()


@st.composite
def simplex_pairs(draw_value):
    """Two distributions over the same 2…10 ids, with zeros and very small entries."""
    size = draw_value(st.integers(2, 10))
    entry = st.one_of(st.just(0.0), st.floats(1e-9, 1), st.sampled_from([0.25, 0.5, 1.0]))
    row = st.lists(entry, min_size=size, max_size=size).filter(lambda row: sum(row) > 0)
    return normalised(draw_value(row)), normalised(draw_value(row))


def one_step_law(p, q, lenience=lossless):
    accepted = q * acceptance_probability(p, q, lenience)
    return accepted + (1 - accepted.sum()) * residual(p, q)


# --- the two pure functions -----------------------------------------------------------------


@exact
@given(simplex_pairs())
def test_the_law_of_one_step_is_the_targets(pair):
    p, q = pair
    law = one_step_law(p, q)
    torch.testing.assert_close(law, p, rtol=0, atol=1e-12)
    assert not law[p == 0].any()


@exact
@given(simplex_pairs())
def test_acceptance_is_one_minus_total_variation(pair):
    p, q = pair
    tvd = 0.5 * (p - q).abs().sum().item()
    assert (q * acceptance_probability(p, q)).sum().item() == pytest.approx(1 - tvd, abs=1e-12)
    assert expected_acceptance(p, q).item() == pytest.approx(1 - tvd, abs=1e-12)


@exact
@given(simplex_pairs())
def test_acceptance_and_residual_are_probabilities(pair):
    p, q = pair
    accept, rest = acceptance_probability(p, q), residual(p, q)
    assert ((accept >= 0) & (accept <= 1)).all()
    assert not accept[p == 0].any()
    assert (accept[(p >= q) & (p > 0)] == 1).all()
    assert (rest >= 0).all()
    assert rest.sum().item() == pytest.approx(1, abs=1e-12)
    assert not rest[p == 0].any()


@pytest.mark.parametrize("family", LENIENCES, ids=lambda family: family.__name__)
@exact
@given(pair=simplex_pairs(), eps=st.floats(0.05, 1))
def test_lenient_law_is_the_formula_with_the_lossless_residual(family, pair, eps):
    """Block verification once used the token-wise rule with another rule's residual."""
    p, q = pair
    f = [LENIENCES[family](x, eps) for x in p.tolist()]
    kept = [y * min(1, a / y) if y > 0 else 0.0 for a, y in zip(f, q.tolist(), strict=True)]
    excess = [max(0.0, x - y) for x, y in zip(p.tolist(), q.tolist(), strict=True)]
    rest = [x / sum(excess) for x in excess] if sum(excess) > 0 else p.tolist()
    law = [a + (1 - sum(kept)) * r for a, r in zip(kept, rest, strict=True)]
    got = one_step_law(p, q, family(eps))
    torch.testing.assert_close(got, torch.tensor(law, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", LENIENCES, ids=lambda family: family.__name__)
@exact
@given(pair=simplex_pairs(), eps=st.tuples(st.floats(1e-3, 1), st.floats(1e-3, 1)))
def test_more_lenient_never_accepts_less(family, pair, eps):
    p, q = pair
    strict, lenient = (acceptance_probability(p, q, family(e)) for e in sorted(eps, reverse=True))
    assert (acceptance_probability(p, q) <= strict + 1e-12).all()
    assert (strict <= lenient + 1e-12).all()
    assert not lenient[p == 0].any()


@pytest.mark.parametrize("family", LENIENCES, ids=lambda family: family.__name__)
def test_an_eps_of_one_is_lossless(family):
    p, q = normalised([0.1, 0.0, 0.5, 0.4]), normalised([0.3, 0.3, 0.1, 0.3])
    assert torch.equal(family(1.0)(p), p)
    torch.testing.assert_close(one_step_law(p, q, family(1.0)), p, rtol=0, atol=1e-15)


@pytest.mark.parametrize("family", LENIENCES, ids=lambda family: family.__name__)
class TestLenienceValues:
    def test_prints_and_compares(self, family):
        assert repr(family(0.5)) == f"{family.__name__}(eps=0.5)"
        assert family(0.5) == family(0.5)
        assert family(0.5) != family(0.25)

    @pytest.mark.parametrize("eps", [0.0, -0.5, 1.5, math.nan])
    def test_an_eps_out_of_range_is_refused_by_name(self, family, eps):
        with pytest.raises(UserError, match=rf"lenience {family.__name__} is {eps}"):
            family(eps)

    def test_the_smallest_eps_keeps_impossible_tokens_impossible(self, family):
        p, q = torch.tensor([0.0, 1e-3, 0.999]), torch.tensor([0.5, 0.5, 0.0])
        accept = acceptance_probability(p, q, family(1e-30))
        assert accept[0] == 0
        assert torch.equal(accept[1:], torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_left_where_p_is_q(dtype):
    """jaymody/speculative-sampling#5: nan from a rejection at p = q; p and q one ulp apart too."""
    p = torch.tensor([0.2, 0.3, 0.5, 0.0], dtype=dtype)
    assert torch.equal(residual(p, p), p)
    below = torch.nextafter(p, torch.zeros_like(p))
    assert torch.equal(residual(below, p), below)
    above = torch.nextafter(p, torch.ones_like(p)) * (p > 0)
    rest = residual(above, p)
    assert rest.isfinite().all()
    assert rest.sum().item() == pytest.approx(1)
    assert rest[3] == 0


def test_half_precision_is_widened_and_double_is_kept():
    half, double = torch.ones(2, dtype=torch.bfloat16) / 2, torch.ones(2, dtype=torch.float64) / 2
    for function in (acceptance_probability, residual, expected_acceptance):
        assert function(half, half).dtype == torch.float32
        assert function(double, double).dtype == torch.float64


# --- verify ---------------------------------------------------------------------------------


def plain_verify(p, q, drafted, length, uniforms, score):
    """Judge one row token by token, as Algorithm A.1 is written."""
    accepted = 0
    while accepted < length:
        x = drafted[accepted].item()
        s, y = score[accepted, x].item(), q[accepted, x].item()
        ratio = 0.0 if s == 0 else min(1.0, s / y) if y > 0 else 1.0
        if not uniforms[accepted] < ratio:
            break
        accepted += 1
    law = p[accepted]
    if accepted < length:
        excess = (p[accepted] - q[accepted]).clamp(min=0)
        law = excess / excess.sum() if excess.sum() > 0 else law
    return accepted, draw(law, uniforms[-1]).item()


@st.composite
def blocks(draw_value):
    """Ragged batches with their own p and q at every position, zeros included."""
    B, gamma, V = (draw_value(st.integers(low, 4)) for low in (1, 0, 2))
    generator = torch.Generator().manual_seed(draw_value(st.integers(0, 2**32)))

    def rows(length):
        weights = torch.rand(B, length, V, generator=generator, dtype=torch.float64)
        weights = weights * (torch.rand(B, length, V, generator=generator) < 0.7)
        weights[..., 0] += weights.sum(-1) == 0
        return weights / weights.sum(-1, keepdim=True)

    p, q = rows(gamma + 1), rows(gamma)
    if draw_value(st.booleans()):
        q = p[:, :gamma].clone()
    uniforms = torch.rand(B, gamma + 1, generator=generator, dtype=torch.float64)
    uniforms[torch.rand(B, gamma + 1, generator=generator) < 0.15] = 0.0
    uniforms[torch.rand(B, gamma + 1, generator=generator) < 0.15] = LAST_BELOW_ONE
    chooser = torch.rand(B, gamma, generator=generator, dtype=torch.float64)
    drafted = draw(q, chooser) if gamma else torch.zeros(B, 0, dtype=torch.long)
    lengths = torch.randint(0, gamma + 1, (B,), generator=generator)
    return p, q, drafted, lengths, uniforms


@exact
@given(block=blocks(), lenience=st.sampled_from([lossless, linear(0.5), exponential(0.3)]))
def test_verify_follows_the_algorithm_token_by_token(block, lenience):
    p, q, drafted, lengths, uniforms = block
    score = lenience(p)
    got = verify(p, q, drafted, lengths=lengths, uniforms=uniforms, score=score)
    for row, length in enumerate(lengths.tolist()):
        expected = plain_verify(p[row], q[row], drafted[row], length, uniforms[row], score[row])
        assert (got.accepted[row].item(), got.token[row].item()) == expected


@exact
@given(block=blocks())
def test_a_token_the_target_excludes_is_never_emitted(block):
    p, q, drafted, lengths, uniforms = block
    accepted, token = verify(p, q, drafted, lengths=lengths, uniforms=uniforms)
    for row, count in enumerate(accepted.tolist()):
        emitted = [*drafted[row, :count].tolist(), token[row].item()]
        assert len(emitted) == count + 1 <= lengths[row] + 1
        assert all(p[row, position, x] > 0 for position, x in enumerate(emitted))


@exact
@given(block=blocks())
def test_rows_do_not_depend_on_each_other(block):
    p, q, drafted, lengths, uniforms = block
    whole = verify(p, q, drafted, lengths=lengths, uniforms=uniforms)
    for row in range(len(p)):
        one = slice(row, row + 1)
        alone = verify(p[one], q[one], drafted[one], lengths=lengths[one], uniforms=uniforms[one])
        assert (alone.accepted[0], alone.token[0]) == (whole.accepted[row], whole.token[row])


@exact
@given(block=blocks())
def test_inputs_are_bitwise_unchanged(block):
    """vllm-ascend#2881: target probabilities were edited in place before they were used again."""
    p, q, drafted, lengths, uniforms = block
    score = linear(0.5)(p)
    inputs = [p, q, drafted, lengths, uniforms, score]
    before = [tensor.clone() for tensor in inputs]
    verify(p, q, drafted, lengths=lengths, uniforms=uniforms, score=score)
    verify(p, q, drafted, lengths=lengths, uniforms=uniforms)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_acceptances_after_a_rejection_do_not_count():
    """The pattern [1, 0, 1, 1] accepts one token, not three."""
    p = torch.full((1, 5, 2), 0.5)
    q = torch.tensor([[[0.5, 0.5], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]])
    drafted = torch.tensor([[0, 1, 0, 0]])
    uniforms = torch.tensor([[0.9, 0.6, 0.9, 0.9, 0.0]])
    accepted, token = verify(p, q, drafted, lengths=torch.tensor([4]), uniforms=uniforms)
    assert accepted.tolist() == [1]
    assert token.tolist() == [0]  # the residual at the rejected position has only id 0


def test_the_last_token_comes_from_the_row_after_the_drafted_ones():
    """Each position can only emit its own id, so the token tells the row it was drawn from."""
    p = torch.eye(4).expand(4, 4, 4)  # B = 4, γ = 3
    q = torch.eye(4)[:3].expand(4, 3, 4)
    drafted = torch.tensor([[0, 1, 2]]).expand(4, 3)
    lengths = torch.tensor([0, 1, 2, 3])
    uniforms = torch.full((4, 4), 0.999)
    accepted, token = verify(p, q, drafted, lengths=lengths, uniforms=uniforms)
    assert accepted.tolist() == [0, 1, 2, 3]
    assert token.tolist() == [0, 1, 2, 3]


def test_the_replacement_comes_from_the_residual_of_its_own_position():
    """A residual with one possible id pins the token, whatever the last uniform."""
    p = torch.tensor([[[0.5, 0.5, 0.0], [0.4, 0.0, 0.6], [0.0, 1.0, 0.0]]])
    q = torch.tensor([[[0.5, 0.5, 0.0], [0.6, 0.2, 0.2]]])
    drafted, lengths = torch.tensor([[1, 1]]), torch.tensor([2])
    for u in (0.0, 0.5, LAST_BELOW_ONE):
        uniforms = torch.tensor([[0.99, 0.0, u]], dtype=torch.float64)
        verdict = verify(p, q, drafted, lengths=lengths, uniforms=uniforms)
        assert (verdict.accepted.item(), verdict.token.item()) == (1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ends_of_the_unit_interval_decide_rightly(dtype):
    """u = 0 does not accept what p excludes; the largest u accepts what has ratio 1."""
    largest = 1 - torch.finfo(dtype).eps / 2
    p = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]], dtype=dtype).expand(2, 2, 2)
    q = torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]], dtype=dtype)
    uniforms = torch.tensor([[0.0, 0.0], [largest, largest]], dtype=dtype)
    drafted, lengths = torch.tensor([[0], [1]]), torch.tensor([1, 1])
    verdict = verify(p, q, drafted, lengths=lengths, uniforms=uniforms)
    assert verdict.accepted.tolist() == [0, 1]
    assert verdict.token.tolist() == [1, 1]


def test_a_rejection_forced_where_p_is_q_up_to_rounding_draws_from_p():
    q = torch.tensor([[[0.3, 0.7, 0.0]]])
    p = torch.nextafter(q, torch.zeros_like(q))
    p = torch.cat([p, p], dim=1)
    uniforms = torch.tensor([[1 - 1e-12, 0.9]], dtype=torch.float64)
    verdict = verify(p, q, torch.tensor([[1]]), lengths=torch.tensor([1]), uniforms=uniforms)
    assert (verdict.accepted.item(), verdict.token.item()) == (0, 1)


def test_a_draft_equal_to_the_target_is_always_accepted():
    """dflash#74: a draft that ignores the temperature is not the target at 0.7."""
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(50, 5, 20, generator=generator).softmax(-1)
    drafted = draw(p[:, :4], torch.rand(50, 4, generator=generator))
    uniforms = torch.rand(50, 5, generator=generator)
    verdict = verify(p, p[:, :4], drafted, lengths=torch.full((50,), 4), uniforms=uniforms)
    assert verdict.accepted.tolist() == [4] * 50


def test_greedy_accepts_exactly_what_equals_the_argmax():
    generator = torch.Generator().manual_seed(0)
    p = GREEDY.probabilities(torch.randn(40, 3, 4, generator=generator))
    q = GREEDY.probabilities(torch.randn(40, 2, 4, generator=generator))
    drafted, wanted = q.argmax(-1), p.argmax(-1)
    uniforms = torch.rand(40, 3, generator=generator)
    verdict = verify(p, q, drafted, lengths=torch.full((40,), 2), uniforms=uniforms)
    matches = (drafted == wanted[:, :2]).long().cumprod(-1).sum(-1)
    assert torch.equal(verdict.accepted, matches)
    assert torch.equal(verdict.token, wanted[torch.arange(40), matches])


@pytest.mark.parametrize("lenience", [lossless, linear(0.5), squared(0.7), exponential(0.4)])
def test_the_law_of_one_verification_over_a_grid_of_uniforms(lenience):
    """Every drafted id × an N by N grid: the emitted first token has the one-step law to 1/N."""
    N = 50
    p = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.1, 0.2, 0.6, 0.1], dtype=torch.float64)
    middles = (torch.arange(N, dtype=torch.float64) + 0.5) / N
    drafted, u, v = torch.meshgrid(
        torch.arange(4, dtype=torch.float64), middles, middles, indexing="ij"
    )
    drafted = drafted.reshape(-1, 1).long()
    B = len(drafted)
    verdict = verify(
        p.expand(B, 2, 4),
        q.expand(B, 1, 4),
        drafted,
        lengths=torch.ones(B, dtype=torch.long),
        uniforms=torch.stack([u.flatten(), v.flatten()], dim=1),
        score=lenience(p).expand(B, 2, 4),
    )
    first = torch.where(verdict.accepted == 1, drafted[:, 0], verdict.token)
    law = torch.zeros(4, dtype=torch.float64).index_add(0, first, q[drafted[:, 0]] / N**2)
    torch.testing.assert_close(law, one_step_law(p, q, lenience), rtol=0, atol=2 / N)


class Largest(TorchDispatchMode):
    """Record the bytes of the largest new tensor; views of what is there already do not count."""

    def __init__(self, *known):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage.data_ptr() not in self.known:
                    self.bytes = max(self.bytes, storage.nbytes())
        return result


def test_no_temporary_has_the_size_of_all_positions():
    B, gamma, V = 2, 16, 1000
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(B, gamma + 1, V, generator=generator).softmax(-1)
    q = torch.rand(B, gamma, V, generator=generator).softmax(-1)
    drafted = torch.randint(V, (B, gamma), generator=generator)
    uniforms = torch.rand(B, gamma + 1, generator=generator)
    with Largest(p, q, drafted, uniforms) as largest:
        verify(p, q, drafted, lengths=torch.tensor([16, 3]), uniforms=uniforms)
    assert 0 < largest.bytes <= B * V * 8  # the float64 cumulative sum of the final draw


def test_shapes_that_disagree_are_named():
    p, q = torch.full((2, 4, 5), 0.2), torch.full((2, 3, 5), 0.2)
    drafted, uniforms = torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 4)
    lengths = torch.tensor([3, 3])
    for name, wrong in {"p": p[:, :3], "q": q[:, :2], "score": p[:, :2]}.items():
        tensors = {"p": p, "q": q, "score": p} | {name: wrong}
        with pytest.raises(ValueError, match=f"^{name} has shape"):
            verify(
                tensors["p"],
                tensors["q"],
                drafted,
                lengths=lengths,
                uniforms=uniforms,
                score=tensors["score"],
            )
    with pytest.raises(ValueError, match="^uniforms has shape"):
        verify(p, q, drafted, lengths=lengths, uniforms=uniforms[:, :3])
    with pytest.raises(ValueError, match="^lengths has shape"):
        verify(p, q, drafted, lengths=lengths[:1], uniforms=uniforms)
    for wrong in ([3, 4], [-1, 3]):
        with pytest.raises(ValueError, match=r"expected 0…3"):
            verify(p, q, drafted, lengths=torch.tensor(wrong), uniforms=uniforms)


# --- lenient scores -------------------------------------------------------------------------

LOGITS = torch.tensor([0.5, 0.25, 0.15, 0.1], dtype=torch.float64).log()


def test_above_temperature_zero_the_score_is_f_of_the_sampled_distribution():
    sampling = Sampling(temperature=0.7, top_k=3)
    expected = sampling.probabilities(LOGITS) / 0.5
    assert torch.equal(lenient_score(LOGITS, sampling, linear(0.5)), expected)


@pytest.mark.parametrize(
    ("lenience", "accepted"),
    [
        (linear(1.0), [1, 0, 0, 0]),
        (linear(0.51), [1, 0, 0, 0]),
        (linear(0.49), [1, 1, 0, 0]),  # 0.25 / 0.49 ≥ 0.5, 0.15 / 0.49 < 0.5
        (squared(0.49), [1, 1, 1, 0]),  # 0.15 / 0.24 ≥ 0.5, 0.1 / 0.24 < 0.5
        (exponential(0.4), [1, 1, 0, 0]),  # 0.25^0.4 = 0.57, 0.15^0.4 = 0.47
        (exponential(0.01), [1, 1, 1, 1]),
        (lossless, [1, 0, 0, 0]),
    ],
)
def test_at_temperature_zero_f_of_p_must_reach_the_largest_probability(lenience, accepted):
    score = lenient_score(LOGITS, GREEDY, lenience)
    assert score.tolist() == accepted
    p, q = GREEDY.probabilities(LOGITS), torch.eye(4, dtype=torch.float64)
    verdict = verify(
        p.expand(4, 2, 4),
        q.unsqueeze(1),
        torch.arange(4).unsqueeze(1),
        lengths=torch.ones(4, dtype=torch.long),
        uniforms=torch.full((4, 2), 0.999),
        score=score.expand(4, 2, 4),
    )
    assert verdict.accepted.tolist() == accepted


@pytest.mark.parametrize("lenience", [lossless, linear(1.0), squared(1.0), exponential(1.0)])
def test_an_eps_of_one_stays_greedy_where_logits_tie(lenience):
    logits = torch.tensor([1.0, 2.0, 2.0])
    assert torch.equal(lenient_score(logits, GREEDY, lenience), GREEDY.probabilities(logits))


def test_impossible_tokens_stay_impossible_under_any_lenience():
    logits = torch.tensor([0.0, -math.inf, 0.0])
    for sampling in (GREEDY, Sampling()):
        assert lenient_score(logits, sampling, exponential(0.01))[1] == 0
