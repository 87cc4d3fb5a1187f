"""What holds for the tests of verbs."""

from __future__ import annotations

import pytest

from distillspec.studies import clock


@pytest.fixture(autouse=True)
def few_timed_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a verb does with its timings is tested here; that they are enough, with the clock."""
    monkeypatch.setattr(clock, "BLOCKS", 2)
