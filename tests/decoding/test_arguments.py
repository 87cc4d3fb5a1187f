"""What is refused before any work is done."""

from __future__ import annotations

import pytest
import torch

from decoding_checks import seeded
from distillspec.decoding import speculate
from distillspec.errors import UserError
from distillspec.math.sampling import GREEDY
from support import random_table
from watched import Watched

ONE = torch.tensor([1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gamma": -1}, "gamma is -1; expected a whole number of at least 0"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"gamma": True}, "gamma is True"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; expected a whole number of at least 1"),
        ({"draft": None}, "gamma is 2 but there is no draft"),
        ({"draft": random_table(6, name="other")}, "id 5 is absent in the target"),
        ({"prompts": []}, "there are no prompts"),
        ({"prompts": [ONE, ONE[:0]]}, "prompt 1 is a torch.int64 tensor of shape \\[0\\]"),
        ({"prompts": [ONE.float()]}, "prompt 0 is a torch.float32 tensor"),
        ({"prompts": [ONE[None]]}, "shape \\[1, 1\\]; expected a 1-D int64 tensor"),
        ({"prompts": [torch.tensor([5])]}, "prompt 0 has ids outside 0…4, those of table"),
        ({"prompts": [ONE.repeat(9)]}, "prompt 0 has 9 tokens, more than the context of 8"),
        ({"stop": (4, 5)}, "stop id 5 lies outside 0…4"),
        ({"generators": seeded(3)}, "3 generators \\(3 different\\) given for 2 prompts"),
        ({"generators": seeded(1) * 2}, "2 generators \\(1 different\\) given for 2 prompts"),
    ],
)
def test_a_users_error_is_one_line_before_any_model_runs(changed, message):
    target, draft = Watched(random_table(context=8)), Watched(random_table(context=8))
    arguments = {
        "draft": draft,
        "prompts": [ONE, ONE],
        "gamma": 2,
        "max_new_tokens": 3,
        "sampling": GREEDY,
        **changed,
    }
    with pytest.raises(UserError, match=message) as error:
        speculate(target, **arguments)
    assert "\n" not in str(error.value)
    assert target.sessions == draft.sessions == []


def test_prompts_as_long_as_the_context_are_served():
    target = random_table(context=8)
    (block,) = speculate(
        target, target, [ONE.repeat(8)], gamma=2, max_new_tokens=3, sampling=GREEDY
    )
    assert len(block.ids[0]) == 1
    assert block.finished == ("length",)
