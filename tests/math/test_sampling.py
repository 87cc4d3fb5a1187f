"""Sampling settings as distributions, and the draw from a distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import decoding_checks as checks
from distillspec.errors import UserError
from distillspec.math.precision import at_least_float32, wide_dtype
from distillspec.math.sampling import BLOCK, FIRST_LOOK, GREEDY, Sampling, draw

exact = settings(deadline=None, derandomize=True, max_examples=100)
# Multiples of a quarter make ties common, and every sum and difference exact.
logit = st.one_of(st.integers(-12, 12).map(lambda n: n / 4), st.just(-math.inf))
rows = st.lists(logit, min_size=1, max_size=8).filter(lambda row: max(row) > -math.inf)
LAST_BELOW_ONE = 1 - 2**-53
corner_uniforms = st.one_of(
    st.sampled_from([0.0, 5e-324, 2**-53, 0.5, 1 - 2**-24, LAST_BELOW_ONE]),
    st.floats(0, 1, exclude_max=True),
)


def plain_probabilities(row, temperature=1.0, top_k=None, top_p=1.0):
    """Follow the definition id by id: temperature, then top-k, then top-p, lowest id first."""
    top = max(row)
    weights = [math.exp((x - top) / temperature) for x in row]
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:top_k]
    total = sum(weights[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        if top_p < 1 and mass >= top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(row))]


@exact
@given(
    row=rows,
    temperature=st.sampled_from([0.25, 0.7, 1.0, 2.0]),
    top_k=st.one_of(st.none(), st.integers(1, 10)),
    top_p=st.sampled_from([0.01, 0.313, 0.617, 0.911, 1.0]),
)
def test_settings_follow_their_definition(row, temperature, top_k, top_p):
    sampling = Sampling(temperature, top_k, top_p)
    got = sampling.probabilities(torch.tensor(row, dtype=torch.float64))
    expected = torch.tensor(plain_probabilities(row, temperature, top_k, top_p)).double()
    assert got.sum().item() == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-7)
    assert torch.equal(got > 0, expected > 0)


def test_plain_softmax_without_truncation():
    logits = torch.randn(3, 4, 11, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        Sampling(temperature=0.7).probabilities(logits), (logits / 0.7).softmax(-1)
    )


def test_greedy_is_one_hot_at_the_first_largest():
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, -math.inf], [-math.inf, -math.inf, -5.0]])
    expected = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert torch.equal(GREEDY.probabilities(logits), expected)


@exact
@given(row=rows)
def test_top_k_of_one_a_tiny_top_p_and_greedy_are_the_same(row):
    logits = torch.tensor(row)
    greedy = GREEDY.probabilities(logits)
    assert torch.equal(Sampling(top_k=1).probabilities(logits), greedy)
    assert torch.equal(Sampling(top_p=1e-9).probabilities(logits), greedy)


def test_top_k_tells_close_logits_apart():
    """Logits may differ although their float32 probabilities do not."""
    logits = torch.tensor([1e-10, 3e-10, 2e-10])
    assert Sampling(top_k=1).probabilities(logits).tolist() == [0.0, 1.0, 0.0]


def test_exactly_k_survive_ties_and_the_lowest_ids_do():
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0, 2.0, 1.0])
    kept = [Sampling(top_k=k).probabilities(logits).nonzero().flatten().tolist() for k in (2, 4, 9)]
    assert kept == [[1, 3], [1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]


def test_top_p_counts_mass_after_top_k():
    """0.6 of {0.5, 0.3, 0.2} needs two tokens; of the top two alone, {0.625, 0.375}, just one."""
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    assert Sampling(top_p=0.6).probabilities(logits).count_nonzero() == 2
    assert Sampling(top_k=2, top_p=0.6).probabilities(logits).count_nonzero() == 1


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(), Sampling(0.5, 3), Sampling(top_p=0.6), Sampling(2.0, 4, 0.8)],
    ids=str,
)
class TestEverySetting:
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def test_rows_sum_to_one(self, sampling):
        total = sampling.probabilities(self.logits.float()).sum(-1)
        torch.testing.assert_close(total, torch.ones(5), rtol=0, atol=1e-6)

    def test_a_constant_changes_nothing(self, sampling):
        moved = sampling.probabilities(self.logits + 3.0)
        torch.testing.assert_close(moved, sampling.probabilities(self.logits))

    def test_permuted_ids_permute_the_row(self, sampling):
        order = torch.tensor([4, 2, 8, 0, 6, 1, 7, 3, 5])
        permuted = sampling.probabilities(self.logits[:, order])
        torch.testing.assert_close(permuted, sampling.probabilities(self.logits)[:, order])

    def test_masked_ids_get_nothing_and_dropping_them_changes_nothing(self, sampling):
        masked = self.logits.index_fill(-1, torch.tensor([1, 8]), -math.inf)
        rest = [0, 2, 3, 4, 5, 6, 7]
        got = sampling.probabilities(masked)
        assert got[:, [1, 8]].count_nonzero() == 0
        torch.testing.assert_close(got[:, rest], sampling.probabilities(self.logits[:, rest]))

    def test_never_casts_down_and_never_computes_in_half_precision(self, sampling):
        assert sampling.probabilities(self.logits).dtype == torch.float64
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            assert sampling.probabilities(self.logits.to(dtype)).dtype == torch.float32

    def test_leaves_the_logits_alone(self, sampling):
        before = self.logits.clone()
        sampling.probabilities(self.logits)
        assert torch.equal(self.logits, before)

    @pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
    def test_a_row_without_a_distribution_is_an_error(self, sampling, bad):
        logits = torch.zeros(2, 3)
        logits[1] = bad
        with pytest.raises(ValueError, match="no finite largest value"):
            sampling.probabilities(logits)


def test_the_smallest_temperature_is_finite_and_nearly_greedy():
    logits = torch.tensor([60000.0, -60000.0, 59999.0])
    assert Sampling(temperature=1e-6).probabilities(logits).tolist() == [1.0, 0.0, 0.0]


def test_a_row_masked_with_the_smallest_float_does_not_overflow():
    logits = torch.full((4,), torch.finfo(torch.float32).min)
    assert Sampling(temperature=0.5).probabilities(logits).tolist() == [0.25] * 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("top_k", 0),
        ("top_k", -5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(UserError, match=rf"{name} is {value}: give "):
        Sampling(**{name: value})


def plain_draw(row, u):
    """Return the first id whose cumulative sum exceeds u · total; the last possible one if none."""
    total, cumulative = math.fsum(row), 0.0
    for i, weight in enumerate(row):
        cumulative += weight
        if cumulative > u * total and weight > 0:
            return i
    return max(i for i, weight in enumerate(row) if weight > 0)


weights = st.lists(st.integers(0, 8), min_size=1, max_size=8).filter(any)


@exact
@given(row=weights, u=corner_uniforms)
def test_draw_inverts_the_cumulative_distribution(row, u):
    probabilities = torch.tensor(row, dtype=torch.float64) / 8  # exact, and need not sum to 1
    got = draw(probabilities, torch.tensor(u, dtype=torch.float64)).item()
    assert got == plain_draw(probabilities.tolist(), u)


@exact
@given(
    row=st.lists(
        st.one_of(st.just(0.0), st.floats(1e-300, 1), st.floats(1e-9, 1)), min_size=1, max_size=12
    ).filter(lambda row: sum(row) > 0),
    u=corner_uniforms,
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_an_id_of_probability_zero_is_never_drawn(row, u, dtype):
    probabilities = torch.tensor(row, dtype=torch.float64)
    probabilities = (probabilities / probabilities.sum()).to(dtype)
    assert probabilities[draw(probabilities, torch.tensor(u, dtype=torch.float64))] > 0


@pytest.mark.parametrize("scale", [1 - 1e-6, 1.0, 1 + 1e-6])
def test_both_ends_of_the_unit_interval_land_on_possible_ids(scale):
    row = torch.tensor([0.0, 0.0, 0.25, 0.0, 0.75, 0.0]) * scale
    assert draw(row, torch.tensor(0.0)) == 2
    assert draw(row, torch.tensor(LAST_BELOW_ONE, dtype=torch.float64)) == 4
    assert draw(row, torch.tensor(1 - 2**-24)) == 4


def sorted_survivors(logits, top_k, top_p):
    """What top-k and then top-p keep of one row, by sorting all of it; equal ones by their ids."""
    order = torch.argsort(logits, descending=True, stable=True)[:top_k]
    mass = logits[order].softmax(-1).cumsum(-1)
    count = 1 + int((mass[:-1] < top_p).sum()) if top_p < 1 else len(order)
    return set(order[:count].tolist())


@pytest.mark.parametrize("spread", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("top_k", "top_p"), [(None, 0.5), (None, 0.97), (700, 0.8), (300, 1.0)])
def test_truncation_keeps_what_a_full_sort_keeps(spread, ties, top_k, top_p):
    """Rows flat enough for several looks beside rows of a few likely ids."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 20 * FIRST_LOOK, generator=generator, dtype=torch.float64) * spread
    logits[1] *= 10
    if ties:
        logits = (logits * 8).round() / 8
    found = Sampling(top_k=top_k, top_p=top_p).probabilities(logits)
    for row, kept in zip(logits, found > 0, strict=True):
        assert set(kept.nonzero().squeeze(-1).tolist()) == sorted_survivors(row, top_k, top_p)


