"""Seconds of the forecast on outputs whose acceptance and cost are known."""

from __future__ import annotations

import pytest
import torch

from distillspec.math.forecast import Cost
from distillspec.math.rules import ratio_test
from distillspec.math.sampling import Sampling
from distillspec.studies.breakdown import blocks
from distillspec.studies.forecast import Prompts, forecast, gain
from distillspec.studies.outputs import Scores

COST = Cost(target=(10.0, 12.0, 15.0, 19.0), draft=2.0, overhead=1.0, overhead_plain=0.5)
SURE = (torch.ones(9, dtype=torch.float64),)
"""One answer of nine tokens whose drafted tokens are all accepted: blocks of 4, 4 and 1."""


def scored(limits):
    return Scores(SURE, SURE, limits)


def test_an_answer_cut_at_its_length_pays_for_what_its_last_block_drafts():
    """Two blocks of γ = 3 and one of 0: the last token needs no draft."""
    scores = scored((9,))
    assert blocks(scores, 3).tolist() == [[1, 0, 0, 2]]
    want = 9 * 10.5 / (2 * (19 + 6 + 1) + 10.5)
    assert gain(scores, blocks(scores, 3), COST)["value"] == pytest.approx(want)


@pytest.mark.parametrize("limits", [(None,), None])
def test_an_answer_that_ended_by_itself_or_a_log_pays_for_full_blocks(limits):
    scores = scored(limits)
    assert blocks(scores, 3).tolist() == [[0, 0, 0, 3]]
    assert gain(scores, blocks(scores, 3), COST)["value"] == pytest.approx(9 * 10.5 / (3 * 26))


def test_beside_other_rows_a_short_block_saves_nothing():
    costs = {1: COST, 4: COST}
    found = forecast(
        scored((9,)), Prompts((5,), (None,)), ratio_test(Sampling()), costs, gammas=(1, 3)
    )
    one, four = (
        [row["speedup_forecast"]["value"] for row in b["gammas"]] for b in found["batches"]
    )
    assert one == [row["speedup_forecast"]["value"] for row in found["gammas"]]
    assert four[1] == pytest.approx(9 * 10.5 / (3 * 26))
    assert four[0] == pytest.approx(9 * 10.5 / (5 * 15))
    assert found["best_gamma"] == 3
