"""The audit's power and its limits: our own engine passes, and mutants of it do not."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch

from decoding_checks import seeded
from distillspec.decoding import collect, speculate
from distillspec.math.rules import MATCHED
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models.toy import TableModel
from distillspec.models.vocabulary import Vocabulary
from distillspec.studies import outputs, questions
from distillspec.studies.audit import Written, ends, tally
from distillspec.studies.lossless import judged
from mutants import MUTANTS, applied
from support import random_table

NAMED = {mutant.name: mutant for mutant in MUTANTS}
SEEN = {
    "everything is accepted": "likelihood",
    "no residual: resample from p": "likelihood",
    "residual of |p − q|": "likelihood",
    "accepted only where p exceeds q": "likelihood",
    "rejected always, whatever q": "likelihood",
    "target row off by one in the acceptance": "likelihood",
    "draft row off by one in the residual": "toward the draft",
    "bonus token from the draft": "block, token 4",
}
"""Mutants of the engine that 2,048 tokens of a toy pair give away, and by which question."""
UNSEEN = {
    "nan where p equals q": "no two laws of this pair are equal",
    "q rounded to bf16 after the draw": "shifts p by less than 2,048 tokens can show",
    "a row's uniforms depend on its batch": "every output by itself has the target's law",
}
"""Mutants that it cannot see, and why."""


def audited(
    target, draft, *, gamma=3, sampling=None, served=None, count=16, tokens=128, seed=0,
    lean=False, stop=(), level=0.05, tolerance=0.0, **rule,
):  # fmt: skip
    """Decode, and audit what came out; `served` is what the engine really samples at."""
    sampling = sampling or Sampling()
    prompts = [torch.tensor([i % 5, i % 3]) for i in range(count)]
    blocks = list(
        speculate(
            target, draft, prompts, gamma=gamma, max_new_tokens=tokens, stop=stop,
            sampling=served or sampling, generators=seeded(count, seed), **rule,
        )
    )  # fmt: skip
    sizes = [[] for _ in prompts]
    for block in blocks:
        for i, row in enumerate(block.rows):
            sizes[row].append(len(block.ids[i]))
    outputs = [
        Written(str(i), prompt, torch.tensor(one.ids), tuple(sizes[i]), one.finish_reason)
        for i, (prompt, one) in enumerate(zip(prompts, collect(blocks, count), strict=True))
    ]
    found = tally(
        target, outputs, sampling, stop=stop, batch_size=64, dtype=torch.float64,
        report=lambda done, total: None, draft=(draft, sampling) if lean else None,
    )  # fmt: skip
    return judged(found, sampling, ends(outputs, stop, tokens), level=level, tolerance=tolerance)


@pytest.fixture(scope="module")
def pair():
    return random_table(12, seed=1, order=2), random_table(12, seed=2, order=2)


def rejected(result):
    return {test["name"] for test in result["tests"] if test["rejected"]}


@pytest.mark.parametrize(
    "rule",
    [
        {"gamma": 3},
        {"gamma": 2, "draft_sampling": GREEDY, "stop": (0,)},
        {"gamma": 2, "proposal": MATCHED, "sampling": Sampling(0.7, top_k=6)},
    ],
    ids=["ratio", "argmax, stop", "exact match, top-k"],
)
def test_our_own_engine_passes(pair, rule):
    """Each could fail by chance once in twenty; seeds are fixed."""
    result = audited(*pair, lean="proposal" not in rule, **rule)
    assert not result["rejected"], result["verdict"]
    assert result["impossible"]["count"] == 0
    assert len(result["tests"]) >= 15


@pytest.mark.parametrize("name", SEEN)
def test_the_audit_rejects_the_mutant(pair, name):
    with applied(NAMED[name]):
        result = audited(*pair, lean=SEEN[name] == questions.DRAFT)
    assert SEEN[name] in rejected(result)
    assert result["points_to"]


@pytest.mark.parametrize("name", UNSEEN)
def test_what_the_audit_cannot_see(pair, name):
    with applied(NAMED[name]):
        assert not audited(*pair)["rejected"]


def test_a_sampler_that_is_not_kept_to_is_an_impossible_token(pair):
    result = audited(*pair, sampling=Sampling(top_k=4), served=Sampling(), count=4, tokens=32)
    assert result["impossible"]["count"] > 5
    assert result["rejected"]
    assert "another top-k" in result["verdict"]


def test_the_temperature_is_fitted(pair):
    result = audited(*pair, gamma=0, served=Sampling(0.9))
    assert result["rejected"]
    fitted = result["temperature_fitted"]
    assert fitted["low"] < 0.9 < fitted["high"] < 1.0
    assert any("lower temperature" in point for point in result["points_to"])


def test_p_values_are_level_where_all_is_well(pair):
    """40 audits: p-values of the likelihood lie as uniform ones do, and few audits reject."""
    results = [audited(*pair, count=4, tokens=24, seed=seed) for seed in range(1, 41)]
    ps = np.sort(
        [test["p"] for r in results for test in r["tests"] if test["kind"] == "likelihood"]
    )
    distance = np.abs(ps - (np.arange(len(ps)) + 0.5) / len(ps)).max()
    assert distance < 1.95 / np.sqrt(len(ps))  # Kolmogorov–Smirnov at 0.1 %
    assert sum(r["rejected"] for r in results) <= 8  # 2 expected at 5 %; more than 8: 0.03 %


def test_the_shift_that_is_called_detectable_is_the_one_by_hand(pair):
    """It once was the one of a single test: of all of them Holm's rule asks the first for more."""
    result = audited(*pair, count=4, tokens=24)
    (test,) = [test for test in result["tests"] if test["name"] == "likelihood"]
    spread = (test["high"] - test["low"]) / 2 / 1.959964
    normal = NormalDist()
    first = normal.inv_cdf(1 - 0.05 / len(result["tests"]) / 2)
    by_hand = (first + normal.inv_cdf(0.8)) * spread
    assert first > 2.5
    assert result["detectable"] == test["detectable"] == pytest.approx(by_hand, rel=1e-5)
    assert f"a shift of {by_hand:.3f} would" in result["verdict"]
    loose = audited(*pair, count=4, tokens=24, tolerance=0.25)
    assert loose["detectable"] == pytest.approx(by_hand + 0.25, rel=1e-5)


