"""The forecast against enumeration, against a simulated engine, and the cost model."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.math.forecast import (
    Calls,
    Cost,
    acceptance_ratios,
    best_gamma,
    block_efficiency_iid,
    break_even_alpha,
    expected_blocks,
    expected_calls,
    expected_positions,
    headroom,
    needed_alpha,
    speedup,
)
from distillspec.math.sampling import GREEDY, draw
from distillspec.math.verification import verify

exact = settings(deadline=None, derandomize=True, max_examples=60)
ratio = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


def count_calls(outcomes, gamma):
    """Walk through one sequence whose token i would be accepted iff outcomes[i]."""
    position, calls = 0, 0
    while position < len(outcomes):
        drafted = outcomes[position : position + min(gamma, len(outcomes) - position - 1)]
        accepted = next((i for i, yes in enumerate(drafted) if not yes), len(drafted))
        position += accepted + 1
        calls += 1
    return calls


def enumerated(ratios, gamma):
    """Return mean and variance of the calls over all 2^L outcomes."""
    mean = square = 0.0
    for outcomes in itertools.product((True, False), repeat=len(ratios)):
        chance = math.prod(r if yes else 1 - r for r, yes in zip(ratios, outcomes, strict=True))
        calls = count_calls(outcomes, gamma)
        mean += chance * calls
        square += chance * calls**2
    return mean, square - mean**2


@exact
@given(ratios=st.lists(ratio, max_size=8), gamma=st.integers(0, 9))
def test_mean_and_variance_equal_enumeration(ratios, gamma):
    got = expected_calls(torch.tensor(ratios, dtype=torch.float64), gamma)
    mean, variance = enumerated(ratios, gamma)
    assert got.mean == pytest.approx(mean, abs=1e-12)
    assert got.variance == pytest.approx(variance, abs=1e-11)
    assert got.variance >= 0


@exact
@given(ratios=st.lists(ratio, max_size=7), gamma=st.integers(1, 8))
def test_positions_equal_enumeration(ratios, gamma):
    """Every judged token but the sequence's last, by its place in the block, over 2^L outcomes."""
    judged, accepted = [0.0] * gamma, [0.0] * gamma
    for outcomes in itertools.product((True, False), repeat=len(ratios)):
        chance = math.prod(r if yes else 1 - r for r, yes in zip(ratios, outcomes, strict=True))
        position = 0
        while position < len(outcomes):
            for k in range(min(gamma, len(outcomes) - position - 1)):
                judged[k] += chance
                accepted[k] += chance * outcomes[position + k]
                if not outcomes[position + k]:
                    break
            drafted = outcomes[position : position + min(gamma, len(outcomes) - position - 1)]
            position += 1 + next((i for i, yes in enumerate(drafted) if not yes), len(drafted))
    got = expected_positions(torch.tensor(ratios, dtype=torch.float64), gamma)
    assert got.judged == pytest.approx(judged)
    assert got.accepted == pytest.approx(accepted)


def walk(outcomes, gamma, limit):
    """Yield how many tokens each block drafts, where token i would be accepted iff outcomes[i]."""
    position = 0
    while position < len(outcomes):
        drafted = min(gamma, limit - position - 1)
        yield drafted
        judged = outcomes[position : position + drafted]
        position += 1 + next((i for i, yes in enumerate(judged) if not yes), len(judged))


@exact
@given(
    ratios=st.lists(ratio, min_size=1, max_size=7),
    gamma=st.integers(0, 8),
    room=st.one_of(st.none(), st.integers(0, 9)),
)
def test_blocks_by_drafted_tokens_equal_enumeration(ratios, gamma, room):
    """Cut at the sequence's end, some tokens later, or never, over 2^L outcomes."""
    limit = None if room is None else len(ratios) + room
    want = [0.0] * (gamma + 1)
    for outcomes in itertools.product((True, False), repeat=len(ratios)):
        chance = math.prod(r if yes else 1 - r for r, yes in zip(ratios, outcomes, strict=True))
        for drafted in walk(outcomes, gamma, 10**6 if limit is None else limit):
            want[drafted] += chance
    tensor = torch.tensor(ratios, dtype=torch.float64)
    got = expected_blocks(tensor, gamma, limit)
    assert got == pytest.approx(want, abs=1e-12)
    assert got.sum() == pytest.approx(expected_calls(tensor, gamma).mean, abs=1e-12)


