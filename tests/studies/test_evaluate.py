"""`evaluate` on exact tables: identities, alternation, the median, and a broken engine."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from distillspec.decoding import speculative
from distillspec.math.rules import Rule, argmax_draft, exact_match, ratio_test
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.math.verification import Verdict, linear
from distillspec.studies.clock import Timer
from distillspec.studies.evaluate import Plan, evaluate
from distillspec.studies.evaluation import evaluation
from distillspec.tasks import Row, load_task
from distillspec.tasks.metrics import metric_of
from support import random_table

PROMPTS = [torch.tensor([i % 5, i % 3]) for i in range(9)]
IDS = [f"p{i}" for i in range(9)]
TASK = dataclasses.replace(load_task("gsm8k"), stop=())


def plan(**changes):
    settings = {
        "gamma": 3,
        "max_new_tokens": 20,
        "batch_size": 4,
        "clock_prompts": 2,
        "repetitions": 1,
        "seed": 0,
        **changes,
    }
    return Plan(**settings)


class Kept:
    """A keeper: the pairs and races it was given, by the prompts' indices, and in what order."""

    def __init__(self):
        self.by_row, self.on_the_clock, self.batches = {}, {}, []

    def pairs(self, lane, rows, pairs):
        self.batches.append(len(rows))
        self.by_row |= dict(zip(rows, pairs, strict=True))

    def race(self, lane, row, race):
        self.on_the_clock[row] = race


def decoded(rule, *, target=None, draft=None, how=None, keeper=None):
    return evaluate(
        random_table(seed=0, eos_ids=(4,)) if target is None else target,
        ("small", random_table(seed=3, eos_ids=(4,)) if draft is None else draft),
        PROMPTS,
        IDS,
        rule,
        plan() if how is None else how,
        lambda *_: None,
        Kept() if keeper is None else keeper,
    )


def answered(found, how=None, **settings):
    how = plan() if how is None else how
    return evaluation(found, how, settings.get("judged"), settings.get("domains", [None] * 9))


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_greedy_outputs_are_the_targets_own_and_the_counts_are_those_foreseen(gamma):
    how = plan(gamma=gamma)
    found = decoded(ratio_test(GREEDY), how=how)
    result = answered(found, how)
    assert result["same_output"] == {
        "checked": 11, "identical": 11, "near_ties": 0, "different": 0
    }  # fmt: skip
    assert result["tau"] == result["tau_forecast"]
    assert result["unmet"] == []
    assert (
        "11 of 11 outputs, those on the clock included, are the target's own" in result["verdict"]
    )
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_counts_of_the_pairs_add_up_to_the_result():
    found = decoded(ratio_test(Sampling()))
    result = answered(found)
    outputs = [pair.drafted for pair in found.pairs]
    assert result["prompts"] == len(outputs) == 9
    assert result["tokens"] == sum(len(one.ids) for one in outputs)
    calls = sum(one.counts.target_calls for one in outputs)
    assert result["tau"]["value"] == pytest.approx(result["tokens"] / calls)
    assert result["same_output"] is None
    own = sum(len(pair.plain.ids) for pair in found.pairs)
    expected = sum(float(pair.scores[0].sum()) for pair in found.pairs)
    assert result["alpha"]["value"] == pytest.approx(expected / own)


@pytest.mark.parametrize("size", [1, 4])
def test_what_is_sampled_is_the_same_in_batches_of_any_size(size):
    """The bug: seeds went by the number of the batch and the place in it."""
    prompts = [PROMPTS[i][: 1 + i % 2] for i in range(9)]  # batches are of like lengths
    whole, cut = (
        evaluate(
            random_table(seed=0, eos_ids=(4,)), ("small", random_table(seed=3, eos_ids=(4,))),
            prompts, IDS, ratio_test(Sampling()), plan(batch_size=n, clock_prompts=0),
            lambda *_: None, Kept(),
        )
        for n in (9, size)
    )  # fmt: skip
    for one, other in zip(whole.pairs, cut.pairs, strict=True):
        assert (one.plain.ids, one.drafted.ids) == (other.plain.ids, other.drafted.ids)


@pytest.mark.parametrize("rule", [argmax_draft(Sampling()), exact_match(Sampling(0.5))])
def test_lossless_rules_have_a_forecast(rule):
    result = answered(decoded(rule))
    assert result["alpha"] is not None
    assert result["tau_forecast"] is not None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_lenient_rule_has_neither_forecast_nor_claim(temperature):
    sampling = Sampling(temperature)
    result = answered(decoded(Rule(sampling, sampling, lenience=linear(0.1))))
    assert result["alpha"] is None
    assert result["tau_forecast"] is None
    assert result["same_output"] is None
    assert result["unmet"] == []


def test_an_engine_that_accepts_everything_is_found_out(monkeypatch):
    """The negative control: without it the check could say `identical` to anything."""
    honest = speculative.verify

    def credulous(p, q, drafted, *, lengths, uniforms, score=None):
        verdict = honest(p, q, drafted, lengths=lengths, uniforms=uniforms, score=score)
        return Verdict(lengths, verdict.token)

    monkeypatch.setattr(speculative, "verify", credulous)
    result = answered(decoded(ratio_test(GREEDY)))
    same = result["same_output"]
    assert same["different"] > 0
    assert same["identical"] + same["near_ties"] + same["different"] == same["checked"] == 11
    (complaint,) = result["unmet"]
    assert complaint.startswith(f"{same['different']} of 11 greedy outputs are not the target's")
    assert f"{same['different']} are not" in result["verdict"]