def test_a_tolerance_is_of_a_token_and_not_of_all(pair):
    """Outputs of another temperature pass where twice what they are off by is tolerated."""
    shifted = {"gamma": 0, "served": Sampling(0.9)}
    off = [abs(test["excess"]) for test in audited(*pair, **shifted)["tests"] if test["rejected"]]
    assert off
    assert not rejected(audited(*pair, tolerance=2 * max(off), **shifted))
    assert rejected(audited(*pair, tolerance=0.05 * min(off), **shifted))


def test_a_token_repeated_between_blocks_is_seen():
    """An engine that puts the last token of every block out twice."""
    target = random_table(12, seed=1)
    prompts = [torch.tensor([1, 2])] * 12
    outputs = []
    for i, block in enumerate(prompts):
        (one,) = collect(
            speculate(
                target, None, [block], gamma=0, max_new_tokens=60, sampling=Sampling(),
                generators=seeded(1, i),
            ),
            1,
        )  # fmt: skip
        ids = [token for j, token in enumerate(one.ids) for _ in range(2 if j % 3 == 2 else 1)]
        outputs.append(Written(str(i), block, torch.tensor(ids)))
    found = tally(
        target, outputs, Sampling(), stop=(), batch_size=8, dtype=torch.float64,
        report=lambda done, total: None,
    )  # fmt: skip
    result = judged(found, Sampling(), ends(outputs, (), None), level=0.05, tolerance=0.0)
    assert questions.REPEAT in rejected(result)
    assert any("doubled" in point for point in result["points_to"])


