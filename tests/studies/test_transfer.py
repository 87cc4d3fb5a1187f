"""`transfer` on exact tables: cells are paired measurements, and the sentence counts them."""

from __future__ import annotations

import torch

from distillspec.decoding import complete
from distillspec.math.rules import ratio_test
from distillspec.math.sampling import GREEDY
from distillspec.studies.measure import Plan, measure
from distillspec.studies.outputs import TargetOutputs, seeded
from distillspec.studies.transfer import cell, verdict
from support import random_table

NAMES = [{"id": f"p{i}", "domain": None} for i in range(6)]


def measured(drafts, *, clock_prompts=2):
    target = random_table(seed=0)
    prompts = [torch.tensor([i % 5]) for i in range(6)]
    answers = complete(
        target, None, prompts, gamma=0, max_new_tokens=16, sampling=GREEDY,
        generators=seeded(0, 6),
    )  # fmt: skip
    outputs = TargetOutputs.of(prompts, answers, GREEDY)
    plan = Plan(
        gammas=(1, 3),
        max_new_tokens=16,
        batch_size=8,
        clock_prompts=clock_prompts,
        repetitions=1,
        seed=0,
    )
    return measure(target, drafts, outputs, ratio_test(GREEDY), plan, lambda *_: None)


def test_a_cell_holds_every_draft_against_the_first():
    drafts = {"far": random_table(seed=1), "near": random_table(seed=0)}
    found = cell("big", "gsm8k", measured(drafts), NAMES)
    assert (found["target"], found["task"], found["prompts"]) == ("big", "gsm8k", 6)
    assert [one["draft"] for one in found["measurements"]] == ["far", "near"]
    assert found["measurements"][1]["alpha"]["value"] == 1
    (held,) = found["comparison"]
    assert (held["draft"], held["against"]) == ("near", "far")
    gain = held["alpha_difference"]["value"]
    alphas = [one["alpha"]["value"] for one in found["measurements"]]
    assert gain == alphas[1] - alphas[0] > 0
    assert held["improved"] + held["equal"] + held["worsened"] == 6
    assert held["speedup_difference"] is not None


def test_without_a_clock_no_speedups_are_compared():
    drafts = {"far": random_table(seed=1), "near": random_table(seed=0)}
    found = cell("big", "gsm8k", measured(drafts, clock_prompts=0), NAMES)
    assert found["comparison"][0]["speedup_difference"] is None


def held(draft, low, high):
    return {"draft": draft, "tau_difference": {"value": (low + high) / 2, "low": low, "high": high}}


def test_the_sentence_counts_where_a_draft_is_better():
    cells = [
        {"prompts": 6, "comparison": [held("b", 0.1, 0.2), held("c", -0.1, 0.1)]},
        {"prompts": 6, "comparison": [held("b", 0.1, 0.2), held("c", -0.2, -0.1)]},
        {"prompts": 6, "comparison": [held("b", -0.1, 0.2), held("c", 0.1, 0.2)]},
    ]
    assert verdict(["a", "b", "c"], cells) == (
        "b has a higher τ than a on 2 of 3 targets and tasks and a lower one on 0; on 1 the "
        "interval leaves it open; c has a higher τ than a on 1 of 3 targets and tasks and a lower "
        "one on 1; on 1 the interval leaves it open."
    )


def test_one_draft_alone_is_said_to_pay_or_not():
    def alone(low, prompts=6):
        row = {"gamma": 3, "speedup_forecast": {"value": 1.2, "low": low, "high": 1.4}}
        measurements = [{"best_gamma": 3, "gammas": [row]}]
        return {"prompts": prompts, "measurements": measurements, "comparison": []}

    said = verdict(["a"], [alone(1.1), alone(0.9)])
    assert said == "a is forecast to pay on 1 of 2 targets and tasks."
    assert "to pay on 0 of 1" in verdict(["a"], [alone(1.2, prompts=1)])


def test_one_prompt_leaves_open_which_draft_is_better():
    """The bug: its interval has no width, so any difference read as certain."""
    said = verdict(["a", "b"], [{"prompts": 1, "comparison": [held("b", 0.2, 0.2)]}])
    assert "on 0 of 1 targets and tasks and a lower one on 0; on 1 the interval leaves" in said
