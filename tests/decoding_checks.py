"""What must hold of the engine, as plain functions: for its tests, and for the mutants of it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import product
from unittest.mock import patch

import torch
from scipy import stats

from distillspec.decoding import Counts, Schedule, collect, complete, speculate, speculative
from distillspec.math import verification
from distillspec.math.forecast import acceptance_ratios, expected_calls
from distillspec.math.rules import AS_SAMPLED, MATCHED
from distillspec.math.sampling import BLOCK, FIRST_LOOK, GREEDY, Sampling, draw
from distillspec.math.verification import exponential, linear, lossless, squared
from distillspec.models.protocol import Batch
from distillspec.models.toy import TableModel
from support import random_table, tiny
from watched import Watched

ALARM = 1e-6
"""The chance that a chi-square check fails although all is well; seeds are fixed."""


def seeded(count, seed=0):
    return [torch.Generator().manual_seed(seed * 1_000_003 + i) for i in range(count)]


def perturbed(table: TableModel, scale: float, seed: int = 9) -> TableModel:
    """A draft near `table`: its logits plus noise."""
    noise = torch.randn(table.logits.shape, generator=torch.Generator().manual_seed(seed))
    return TableModel(table.logits.detach() + scale * noise, eos_ids=table.eos_ids)


def cycle(size: int, *, skip: int = 1) -> TableModel:
    """A table whose greedy path from token i is i + skip, i + 2 skip, …"""
    return TableModel(6.0 * torch.eye(size).roll(skip, dims=1))


@torch.no_grad()
def lively(family: str):
    """A tiny model whose greedy text wanders instead of repeating one token.

    Repetition hides errors of position. T5 repeats unless its layers outweigh the embedding that
    they are added to: 3 to 14 different ids in 24 tokens, against 1 without this.
    """
    model = tiny(family, seed=2 if family == "gpt2" else 0)
    if family.startswith("t5"):
        for name, parameter in model.module.named_parameters():
            if "relative" in name:
                parameter *= 5
            elif ".layer." in name and "norm" not in name:
                parameter *= (
                    9 if name.endswith(("SelfAttention.v.weight", "SelfAttention.o.weight")) else 3
                )
        model.module.shared.weight *= 0.5
    return model


# --- references that share no code with the engine ---


@torch.no_grad()
def next_logits(model, prompt, ids):
    """The [V] logits after `prompt` and `ids`, from one uncached pass."""
    batch = Batch((prompt,), (torch.tensor([*ids, 0]),))
    return model.head(model.hidden(batch)[-1])


def plain_greedy(model, prompt, count, stop=()):
    ids = []
    while len(ids) < count and not (ids and ids[-1] in stop):
        ids.append(int(next_logits(model, prompt, ids).argmax()))
    return tuple(ids)


@torch.no_grad()
def token_probabilities(model, prompt, ids, sampling):
    """[L] probabilities of `ids`, each given those before it."""
    ids = torch.tensor(ids)
    p = sampling.probabilities(model.head(model.hidden(Batch((prompt,), (ids,)))))
    return p.gather(1, ids[:, None])[:, 0]


@torch.no_grad()
def joint_law(model, prompt, sampling, tokens, stop=()):
    """The probability of every completion of `tokens` tokens, or fewer ending in a stop id."""
    sequences = list(product(range(model.vocabulary.size), repeat=tokens))
    batch = Batch((prompt,) * len(sequences), tuple(torch.tensor(s) for s in sequences))
    # In float64, else rows sum to 1 within 1e-8 alone, and chisquare refuses that of some machines.
    p = sampling.probabilities(model.head(model.hidden(batch)).double())
    ids = torch.tensor(sequences).reshape(-1, 1)
    joint = p.gather(1, ids).reshape(-1, tokens).prod(1)
    law = Counter()
    for sequence, probability in zip(sequences, joint.tolist(), strict=True):
        ends = [i for i, token in enumerate(sequence) if token in stop]
        law[sequence[: ends[0] + 1] if ends else sequence] += probability
    return law


def chi_square(observed, law, count):
    """The p-value of counts under a law; cells with an expectation below 5 are merged."""
    impossible = [cell for cell in observed if law[cell] == 0]
    assert not impossible, f"emitted what the target never emits: {impossible}"
    cells = [(observed[cell], count * probability) for cell, probability in law.items()]
    big = [(o, e) for o, e in cells if e >= 5]
    small = [(o, e) for o, e in cells if e < 5]
    if small:
        big.append((sum(o for o, _ in small), sum(e for _, e in small)))
    if big[-1][1] < 5 and len(big) > 1:
        o, e = big.pop()
        big[-1] = (big[-1][0] + o, big[-1][1] + e)
    return stats.chisquare([o for o, _ in big], [e for _, e in big]).pvalue


# --- the law of the output ---


def law_p_value(
    target,
    draft,
    *,
    gamma,
    sampling,
    draft_sampling=None,
    proposal=AS_SAMPLED,
    lenience=lossless,
    stop=(),
    tokens=3,
    count,
    seed=None,
):
    """The p-value of `count` completions against the enumerated law of the target."""
    prompt = torch.tensor([1, 2])
    outputs = complete(
        target,
        draft,
        [prompt] * count,
        gamma=gamma,
        max_new_tokens=tokens,
        sampling=sampling,
        draft_sampling=draft_sampling,
        proposal=proposal,
        lenience=lenience,
        stop=stop,
        generators=seeded(count, seed=gamma if seed is None else seed),
    )
    law = joint_law(target, prompt, sampling, tokens, stop)
    return chi_square(Counter(output.ids for output in outputs), law, count)


LAW_CASES = {
    "T=1": {"sampling": Sampling()},
    "T=0.7, top-k 3": {"sampling": Sampling(0.7, top_k=3)},
    "top-p 0.8": {"sampling": Sampling(top_p=0.8)},
    "T=0.5, draft T=1": {"sampling": Sampling(0.5), "draft_sampling": Sampling()},
    "greedy draft": {"sampling": Sampling(), "draft_sampling": GREEDY},
    "exact match": {"sampling": Sampling(), "proposal": MATCHED},
    "stop id": {"sampling": Sampling(), "stop": (0,)},
}


def check_law(case="T=1", gamma=3, count=3_000):
    target, draft = random_table(seed=1, order=2), random_table(seed=2, order=2)
    assert law_p_value(target, draft, gamma=gamma, count=count, **LAW_CASES[case]) > ALARM


def check_law_greedy_draft():
    check_law("greedy draft")


def check_law_exact_match():
    check_law("exact match")


def check_law_truncated():
    check_law("T=0.7, top-k 3")


# --- greedy ---


def check_greedy(target, draft, prompts, *, gammas, count, batches=(None,)):
    """Speculative greedy equals plain greedy, with some drafts accepted and some not."""
    expected = [plain_greedy(target, prompt, count) for prompt in prompts]
    settings = {"max_new_tokens": count, "sampling": GREEDY, "stop": ()}
    total = Counts()
    for gamma, batch in product(gammas, batches):
        outputs = complete(target, draft, prompts[:batch], gamma=gamma, **settings)
        assert [output.ids for output in outputs] == expected[:batch]
        total = sum((output.counts for output in outputs), total)
    assert 0.1 < total.empirical_acceptance < 0.98


def check_greedy_tables():
    target = random_table(12, seed=3, order=2)
    prompts = [torch.tensor(ids) for ids in ([1, 2], [3], [0, 1, 4, 7], [11, 11, 5])]
    draft = perturbed(target, 0.6)
    check_greedy(target, draft, prompts, gammas=(1, 3, 8), count=30)


# --- acceptance ---


def check_draft_is_target(model=None, gammas=(1, 2, 5)):
    """A draft equal to the target is always right: not one hole in its cache."""
    model = model or random_table(seed=4, order=3)
    prompts = [torch.tensor([1, 2]), torch.tensor([3])]
    for sampling, gamma in product((GREEDY, Sampling(0.7)), gammas):
        for output in complete(
            model,
            model,
            prompts,
            gamma=gamma,
            max_new_tokens=40,
            sampling=sampling,
            stop=(),
            generators=seeded(2),
        ):
            assert output.counts.empirical_acceptance == 1
            assert output.counts.target_calls == math.ceil(40 / (gamma + 1))


def check_hostile_draft():
    """A draft that always writes what the target never does costs a call per token."""
    never = torch.zeros(6).index_fill(0, torch.tensor([5]), -torch.inf)
    draft = TableModel(torch.full((6,), -torch.inf).index_fill(0, torch.tensor([5]), 0.0))
    for sampling in (GREEDY, Sampling()):
        (output,) = complete(
            TableModel(never + torch.arange(6.0)),
            draft,
            [torch.tensor([1])],
            gamma=3,
            max_new_tokens=20,
            sampling=sampling,
            generators=seeded(1),
        )
        assert output.counts.block_efficiency == 1
        assert output.counts.empirical_acceptance == 0
        assert set(output.origin) == {"target"}
        assert 5 not in output.ids


def check_unrelated_draft():
    """The share of first tokens accepted is β = Σ min(p, q): not all, and not none."""
    target, draft = random_table(seed=1, scale=2), random_table(seed=2, scale=2)
    count = 4000
    blocks = speculate(
        target,
        draft,
        [torch.tensor([1])] * count,
        gamma=1,
        max_new_tokens=2,
        sampling=Sampling(),
        generators=seeded(count),
    )
    p, q = (Sampling().probabilities(m.logits[1].detach()) for m in (target, draft))
    beta = float(torch.minimum(p, q).sum())
    assert beta < 0.6
    assert stats.binomtest(sum(next(blocks).accepted), count, beta).pvalue > ALARM


def check_forecast(target, draft, *, gamma, sampling, draft_sampling=None, stop=(), count=24):
    """The engine's calls against the exact forecast on its own outputs: z, or equality."""
    prompts = [torch.tensor([i % 5, i % 3]) for i in range(count)]
    outputs = complete(
        target,
        draft,
        prompts,
        gamma=gamma,
        max_new_tokens=25,
        sampling=sampling,
        draft_sampling=draft_sampling,
        stop=stop,
        generators=seeded(count, seed=5),
    )
    mean = variance = counted = 0.0
    for prompt, output in zip(prompts, outputs, strict=True):
        p = token_probabilities(target, prompt, output.ids, sampling)
        q = token_probabilities(draft, prompt, output.ids, draft_sampling or sampling)
        calls = expected_calls(acceptance_ratios(p, q), gamma)
        mean, variance = mean + calls.mean, variance + calls.variance
        counted += output.counts.target_calls
    if variance == 0:
        assert counted == mean
    else:
        assert abs(counted - mean) <= 4 * math.sqrt(variance)
    return variance


