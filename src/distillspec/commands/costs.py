"""`--cost`: timings of another machine or engine, given by hand."""

from __future__ import annotations

from distillspec.errors import UserError, nearest
from distillspec.math.forecast import Cost

_KEYS = ("target", "draft", "overhead")
_FORM = "expected milliseconds such as target=20,draft=2,overhead=1 or target=20:21:23,draft=2"

_LEAST, _MOST = 1e-6, 1e9
"""Milliseconds; far beyond them ratios of times are no numbers any more."""


def cost_of(text: str, *, widest: int) -> Cost:
    """Read `target=…,draft=…,overhead=…` in milliseconds.

    Args:
        text: target and draft are needed; overhead is 0 unless given. Of target's list the last
            entry stands for all longer passes.
        widest: The longest target pass that will be asked for, in tokens.

    Raises:
        UserError: a key is unknown, missing or given twice, or a time is not positive.
    """
    found: dict[str, list[float]] = {}
    for part in text.split(","):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign:
            raise UserError(f"--cost {text}: {part.strip()!r} is no key=value; {_FORM}")
        if key not in _KEYS:
            raise UserError(f"--cost {text}: unknown key {key!r}; {nearest(key, _KEYS)}")
        if key in found:
            raise UserError(f"--cost {text}: {key} is given twice; keep one of the two")
        found[key] = [_milliseconds(text, key, one) for one in value.split(":")]
    for key in ("target", "draft"):
        if key not in found:
            raise UserError(f"--cost {text}: {key} is missing; {_FORM}")
    for key in ("draft", "overhead"):
        if len(found.get(key, [0.0])) > 1:
            raise UserError(f"--cost {text}: {key} takes one number; {_FORM}")
    target = [seconds / 1e3 for seconds in found["target"]]
    target += target[-1:] * (widest - len(target))
    return Cost(
        target=tuple(target),
        draft=found["draft"][0] / 1e3,
        overhead=found.get("overhead", [0.0])[0] / 1e3,
        overhead_plain=0.0,
    )


def _milliseconds(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise UserError(f"--cost {text}: {key}={value!r} is no number; {_FORM}") from error
    free = key != "target"
    if not (0 < number < float("inf") or (number == 0 and free)):
        least = "0 or more" if free else "above 0"
        raise UserError(f"--cost {text}: {key}={value} must be {least}; {_FORM}")
    if number and not _LEAST <= number <= _MOST:
        raise UserError(
            f"--cost {text}: {key}={value} is no time of a pass (from {_LEAST:g} to {_MOST:g} ms); "
            f"{_FORM}"
        )
    return number