def test_truncation_at_numbers_next_to_each_other():
    """The difference of two neighbours near 0 is the smallest there is."""
    logits = torch.tensor([0.0, -1e-45, 1e-45, -torch.inf, -1.0])
    assert (Sampling(top_k=1).probabilities(logits) > 0).tolist() == [0, 0, 1, 0, 0]
    assert (Sampling(top_k=2).probabilities(logits) > 0).tolist() == [1, 0, 1, 0, 0]


def test_draw_is_right_on_a_large_vocabulary():
    """150,000 float32 probabilities: a float32 cumulative sum would be off by whole tokens."""
    logits = torch.randn(150_000, generator=torch.Generator().manual_seed(0))
    row = Sampling().probabilities(logits)
    cumulative = row.double().cumsum(-1) / row.double().sum()
    middles = (cumulative[1:] + cumulative[:-1])[::30_000] / 2
    ids = draw(row.expand(len(middles), -1), middles)
    assert ids.tolist() == [1 + 30_000 * i for i in range(len(middles))]
    assert draw(row, torch.tensor(LAST_BELOW_ONE, dtype=torch.float64)) == 149_999


def test_a_cumulative_sum_that_is_not_monotone_draws_no_impossible_id(monkeypatch):
    """Parallel sums, as on a GPU, may step up by an ulp at an id of probability 0."""
    plain = torch.Tensor.cumsum

    def parallel(tensor, dim, dtype):
        sums = plain(tensor, dim, dtype=dtype)
        return torch.where(tensor > 0, sums, torch.nextafter(sums, sums + 1))

    monkeypatch.setattr(torch.Tensor, "cumsum", parallel)
    row = torch.tensor([0.5, 0.0, 0.0, 0.5, 0.0])
    for u in (0.0, 0.5 - 2**-54, 0.5, 0.5 + 2**-53, LAST_BELOW_ONE):
        assert row[draw(row, torch.tensor(u, dtype=torch.float64))] > 0
        spread = torch.zeros(5, BLOCK)
        spread[:, 7] = row
        assert spread.flatten()[draw(spread.flatten(), torch.tensor(u, dtype=torch.float64))] > 0


