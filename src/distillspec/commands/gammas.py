"""`--gamma` where it may also name a rule, and the cost that the rule needs."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from distillspec.commands.costs import cost_of
from distillspec.commands.progress import console
from distillspec.decoding import Gammas, Optimal, Schedule
from distillspec.errors import UserError
from distillspec.math.forecast import Cost
from distillspec.math.rules import Rule
from distillspec.models.adapter import TransformersModel
from distillspec.studies.quick import measure_cost

WIDEST = 9
"""Target passes, in tokens, up to which a cost given by hand is used: γ = 8."""


def gamma_of(
    text: str,
    cost: str | None,
    *,
    target: TransformersModel,
    draft: TransformersModel | None,
    prompt: Tensor,
    rule: Rule,
) -> int | Gammas:
    """Read `--gamma` and `--cost`; for `auto` without a cost the pair is timed on the prompt.

    Raises:
        UserError: naming the flag that cannot be used.
    """
    if cost is not None and text != "auto":
        raise UserError(f"--cost is for --gamma auto, and --gamma is {text}; leave one out")
    if text not in ("auto", "schedule"):
        if not (text.isascii() and text.isdigit()):
            raise UserError(
                f"--gamma {text}: expected a whole number of at least 0, auto or schedule"
            )
        return 0 if draft is None else int(text)
    if draft is None:
        return 0
    if text == "schedule":
        return Schedule()
    if cost is not None:
        return Optimal(read_cost(cost))
    console().print("timing the pair to choose gamma by; --cost takes a known cost")
    return Optimal(measure_cost(target, draft, [prompt], rule=rule))


def read_cost(text: str) -> Cost:
    """Read a cost given by hand, or the JSON that `measure --json` printed into a file.

    Raises:
        UserError: it is neither.
    """
    if "=" in text and not Path(text).exists():
        return cost_of(text, widest=WIDEST)
    try:
        row = json.loads(Path(text).read_text(encoding="utf-8"))["cost"]
        return Cost(
            target=tuple(1e-3 * float(one) for one in row["target_ms_by_tokens"]),
            draft=1e-3 * float(row["draft_ms"]),
            overhead=1e-3 * float(row["overhead_ms"]),
            overhead_plain=1e-3 * float(row["overhead_plain_ms"]),
        )
    except OSError as error:
        raise UserError(f"--cost {text}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"--cost {text}: expected the JSON object that measure --json prints for one draft, or "
            f"target=20,draft=2,overhead=1 ({type(error).__name__}: {error})"
        ) from error