def check_forecast_tables():
    target = random_table(seed=6, order=2)
    draft = perturbed(target, 0.7)
    for gamma in (1, 4):
        for stop in ((), (1, 3)):
            exact = {"gamma": gamma, "stop": stop}
            assert check_forecast(target, draft, sampling=GREEDY, **exact) == 0
            assert (
                check_forecast(target, draft, sampling=Sampling(), draft_sampling=GREEDY, **exact)
                == 0
            )
            assert check_forecast(target, draft, sampling=Sampling(0.8, top_p=0.9), **exact) > 0


# --- bookkeeping ---


def check_caches(target, draft, prompts, *, gamma, count, sampling, tolerance=None):
    """After every block both caches hold exactly a prefix of what was emitted."""
    target, draft = (Watched(model, tolerance=tolerance) for model in (target, draft))
    sequences = {}
    for block in speculate(
        target,
        draft,
        prompts,
        gamma=gamma,
        max_new_tokens=count,
        sampling=sampling,
        generators=seeded(len(prompts)),
    ):
        t, d = target.sessions[0], draft.sessions[0]
        if not sequences:
            first = zip(target.inner.open(prompts).pending.tolist(), strict=False)
            sequences = {row: list(token) for row, token in enumerate(first)}
        full = {}
        for i, row in enumerate(block.rows):
            sequences[row] += block.ids[i]
            full[row] = block.accepted[i] == block.drafted[i] > 0
        going = [row for row, end in zip(block.rows, block.finished, strict=True) if end is None]
        for i, row in enumerate(going):
            sequence = sequences[row]
            assert t.pending[i] == d.pending[i] == sequence[-1]
            assert t.seen[i] == sequence[:-1]
            assert d.seen[i] == sequence[: -2 if full[row] else -1]
            for session in (t, d):
                assert session.room_at_first[i] - int(session.room[i]) == len(session.seen[i])
    assert len(sequences) == len(prompts)
    return target, draft