def test_a_draw_by_blocks_is_the_draw_by_one_cumulative_sum():
    checks.check_draw_by_blocks()


def test_draw_follows_the_law():
    """On a grid of N uniforms each id is drawn N · p times, to one."""
    N, law = 1000, torch.tensor([0.1, 0.0, 0.45, 0.2, 0.25])
    ids = draw(law.expand(N, -1), (torch.arange(N) + 0.5) / N)
    assert (ids.bincount(minlength=5) - N * law).abs().max() <= 1


def test_draw_keeps_batch_shapes_and_its_inputs():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(2, 3, 5, generator=generator)
    uniforms = torch.rand(2, 3, generator=generator)
    before = probabilities.clone(), uniforms.clone()
    ids = draw(probabilities, uniforms)
    assert ids.shape == (2, 3)
    assert ids.dtype == torch.int64
    assert ids[1, 2] == draw(probabilities[1, 2], uniforms[1, 2])
    assert torch.equal(probabilities, before[0])
    assert torch.equal(uniforms, before[1])


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_nothing_is_drawn_from_a_row_without_a_sum(bad):
    with pytest.raises(ValueError, match="nothing can be drawn"):
        draw(torch.tensor([[0.5, 0.5], [bad, 0.0]]), torch.zeros(2))


def test_precision_rule():
    half, double = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float64)
    assert wide_dtype(half) == torch.float32
    assert wide_dtype(half, double) == torch.float64
    assert at_least_float32(double) is double
