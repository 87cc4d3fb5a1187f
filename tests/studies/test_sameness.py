"""Near ties told from errors, at the edge of the bound."""

from __future__ import annotations

import pytest
import torch

from distillspec.decoding import Counts, Output
from distillspec.models.toy import TableModel
from distillspec.studies.sameness import Difference, counted, first_difference


def output(ids, states=None):
    states = torch.zeros(len(ids), 3) if states is None else states
    return Output(tuple(ids), ("target",) * len(ids), "length", Counts(), states)


def after_one_token(logits, dtype):
    """The target's own output 0, 0, whose second token follows from these logits."""
    states = torch.tensor([[9.0, 0.0, 0.0], logits], dtype=dtype)
    return TableModel(torch.zeros(3, 3, dtype=dtype)), output([0, 0], states)


@pytest.mark.parametrize(
    ("dtype", "gap", "tie"),
    [
        # From 8 to 16 a unit in the last place is 2^-4 in bfloat16, 2^-7 in float16, 2^-20 in
        # float32.
        (torch.bfloat16, 3 / 16, True),
        (torch.bfloat16, 4 / 16, False),
        (torch.float16, 3 / 128, True),
        (torch.float16, 4 / 128, False),
        (torch.float32, 63 * 2.0**-20, True),
        (torch.float32, 64 * 2.0**-20, False),
        (torch.float32, 3 / 16, False),
    ],
)
def test_a_near_tie_is_a_few_units_of_the_models_own_type(dtype, gap, tie):
    """transformers#39421, unsloth#9708: in 16 bits a pass over one token and one over several
    differ by rounding, which may turn a near tie and nothing else."""
    target, own = after_one_token([10.0, 10.0 - gap, 0.0], dtype)
    found = first_difference(target, own, output([0, 1]), "p1")
    assert found is not None
    assert (found.token, found.gap, found.near_tie) == (1, pytest.approx(gap), tie)


def test_a_third_token_is_no_tie_where_two_others_are():
    """The bug looked for: top-1 and top-2 nearly tie, and the engine emits something else."""
    target, own = after_one_token([10.0, 10.0, 0.0], torch.float32)
    assert first_difference(target, own, output([0, 1]), "p1").near_tie
    assert not first_difference(target, own, output([0, 2]), "p1").near_tie


def test_tokens_after_the_first_difference_say_nothing():
    states = torch.tensor([[10.0, 10.0, 0.0], [10.0, 0.0, 0.0]])
    own = output([0, 0], states)
    found = first_difference(TableModel(torch.zeros(3, 3)), own, output([1, 2]), "p1")
    assert (found.token, found.near_tie) == (0, True)


def test_an_output_that_ends_early_is_no_tie():
    target, own = after_one_token([10.0, 10.0, 0.0], torch.float32)
    found = first_difference(target, own, output([0]), "p1")
    assert (found.token, found.gap, found.near_tie) == (1, None, False)
    assert str(found) == "p1 ends at token 1"


def test_equal_outputs_differ_nowhere():
    target, own = after_one_token([10.0, 10.0, 0.0], torch.float32)
    assert first_difference(target, own, output([0, 0]), "p1") is None


def test_the_counts_add_up():
    tie, error = Difference("a", 1, 0.1, 0.2), Difference("b", 1, 0.3, 0.2)
    found = counted([None, tie, error, None, None])
    assert found == {"checked": 5, "identical": 3, "near_ties": 1, "different": 1}
    assert "b differs at token 1, where the target's logits are 0.3 apart" in str(error)
