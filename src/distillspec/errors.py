"""The one exception that means "the user can mend this", and what its messages share."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping


class UserError(ValueError):
    """A user's mistake, told in one line: what was given, what was expected, what to do.

    The command line prints the message without a traceback and exits with code 2.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def nearest(name: str, names: Iterable[str]) -> str:
    """Say what `name` was meant to be: the nearest of `names`, or all of them if none is near."""
    choices = list(names)
    close = difflib.get_close_matches(name, choices, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of: {', '.join(choices)}"


def differences(recorded: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """Say of each wanted value that is recorded otherwise what it was and what it is."""
    return [
        f"{name} was {_short(recorded.get(name))} and is {_short(value)}"
        for name, value in wanted.items()
        if recorded.get(name) != value
    ]


def changes(recorded: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Say of all settings what differs between those recorded as JSON and those of now.

    A setting of then that is none now, such as a penalty left out, differs too.
    """
    as_recorded = json.loads(json.dumps(dict(now)))  # lists for tuples
    return differences(recorded, {**dict.fromkeys(recorded), **as_recorded})


def _short(value: object) -> str:
    """Return a value as a message shows it; of a hash the beginning is enough."""
    text = repr(value)
    return f"{text[:13]}…'" if isinstance(value, str) and len(value) == 64 else text
