"""Eval mode for a while: nothing stays changed, whatever happens."""

from __future__ import annotations

import pytest
import torch

from distillspec.models.modes import evaluation_mode


def test_the_modes_come_back_after_an_error_too():
    module = torch.nn.Dropout()
    with pytest.raises(ZeroDivisionError), evaluation_mode(module):
        1 / module.training
    assert module.training


def test_every_part_is_switched_and_gets_its_own_mode_back():
    """A frozen part in eval mode within a draft that trains, and the other way round."""
    module = torch.nn.Sequential(
        torch.nn.Dropout(), torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(1, 1))
    )
    module[1].train(False)
    module[1][1].train()
    before = [part.training for part in module.modules()]
    assert before == [True, True, False, False, True]
    with evaluation_mode(module):
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.modules()] == before