def check_caches_tables():
    target = random_table(seed=7, order=2)
    draft = perturbed(target, 0.7)
    prompts = [torch.tensor(ids) for ids in ([1, 2], [3], [0, 1, 4, 2])]
    for gamma, sampling in product((1, 2, 5), (GREEDY, Sampling())):
        check_caches(
            target, draft, prompts, gamma=gamma, count=25, sampling=sampling, tolerance=1e-9
        )


def check_counts():
    """Every block emits what it counts, whatever ends it."""
    target = random_table(seed=8, order=2)
    prompts = [torch.tensor([i % 5]) for i in range(40)]
    for gamma, stop in product((0, 1, 4), ((), (0, 3))):
        left = [15] * len(prompts)
        for block in speculate(
            target,
            perturbed(target, 0.7) if gamma else None,
            prompts,
            gamma=gamma,
            max_new_tokens=15,
            sampling=Sampling(),
            stop=stop,
            generators=seeded(len(prompts)),
        ):
            for i, row in enumerate(block.rows):
                ids, n, judged = block.ids[i], block.accepted[i], block.judged[i]
                assert block.drafted[i] == min(gamma, left[row] - 1)
                assert not set(ids[:-1]) & set(stop)
                if ids[-1] in stop:
                    assert block.finished[i] == "stop"
                    assert len(ids) in (n, n + 1)
                    assert judged == min(len(ids), n + 1, block.drafted[i])
                else:
                    assert block.finished[i] == ("length" if len(ids) == left[row] else None)
                    assert len(ids) == n + 1
                    assert judged == min(n + 1, block.drafted[i])
                left[row] -= len(ids)


