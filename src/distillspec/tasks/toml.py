"""A task's TOML file read into its dataclass; an unknown key is refused."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from distillspec.errors import UserError, nearest
from distillspec.tasks.records import Domain
from distillspec.tasks.task import Task

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

METRICS = ("rouge", "bleu", "gsm8k", "bbh", "none")
"""The metrics a task may name; `metrics.metric_of` makes them."""


def task_of(text: str, name: str, where: str | Path) -> Task:
    """Read a task.

    Args:
        text: the content of the file.
        name: the task's name.
        where: the file, for messages.

    Raises:
        UserError: naming the file and the key: not TOML, an unknown or missing key, a value of a
            wrong type, a template without its place.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where}: not TOML: {error}") from error
    task: Task = _table(Task, values, f"{where}", name=name)
    _check(task, where)
    return task


def _check(task: Task, where: str | Path) -> None:
    if task.prompt.count("{input}") != 1:
        raise UserError(f"{where}: prompt: expected '{{input}}' in it once, got {task.prompt!r}")
    places = [task.shot.find("{prompt}"), task.shot.find("{target}")]
    twice = any(task.shot.count(place) != 1 for place in ("{prompt}", "{target}"))
    if twice or places != sorted(places):
        raise UserError(f"{where}: shot: expected '{{prompt}}' and then '{{target}}', once each")
    if task.metric not in METRICS:
        raise UserError(
            f"{where}: metric: unknown value {task.metric!r}; {nearest(task.metric, METRICS)}"
        )
    for key in ("max_input_tokens", "max_output_tokens", "continuation"):
        number = getattr(task, key)
        if number is not None and number < 1:
            raise UserError(f"{where}: {key}: expected at least 1, got {number}")
    if task.stdlib is not None and len(task.stdlib.characters) != 2:
        raise UserError(f"{where}: stdlib.characters: expected least and greatest length")


def _table(kind: type, values: Mapping[str, Any], where: str, **known: str) -> Any:
    """Make a dataclass of a table."""
    hints = get_type_hints(kind)
    # What is chosen of a task is no key of its file
    keys = [field for field in dataclasses.fields(kind) if field.name not in {*known, "chosen"}]
    names = [field.name for field in keys]
    for key in values:
        if key not in names:
            raise UserError(f"{where}: unknown key {key!r}; {nearest(key, names)}")
    for field in keys:
        if field.default is dataclasses.MISSING and field.name not in values:
            raise UserError(f"{where}: the key {field.name!r} is missing")
    made = {key: _value(value, hints[key], f"{where}: {key}") for key, value in values.items()}
    return kind(**known, **made)


def _value(value: object, hint: Any, where: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(choice for choice in get_args(hint) if choice is not type(None))
    if hint == tuple[Domain, ...]:
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected a table of lists, name = [subsets]")
        lists = {
            name: _value(item, tuple[str, ...], f"{where}.{name}") for name, item in value.items()
        }
        return tuple(Domain(name, subsets) for name, subsets in lists.items())
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected a table")
        return _table(hint if isinstance(hint, type) else type(hint), value, where)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if not isinstance(value, list) or not value:
            raise UserError(f"{where}: expected a list of {item.__name__}, got {value!r}")
        return tuple(_value(part, item, where) for part in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or isinstance(value, bool):
        raise UserError(f"{where}: expected {hint.__name__}, got {value!r}")
    return value
