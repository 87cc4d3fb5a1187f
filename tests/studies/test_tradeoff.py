"""`tradeoff` on exact tables: laws of its points, and what is picked of points made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distillspec.math.rules import Rule, ratio_test
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.math.verification import exponential, linear, squared
from distillspec.studies.clock import Timer
from distillspec.studies.outputs import seeded
from distillspec.studies.tradeoff import LOSSLESS, Setting, lanes, pick, tradeoff, verdict
from distillspec.tasks.metrics import Scored
from support import random_table

SIZE, LENGTH = 5, 3


def judge(outputs):
    """Count token 0: its share has a law that can be computed."""
    columns = [[one.ids.count(0), LENGTH] for one in outputs]
    return Scored(("zeros", "tokens"), np.array(columns, dtype=np.float64), {"zeros": share})


def share(sums):
    return 100.0 * sums[:, 0] / sums[:, 1]


def timer_of(sampling):
    return Timer(
        target=random_table(seed=0),
        drafts={"near": random_table(seed=0), "far": random_table(seed=0, scale=-1.0)},
        rule=ratio_test(sampling),
        max_new_tokens=LENGTH,
        repetitions=1,
        seed=0,
    )


def raced(settings, *, prompts=8, sampling=None):
    timer = timer_of(Sampling() if sampling is None else sampling)
    return list(timer.race([torch.tensor([1])] * prompts, lanes(settings, 2), lambda *_: None))


def setting(lenience=None, *, draft="far", sampling=None):
    sampling = Sampling() if sampling is None else sampling
    if lenience is None:
        return Setting(draft, LOSSLESS, None, ratio_test(sampling))
    rule = Rule(sampling, sampling, lenience=lenience)
    return Setting(draft, type(lenience).__name__, lenience.eps, rule)


def share_of_zero():
    """The exact expected share of token 0 in three tokens after token 1."""
    steps = random_table(seed=0).logits.detach().softmax(-1)
    law, total = torch.eye(SIZE, dtype=torch.float64)[1], 0.0
    for _ in range(LENGTH):
        law = law @ steps
        total += float(law[0])
    return total / LENGTH


def test_the_lossless_point_has_the_targets_law_and_a_lenient_one_has_not():
    """|z| ≤ 4 for the lossless point, a false alarm once in 16,000 seeds; the seed is fixed."""
    prompts, expected = [torch.tensor([1])] * 2000, share_of_zero()
    z = []
    for lane in lanes([setting(), setting(linear(0.05))], 2).values():
        outputs = timer_of(Sampling()).run(prompts, lane, seeded(0, 2000)).outputs
        shares = np.array([one.ids.count(0) / LENGTH for one in outputs])
        z.append((shares.mean() - expected) / (shares.std() / len(shares) ** 0.5))
    assert abs(z[0]) <= 4
    assert abs(z[1]) > 4


@pytest.mark.parametrize("sampling", [Sampling(), GREEDY])
@pytest.mark.parametrize("lenience", [linear(1.0), squared(1.0), exponential(1.0)])
def test_epsilon_1_is_the_lossless_point(sampling, lenience):
    settings = [setting(sampling=sampling), setting(lenience, sampling=sampling)]
    races = raced(settings, sampling=sampling)
    same, lenient = (tuple(race.runs[one.name].output for race in races) for one in settings)
    assert same == lenient
    points = tradeoff(races, settings, judge, "zeros", 2.0)["points"]
    assert points[0]["quality"] == points[1]["quality"]
    assert points[0]["tau"] == points[1]["tau"]


def test_greedy_lossless_points_lose_nothing():
    settings = [setting(sampling=GREEDY), setting(draft="near", sampling=GREEDY)]
    found = tradeoff(raced(settings, sampling=GREEDY), settings, judge, "zeros", 2.0)
    for point in found["points"]:
        assert point["quality_difference"] == {"value": 0, "low": 0, "high": 0}
        assert point["epsilon"] is None
    assert found["points"][1]["tau"]["value"] == 3  # always right: two drafted and the bonus
    assert found["points"][1]["empirical_acceptance"] == 1


def test_more_lenience_accepts_more():
    settings = [setting(), *(setting(linear(eps)) for eps in (0.5, 0.1))]
    taus = [
        point["tau"]["value"]
        for point in tradeoff(raced(settings, prompts=24), settings, judge, "zeros", 2.0)["points"]
    ]
    assert taus == sorted(taus)
    assert taus[0] < taus[-1]


def test_seconds_are_over_those_of_the_target_alone(monkeypatch):
    run = Timer.run

    def scripted(self, prompts, lane, generators):
        done = run(self, prompts, lane, generators)
        seconds = 4.0 if lane.draft is None else 1.0
        return type(done)(done.outputs, 7.0, (seconds,))

    monkeypatch.setattr(Timer, "run", scripted)
    settings = [setting(), setting(linear(0.1))]
    found = tradeoff(raced(settings), settings, judge, "zeros", 2.0)
    assert found["baseline"]["seconds_per_prompt"]["value"] == 4
    assert found["baseline"]["tokens"] == 8 * LENGTH
    for point in found["points"]:
        assert point["relative_latency"]["value"] == 0.25
        assert point["relative_latency_per_token"]["value"] == 0.25
        assert point["tokens"] == 8 * LENGTH


def point(quality, latency, *, draft="d", lenience="linear", epsilon=0.5, alone=40.0):
    one = {"value": latency, "low": latency - 0.1, "high": latency + 0.1}
    change = quality - alone
    return {
        "draft": draft,
        "lenience": lenience,
        "epsilon": epsilon,
        "quality": {"value": quality, "low": quality, "high": quality},
        "quality_difference": {"value": change, "low": change - 1, "high": change + 1},
        "relative_latency": one,
    }


@pytest.mark.parametrize(
    ("max_loss", "expected"),
    [
        (0.0, 0),
        (2.0, 1),  # 0.8 of 40 points are exactly 2 %
        (1.9, 0),
        (10.0, 2),
        (100.0, 3),
    ],
)
def test_the_fastest_within_the_loss_is_picked(max_loss, expected):
    points = [point(40, 0.9), point(39.2, 0.7), point(38, 0.6), point(1, 0.3), point(41, 0.95)]
    assert pick(points, 40.0, max_loss) == expected


def test_the_verdict_names_the_pick_and_tells_the_interval():
    points = [point(40, 0.9, lenience="lossless", epsilon=None), point(39.2, 0.7)]
    assert verdict(points, 40.0, 2.0, 1, "accuracy") == (
        "Use d with linear lenience, ε = 0.5: 0.70 [0.60, 0.80] of the target's time, accuracy "
        "changed by -0.8 [-1.8, +0.2] of 40.0 points (a loss of at most 2 % was allowed)."
    )
    assert "Use d with lossless: 0.90" in verdict(points, 40.0, 0.0, 0, "accuracy")


def test_nothing_is_picked_where_nothing_can_be_lost():
    assert pick([point(0, 0.5, alone=0.0)], 0.0, 2.0) is None
    said = verdict([point(0, 0.5, alone=0.0)], 0.0, 2.0, None, "accuracy")
    assert said == "Nothing can be picked: the accuracy of the target alone is 0."


def test_nothing_is_picked_where_all_lose_too_much():
    assert pick([point(30, 0.5)], 40.0, 2.0) is None
    assert "every setting loses more than 2 %" in verdict([point(30, 0.5)], 40.0, 2.0, None, "x")


def test_what_is_slower_than_the_target_alone_is_not_picked():
    """The bug looked for: the fastest of slow settings recommended."""
    points = [point(40, 1.2), point(40, 1.1), point(1, 0.4)]
    assert pick(points, 40.0, 2.0) is None
    said = verdict(points, 40.0, 2.0, None, "accuracy")
    assert said.startswith("Use the target alone: the fastest setting")
    assert "takes 1.10 of its time" in said


def test_two_epsilons_that_round_alike_are_two_settings():
    """The bug: both were called "linear 0.1", and one had the other's runs."""
    settings = [setting(linear(0.1)), setting(linear(0.1 + 1e-9))]
    assert len(lanes(settings, 2)) == 2


def test_answers_that_are_all_right_leave_room_as_in_evaluate():
    """The bug: resampling gave [100, 100]."""

    def all_right(outputs):
        return Scored(("right", "all"), np.ones((len(outputs), 2)), {"right": share})

    found = tradeoff(raced([setting()]), [setting()], all_right, "right", 2.0)
    for quality in (found["baseline"]["quality"], found["points"][0]["quality"]):
        assert quality["low"] < quality["value"] == 100


def test_one_prompt_is_said_to_be_one():
    found = tradeoff(raced([setting()], prompts=1), [setting()], judge, "zeros", 2.0)
    assert "one prompt, which gives no interval" in found["verdict"]
    found = tradeoff(raced([setting()], prompts=2), [setting()], judge, "zeros", 2.0)
    assert "one prompt" not in found["verdict"]
