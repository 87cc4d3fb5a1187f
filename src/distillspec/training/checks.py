"""What a recipe's values must be: one line that names the key, what came, what was expected."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeGuard

from distillspec.errors import UserError, nearest


class NotFiniteError(UserError):
    """A training that has left the numbers."""


class StepNotFiniteError(NotFiniteError):
    """A step whose loss or gradient is no number."""

    def __init__(self, message: str, indices: Sequence[int]) -> None:
        """Remember which examples the step was made of, by their number in the data."""
        super().__init__(message)
        self.indices = tuple(indices)


def finite(
    step: int, indices: Sequence[int], source: str, *, loss: float, gradient_norm: float
) -> None:
    """Check a step before its update, so that the weights of the step before stay.

    Args:
        step: The update's number, from 1.
        indices: The examples of its batch, by their number in the data.
        source: Where their completions came from.
        loss: In nats.
        gradient_norm: Before clipping.

    Raises:
        StepNotFiniteError: naming the step and its batch.
    """
    if not math.isfinite(loss) or not math.isfinite(gradient_norm):
        raise StepNotFiniteError(
            f"step {step}: the loss is {loss} and the norm of its gradient {gradient_norm}, on "
            f"{source} data of the examples {', '.join(map(str, indices))} (from 0); no update was "
            "made; try a smaller learning_rate, a clip, or float32",
            indices,
        )


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether `value` is a finite int or float; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def in_range(name: str, value: object, low: float, high: float) -> None:
    """Raise a UserError unless `value` is a number in [low, high]."""
    if not is_number(value) or not low <= value <= high:
        bounds = f"at least {low}" if high == math.inf else f"between {low} and {high}"
        raise UserError(f"{name} must be a number, {bounds}, got {value!r}")


def one_of(name: str, value: object, valid: Sequence[str]) -> None:
    """Raise a UserError unless `value` is one of the valid names."""
    if value not in valid:
        raise UserError(f"unknown {name} {value!r}; use one of: {', '.join(valid)}")


def table(data: Any, where: str) -> dict[str, Any]:
    """Return `data` as a dict if it is a mapping, else raise a UserError."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where} must be a table of settings, got {data!r}")
    return dict(data)


def known(part: type, data: Any, where: str) -> dict[str, Any]:
    """Return `data` as a dict if its keys are fields of the dataclass `part`, and none is missing.

    Raises:
        UserError: naming the key.
    """
    values = table(data, where)
    valid = [field.name for field in fields(part)]
    for key in values:
        if key not in valid:
            raise UserError(f"unknown key {key!r} in {where}; {nearest(str(key), valid)}")
    lacking = [f.name for f in fields(part) if f.default is MISSING and f.name not in values]
    if lacking:
        raise UserError(f"{where} lacks {' and '.join(lacking)}")
    return values
