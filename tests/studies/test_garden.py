"""`garden`: its points, the front and the pick, on exact tables and points made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distillspec.decoding import Counts, Output
from distillspec.math.rules import ratio_test
from distillspec.math.sampling import GREEDY
from distillspec.studies.clock import Lane, Run, Timer
from distillspec.studies.garden import Way, garden, pick, race
from distillspec.tasks.metrics import Scored
from support import random_table


def share(sums):
    return 100.0 * sums[:, 0] / sums[:, 1]


def scored(right):
    columns = np.stack([np.asarray(right, dtype=float), np.ones(len(right))], axis=1)
    return Scored(("right", "all"), columns, {"share": share})


def run_of(seconds):
    output = Output((1, 2), ("target",) * 2, "length", Counts(2, 2), torch.zeros(2, 1))
    return Run((output,), seconds / 2, (seconds / 4, seconds / 4))


def made(seconds, right, budgets=()):
    """A garden of ways whose seconds and right answers are given, one a prompt."""
    count = len(next(iter(seconds.values())))
    races = [{name: run_of(own[i]) for name, own in seconds.items()} for i in range(count)]
    models = {name: (name, None, 0) for name in seconds}
    return garden(races, models, lambda name, _: scored(right[name]), "share", budgets)


RIGHT = {
    "big": [1] * 18 + [0] * 2,
    "small": [1] * 10 + [0] * 10,
    "slow": [1] * 10 + [0] * 10,
    "tie": [1] * 9 + [0] * 11,
}
SECONDS = {
    "big": [4.0 + 0.01 * i for i in range(20)],
    "small": [1.0 + 0.01 * i for i in range(20)],
    "slow": [2.0 + 0.01 * i for i in range(20)],
    "tie": [1.2 if i % 2 else 0.9 for i in range(20)],
}


def test_the_front_holds_what_nothing_dominates():
    found = made(SECONDS, RIGHT)
    by = {one["way"]: one for one in found["points"]}
    assert found["reference"] == "big"
    assert by["big"]["latency"]["value"] == pytest.approx(4.095)  # prefill and blocks
    assert by["small"]["speedup"]["value"] == pytest.approx(4.095 / 1.095)
    assert by["big"]["quality"]["value"] == 90.0
    assert by["small"]["quality_difference"]["value"] == -40.0
    assert {name for name, one in by.items() if one["front"]} == {"big", "small", "tie"}
    # `slow` answers alike and is slower on every prompt; it has no width of quality to lose.
    assert by["slow"]["dominated_by"] == "small"
    assert all(by[name]["dominated_by"] is None for name in ("big", "small", "tie"))


def test_a_way_that_may_be_better_by_chance_beats_no_other():
    seconds = {"a": [1.0, 3.0] * 10, "b": [3.2, 1.1] * 10}
    found = made(seconds, {name: [1] * 20 for name in seconds})
    by = {one["way"]: one for one in found["points"]}
    assert not by["b"]["front"]
    assert by["b"]["dominated_by"] is None


def test_ways_that_are_equal_dominate_neither_other():
    same = {name: [1.0, 2.0] * 10 for name in ("a", "b")}
    found = made(same, {name: [1] * 20 for name in same})
    assert [one["front"] for one in found["points"]] == [True, True]
    assert [one["dominated_by"] for one in found["points"]] == [None, None]


@pytest.mark.parametrize(
    ("latency", "quality", "way"),
    [
        (5.0, None, "big"),
        (4.0, None, "small"),  # of two alike in quality the faster
        (1.05, None, "tie"),  # 1.05 s on average: at most means at most
        (0.5, None, None),
        (None, 90.0, "big"),
        (None, 90.1, None),
        (None, 46.0, "small"),
        (None, 0.0, "tie"),
    ],
)
def test_a_pick_keeps_its_budget(latency, quality, way):
    points = made(SECONDS, RIGHT)["points"]
    found = pick(points, latency, quality, "share")
    assert found["way"] == way
    assert (way or "No way answers") in found["said"]


def test_every_way_answers_every_prompt_as_its_models_do():
    """Greedy and lossless: with any draft the outputs are the model's own."""
    big, small = random_table(seed=0), random_table(seed=1)
    rule = ratio_test(GREEDY)
    prompts = tuple(torch.tensor([i % 5]) for i in range(4))

    def way(target, draft):
        drafts = {} if draft is None else {"d": draft}
        timer = Timer(target, drafts, rule, max_new_tokens=4, repetitions=1, seed=0)
        lane = Lane(None, 0, rule) if draft is None else Lane("d", 2, rule)
        return Way(timer, lane, prompts)

    ways = {"big": way(big, None), "small": way(small, None), "both": way(big, small)}
    reports = []
    races = list(race(ways, 2, lambda done, total: reports.append((done, total))))
    assert reports == [(i + 1, 4) for i in range(4)]
    ids = {name: [one[name].output.ids for one in races] for name in ways}
    assert ids["big"] == ids["both"] != ids["small"]
    found = garden(
        races,
        {"big": ("m", None, 0), "small": ("s", None, 0), "both": ("m", "s", 2)},
        lambda name, outputs: scored([one.ids.count(0) > 0 for one in outputs]),
        "share",
        [(9.0, None)],
    )
    taus = {one["way"]: one["tau"] for one in found["points"]}
    assert taus["big"] is None
    assert taus["both"]["value"] >= 1
    assert found["verdict"].startswith("On the front: ")