def test_blocks_of_nothing_and_a_limit_that_was_passed():
    assert expected_blocks(torch.rand(0), 3).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="limit is 2, below the 3 tokens"):
        expected_blocks(torch.rand(3), 1, 2)


@exact
@given(outcomes=st.lists(st.booleans(), max_size=60), gamma=st.integers(0, 16))
def test_ratios_of_zero_and_one_give_the_exact_count_without_variance(outcomes, gamma):
    """Greedy decoding and argmax drafts: the forecast is the count, not an estimate of it."""
    got = expected_calls(torch.tensor(outcomes, dtype=torch.float64), gamma)
    assert got == Calls(mean=count_calls(outcomes, gamma), variance=0)


@pytest.mark.parametrize("gamma", [0, 1, 3, 5, 16])
def test_known_ends(gamma):
    L = 40
    perfect, hostile = expected_calls(torch.ones(L), gamma), expected_calls(torch.zeros(L), gamma)
    assert perfect == Calls(math.ceil(L / (gamma + 1)), 0)
    assert hostile == Calls(L, 0)
    assert expected_calls(torch.rand(1), gamma) == Calls(1, 0)
    assert expected_calls(torch.rand(0), gamma) == Calls(0, 0)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("gamma", [1, 4, 16])
def test_long_iid_sequences_reach_the_papers_formula(alpha, gamma):
    """Only the cut at the end differs, by less than one block."""
    L = 3000
    calls = expected_calls(torch.full((L,), alpha, dtype=torch.float64), gamma).mean
    tau = block_efficiency_iid(alpha, gamma)
    assert L / tau <= calls + 1e-6 <= L / tau + 1 + 1e-6


def test_more_drafting_never_needs_more_calls():
    ratios = torch.rand(50, generator=torch.Generator().manual_seed(0))
    means = [expected_calls(ratios, gamma).mean for gamma in range(17)]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("bad", [[1.1], [-0.1], [math.nan], [[0.5]]])
def test_ratios_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match=r"numbers in \[0, 1\]"):
        expected_calls(torch.tensor(bad), 3)


def test_a_negative_gamma_is_refused():
    with pytest.raises(ValueError, match="gamma is -1"):
        expected_calls(torch.ones(3), -1)


# --- ratios ---------------------------------------------------------------------------------


def test_ratios_of_emitted_tokens():
    p, q = torch.tensor([0.5, 0.2, 1.0, 0.25]), torch.tensor([0.25, 0.4, 0.0, 1.0])
    assert acceptance_ratios(p, q).tolist() == pytest.approx([0.5, 1.0, 0.0, 1.0])
    assert acceptance_ratios(p, q).dtype == torch.float64


@pytest.mark.parametrize("bad", [0.0, math.nan])
def test_a_token_the_target_cannot_emit_is_refused(bad):
    with pytest.raises(ValueError, match="not the target's outputs"):
        acceptance_ratios(torch.tensor([0.5, bad]), torch.tensor([0.5, 0.5]))


# --- a simulated engine ---------------------------------------------------------------------


def simulate(p, q, *, gamma, length, rows, seed, accept_all=False):
    """Decode `rows` sequences by the real verification, p and q being [V, V] Markov tables.

    Returns:
        Tokens [rows, length], and the target calls of each row.
    """
    generator = torch.Generator().manual_seed(seed)
    V = len(p)
    text = torch.zeros(rows, length + gamma + 2, dtype=torch.long)  # column 0: the start, id 0
    done, calls = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.long)
    every = torch.arange(rows)
    while bool((done < length).any()):
        lengths = (length - done - 1).clamp(0, gamma)
        context = [text[every, done]]
        for _ in range(gamma):
            context.append(draw(q[context[-1]], torch.rand(rows, generator=generator)))
        drafted = torch.stack(context[1:], dim=1)
        uniforms = torch.rand(rows, gamma + 1, generator=generator, dtype=torch.float64)
        verdict = verify(
            p[torch.stack(context, dim=1)],
            q[torch.stack(context[:-1], dim=1)],
            drafted,
            lengths=lengths,
            uniforms=uniforms,
            score=torch.ones(rows, gamma, V) if accept_all else None,
        )
        active = done < length
        calls += active
        for i in range(gamma + 1):
            token = torch.where(verdict.accepted == i, verdict.token, context[min(i + 1, gamma)])
            written = active & (i <= verdict.accepted)
            text[every[written], done[written] + 1 + i] = token[written]
        done = torch.where(active, done + verdict.accepted + 1, done)
    return text[:, : length + 1], calls


