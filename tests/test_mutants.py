"""Every mutant of our code is caught by every check that claims to catch it.

The checks pass on the code as it is (tests/decoding/), so a failure here is the mutant's doing.
"""

from __future__ import annotations

import pytest

from mutants import MUTANTS, applied

KILLS = [(mutant, check) for mutant in MUTANTS for check in mutant.caught_by]


@pytest.mark.parametrize(
    ("mutant", "check"), KILLS, ids=[f"{m.name}-{c.__name__}" for m, c in KILLS]
)
def test_the_check_notices_the_mutant(mutant, check):
    with applied(mutant):
        try:
            check()
        except Exception:  # a crash is noticed too
            return
    pytest.fail(f"{check.__name__} passes although {mutant.name}")


def test_the_original_comes_back():
    mutant = MUTANTS[0]
    code = mutant.function.__code__
    with applied(mutant):
        assert mutant.function.__code__ is not code
    assert mutant.function.__code__ is code
