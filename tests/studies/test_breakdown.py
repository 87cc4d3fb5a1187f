"""Acceptance by position, context and domain, held against the engine and against the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distillspec.decoding import speculate
from distillspec.math.forecast import expected_positions
from distillspec.math.rules import argmax_draft, ratio_test
from distillspec.math.sampling import Sampling
from distillspec.studies.breakdown import by_context, by_domain, by_position, deviation, kinds
from distillspec.studies.outputs import Scores, TargetOutputs, score, seeded
from support import random_table


def engine_counts(rule, gamma, *, prompts, tokens=20):
    """Run the engine; return its outputs, and judged and accepted tokens by position."""
    target, draft = random_table(seed=0), random_table(seed=3)
    asked = [torch.tensor([i % 5]) for i in range(prompts)]
    judged, accepted = np.zeros(gamma), np.zeros(gamma)
    ids, states = [[] for _ in asked], [[] for _ in asked]
    for block in speculate(
        target,
        draft,
        asked,
        gamma=gamma,
        max_new_tokens=tokens,
        sampling=rule.sampling,
        draft_sampling=rule.draft_sampling,
        generators=seeded(0, prompts),
    ):
        for i, row in enumerate(block.rows):
            judged[: block.judged[i]] += 1
            accepted[: block.accepted[i]] += 1
            ids[row] += block.ids[i]
            states[row].append(block.states[i])
    outputs = TargetOutputs(
        tuple(asked), tuple(map(torch.tensor, ids)), tuple(map(torch.cat, states)), rule.sampling
    )
    scores = score(target, draft, outputs, rule, batch_size=8)
    return scores, judged, accepted


def test_positions_are_exactly_the_engines_where_nothing_is_left_to_chance():
    scores, judged, accepted = engine_counts(argmax_draft(Sampling()), 4, prompts=12)
    found = [expected_positions(ratios, 4) for ratios in scores.ratios]
    assert sum(one.judged for one in found) == pytest.approx(judged)
    assert sum(one.accepted for one in found) == pytest.approx(accepted)
    assert accepted[-1] > 0, "no block was accepted whole: the test shows little"


def test_positions_are_the_engines_in_expectation():
    """400 outputs: each count within 4 binomial deviations, a false alarm once in 2,000 seeds."""
    scores, judged, accepted = engine_counts(ratio_test(Sampling()), 3, prompts=400)
    rows = by_position(scores, 3)["positions"]
    for k, row in enumerate(rows):
        deviation = np.sqrt(judged[k] * row["rate"]["value"] * (1 - row["rate"]["value"]))
        assert abs(accepted[k] - judged[k] * row["rate"]["value"]) <= 4 * deviation
        assert row["judged"] == pytest.approx(judged[k], rel=0.05)


def scores_of(*rows):
    values = tuple(torch.tensor(row, dtype=torch.float64) for row in rows)
    return Scores(values, values)


def test_contexts_are_counted_from_the_prompts_length():
    rows = by_context(scores_of([0.5, 1.0, 0.0], [1.0]), [30, 70])
    assert [(row["from"], row["to"], row["tokens"]) for row in rows] == [
        (0, 31, 2),
        (32, 63, 1),
        (64, 127, 1),
    ]
    assert [row["alpha"]["value"] for row in rows] == [0.75, 0.0, 1.0]


def test_a_single_domain_is_no_breakdown():
    scores = scores_of([0.5, 1.0], [1.0, 1.0])
    assert by_domain(scores, 2, [None, None]) == []
    assert by_domain(scores, 2, ["a", "a"]) == []
    first, second = by_domain(scores, 2, ["b", "a"])
    assert (first["domain"], first["alpha"]["value"]) == ("a", 1.0)
    assert (second["domain"], second["alpha"]["value"]) == ("b", 0.75)


def test_positions_that_no_block_reaches_are_left_out():
    rows = by_position(scores_of([0.0, 0.0, 0.0, 0.0]), 3)["positions"]
    assert [(row["position"], row["judged"], row["rate"]["value"]) for row in rows] == [(1, 3, 0)]


def test_without_variance_counts_agree_or_there_is_no_law_to_hold_them_against():
    expected, none = np.array([3.0, 2.0]), np.zeros(2)
    assert deviation(expected + 1e-9, expected, none + 1e-12) == 0  # rounding is no variance
    assert deviation(expected + 1, expected, none) is None
    assert deviation(expected + 1, expected, np.array([1.0, 3.0])) == 1


def test_there_are_kinds_of_prompts_where_there_are_two():
    assert kinds(["b", None, "a", "b"]) == [("a", [2]), ("b", [0, 3])]
    assert kinds(["a", None, "a"]) == []