def z_score(p, q, text, calls, gamma):
    """Compare counted calls with the forecast on the very tokens that were emitted."""
    before, after = text[:, :-1], text[:, 1:]
    ratios = acceptance_ratios(p[before, after], q[before, after])
    forecasts = [expected_calls(row, gamma) for row in ratios]
    surplus = (calls - torch.tensor([forecast.mean for forecast in forecasts])).sum().item()
    variance = sum(forecast.variance for forecast in forecasts)
    return surplus, variance


def tables(V=5):
    generator = torch.Generator().manual_seed(3)
    p = torch.randn(V, V, generator=generator, dtype=torch.float64)
    q = p + 0.8 * torch.randn(V, V, generator=generator, dtype=torch.float64)
    return p, q


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_counted_calls_agree_with_the_forecast_on_the_engines_own_output(gamma):
    """|z| ≤ 4 fails a right engine once in 16,000 seeds; the seed is fixed."""
    p, q = (table.softmax(-1) for table in tables())
    text, calls = simulate(p, q, gamma=gamma, length=40, rows=400, seed=gamma)
    surplus, variance = z_score(p, q, text, calls, gamma)
    assert abs(surplus) <= 4 * math.sqrt(variance)


def test_the_comparison_sees_an_engine_that_accepts_everything():
    p, q = (table.softmax(-1) for table in tables())
    text, calls = simulate(p, q, gamma=3, length=40, rows=400, seed=0, accept_all=True)
    surplus, variance = z_score(p, q, text, calls, 3)
    assert abs(surplus) > 4 * math.sqrt(variance)


@pytest.mark.parametrize("target_is_greedy", [True, False])
def test_an_argmax_draft_is_counted_exactly_at_any_temperature(target_is_greedy):
    p_logits, q_logits = tables()
    p = GREEDY.probabilities(p_logits) if target_is_greedy else p_logits.softmax(-1)
    q = GREEDY.probabilities(q_logits)
    text, calls = simulate(p, q, gamma=3, length=40, rows=50, seed=0)
    assert z_score(p, q, text, calls, 3) == (0, 0)


def test_the_simulated_output_has_the_targets_law():
    """Transitions of 16,000 tokens: chi-square with 20 degrees of freedom, p > 1e-6 below 64."""
    p, q = (table.softmax(-1) for table in tables())
    text, _ = simulate(p, q, gamma=3, length=40, rows=400, seed=0)
    pairs = (text[:, :-1] * 5 + text[:, 1:]).flatten().bincount(minlength=25).reshape(5, 5)
    expected = p * pairs.sum(1, keepdim=True)
    assert (((pairs - expected) ** 2) / expected).sum() < 64


def test_iid_engine_reaches_the_papers_block_efficiency():
    """The same p and q at every position, and acceptance i.i.d.: τ from the paper's formula."""
    p, q = (table.softmax(-1)[:1].expand(5, 5) for table in tables())
    alpha, gamma = torch.minimum(p, q)[0].sum().item(), 4
    text, calls = simulate(p, q, gamma=gamma, length=100, rows=400, seed=1)
    tau = text[:, 1:].numel() / calls.sum().item()
    # About 15,000 blocks with a standard deviation below 2 tokens: 4 standard errors are 0.065,
    # and the cut of the last block costs at most one block in a hundred tokens.
    assert tau == pytest.approx(block_efficiency_iid(alpha, gamma), abs=0.065 + tau**2 / 100)


# --- costs ----------------------------------------------------------------------------------

COST = Cost(target=(0.050, 0.052, 0.054, 0.056, 0.058), draft=0.010, overhead=0.002)
PERFECT = Cost(target=(1.0,) * 17, draft=0.0)


def test_block_time_and_speedup_by_hand():
    assert COST.c == pytest.approx(0.2)
    assert COST.block(0) == pytest.approx(0.052)
    assert COST.block(4) == pytest.approx(0.058 + 0.040 + 0.002)
    assert speedup(2.5, 4, COST) == pytest.approx(2.5 * 0.052 / 0.100)
    assert speedup(1.0, 0, COST) == 1


