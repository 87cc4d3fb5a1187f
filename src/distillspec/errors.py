"""The one exception that means "the user can mend this", and what its messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A user's mistake, told in one line: what was given, what was expected, what to do.

    The command line prints the message without a traceback and exits with code 2.
    """


def nearest(name: str, names: Iterable[str]) -> str:
    """Say what `name` was meant to be: the nearest of `names`, or all of them if none is near."""
    choices = list(names)
    close = difflib.get_close_matches(name, choices, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of: {', '.join(choices)}"
