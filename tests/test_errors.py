"""What errors are told by: one line, whatever a library says."""

import pytest

from distillspec.errors import first_line


@pytest.mark.parametrize(
    ("said", "line"),
    [("one\ntwo", "one"), ("\n  one\n", "one"), ("", "OSError"), (" \n", "OSError")],
)
def test_an_error_is_told_by_its_first_line_or_its_type(said, line):
    assert first_line(OSError(said)) == line