def check_budget():
    """Exactly `max_new_tokens` tokens, and nothing drafted that could not be used."""
    target, prompt = random_table(seed=9), torch.tensor([1])
    for count in range(1, 21):
        draft = Watched(target)
        blocks = list(
            speculate(target, draft, [prompt], gamma=5, max_new_tokens=count, sampling=Sampling())
        )
        (output,) = collect(blocks, 1)
        assert len(output.ids) == output.counts.tokens == count
        assert output.finish_reason == "length"
        left = count
        for block in blocks:
            assert block.drafted[0] <= left - 1
            left -= len(block.ids[0])
        assert count > 1 or draft.calls == len(draft.sessions) == 0


def check_stops(target, draft, prompt, *, gamma, count):
    """A run that ends at a stop id is the plain run up to it, wherever in a block it falls."""
    path = plain_greedy(target, prompt, count)
    settings = {"gamma": gamma, "max_new_tokens": count, "sampling": GREEDY}
    places = [i for i, token in enumerate(path) if token not in path[:i]]
    offsets = set()
    for place in places:
        blocks = list(speculate(target, draft, [prompt], stop=(path[place],), **settings))
        (output,) = collect(blocks, 1)
        assert output.ids == path[: place + 1]
        assert output.finish_reason == "stop"
        offsets.add(len(blocks[-1].ids[0]) - 1)
    return offsets


def check_stop_offsets():
    """A stop id at every offset of a block ends the row there, accepted, corrected or bonus."""
    target, prompt, gamma = cycle(16), torch.tensor([2]), 5
    drafts = [cycle(16), *(wrong_after(cycle(16), token) for token in range(3, 9))]
    for draft, offset in product(drafts, range(gamma + 4)):
        stop = 3 + offset
        blocks = list(
            speculate(
                target,
                draft,
                [prompt, prompt],
                gamma=gamma,
                max_new_tokens=13,
                sampling=GREEDY,
                stop=(stop, 0),
            )
        )
        for output in collect(blocks, 2):
            assert output.ids == tuple(range(3, stop + 1))
            assert output.finish_reason == "stop"
            assert output.counts.target_calls == len(blocks)
            assert output.counts.accepted == output.origin.count("draft")
            assert output.counts.accepted <= output.counts.judged <= output.counts.tokens
        if draft is drafts[0] and offset < gamma:
            assert blocks[0].accepted == blocks[0].judged == (offset + 1,) * 2


def wrong_after(table: TableModel, token: int) -> TableModel:
    """The same table, but after `token` it predicts token 15."""
    logits = table.logits.detach().clone()
    logits[token] = 6.0 * torch.eye(len(logits))[15]
    return TableModel(logits)


