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
