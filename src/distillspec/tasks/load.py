"""Prompts from a file or a task, each row checked.

A `.jsonl` file (or `.jsonl.gz`) has one JSON object a line with `prompt` (and perhaps `target`),
`input` and `target`, or `messages`; it may add `id` and `domain`, and other keys are left alone. A
`.txt` file has one prompt a line. Blank lines are passed over. Anything else is a task's name.
"""

from __future__ import annotations

import gzip
import itertools
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from distillspec.errors import UserError, nearest
from distillspec.tasks import stdlib
from distillspec.tasks.lines import Problem, row_of
from distillspec.tasks.rows import Row

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SUFFIXES = (".jsonl", ".jsonl.gz", ".txt")


@dataclass(frozen=True)
class Reading:
    """A file read with its invalid lines left out."""

    rows: tuple[Row, ...]
    """What was kept."""
    skipped: tuple[str, ...]
    """What was not, one "file:line: reason" each."""

    def __str__(self) -> str:
        """Count them, for the user to see that lines are missing."""
        kept, skipped = len(self.rows), len(self.skipped)
        text = f"{kept + skipped} lines read, {kept} kept, {skipped} skipped"
        return f"{text} (first: {self.skipped[0]})" if skipped else text


@dataclass(frozen=True)
class Task:
    """A data set the package knows how to make: the content of tasks/NAME.toml."""

    name: str
    """Its file's name."""
    description: str
    """One sentence for a list of tasks."""
    source: str
    """Where the texts come from; so far "stdlib", the running Python's standard library."""
    prompt: str
    """The prompt, with `{source}` where the text goes."""
    source_characters: tuple[int, int]
    """Least and greatest length of the text."""
    held_out: float
    """Share of the prompts that measuring uses and training must not."""

    def rows(self) -> Iterator[Row]:
        """Make the rows, in an order that is always the same and fair to cut short."""
        for function in stdlib.functions(characters=self.source_characters):
            prompt = self.prompt.replace("{source}", function.source)
            yield Row(function.id, prompt, function.docstring, domain=self.name)


def read_prompts(path_or_name: str | Path, *, limit: int | None = None) -> list[Row]:
    """Read the rows of a file or task; the first invalid line ends it.

    Args:
        path_or_name: a file (see above) or a task name.
        limit: read at most this many rows; None reads all.

    Raises:
        UserError: no such file or task, an unreadable or empty one, or an invalid line, named as
            "file:line: reason".
    """
    rows: list[Row] = []
    for row in itertools.islice(_scan(path_or_name), _checked(limit)):
        if isinstance(row, Problem):
            raise UserError(f"{row}; mend the line, or skip invalid ones")
        rows.append(row)
    return _not_empty(rows, path_or_name)


def read_valid_prompts(path_or_name: str | Path, *, limit: int | None = None) -> Reading:
    """Read the valid rows of a file or task, and say which lines were not.

    Args:
        path_or_name: as for `read_prompts`.
        limit: stop after this many valid rows; None reads all.

    Raises:
        UserError: no such file or task, an unreadable one, or none of its lines is valid.
    """
    rows: list[Row] = []
    skipped: list[str] = []
    limit = _checked(limit)
    for row in _scan(path_or_name):
        if isinstance(row, Problem):
            skipped.append(str(row))
        else:
            rows.append(row)
        if len(rows) == limit:
            break
    if skipped and not rows:
        raise UserError(f"{path_or_name}: none of {len(skipped)} lines is valid; {skipped[0]}")
    return Reading(tuple(_not_empty(rows, path_or_name)), tuple(skipped))


def task_names() -> list[str]:
    """List the tasks the package has."""
    files = resources.files("distillspec.tasks").iterdir()
    return sorted(file.name[:-5] for file in files if file.name.endswith(".toml"))


def load_task(name: str) -> Task:
    """Read tasks/NAME.toml.

    Raises:
        UserError: there is no such task.
        ValueError: the file has unknown or missing keys, or a source nobody makes.
    """
    if name not in task_names():
        raise UserError(f"{name}: no such task; {nearest(name, task_names())}")
    text = resources.files("distillspec.tasks").joinpath(f"{name}.toml").read_text("utf-8")
    return _task(name, tomllib.loads(text))


def _task(name: str, values: dict[str, Any]) -> Task:
    expected = set(get_type_hints(Task)) - {"name"}
    if set(values) != expected:
        raise ValueError(f"{name}.toml: expected the keys {sorted(expected)}, not {sorted(values)}")
    least, greatest = values.pop("source_characters")
    task = Task(name=name, source_characters=(least, greatest), **values)
    if task.source != "stdlib" or "{source}" not in task.prompt:
        raise ValueError(f"{name}.toml: source must be 'stdlib' and the prompt hold '{{source}}'")
    return task


def _checked(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise UserError(f"limit {limit}: expected at least 1 row")
    return limit


def _not_empty(rows: list[Row], path_or_name: str | Path) -> list[Row]:
    if not rows:
        raise UserError(f"{path_or_name}: no prompts; expected at least one non-empty line")
    return rows


def _scan(path_or_name: str | Path) -> Iterator[Row | Problem]:
    path = Path(path_or_name)
    if str(path_or_name) in task_names() and not path.is_file():
        return load_task(str(path_or_name)).rows()
    if not path.name.endswith(_SUFFIXES):
        found = "is not a prompt file" if path.exists() else "no such file or task"
        raise UserError(
            f"prompts {str(path_or_name)!r}: {found}; expected a file ending in "
            f"{', '.join(_SUFFIXES)}, or a task: {', '.join(task_names())}"
        )
    return _scan_file(path)


def _scan_file(path: Path) -> Iterator[Row | Problem]:
    ids: set[str] = set()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                row = row_of(line, path, number)
                if isinstance(row, Row) and row.id in ids:
                    yield Problem(path, number, f"the id {row.id!r} was given to an earlier line")
                elif row is not None:
                    ids.update([row.id] if isinstance(row, Row) else [])
                    yield row
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read: {reason}") from error
