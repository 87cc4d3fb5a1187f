"""Rules that choose γ: the law stays the target's, the ledger bounds what a bad draft costs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import AssistedCandidateGenerator

import decoding_checks as checks
from distillspec.decoding import Block, Constant, Optimal, Schedule, complete, speculate
from distillspec.decoding.gammas import as_gammas
from distillspec.errors import UserError
from distillspec.math.forecast import Cost
from distillspec.math.sampling import GREEDY, Sampling
from support import perturbed, random_table, tiny

CHEAP = Cost(target=(1.0, 1.02, 1.04, 1.06, 1.08), draft=0.05, overhead=0.01)
LEVEL = Cost(target=(1.0, 1.01, 1.02, 1.03, 1.04), draft=0.3)
DEAR = Cost(target=(1.0, 1.2, 1.3, 1.4, 1.5, 1.9), draft=0.3, overhead=0.05, overhead_plain=0.02)


@dataclass
class Moody:
    """Strongly led by the past: nothing after a rejection, all after none."""

    limit: int = 3
    last: dict | None = None

    def chooser(self):
        return Moody(last={})

    def choose(self, rows, unseen):
        return [self.last.get(row, 2) for row in rows]

    def observe(self, block):
        for i, row in enumerate(block.rows):
            rejected = block.accepted[i] < block.drafted[i]
            self.last[row] = 0 if rejected else 1 + sum(block.ids[i]) % 3


@dataclass
class Peeking:
    """What must not be: drafts only where this block's uniforms will accept nearly anything."""

    generators: list
    limit: int = 1

    def chooser(self):
        return self

    def choose(self, rows, unseen):
        chosen = []
        for row in rows:
            copy = torch.Generator()
            copy.set_state(self.generators[row].get_state())
            chosen.append(int(torch.rand(3, generator=copy, dtype=torch.float64)[1] < 0.3))
        return chosen

    def observe(self, block):
        pass


# --- losslessness ---


@pytest.mark.parametrize(
    "rule",
    [Schedule(start=2, limit=4), Optimal(CHEAP, memory=4.0, weight=1.0), Moody()],
    ids=["schedule", "optimal", "moody"],
)
def test_the_law_stays_the_targets_under_a_rule(rule):
    """Four tokens of a target of five ids: 625 completions, chi-square at 1e-6."""
    target, draft = random_table(seed=1, order=2), random_table(seed=2, order=2)
    options = {"sampling": Sampling(), "tokens": 4, "count": 2_000, "seed": 1}
    assert checks.law_p_value(target, draft, gamma=rule, **options) > checks.ALARM


def test_the_law_breaks_under_a_rule_that_peeks():
    """The negative control: a choice by this block's own uniforms is seen by the same check."""
    target, draft = random_table(seed=1, order=2), random_table(seed=2, order=2)
    rule = Peeking(checks.seeded(2_000))
    outputs = complete(
        target,
        draft,
        [torch.tensor([1, 2])] * 2_000,
        gamma=rule,
        max_new_tokens=3,
        sampling=Sampling(),
        stop=(),
        generators=rule.generators,
    )
    law = checks.joint_law(target, torch.tensor([1, 2]), Sampling(), 3)
    counts = checks.Counter(output.ids for output in outputs)
    assert checks.chi_square(counts, law, 2_000) < checks.ALARM


def test_greedy_text_does_not_depend_on_the_rule():
    target = checks.lively("llama")
    draft = perturbed(target, 0.02)
    prompts = [torch.tensor([7, 9]), torch.tensor([8, 8, 3, 20])]
    expected = [checks.plain_greedy(target, prompt, 14) for prompt in prompts]
    for rule in (Schedule(3), Optimal(CHEAP), Moody()):
        outputs = complete(
            target, draft, prompts, gamma=rule, max_new_tokens=14, sampling=GREEDY, stop=()
        )
        assert [output.ids for output in outputs] == expected


