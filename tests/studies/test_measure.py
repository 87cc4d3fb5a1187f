"""`measure` on exact table models, where every figure has a known value or a law."""

from __future__ import annotations

import json
import math

import pytest
import torch

from distillspec.decoding import complete
from distillspec.errors import UserError
from distillspec.math.rules import argmax_draft, exact_match, ratio_test
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models.toy import TableModel
from distillspec.studies.answer import verdict
from distillspec.studies.comparison import compare
from distillspec.studies.measure import Plan, measure
from distillspec.studies.outputs import TargetOutputs, logprobs, score, seeded
from support import random_table

GAMMAS = (1, 2, 3, 4, 5)


def outputs_of(target: TableModel, sampling: Sampling, *, prompts: int = 12) -> TargetOutputs:
    asked = [torch.tensor([i % target.vocabulary.size]) for i in range(prompts)]
    answers = complete(
        target,
        None,
        asked,
        gamma=0,
        max_new_tokens=24,
        sampling=sampling,
        generators=seeded(0, prompts),
    )
    return TargetOutputs.of(asked, answers, sampling)


def plan(**changes) -> Plan:
    settings = {
        "gammas": GAMMAS,
        "max_new_tokens": 24,
        "batch_size": 8,
        "clock_prompts": 6,
        "repetitions": 1,
        "seed": 0,
        **changes,
    }
    return Plan(**settings)


def measure_all(target, drafts, outputs, rule=None, **changes):
    rule = ratio_test(outputs.sampling) if rule is None else rule
    return measure(target, drafts, outputs, rule, plan(**changes), lambda *_: None)


def measured(target, draft, sampling, rule=None, **changes):
    outputs = outputs_of(target, sampling)
    return measure_all(target, {"draft": draft}, outputs, rule, **changes).findings["draft"]


def test_alpha_is_the_ratio_of_sums_of_equation_1():
    target, draft = random_table(seed=0), random_table(seed=1)
    found = measured(target, draft, Sampling(), clock_prompts=0)
    outputs = outputs_of(target, Sampling())
    overlap = torch.minimum(target.logits.softmax(-1), draft.logits.softmax(-1)).sum(-1).detach()
    accepted = tokens = 0.0
    for prompt, ids in zip(outputs.prompts, outputs.completions, strict=True):
        before = torch.cat([prompt[-1:], ids[:-1]])
        accepted += float(overlap[before].sum())
        tokens += len(ids)
    assert found.result["alpha"]["value"] == pytest.approx(accepted / tokens, abs=1e-6)
    assert found.result["tokens"] == tokens


@pytest.mark.parametrize(
    ("rule", "name", "exact"),
    [
        (ratio_test(Sampling()), "ratio", False),
        (ratio_test(Sampling(temperature=0.7, top_k=3)), "ratio", False),
        (ratio_test(GREEDY, Sampling()), "ratio", False),
        (exact_match(Sampling()), "exact match", False),
        (exact_match(Sampling(), Sampling(temperature=0.5)), "exact match", False),
        (argmax_draft(Sampling()), "argmax draft", True),
        (ratio_test(GREEDY), "greedy", True),
        (exact_match(GREEDY), "greedy", True),
    ],
)
def test_the_engine_agrees_with_the_forecast_on_its_own_outputs(rule, name, exact):
    """Exact where every ratio is 0 or 1; else |z| ≤ 4, a false alarm once in 16,000 seeds."""
    found = measured(
        random_table(seed=0), random_table(seed=3), rule.sampling, rule, clock_gammas=(1, 3, 5)
    ).result
    ran = [row for row in found["gammas"] if "tau_counted" in row]
    assert [row["gamma"] for row in ran] == [1, 3, 5]
    assert found["rule"] == name
    for row in ran:
        assert row["forecast_exact"] == exact
        assert abs(row["forecast_z"]) <= 4
        assert (row["forecast_z"] == 0) == exact
        assert 1 <= row["tau_counted"]["value"] <= row["gamma"] + 1
        assert row["speedup_measured"]["value"] > 0
        assert row["speedup_end_to_end"]["value"] > 0
        low, middle, high = row["speedup_spread"]
        assert 0 < low <= middle <= high


def test_a_draft_that_is_the_target_is_always_right():
    target = random_table(seed=0)
    found = measured(target, target, Sampling()).result
    assert found["alpha"]["value"] == pytest.approx(1, abs=1e-6)
    for row in found["gammas"]:
        calls = math.ceil(24 / (row["gamma"] + 1))
        assert row["tau_forecast"]["value"] == pytest.approx(24 / calls)
        assert row["tau_iid"] == pytest.approx(row["gamma"] + 1, abs=1e-4)