def check_rows_alone():
    """Every row of a batch is what it is alone, with its own generator."""
    target = random_table(seed=10, order=2, context=30)
    prompts = [torch.tensor(ids) for ids in ([1, 2], [3], [0, 1, 4, 2, 2, 2], [4, 4, 4])]
    draft = perturbed(target, 0.7)
    draft.context = 22
    for sampling, gamma in product((GREEDY, Sampling(), Sampling(0.8, top_k=3)), (0, 1, 4)):
        settings = {
            "gamma": gamma,
            "max_new_tokens": 40,
            "sampling": sampling,
            "stop": (0,),
        }
        together = complete(target, draft, prompts, generators=seeded(4), **settings)
        for row, generator in enumerate(seeded(4)):
            alone = complete(target, draft, [prompts[row]], generators=[generator], **settings)
            assert together[row] == alone[0]


@dataclass
class Scripted:
    """γ as a script says, block by block, the last one for ever."""

    gammas: tuple[int, ...]
    blocks: int = 0

    @property
    def limit(self):
        return max(self.gammas)

    def chooser(self):
        return Scripted(self.gammas)

    def choose(self, rows, unseen):
        return [self.gammas[min(self.blocks, len(self.gammas) - 1)]] * len(rows)

    def observe(self, block):
        self.blocks += 1


def check_blocks_without_drafting(model=None, sampling=GREEDY):
    """What blocks of γ = 0 emit is read by the draft later: it stays as right as it was."""
    model = model or random_table(seed=3, order=2)
    settings = {"gamma": Scripted((3, 0, 0, 3)), "max_new_tokens": 20, "stop": ()}
    prompts = [torch.tensor([1, 2, 4]), torch.tensor([3])]
    blocks = list(
        speculate(model, model, prompts, sampling=sampling, generators=seeded(2), **settings)
    )
    assert [block.drafted[0] for block in blocks[:4]] == [3, 0, 0, 3]
    for output in collect(blocks, 2):
        assert output.counts.empirical_acceptance == 1
        assert output.counts.target_calls == 7  # 4 + 1 + 1 + 4 + 4 + 4 + 2 tokens


def check_company(gamma=2, sizes=(3,), stop=(1,)):
    """Rows that are admitted late, beside others of another γ, are what they are alone."""
    target = random_table(seed=6, order=2)
    draft = perturbed(target, 0.8)
    settings = {"gamma": gamma, "max_new_tokens": 15, "sampling": Sampling(), "stop": stop}
    prompts = [torch.tensor([i % 5, i % 3, 4][: 1 + i % 3]) for i in range(9)]
    alone = [
        complete(target, draft, [prompt], generators=[generator], **settings)[0]
        for prompt, generator in zip(prompts, seeded(9), strict=True)
    ]
    for size in sizes:
        options = {"generators": seeded(9), "batch_size": size}
        assert complete(target, draft, prompts, **options, **settings) == alone


def check_queue():
    check_company()


def check_rows_of_a_schedule():
    check_company(Schedule(3, limit=6), (2, None))


def check_context():
    """The target's context ends a row; the draft's shorter one only ends the drafting."""
    target = random_table(seed=11, order=2, context=64)
    draft = perturbed(target, 0.3)
    draft.context = 32
    prompt = torch.tensor([1, 2, 3, 4])
    for gamma in (1, 2, 5):
        blocks = list(
            speculate(target, draft, [prompt], gamma=gamma, max_new_tokens=50, sampling=GREEDY)
        )
        (output,) = collect(blocks, 1)
        assert output.ids == plain_greedy(target, prompt, 50)
        position, drafted_last = 4, 0
        for block in blocks:
            # The last drafted token is predicted from position 32 at most, and never fed.
            assert block.drafted[0] == max(0, min(gamma, 50 + 4 - position - 1, 33 - position))
            drafted_last = position if block.drafted[0] else drafted_last
            position += len(block.ids[0])
        assert 20 < drafted_last <= 32
        (full,) = complete(
            target, draft, [prompt], gamma=gamma, max_new_tokens=100, sampling=GREEDY
        )
        assert full.finish_reason == "length"
        assert len(full.ids) == 61  # 64 positions, and the token that the last one predicts
        assert full.ids[:50] == output.ids