# --- caches ---


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["T=0", "T=1"])
@pytest.mark.parametrize("kind", ["table", "llama", "t5"])
def test_blocks_without_drafting_are_still_read_by_the_draft(kind, sampling):
    """vllm-metal#716: blocks of γ = 0 were not fed to the draft, whose acceptance fell later."""
    checks.check_blocks_without_drafting(None if kind == "table" else checks.lively(kind), sampling)


# --- rows and their uniforms ---


def test_a_constant_is_a_whole_number():
    target, draft = random_table(seed=4, order=2), random_table(seed=5, order=2)
    options = {"max_new_tokens": 15, "sampling": Sampling(), "stop": ()}
    prompts = [torch.tensor([1]), torch.tensor([2])]
    one, other = (
        complete(target, draft, prompts, gamma=gamma, generators=checks.seeded(2), **options)
        for gamma in (3, Constant(3))
    )
    assert one == other


def test_a_row_does_not_feel_its_neighbours_gamma():
    """Each row draws 2·limit + 1 uniforms a block, whatever anyone drafts."""
    checks.check_rows_of_a_schedule()
    checks.check_company(Moody(), (2, None))


def test_nothing_is_kept_from_one_run_to_the_next():
    """transformers#40739, #28759, #27833: settings and schedules leaked between calls."""
    target = random_table(seed=7, order=2)
    draft = checks.perturbed(target, 0.8)
    for rule in (Schedule(2), Optimal(CHEAP)):
        runs = [
            [
                block.drafted
                for block in speculate(
                    target,
                    draft,
                    [torch.tensor([1])],
                    gamma=rule,
                    max_new_tokens=30,
                    sampling=Sampling(),
                    stop=(),
                    generators=checks.seeded(1),
                )
            ]
            for _ in range(2)
        ]
        assert runs[0] == runs[1]
        assert len(set(runs[0])) > 1


def test_a_short_last_block_counts_what_it_judged():
    """sglang#13212, TensorRT-LLM#14724, llama.cpp#14104: the denominator was the configured γ."""
    model = random_table(seed=11, order=2)
    options = {"gamma": 5, "max_new_tokens": 8, "sampling": GREEDY, "stop": ()}
    (output,) = complete(model, model, [torch.tensor([1])], **options)
    counts = output.counts
    assert (counts.drafted, counts.judged, counts.accepted) == (6, 6, 6)  # 5 of 5, then 1 of 1
    assert (counts.empirical_acceptance, counts.block_efficiency) == (1, 4)


# --- the schedule ---


def test_the_schedule_is_that_of_transformers():
    config = SimpleNamespace(
        num_assistant_tokens_schedule="heuristic", assistant_confidence_threshold=0.0
    )
    theirs = SimpleNamespace(num_assistant_tokens=20, assistant_generation_config=config)
    ours = Schedule().chooser()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        (gamma,) = ours.choose([5], [1])
        assert gamma == theirs.num_assistant_tokens
        share = float(torch.rand((), generator=generator))
        accepted = gamma if share < 0.3 else int(share * gamma)
        ours.observe(block(5, gamma, accepted))
        AssistedCandidateGenerator.update_candidate_strategy(
            theirs, None, torch.zeros(1, gamma + 1, 1), accepted
        )


def block(row, drafted, accepted, tokens=None, finished=None):
    """What one row's block would say."""
    return Block(
        rows=(row,),
        ids=((0,) * (accepted + 1 if tokens is None else tokens),),
        accepted=(accepted,),
        drafted=(drafted,),
        judged=(min(accepted + 1, drafted),),
        finished=(finished,),
        states=(),
    )


# --- the optimum ---


