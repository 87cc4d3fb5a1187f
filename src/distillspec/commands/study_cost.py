"""`study cost`: what the training of a study would take, foreseen from sizes alone.

Memory: weights, gradients and optimizer state of the model in training and the weights of its
target, in float32; activations and logits come on top. Arithmetic: 2 operations a parameter and
token of a forward pass and 4 of a backward pass, tokens counted at the task's limits, so at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from distillspec.commands.new_model import sizes_of
from distillspec.commands.plan import STEPS, Planned
from distillspec.commands.plans import distill_recipe
from distillspec.errors import UserError
from distillspec.models.scratch import parameters
from distillspec.settings import build
from distillspec.studies.grid import Cell
from distillspec.tasks import task_named

BYTES = 4
"""Of a weight in float32."""
MOMENTS = {"adafactor": 0, "adamw": 2}
"""What an optimizer keeps of every weight, in weights; Adafactor's rows and columns are little."""
SPEED = 1e14
"""Operations a second that `hours` are for: about what an A100 sustains in bfloat16."""


class Cost(TypedDict):
    """What training one cell takes; None where the sizes are not known."""

    cell: str
    parameters: float | None
    memory_gib: float | None
    operations: float | None
    hours: float | None


def costs(planned: Planned) -> list[Cost]:
    """Foresee every training cell."""
    found = []
    for cell in planned.keys:
        if cell.verb not in ("sft", "distill"):
            continue
        own = _size(cell, "draft", planned)
        target = _size(cell, "target", planned) if cell.verb == "distill" else 0.0
        memory, operations = _memory(cell, own, target, planned), None
        tokens = _tokens(planned.settings[cell])
        if own is not None and target is not None and tokens is not None:
            operations = _operations(cell, own, target, tokens, planned)
        found.append(
            Cost(
                cell=cell.title,
                parameters=own,
                memory_gib=memory,
                operations=operations,
                hours=None if operations is None else operations / SPEED / 3600,
            )
        )
    return found


def _size(cell: Cell, role: str, planned: Planned) -> float | None:
    """Return how many parameters the model of a setting has, if that is known."""
    named = cell.settings.get(role)
    if not isinstance(named, str) or not named.startswith("$"):
        return None
    if named not in cell.needs:
        return planned.study.parameters.get(named.strip("${}"))
    (source,) = cell.needs[named]
    if source.verb in ("sft", "distill"):
        return _size(source, "draft", planned)
    return _fresh(source, planned) if source.verb == "new-model" else None


def _fresh(cell: Cell, planned: Planned) -> float | None:
    vocabulary = _vocabulary(cell, planned)
    if vocabulary is None:
        return None
    sizes = build(STEPS["new-model"].settings, _texts(cell), cell.where)
    return float(parameters(sizes_of(sizes), vocabulary))


def _vocabulary(cell: Cell, planned: Planned) -> int | None:
    """Return how many ids a cell's model knows, if that can be said without reading a model."""
    role = {"new-model": "tokenizer", "sft": "draft", "distill": "draft"}.get(cell.verb)
    named = None if role is None else cell.settings.get(role)
    if cell.verb == "new-model" and named is None:
        return int(planned.settings[cell]["vocabulary"])
    lent = cell.needs.get(str(named))
    return None if lent is None else _vocabulary(lent[0], planned)


def _texts(cell: Cell) -> dict[str, Any]:
    return {**cell.written(lambda name: name, lambda one: one.step), "out": "out"}


def _memory(cell: Cell, own: float | None, target: float | None, planned: Planned) -> float | None:
    if own is None or target is None:
        return None
    kept = 2 + MOMENTS[planned.settings[cell]["optimizer"]]
    return BYTES * (kept * own + target) / 2**30


def _tokens(settings: Mapping[str, Any]) -> int | None:
    """Return the most tokens of one example, by its task; None for a file of prompts."""
    try:
        named = task_named(str(settings["prompts"]).partition("=")[0])
    except UserError:
        return None
    if named is None or named[0].max_input_tokens is None or named[0].max_output_tokens is None:
        return None
    return named[0].max_input_tokens + named[0].max_output_tokens


def _operations(
    cell: Cell, own: float, target: float, tokens: int, planned: Planned
) -> float | None:
    settings = planned.settings[cell]
    steps = settings["steps"]
    if steps is None:
        return None
    work = 6 * own
    if cell.verb == "distill":
        mixture = distill_recipe(build(STEPS["distill"].settings, _texts(cell), cell.where)).mixture
        work += 2 * target + 2 * own * mixture.draft + 2 * target * mixture.target
    return float(steps * settings["batch_size"] * tokens * work)


def line_of(cost: Cost) -> str:
    """Write one cell's cost for people."""
    if cost["memory_gib"] is None:
        return f"  {cost['cell']:<40} of unknown size"
    size = "" if cost["parameters"] is None else f"{cost['parameters'] / 1e6:8.0f}M"
    work = (
        "arithmetic unknown"
        if cost["operations"] is None or cost["hours"] is None
        else f"{cost['operations']:.1e} operations, {cost['hours']:.0f} h at 100 TFLOP/s"
    )
    return f"  {cost['cell']:<40} {size} {cost['memory_gib']:6.1f} GiB and activations, {work}"