def check_q_is_drawn_from(target, draft, prompts, gamma=3):
    """`verify` gets, bit for bit and in float32 or wider, what every token was drawn from."""
    drawn, judged = [], []

    def spy_draw(probabilities, uniforms):
        token = genuine_draw(probabilities, uniforms)
        drawn.append((probabilities, probabilities.clone(), token))
        return token

    def spy_verify(p, q, drafted, **settings):
        before = [tensor.clone() for tensor in (p, q, drafted)]
        verdict = genuine_verify(p, q, drafted, **settings)
        assert all(torch.equal(*pair) for pair in zip((p, q, drafted), before, strict=True))
        judged.append((p, q, drafted))
        return verdict

    genuine_draw, genuine_verify = speculative.draw, speculative.verify
    with (
        patch.object(speculative, "draw", spy_draw),
        patch.object(speculative, "verify", spy_verify),
    ):
        for _ in speculate(
            target,
            draft,
            prompts,
            gamma=gamma,
            max_new_tokens=12,
            sampling=Sampling(),
            generators=seeded(len(prompts)),
        ):
            p, q, drafted = judged.pop()
            assert not judged
            assert q.dtype == p.dtype
            assert q.dtype in (torch.float32, torch.float64)
            assert len(drawn) == q.shape[1] == drafted.shape[1]
            for i, (probabilities, copy, token) in enumerate(drawn):
                assert probabilities.dtype == q.dtype
                assert torch.equal(probabilities, copy)
                assert torch.equal(probabilities, q[:, i])
                assert torch.equal(token, drafted[:, i])
            drawn.clear()


def check_q_tables():
    target = random_table(seed=12)
    check_q_is_drawn_from(target, perturbed(target, 0.5), [torch.tensor([1]), torch.tensor([2])])


def check_forced_rejection(target, draft, prompt, tolerance):
    """Position 2 of 4 rejected: two drafted tokens, the correction, caches of exactly that."""
    target, draft = (Watched(model, tolerance=tolerance) for model in (target, draft))
    judged = []

    def spy_verify(p, q, drafted, **settings):
        judged.append((p, q, drafted))
        return genuine(p, q, drafted, **settings)

    # Of the many drafts these uniforms could write, one whose third token can be rejected.
    largest = 1 - 2**-53
    genuine = verification.verify
    for u in (0.1, 0.3, 0.5, 0.7, 0.9):
        script = torch.tensor([[u] * 4 + [0.0, 0.0, largest, 0.0, 0.5]], dtype=torch.float64)
        with (
            patch.object(speculative, "draw_uniforms", lambda rows, count, s=script: s),
            patch.object(speculative, "verify", spy_verify),
        ):
            blocks = speculate(
                target, draft, [prompt], gamma=4, max_new_tokens=12, sampling=Sampling()
            )
            block = next(blocks)
            p, q, drafted = judged.pop()
            ids = drafted[0].tolist()
            ratios = p[0, :4].gather(1, drafted.T) / q[0].gather(1, drafted.T)
            if ratios[2] > 0.99 or (ratios[:2] <= 0).any():
                continue
            correction = block.ids[0][2]
            assert block.ids == ((ids[0], ids[1], correction),)
            assert (block.accepted, block.judged, block.drafted) == ((2,), (3,), (4,))
            assert p[0, 2, correction] > q[0, 2, correction]
            for session in (target.sessions[-1], draft.sessions[-1]):
                assert session.seen == [[session.first[0], *ids[:2]]]
                assert session.pending.tolist() == [correction]
            next(blocks)  # the next block is conditioned on that prefix: `Watched` compares
            assert target.sessions[-1].seen[0][:4] == [target.sessions[-1].first[0], *block.ids[0]]
            return
    raise AssertionError("no script of uniforms drafts a token that can be rejected")


def check_forced_rejection_tables():
    target, draft = random_table(seed=13, order=2), random_table(seed=14, order=2)
    check_forced_rejection(target, draft, torch.tensor([1, 2]), 1e-9)


# --- randomness and lenience ---