def often_stopping(stop=0, size=6):
    """A target that ends about one answer in four at every token."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(size, size, generator=generator, dtype=torch.float64)
    logits[:, stop] += 1.0
    return TableModel(logits)


@pytest.mark.parametrize("kept", [0, 40], ids=["all lost", "some kept"])
def test_a_log_without_its_stop_tokens_is_held_against_what_goes_on(kept):
    """Sound outputs that lost their stop tokens once failed: too few of the likeliest were left."""
    target, count = often_stopping(), 200
    prompts = [torch.tensor([1 + i % 5]) for i in range(count)]
    answers = collect(
        speculate(
            target, None, prompts, gamma=0, max_new_tokens=12, stop=(0,), sampling=Sampling(),
            generators=seeded(count, 0),
        ),
        count,
    )  # fmt: skip
    outputs = []
    for i, (prompt, one) in enumerate(zip(prompts, answers, strict=True)):
        lost = one.ids[-1] == 0 and i >= kept
        ids = one.ids[:-1] if lost else one.ids
        if ids:
            outputs.append(Written(str(i), prompt, torch.tensor(ids), None, one.finish_reason))

    def audit(sampling):
        found = tally(
            target, outputs, sampling, stop=(0,), batch_size=64, dtype=torch.float64,
            report=lambda done, total: None,
        )  # fmt: skip
        return judged(found, sampling, ends(outputs, (0,), 12), level=0.05, tolerance=0.0)

    result = audit(Sampling())
    assert result["ends"]["lost_stop"] > 60
    assert not result["rejected"], result["verdict"]  # a sound one fails once in twenty
    assert len(result["tests"]) > 8
    assert not any(test["name"] == questions.STOP for test in result["tests"])
    assert audit(Sampling(0.5))["rejected"]


def test_outputs_without_a_token_to_score_leave_the_interval_finite():
    """A sample of nothing but answers that begin with an id of no string had the mean 0 / 0."""
    target = often_stopping()
    ended = [Written(f"e{i}", torch.tensor([1]), torch.tensor([9]), None, "stop") for i in range(2)]
    longer = Written("l", torch.tensor([1]), torch.tensor([2, 1, 3]), None, "length")
    outputs = [*ended, longer]
    found = tally(
        target, outputs, Sampling(), stop=(0,), batch_size=2, dtype=torch.float64,
        report=lambda done, total: None,
    )  # fmt: skip
    result = judged(found, Sampling(), ends(outputs, (0,), None), level=0.05, tolerance=0.0)
    assert found.scored == 3
    assert all(np.isfinite(result["likelihood"][end]) for end in ("value", "low", "high"))


def test_a_token_where_only_the_end_could_come_is_impossible_in_such_a_log_too():
    certain = torch.tensor([[0.0, 0.0, 0.0], [0.0, -torch.inf, -torch.inf], [0.0, 0.0, 0.0]])
    target = TableModel(certain.double())
    outputs = [
        Written("a", torch.tensor([2]), torch.tensor([1, 2]), None, "stop"),
        Written("b", torch.tensor([2]), torch.tensor([2, 1]), None, "stop"),
    ]
    found = tally(
        target, outputs, Sampling(), stop=(0,), batch_size=2, dtype=torch.float64,
        report=lambda done, total: None,
    )  # fmt: skip
    assert [(one.id, one.token) for one in found.impossible] == [("a", 1)]
    assert all(np.isfinite(table).all() for table in found.sums.values())


@pytest.mark.parametrize("greedy", [GREEDY, Sampling(0, top_p=0.9)], ids=["alone", "top-p"])
def test_greedy_is_the_argmax_and_near_ties_are_apart(greedy):
    """With a top-p beside it, what is no argmax once divided by the temperature of 0."""
    row = torch.tensor([0.0, 1.0, 1.0 - 1e-12, -2.0], dtype=torch.float64)
    target = TableModel(row)
    outputs = [Written("a", torch.tensor([0]), torch.tensor([1, 2, 1, 3]))]
    found = tally(
        target, outputs, greedy, stop=(), batch_size=1, dtype=torch.float32,
        report=lambda done, total: None,
    )  # fmt: skip
    result = judged(found, greedy, ends(outputs, (), None), level=0.05, tolerance=0.0)
    assert result["impossible"]["near_ties"] == 1
    assert [(one["token"], one["emitted"]) for one in result["impossible"]["examples"]] == [(3, 3)]
    assert result["rejected"]


def test_what_was_all_but_certain_and_came_out_otherwise_is_seen():
    """Of tests without variance none was held against what came out, and the audit passed."""
    target = TableModel(torch.tensor([0.0, 30.0], dtype=torch.float64))
    for ids, rejected in (([1, 1, 1], False), ([1, 0, 1], True)):
        outputs = [Written("a", torch.tensor([0]), torch.tensor(ids))]
        found = tally(
            target, outputs, Sampling(), stop=(), batch_size=1, dtype=torch.float64,
            report=lambda done, total: None,
        )  # fmt: skip
        result = judged(found, Sampling(), ends(outputs, (), None), level=0.05, tolerance=0.0)
        assert result["impossible"]["count"] == 0
        assert result["rejected"] is rejected, result["verdict"]


def test_ids_are_sorted_by_the_look_of_their_strings():
    pieces = ("Ġthe", "ing", "Ġ12", "!", "<|end|>", "é", None)
    kinds = questions.kinds_of_ids(Vocabulary(pieces))
    assert {name: mask.nonzero()[:, 0].tolist() for name, mask in kinds.items()} == {
        "ids: words": [0],
        "ids: parts of words": [1],
        "ids: digits": [2],
        "ids: signs": [3, 4],
        "ids: not ASCII": [5],
    }


def test_chunks_change_nothing(pair, monkeypatch):
    whole = audited(*pair, count=3, tokens=40)
    monkeypatch.setattr("distillspec.studies.audit.ROWS", 7)
    parts = audited(*pair, count=3, tokens=40)
    others = {test["name"]: test for test in parts["tests"]}
    assert len(others) == len(whole["tests"])
    for one in whole["tests"]:
        other = others[one["name"]]
        assert one["tokens"] == other["tokens"], one["name"]
        assert one["z"] == pytest.approx(other["z"], abs=1e-9), one["name"]


def test_outputs_are_audited_a_group_at_a_time(pair, monkeypatch):
    settings = {"count": 11, "tokens": 16, "lean": True}
    whole = audited(*pair, **settings)
    monkeypatch.setattr(outputs, "GROUP", 3)
    assert audited(*pair, **settings)["tests"] == whole["tests"]