def test_a_wrong_forecast_is_noticed():
    """The negative control: outputs of a perfect draft held against another draft's ratios."""
    target, draft = random_table(seed=0), random_table(seed=1)
    from distillspec.studies import measure as module

    honest = module.calls

    def shifted(scores, gamma):
        mean, variance = honest(scores, gamma)
        return mean * 0.6, variance

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "calls", shifted)
        found = measured(target, draft, Sampling()).result
    assert any(abs(row.get("forecast_z") or 0) > 4 for row in found["gammas"])


def test_several_drafts_race_on_the_same_outputs():
    target = random_table(seed=0)
    near = TableModel(target.logits.detach() + 0.1 * random_table(seed=5).logits.detach())
    outputs = outputs_of(target, Sampling())
    found = measure_all(target, {"near": near, "far": random_table(seed=1)}, outputs).findings
    better = compare(found["near"].scores, found["far"].scores, gamma=3)
    assert better["alpha_difference"]["low"] > 0
    assert better["tau_difference"]["low"] > 0
    same = compare(found["near"].scores, found["near"].scores, gamma=3)
    assert same["alpha_difference"] == {"value": 0, "low": 0, "high": 0}


def test_a_measurement_is_plain_json():
    found = measured(random_table(seed=0), random_table(seed=1), Sampling()).result
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["best_gamma"] in GAMMAS


def test_without_the_clock_nothing_is_claimed_of_it():
    found = measured(random_table(seed=0), random_table(seed=1), Sampling(), clock_prompts=0).result
    assert all("speedup_measured" not in row for row in found["gammas"])
    assert "forecast" in found["verdict"]


def test_an_emitted_token_whose_rescored_probability_is_zero_counts_as_emitted():
    """Near ties: a second pass may round another token to the top; the emitted one had p = 1."""
    target, draft = random_table(seed=0), random_table(seed=0)
    outputs = outputs_of(target, GREEDY)
    flipped = TargetOutputs(
        outputs.prompts, outputs.completions, tuple(-s for s in outputs.states), GREEDY
    )
    ratios = score(target, draft, flipped, ratio_test(GREEDY), batch_size=8).ratios
    assert all(bool((r == 1).all()) for r in ratios)
    logged = logprobs(target, flipped.states[0], flipped.completions[0], GREEDY)
    assert logged.tolist() == [0.0] * len(logged), "the bug: -Infinity, which is no JSON"


def row(value, low, high, *, measured):
    key = "speedup_measured" if measured else "speedup_forecast"
    forecast = {"value": 9.0, "low": 9.0, "high": 9.0}
    return {
        "gamma": 3,
        "speedup_forecast": forecast,
        key: {"value": value, "low": low, "high": high},
    }


@pytest.mark.parametrize(
    ("figures", "break_even", "expected"),
    [
        ((1.4, 1.3, 1.5), 0.4, "Use this draft with γ = 3: 1.40× [1.30, 1.50] measured."),
        ((0.8, 0.7, 0.9), 0.6, "Do not use this draft: 0.80× [0.70, 0.90] measured at its best"),
        ((1.0, 0.9, 1.1), 0.6, "Undecided: 1.00× [0.90, 1.10] measured at γ = 3"),
        ((0.8, 0.7, 0.9), None, "even a draft that is always right would be slower"),
    ],
)
def test_the_verdict_says_what_to_do(figures, break_even, expected):
    said = verdict([row(*figures, measured=True)], 3, 0.5, break_even, prompts=2)
    assert expected in said
    if break_even is not None and "Use this" not in said:
        assert "break-even α is 0.60, this pair has 0.50" in said


def test_the_verdict_falls_back_on_the_forecast_and_says_so():
    said = verdict([row(1.4, 1.3, 1.5, measured=False)], 3, 0.5, 0.4, prompts=2)
    assert said.endswith("forecast.")


def test_one_prompt_decides_nothing():
    """The bug: its interval has no width, so any figure above 1 read as certain."""
    said = verdict([row(1.4, 1.4, 1.4, measured=True)], 3, 0.5, 0.4, prompts=1)
    assert said.startswith("Undecided: 1.40× measured at γ = 3, on one prompt")
    found = measured(random_table(seed=0), random_table(seed=0), Sampling(), clock_prompts=1)
    assert "on one prompt" in found.result["verdict"]


def test_one_prompt_decides_nothing_of_batches():
    """The bug: "At batch 4 it pays" from a single prompt, beside "Undecided"."""
    target = random_table(seed=0)
    outputs = outputs_of(target, Sampling(), prompts=1)
    plan = {"clock_prompts": 0, "batch_sizes": (1, 4)}
    found = measure_all(target, {"draft": target}, outputs, **plan).findings["draft"].result
    assert [row["batch_size"] for row in found["batches"]] == [1, 4]
    assert "on one prompt" in found["verdict"]
    assert "At batch" not in found["verdict"]