def check_seeds():
    target = random_table(seed=15)
    draft = perturbed(target, 0.5)
    settings = {"gamma": 3, "max_new_tokens": 30, "sampling": Sampling()}
    prompts = [torch.tensor([1]), torch.tensor([1])]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, twin = complete(target, draft, prompts, generators=seeded(2), **settings)
    assert [first, twin] == complete(target, draft, prompts, generators=seeded(2), **settings)
    assert first.ids != twin.ids
    other = complete(target, draft, prompts, generators=seeded(2, seed=1), **settings)
    assert other[0].ids != first.ids
    fresh = [complete(target, draft, prompts, **settings)[0].ids for _ in range(2)]
    assert fresh[0] != fresh[1]  # 5^-30 by chance at most, were tokens uniform
    assert torch.equal(before, torch.get_rng_state())


def first_accepted(lenience, sampling, count=40):
    target, draft = random_table(seed=16, scale=2), random_table(seed=17, scale=2)
    blocks = speculate(
        target,
        draft,
        [torch.tensor([1 + i % 4]) for i in range(count)],
        gamma=4,
        max_new_tokens=9,
        sampling=sampling,
        lenience=lenience,
        generators=seeded(count),
    )
    return next(blocks)


def check_lenience():
    """ε = 1 is lossless; with the same uniforms a smaller ε never accepts less, and does more."""
    for sampling in (GREEDY, Sampling(), Sampling(0.7, top_k=3)):
        exact = first_accepted(lossless, sampling)
        for rule in (linear, squared, exponential):
            assert first_accepted(rule(1.0), sampling) == exact
            accepted = exact.accepted
            for eps in (0.5, 0.1):
                more = first_accepted(rule(eps), sampling).accepted
                assert all(m >= a for m, a in zip(more, accepted, strict=True))
                accepted = more
            assert sum(accepted) > sum(exact.accepted)


def check_lenient_law(count=3_000):
    """One lenient step: q·a + (1 − Σ q·a)·norm(max(0, p − q)), a = min(1, f(p)/q)."""
    target, draft = random_table(seed=16, scale=2), random_table(seed=17, scale=2)
    p, q = (Sampling().probabilities(m.logits[1].detach()) for m in (target, draft))
    left = (p - q).clamp(min=0)
    cases = ((linear(0.5), p / 0.5), (squared(0.8), p / 0.64), (exponential(0.5), p.sqrt()))
    for rule, raised in cases:
        blocks = speculate(
            target,
            draft,
            [torch.tensor([1])] * count,
            gamma=1,
            max_new_tokens=2,
            sampling=Sampling(),
            lenience=rule,
            generators=seeded(count),
        )
        observed = Counter(ids[0] for ids in next(blocks).ids)
        accepted = torch.minimum(raised, q)  # q · min(1, f(p) / q)
        law = accepted + (1 - accepted.sum()) * left / left.sum()
        assert (law - p).abs().sum() > 0.3
        assert chi_square(observed, Counter(dict(enumerate(law.tolist()))), count) > ALARM


def check_lenient_greedy():
    """At T = 0 a drafted x is accepted iff f(P(x)) ≥ max P, P untempered."""
    target = TableModel(torch.tensor([0.5, 0.3, 0.2]).log())
    settings = {"gamma": 1, "max_new_tokens": 2, "sampling": GREEDY}
    for drafted, ratio in ((0, 1.0), (1, 0.6), (2, 0.4)):
        draft = TableModel(5.0 * torch.eye(3)[drafted])
        for eps in (0.39, 0.41, 0.59, 0.61, 1.0):
            (output,) = complete(
                target, draft, [torch.tensor([0])], lenience=linear(eps), **settings
            )
            assert output.counts.accepted == (ratio >= eps)
            assert output.ids[0] == (drafted if ratio >= eps else 0)


# --- what a decoding run meets only now and then ---


def check_residual_of_equals():
    """A rejection forced where p = q still draws from p."""
    p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    verdict = verification.verify(
        p,
        p[:, :1],
        torch.tensor([[1]]),
        lengths=torch.tensor([1]),
        uniforms=torch.tensor([[1.0, 0.3]]),  # 1 cannot happen; it forces the rejection
    )
    assert (verdict.accepted.tolist(), verdict.token.tolist()) == ([0], [1])


def check_draw_at_the_edges():
    """No uniform draws an id of probability 0, at either end or in between."""
    p = torch.tensor([0.0, 0.3, 0.0, 0.3, 0.4, 0.0])
    for u in (0.0, 1e-300, 0.3, 0.29999999, 0.6, 1 - 2**-53):
        assert int(speculative.draw(p, torch.tensor(u, dtype=torch.float64))) in (1, 3, 4)


