"""Prompts from a file or a task, each row checked.

A `.jsonl` file (or `.jsonl.gz`) has one JSON object a line with `prompt` (and perhaps `target`),
`input` and `target`, or `messages`; it may add `id` and `domain`, and other keys are left alone. A
`.txt` file has one prompt a line. Blank lines are passed over. A `.toml` file is a task of one's
own. Anything else is a task's name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from distillspec.errors import UserError, nearest
from distillspec.tasks.lines import Problem, row_of, scan
from distillspec.tasks.rows import Row
from distillspec.tasks.task import Task
from distillspec.tasks.toml import task_of

_SUFFIXES = (".jsonl", ".jsonl.gz", ".txt")
# A name and a domain. A file's path may itself hold colons (a Windows drive).
_NAME = re.compile(r"(?P<task>.*\.toml|[^:]*)(?::(?P<domain>.+))?")


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


def read_prompts(path_or_name: str | Path, *, limit: int | None = None) -> list[Row]:
    """Read the rows of a file or task, as they come; the first invalid line ends it.

    Of a benchmark these are the rows to evaluate on: to train on it, `Task.read_training`.

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
            raise UserError(f"{row}; mend the line, or see if the verb has --skip-invalid")
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


def load_task(name: str | Path) -> Task:
    """Load a task of the package, or one's own.

    Args:
        name: a name of `task_names`, or the path of a `.toml` file; with ":DOMAIN" after it for
            the rows of one domain alone, as in "bbh:boolean_expressions".

    Raises:
        UserError: there is no such task or domain, or the file is not right (the key is named).
    """
    match = _NAME.fullmatch(str(name))
    if match is None:
        raise UserError(f"{str(name)!r}: no such task; {nearest(str(name), task_names())}")
    found, domain = match["task"], match["domain"]
    if found.endswith(".toml"):
        path = Path(found)
        task = task_of(_text(path), path.stem, path)
    elif found in task_names():
        file = resources.files("distillspec.tasks").joinpath(f"{found}.toml")
        task = task_of(file.read_text("utf-8"), found, f"{found}.toml")
    else:
        raise UserError(f"{name}: no such task; {nearest(found, task_names())}")
    return task if domain is None else task.only(domain)


def task_named(prompts: str | Path) -> tuple[Task, Path | None] | None:
    """Tell a task from a prompt file.

    Args:
        prompts: a prompt file, a task's name (or TOML file, with ":DOMAIN" if wanted), or
            NAME=FILE for rows of a task that lie in a file.

    Returns:
        The task and its file, None where it has to find its rows itself; None for a prompt file.

    Raises:
        UserError: as `load_task`, where the name is one of a task but the domain is not.
    """
    text = str(prompts)
    name, sign, file = text.partition("=")
    match = _NAME.fullmatch(name)
    if match is None or not (match["task"].endswith(".toml") or match["task"] in task_names()):
        return None
    if sign:
        return load_task(name), Path(file)
    is_file = text.endswith(_SUFFIXES) or (Path(text).is_file() and not text.endswith(".toml"))
    return None if is_file else (load_task(name), None)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start + 1}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _checked(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise UserError(f"limit {limit}: expected at least 1 row")
    return limit


def _not_empty(rows: list[Row], path_or_name: str | Path) -> list[Row]:
    if not rows:
        raise UserError(f"{path_or_name}: no prompts; expected at least one non-empty line")
    return rows


def _scan(path_or_name: str | Path) -> Iterator[Row | Problem]:
    named = task_named(path_or_name)
    if named is not None:
        task, data = named
        return task.rows() if data is None else iter(task.read(data))
    path = Path(path_or_name)
    if path.name.endswith(_SUFFIXES):
        return scan(path, row_of)
    found = "is not a prompt file" if path.exists() else "no such file or task"
    raise UserError(
        f"prompts {str(path_or_name)!r}: {found}; expected a file ending in "
        f"{', '.join(_SUFFIXES)}, or a task: {', '.join(task_names())}"
    )