def test_a_loss_at_one_gamma_does_not_speak_against_another():
    """The bug: "Do not use this draft … at its best γ = 8" while γ = 1 was forecast to gain."""
    ran = {**row(0.8, 0.7, 0.9, measured=True), "gamma": 8}
    ran["speedup_forecast"] = {"value": 0.8, "low": 0.7, "high": 0.9}
    hoped = {**row(1.2, 1.1, 1.3, measured=False), "gamma": 1}
    assert verdict([hoped, ran], 1, 0.5, 0.4, prompts=8) == (
        "Undecided: 0.80× measured at γ = 8, but 1.20× [1.10, 1.30] forecast at γ = 1, which did "
        "not run. Measure with --clock-gamma 1."
    )
    hopeless = {**row(0.9, 0.8, 0.95, measured=False), "gamma": 1}
    said = verdict([hopeless, ran], 1, 0.5, 0.6, prompts=8)
    assert said.startswith("Do not use this draft: 0.80× [0.70, 0.90] measured (the forecast puts")
    assert "its best" not in said


def test_past_its_context_a_draft_is_never_accepted_as_in_the_engine():
    """The bug: a draft of a shorter context was scored past its end, which raised or lied."""
    target = random_table(seed=0)
    draft = TableModel(target.logits.detach(), context=10)
    found = measured(target, draft, GREEDY).result
    # One token of prompt: ten positions of an always right draft, then fourteen calls of one.
    assert found["alpha"]["value"] == pytest.approx(10 / 24)
    ran = next(row for row in found["gammas"] if "tau_counted" in row)
    assert ran["forecast_exact"]
    assert ran["tau_counted"]["value"] == ran["tau_forecast"]["value"] < 2
    blind = TableModel(target.logits.detach(), context=1)
    alone = score(
        target,
        blind,
        TargetOutputs.of(
            [torch.tensor([0, 1, 2])],
            complete(
                target,
                None,
                [torch.tensor([0, 1, 2])],
                gamma=0,
                max_new_tokens=4,
                sampling=GREEDY,
                generators=seeded(0, 1),
            ),
            GREEDY,
        ),
        ratio_test(GREEDY),
        batch_size=1,
    )
    assert alone.alpha_sums.tolist() == [0]
    assert alone.ratios[0].tolist() == [0, 0, 0, 0]


def test_a_prompt_that_fills_the_context_is_measured():
    target = TableModel(random_table(seed=0).logits.detach(), context=6)
    prompts = [torch.tensor([0, 1, 2, 3, 4, i]) for i in range(3)]
    answers = complete(
        target,
        None,
        prompts,
        gamma=0,
        max_new_tokens=24,
        sampling=Sampling(),
        generators=seeded(0, 3),
    )
    outputs = TargetOutputs.of(prompts, answers, Sampling())
    assert outputs.lengths.tolist() == [1, 1, 1]
    draft = {"draft": random_table(seed=1)}
    found = measure_all(target, draft, outputs).findings
    assert found["draft"].result["gammas"][0]["tau_forecast"]["value"] == 1
    with pytest.raises(UserError, match="takes 7 tokens at once, more than the context of 6"):
        measure_all(target, draft, outputs, gammas=(6,))


def test_alpha_is_a_rate_even_where_the_sums_round_up():
    """The bug: min(p, q) summed to 1.00000001, and the i.i.d. formula refused it."""
    logits = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    target = TableModel(logits.float() * 0.1)
    outputs = outputs_of(target, Sampling(), prompts=40)
    p = Sampling().probabilities(target.logits)
    assert float(p.detach().sum(-1).max()) > 1, "no sum rounds up: the test shows nothing"
    scores = score(target, target, outputs, ratio_test(Sampling()), batch_size=8)
    assert (scores.alpha_sums <= scores.lengths).all()


def test_any_whole_number_is_a_seed():
    assert len({one.initial_seed() for seed in (0, -1, 10**30) for one in seeded(seed, 2)}) == 6


def test_the_verdict_speaks_of_the_gamma_that_ran():
    """The fitted overhead can move the best γ after the race; the clock still decides."""
    other = {**row(9.0, 9.0, 9.0, measured=False), "gamma": 4}
    said = verdict([row(1.4, 1.3, 1.5, measured=True), other], 4, 0.5, 0.4, prompts=8)
    assert said == (
        "Use this draft with γ = 3: 1.40× [1.30, 1.50] measured (the forecast puts γ = 4 first)."
    )