def check_draw_by_blocks():
    """At both edges of every id's share of [0, 1), over blocks that are full, cut and empty."""
    size, generator = BLOCK, torch.Generator().manual_seed(3)
    row = torch.rand(4 * size + 9, generator=generator, dtype=torch.float64) ** 8
    row[torch.rand(len(row), generator=generator) < 0.3] = 0.0
    row[2 * size : 3 * size] = 0.0
    row[:5] = 0.0
    shares, gap = row / row.sum(), 1e-13  # above rounding, below most shares
    possible = (shares > 2 * gap).nonzero().squeeze(-1)
    ends = shares.cumsum(-1)[possible]
    for u in (ends - shares[possible] + gap, ends - gap):
        assert torch.equal(draw(row.expand(len(u), -1), u), possible)
    first, last = row.nonzero()[[0, -1], 0].tolist()
    assert draw(row.expand(2, 3, -1), torch.zeros(2, 3)).tolist() == [[first] * 3] * 2
    assert int(draw(row, torch.tensor(1 - 2**-53, dtype=torch.float64))) == last


def check_wide_nucleus():
    """Of equally likely ids, more than are looked at first, top-p keeps its share."""
    p = Sampling(top_p=0.75).probabilities(torch.arange(4.0 * FIRST_LOOK) * 1e-9)
    assert int((p > 0).sum()) == 3 * FIRST_LOOK


def check_tied_nucleus():
    """Of equal logits the lowest ids stay."""
    for sampling in (Sampling(top_k=3), Sampling(top_p=0.7)):
        p = sampling.probabilities(torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0]))
        assert p.gt(0).tolist() == [False, True, True, True, False]


def check_default_stop():
    """Without `stop` the target's own ids end a row; the draft's mean nothing."""
    target, draft = cycle(16), cycle(16)
    target.eos_ids, draft.eos_ids = (9, 12), (5,)
    (output,) = complete(
        target, draft, [torch.tensor([2])], gamma=4, max_new_tokens=12, sampling=GREEDY
    )
    assert output.ids == (3, 4, 5, 6, 7, 8, 9)
    assert output.finish_reason == "stop"


def check_caches_ragged():
    """Rows that draft different numbers: budgets and contexts end at different tokens."""
    target = random_table(seed=18, order=2, context=24)
    draft = perturbed(target, 0.7)
    draft.context = 16
    prompts = [torch.tensor(ids) for ids in ([1] * 14, [2], [3] * 8, [4] * 20)]
    positions = [len(prompt) for prompt in prompts]
    target, draft = Watched(target, tolerance=1e-9), Watched(draft, tolerance=1e-9)
    drafted = []
    for block in speculate(
        target,
        draft,
        prompts,
        gamma=4,
        max_new_tokens=12,
        sampling=Sampling(),
        generators=seeded(4),
    ):
        drafted.append(block.drafted)
        for i, row in enumerate(block.rows):
            # The last drafted token is predicted at position 16 at most, and never fed.
            assert block.drafted[i] <= max(0, 17 - positions[row])
            positions[row] += len(block.ids[i])
    assert any(0 < number < max(numbers) for numbers in drafted for number in numbers)
    assert any(min(numbers) == 0 < max(numbers) for numbers in drafted)


def check_states(target=None, draft=None, prompts=None, tolerance=1e-9):
    """The states handed on are those a teacher-forced pass gives, free of any inference mode."""
    target = target or random_table(seed=19, order=2)
    draft = draft or perturbed(target, 0.7)
    prompts = prompts or [torch.tensor([1, 2]), torch.tensor([3])]
    outputs = complete(
        target,
        draft,
        prompts,
        gamma=3,
        max_new_tokens=14,
        sampling=Sampling(),
        generators=seeded(len(prompts)),
    )
    for prompt, output in zip(prompts, outputs, strict=True):
        forced = target.hidden(Batch((prompt,), (torch.tensor(output.ids),)))
        assert torch.allclose(output.states, forced, atol=tolerance, rtol=0)
        assert not output.states.requires_grad
        assert not output.states.is_inference()