def run(rule, alpha, tokens, seed=0):
    """Seconds by the cost model over those without a draft, and the γ of every block.

    Drafted tokens are accepted independently with probability alpha(tokens so far).
    """
    generator = torch.Generator().manual_seed(seed)
    chooser, done, seconds, unseen, chosen = rule.chooser(), 0, 0.0, 1, []
    while done < tokens:
        (gamma,) = chooser.choose([0], [unseen])
        chosen.append((done, gamma))
        seconds += rule.cost.block(gamma) + (rule.reading(unseen) if gamma else 0.0)
        flips = torch.rand(gamma, generator=generator) < alpha(done)
        accepted = int(flips.int().cumprod(0).sum())
        chooser.observe(block(0, gamma, accepted))
        done += accepted + 1
        unseen = 1 if gamma else unseen + 1
    return seconds / (done * rule.cost.block(0)), chosen


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    more=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    draft=st.floats(0, 1),
    overhead=st.floats(0, 0.3),
    alpha=st.floats(0, 1),
    tokens=st.integers(1, 120),
    seed=st.integers(0, 99),
)
def test_the_ledger_bounds_the_regret(more, draft, overhead, alpha, tokens, seed):
    """Whatever the costs, the acceptance and the luck: by the cost model never more is lost."""
    cost = Cost(tuple(itertools.accumulate([1.0, *more])), draft, overhead, overhead / 2)
    rule = Optimal(cost)
    share, _ = run(rule, lambda done: alpha, tokens, seed)
    assert (share - 1) * tokens <= 1 + 0.005 * (tokens + rule.limit) + 1e-9


def test_a_hostile_draft_costs_less_than_three_per_cent():
    for tokens in (40, 128, 512):
        share, _ = run(Optimal(DEAR), lambda done: 0.0, tokens)
        assert 1 < share < 1.03


def test_a_hostile_draft_is_tried_at_growing_intervals():
    """First the ledger spaces the tries, then the doubling; where reading is dear they end."""
    _, chosen = run(Optimal(LEVEL), lambda done: 0.0, 3_000)
    tries = [done for done, gamma in chosen if gamma and done > 16]
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert 8 <= len(gaps) <= 12
    assert min(gaps) > 100
    assert gaps[-1] > 1.9 * gaps[-2] > 3 * gaps[0]
    _, chosen = run(Optimal(DEAR), lambda done: 0.0, 1_000)
    assert sum(gamma > 0 for _, gamma in chosen) <= 4


@pytest.mark.parametrize(
    ("cost", "alpha"), [(CHEAP, 0.5), (CHEAP, 0.95), (DEAR, 0.8)], ids=["half", "most", "dear"]
)
def test_a_good_draft_is_used_at_its_best_gamma(cost, alpha):
    rule = Optimal(cost)
    shares = [run(rule, lambda done: alpha, 400, seed)[0] for seed in range(6)]
    best = rule.best(alpha)
    ideal = cost.block(best) / cost.block(0) * (1 - alpha) / (1 - alpha ** (best + 1))
    assert best > 1
    assert ideal - 0.04 < sum(shares) / 6 < ideal + 0.05


def test_what_the_ledger_allows_is_not_drafted_where_it_loses():
    """After a rejection only short blocks are affordable; here those of γ = 1 never pay."""
    rule = Optimal(Cost((1.0, 1.9, 1.95, 2.0, 2.05), draft=0.01))
    chooser, lowered = rule.chooser(), 0
    for accepted in (0, 2, 0, 4, 4, 0, 0, 0, 3, 0, 0, 0, 0, 2, 0, 0, 0, 0):
        (gamma,) = chooser.choose([0], [1])
        assert chooser.trying or rule.speedup(chooser.alpha, gamma) >= 1
        lowered += gamma == 0 and rule.best(chooser.alpha) > 0
        chooser.observe(block(0, gamma, min(accepted, gamma)))
    assert lowered > 0


def test_a_rule_that_starts_in_doubt_tries_once_and_then_waits():
    _, chosen = run(Optimal(LEVEL, prior=0.0), lambda done: 0.0, 200)
    tries = [done for done, gamma in chosen if gamma]
    assert tries[0] == 0
    assert 2 <= len(tries) <= 4