def test_batches_run_in_alternating_order(monkeypatch):
    """A machine that slows down must not always slow the same side."""
    order = []
    run = Timer.run

    def watched(self, prompts, lane, generators):
        order.append((lane.draft, len(prompts)))
        return run(self, prompts, lane, generators)

    monkeypatch.setattr(Timer, "run", watched)
    decoded(ratio_test(GREEDY), how=plan(clock_prompts=0))
    assert order[:2] == [(None, 4), ("small", 4)]  # the warm-up
    assert order[2:] == [
        (None, 4), ("small", 4), ("small", 4), (None, 4), (None, 1), ("small", 1)
    ]  # fmt: skip


def test_the_latency_of_a_prompt_is_the_median_of_three(monkeypatch):
    seconds = {None: iter([9.0, 8.0, 1.0, 2.0]), "small": iter([9.0, 0.5, 1.0, 0.75])}
    run = Timer.run

    def scripted(self, prompts, lane, generators):
        done = run(self, prompts, lane, generators)
        if self.repetitions != 3 or len(prompts) != 1:
            return done
        return dataclasses.replace(done, prefill=1.0, blocks=(next(seconds[lane.draft]),))

    monkeypatch.setattr(Timer, "run", scripted)
    how = plan(clock_prompts=1, repetitions=3, batch_size=9)
    timed = answered(decoded(ratio_test(GREEDY), how=how), how)["latency"]
    # The first run of either is the warm-up and does not count.
    assert timed["seconds_per_prompt_target"]["value"] == 2.0
    assert timed["seconds_per_prompt"]["value"] == 0.75
    assert timed["speedup"]["value"] == pytest.approx(2.0 / 0.75)
    assert timed["speedup_end_to_end"]["value"] == pytest.approx(3.0 / 1.75)
    assert (timed["prompts"], timed["repetitions"], timed["gamma"]) == (1, 3, 3)


def test_throughput_counts_tokens_and_seconds_of_the_whole_set():
    found = dataclasses.replace(decoded(ratio_test(GREEDY)), seconds=(8.0, 2.0))
    flow = answered(found)["throughput"]
    tokens = sum(len(pair.plain.ids) for pair in found.pairs)
    assert flow["batch_size"] == 4
    assert flow["tokens_per_second_target"] == pytest.approx(tokens / 8)
    assert flow["ratio"] == pytest.approx(4)  # greedy: the same tokens in a quarter of the time


def test_what_is_decoded_is_given_away_batch_by_batch_and_race_by_race():
    kept = Kept()
    found = decoded(ratio_test(GREEDY), keeper=kept)
    assert kept.batches == [4, 4, 1]
    assert [kept.by_row[i] for i in range(9)] == list(found.pairs)
    assert kept.on_the_clock == dict(zip(found.clocked, found.races, strict=True))


def test_without_clocked_prompts_there_is_no_latency():
    how = plan(clock_prompts=0)
    result = answered(decoded(ratio_test(GREEDY), how=how), how)
    assert result["latency"] is None
    assert result["same_output"]["checked"] == 9


def test_the_clocked_prompts_are_random_ones_chosen_by_the_seed():
    rule = ratio_test(GREEDY)
    first, again = decoded(rule), decoded(rule)
    other = decoded(rule, how=plan(seed=1))
    assert first.clocked == again.clocked != other.clocked
    assert len(set(first.clocked)) == 2
    every = decoded(rule, how=plan(clock_prompts=99))
    assert every.clocked == tuple(range(9))


def test_no_states_are_kept():
    """The bug: the hidden states of a whole test set filled the memory."""
    found = decoded(ratio_test(GREEDY))
    assert all(len(one.states) == 0 for pair in found.pairs for one in (pair.plain, pair.drafted))


def test_quality_is_told_of_both_sides_and_of_every_domain():
    found = decoded(ratio_test(GREEDY))
    rows = [Row(id, "?", "#### 1") for id in IDS]
    score = metric_of(TASK).score
    alone = score(rows, ["1"] * 6 + ["2"] * 3)
    drafted = score(rows, ["1"] * 5 + ["2"] * 4)
    domains = ["x"] * 4 + ["y"] * 5
    result = answered(found, judged=(alone, drafted), domains=domains)
    assert result["quality_target"]["accuracy"]["value"] == pytest.approx(100 * 6 / 9)
    assert result["quality"]["accuracy"]["value"] == pytest.approx(100 * 5 / 9)
    assert result["quality_difference"]["accuracy"]["value"] == pytest.approx(-100 / 9)
    by_domain = {one["domain"]: one for one in result["by_domain"]}
    assert by_domain["x"]["quality"]["accuracy"]["value"] == 100
    assert by_domain["y"]["quality"]["accuracy"]["value"] == 20
    assert [by_domain[name]["prompts"] for name in "xy"] == [4, 5]
    assert "accuracy 55.6 against 66.7 of the target alone, difference -11.1" in result["verdict"]


def test_one_prompt_is_said_to_be_one():
    """The bug: an interval without width, as if one prompt told everything."""
    how = plan(clock_prompts=1)
    found = decoded(ratio_test(Sampling()), how=how)
    alone = dataclasses.replace(found, pairs=found.pairs[:1])
    said = evaluation(alone, how, None, [None])["verdict"]
    assert "one prompt, which gives no interval" in said
    assert "[" not in said
    assert "one prompt" not in answered(found)["verdict"]