def test_a_block_without_drafting_has_an_overhead_of_its_own():
    """It verifies nothing; where it was not timed apart it is taken to cost as much."""
    apart = Cost(target=(1.0, 1.1), draft=0.2, overhead=0.3, overhead_plain=0.05)
    assert (apart.block(0), apart.block(1)) == (pytest.approx(1.05), pytest.approx(1.6))
    assert speedup(2.0, 1, apart) == pytest.approx(2.0 * 1.05 / 1.6)
    none = Cost(target=(1.0,), draft=0.2, overhead=0.3, overhead_plain=0.0)
    assert none.block(0) == 1.0
    assert Cost(target=(1.0,), draft=0.2, overhead=0.3).block(0) == 1.3


@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_flat_costs_give_the_papers_speedup(gamma):
    cost = Cost(target=(0.2,) * 8, draft=0.02)
    assert speedup(2.5, gamma, cost) == pytest.approx(2.5 / (cost.c * gamma + 1))


@pytest.mark.parametrize("gamma", [0, 1, 5, 16])
def test_iid_block_efficiency(gamma):
    assert block_efficiency_iid(0.0, gamma) == 1
    assert block_efficiency_iid(1.0, gamma) == gamma + 1
    formula = (1 - 0.7 ** (gamma + 1)) / (1 - 0.7)
    assert block_efficiency_iid(0.7, gamma) == pytest.approx(formula)
    assert block_efficiency_iid(1 - 1e-15, gamma) == pytest.approx(gamma + 1)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_rates_that_are_none_are_refused(alpha):
    with pytest.raises(ValueError, match=r"rate in \[0, 1\]"):
        block_efficiency_iid(alpha, 3)


def test_the_best_gamma_is_the_smallest_of_the_fastest():
    assert best_gamma({4: 0.988, 1: 1.219, 2: 1.232}) == 2
    assert best_gamma({3: 1.5, 1: 1.5}) == 1
    with pytest.raises(ValueError, match="no gamma"):
        best_gamma({})


@pytest.mark.parametrize("gammas", [[1], [1, 2, 3, 4], [4]])
def test_at_the_break_even_rate_speculation_costs_nothing(gammas):
    alpha = break_even_alpha(COST, gammas)

    def best(rate):
        return max(speedup(block_efficiency_iid(rate, gamma), gamma, COST) for gamma in gammas)

    assert best(alpha) == pytest.approx(1, abs=1e-9)
    assert best(alpha - 1e-6) < 1 < best(alpha + 1e-6)


def test_the_needed_rate_reaches_the_speed_up_and_no_more():
    wanted = headroom(COST, [1, 2, 4]) * 0.9
    alpha = needed_alpha(COST, [1, 2, 4], wanted)
    taus = {gamma: block_efficiency_iid(alpha, gamma) for gamma in (1, 2, 4)}
    assert max(speedup(taus[g], g, COST) for g in taus) == pytest.approx(wanted, abs=1e-9)
    assert needed_alpha(COST, [1, 2, 4], headroom(COST, [1, 2, 4]) * 1.01) is None
    assert needed_alpha(COST, [1], 1.0) == break_even_alpha(COST, [1])


def test_break_even_rate_by_hand():
    """γ = 1: (1 + α) · 0.052 = 0.064."""
    assert break_even_alpha(COST, [1]) == pytest.approx(0.064 / 0.052 - 1, abs=1e-9)


def test_a_draft_that_can_never_pay_and_one_that_always_does():
    assert break_even_alpha(Cost(target=(1.0, 1.0), draft=2.0), [1]) is None
    assert break_even_alpha(PERFECT, [1, 2]) == 0.0


def test_headroom_is_a_perfect_draft_at_its_best_gamma():
    assert headroom(COST, [1, 2, 3, 4]) == pytest.approx(5 * 0.052 / 0.100)
    assert headroom(PERFECT, range(1, 17)) == 17
    with pytest.raises(ValueError, match="no gamma"):
        headroom(COST, [])


def test_costs_that_no_clock_gives_are_refused():
    for target in ((), (0.0,), (0.1, -0.1), (math.nan,)):
        with pytest.raises(ValueError, match="positive seconds"):
            Cost(target=target, draft=0.1)
    for draft, overhead in ((-0.1, 0.0), (0.1, -0.1), (math.nan, 0.0)):
        with pytest.raises(ValueError, match="seconds ≥ 0"):
            Cost(target=(0.1,), draft=draft, overhead=overhead)
    with pytest.raises(ValueError, match="gamma 5 needs the target's time for 6 tokens"):
        COST.block(5)