def test_pauses_are_of_so_many_blocks_and_a_try_that_is_accepted_is_followed_up():
    """What the docstring says, with a ledger that allows all."""
    doubtful = Optimal(LEVEL, prior=0.0, weight=1e6, pause=3, allowance=1e9)
    _, chosen = run(doubtful, lambda done: 0.0, 60)
    assert [i for i, (_, gamma) in enumerate(chosen) if gamma] == [
        0,
        7,
        20,
        45,
    ]  # 6, 12, 24 between
    _, chosen = run(doubtful, lambda done: 1.0, 60)
    assert {gamma for _, gamma in chosen} == {1}


def test_a_draft_that_was_good_for_a_while_is_tried_soon_again():
    """Failures of before do not count against it: the pause begins anew."""
    rule = Optimal(LEVEL, pause=3, allowance=1e9, memory=8.0)
    _, chosen = run(rule, lambda done: float(400 <= done < 800), 1_000)
    gammas = [gamma for done, gamma in chosen if done >= 820]
    before = [gamma for done, gamma in chosen if 100 <= done < 400]
    gaps = [len(list(group)) for idle, group in itertools.groupby(gammas, bool) if not idle]
    old = [len(list(group)) for idle, group in itertools.groupby(before, bool) if not idle]
    assert min(gaps) <= 6 < max(old)


def test_speculation_comes_back_when_the_text_turns_easy():
    rule = Optimal(LEVEL)
    _, chosen = run(rule, lambda done: 0.0 if done < 200 else 0.95, 900)
    early = [gamma for done, gamma in chosen if 50 < done < 200]
    late = [gamma for done, gamma in chosen if done > 700]
    assert sum(early) / len(early) < 0.1
    assert sum(late) / len(late) > 2


def test_a_draft_that_cannot_pay_is_never_asked():
    """Even one that is always right would lose here: no pass of it, not even to try."""
    hopeless = Optimal(Cost((1.0, 1.8), draft=0.5))
    assert hopeless.hopeless
    target, draft = random_table(seed=8), checks.Watched(random_table(seed=9))
    blocks = speculate(
        target,
        draft,
        [torch.tensor([1])],
        gamma=hopeless,
        max_new_tokens=40,
        sampling=Sampling(),
        generators=checks.seeded(1),
    )
    assert {block.drafted for block in blocks} == {(0,)}
    assert draft.calls == 0


def test_a_hostile_pair_stops_drafting_in_the_engine():
    never = torch.zeros(6).index_fill(0, torch.tensor([5]), -torch.inf)
    target = checks.TableModel(never + torch.arange(6.0))
    draft = checks.Watched(
        checks.TableModel(torch.full((6,), -torch.inf).index_fill(0, torch.tensor([5]), 0.0))
    )
    (output,) = complete(
        target, draft, [torch.tensor([1])], gamma=Optimal(DEAR), max_new_tokens=100, sampling=GREEDY
    )
    assert 0 < draft.calls < 8
    assert output.counts.drafted == draft.calls  # a token a pass: the unseen ones in one
    assert output.counts.target_calls == 100


def test_longer_passes_of_the_draft_are_taken_to_cost_more():
    rule = Optimal(DEAR)
    assert rule.reading(1) == 0
    assert rule.reading(3) == pytest.approx(0.3 * 0.3)
    assert rule.reading(11) == pytest.approx(0.3 * 0.9 * 2)


# --- what is refused ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(-1), "gamma is -1; expected a whole number of at least 0"),
        (lambda: as_gammas("auto"), "gamma is 'auto'"),
        (lambda: Schedule(0), "starts at γ = 0, outside 1…64"),
        (lambda: Schedule(9, limit=8), "starts at γ = 9, outside 1…8"),
        (lambda: Optimal(CHEAP, prior=1.5), "prior is 1.5"),
        (lambda: Optimal(CHEAP, memory=0), "memory is 0: expected a number above 0"),
        (lambda: Optimal(CHEAP, allowance=-1.0), "allowance is -1.0"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_rule_needs_a_draft():
    with pytest.raises(UserError, match="there is no draft"):
        speculate(
            tiny("llama"),
            None,
            [torch.tensor([7])],
            gamma=Schedule(),
            max_new_tokens=2,
            sampling=GREEDY,
        )
