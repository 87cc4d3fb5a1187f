"""A run directory: what was asked, on what, what came of it; written so that nothing is half there.

    runs/demo/
      run.json         the resolved settings, versions, seed, commit, device, command, time
      metrics.jsonl    one JSON object a step: counts, never ratios
      result.json      the verb's result, what `--json` prints
      outputs.jsonl    one JSON object an answer: its text, its tokens' roles, its counts
      examples.jsonl   one JSON object a (draft, prompt) of `measure`: counts
      checkpoints/     of training
      …                whatever else the verb writes, and runs within the run, one folder each

Rows of metrics.jsonl, where training wrote them: `step`, `seconds` since the start, `loss` in nats,
`alpha_sum` and `alpha_count` (their ratio is the expected acceptance of the step), `grad_norm`,
`learning_rate`, `tokens`, `source`, `seconds_by_part`. A row of an evaluation on held-out prompts
has `step`, `seconds` and `evaluation`: `alpha_sum`, `alpha_count`, for τ at one `gamma` the
`tokens` and the target `calls`, and `by_prompt` the same, a list each, so that any two evaluations
can be compared in pairs.

A row of outputs.jsonl: `setting` (what differs between a run's passes over the prompts), `draft`
(null: the target alone) and `lenience` (null: a lossless rule), `id`, `domain`, `prompt`, `text`,
`pieces` (the text of each token), `roles` (a letter each: `a` drafted and accepted, `c` the
target's correction after a rejection, `b` the bonus after a wholly accepted block, `t` the target's
own where nothing was drafted), `ids`, `finish_reason`, `target_calls`, `drafted`, `accepted`,
`judged`, and `seconds` of decoding where it was clocked. A row of examples.jsonl: `draft`, `id`,
`domain`, `prompt_tokens`, `tokens`, `alpha_sum`, `gamma`, `calls` (expected target calls at γ).
Imports neither torch nor transformers.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from distillspec.errors import UserError
from distillspec.files import write_whole
from distillspec.studies.provenance import provenance

RECORD, METRICS, RESULT = "run.json", "metrics.jsonl", "result.json"
OUTPUTS, EXAMPLES = "outputs.jsonl", "examples.jsonl"
CHECKPOINTS = "checkpoints"
_FORMAT = "distillspec run 1"
_KEYS = ("verb", "config", "seed", "device", "started", "command", "versions", "code", "machine")

Exists = Literal["refuse", "replace", "continue"]
"""What to do with a folder that holds an earlier run: refuse it, delete that run and start anew, or
go on with it (its record stays, its metrics grow). Each is refused where the folder holds anything
but a run of the same verb. A run that holds its record alone has nothing to lose: a new one takes
its place."""


class UnwritableError(UserError):
    """The disk is full, or does not let a file be written: what there was stays as it was."""


@dataclass(frozen=True)
class Run:
    """A run directory being written."""

    folder: Path
    """The directory."""
    followers: list[Callable[[Mapping[str, Any]], None]] = field(
        default_factory=list, compare=False
    )
    """Each is given every row that `log` has written."""

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        verb: str,
        config: Mapping[str, Any],
        seed: int,
        device: str,
        exists: Exists = "refuse",
    ) -> Run:
        """Make the directory and its run.json, or go on with an earlier run.

        Args:
            folder: the directory; made with its parents.
            verb: the verb that runs, such as "distill".
            config: its resolved settings, ready for JSON.
            seed: where its randomness comes from.
            device: where it computes, such as "cpu".
            exists: what to do where `folder` holds an earlier run.

        Raises:
            UserError: the folder cannot be made, holds other things, or `exists` forbids it.
        """
        folder = Path(folder)
        try:
            earlier = _earlier(folder, verb, exists)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: cannot hold a run: {error.strerror or error}") from error
        run = cls(folder)
        if not earlier:
            about = {"verb": verb, "config": dict(config), "seed": seed, "device": device}
            run.write_json(RECORD, {"format": _FORMAT, **about, **provenance()})
        return run

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl, so that it is there even if the next moment kills us.

        Raises:
            UnwritableError: the disk is full, or the file cannot be written.
            ValueError: the row holds a NaN or an infinity; the message names its key.
        """
        self.append(METRICS, row)
        for follow in self.followers:
            follow(row)

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Append one row to the JSONL file `name`, on file at once.

        Raises:
            UnwritableError: the disk is full, or the file cannot be written.
            ValueError: the row holds a NaN or an infinity; the message names its key.
        """
        line = _dumps(row, name, indent=None)
        path = self.folder / name
        with _writing(path), path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def write_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write the JSONL file `name`, one row a line, whole or not at all.

        Raises:
            UnwritableError: the disk is full, or the folder cannot be written.
            ValueError: a row holds a NaN or an infinity; the message names its key.
        """
        lines = [_dumps(row, name, indent=None) + "\n" for row in rows]
        return write_text(self.folder / name, "".join(lines))

    def rewind(self, step: int) -> None:
        """Drop the rows after `step`, which a killed run wrote past its last checkpoint."""
        path = self.folder / METRICS
        if path.is_file():
            self.write_rows(METRICS, [row for row in read_rows(path) if row["step"] <= step])

    def write_json(self, name: str, value: object) -> Path:
        """Write `value` as the file `name`, whole or not at all.

        Raises:
            UnwritableError: the disk is full, or the folder cannot be written.
            ValueError: it holds a NaN or an infinity; the message names its key.
        """
        return write_text(self.folder / name, _dumps(value, name, indent=2) + "\n")


@dataclass(frozen=True)
class StoredRun:
    """A run directory as read back."""

    folder: Path
    """The directory."""
    record: Mapping[str, Any]
    """run.json."""
    metrics: tuple[Mapping[str, Any], ...]
    """metrics.jsonl, without a last line that was cut off while being written."""
    result: Mapping[str, Any] | None
    """result.json; None if the run did not end or its verb has none."""
    children: tuple[StoredRun, ...]
    """Runs within this run, in the order they were started."""

    def rows(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Read the JSONL file `name` of the run; empty where the run wrote none.

        Raises:
            UserError: a line of it is damaged. A last one that was cut off passes.
        """
        return read_rows(self.folder / name)


def read_run(folder: str | Path) -> StoredRun:
    """Read a run directory and the runs directly within it.

    Raises:
        UserError: it is not a run directory, or a file of it is damaged. A last line of
            metrics.jsonl without its line end is what an interrupted run leaves, and passes.
    """
    folder = Path(folder)
    if not (folder / RECORD).is_file():
        found = "holds no run.json" if folder.is_dir() else "no such folder"
        raise UserError(f"{folder}: {found}; expected the directory of a run (its --out)")
    record = _read_object(folder / RECORD)
    if record.get("format") != _FORMAT:
        raise UserError(f"{folder / RECORD}: not written by this version: expected {_FORMAT!r}")
    missing = [key for key in _KEYS if key not in record]
    if missing:
        raise UserError(f"{folder / RECORD}: damaged: {', '.join(missing)} missing")
    result = _read_object(folder / RESULT) if (folder / RESULT).is_file() else None
    children = [read_run(path.parent) for path in sorted(folder.glob(f"*/{RECORD}"))]
    children.sort(key=lambda child: str(child.record.get("started")))
    return StoredRun(folder, record, read_rows(folder / METRICS), result, tuple(children))


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all: to a temporary name, to the disk, then renamed.

    Raises:
        UnwritableError: the disk is full or the folder cannot be written; an earlier file is
            untouched.
    """
    with _writing(path):
        return write_whole(path, text.encode("utf-8"))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnwritableError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_place(folder: Path, verb: str, exists: Exists = "refuse") -> bool:
    """Tell whether a folder holds an earlier run of the verb, which may be gone on with or go.

    Raises:
        UserError: it holds other things, or an earlier run although `exists` forbids it.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not folder.is_dir() or not (folder / RECORD).is_file():
        raise UserError(f"{folder}: exists and is not a run directory; give --out a new folder")
    record = _read_object(folder / RECORD)
    if record.get("format") != _FORMAT or record.get("verb") != verb:
        found = record.get("verb", "something else")
        raise UserError(
            f"{folder}: holds a run of {found!r}, not {verb!r}; give --out a new folder"
        )
    bare = [path.name for path in folder.iterdir()] == [RECORD]
    if exists == "refuse" and not bare:
        raise UserError(f"{folder}: holds an earlier run; give --out a new folder, or remove it")
    return True


def _earlier(folder: Path, verb: str, exists: Exists) -> bool:
    """Make way for a run; True if it goes on with the one that is there."""
    if not check_place(folder, verb, exists):
        return False
    if exists != "continue":
        real = folder.resolve()  # a link stays, and leads to the new run
        shutil.rmtree(real)
        real.mkdir()
        return False
    for path in folder.glob("*.jsonl"):
        _cut_torn_line(path)
    return True


def _cut_torn_line(path: Path) -> None:
    """Drop what an interrupted `append` left of its line, before the next row is glued to it."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        write_text(path, whole.decode("utf-8"))


def _dumps(value: object, name: str, *, indent: int | None) -> str:
    for path, number in _numbers(value, ()):
        if not math.isfinite(number):
            raise ValueError(
                f"{name}: {'.'.join(path)} is {number}; only measured numbers are kept"
            )
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def _numbers(value: object, path: tuple[str, ...]) -> Sequence[tuple[tuple[str, ...], float]]:
    if isinstance(value, float):
        return [(path, value)]
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return []
    return [found for key, item in items for found in _numbers(item, (*path, key))]


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged, or not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object")
    return value


def read_rows(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Read a JSONL file; one that is not there is empty.

    Raises:
        UserError: a line is damaged. A last one that was cut off passes.
    """
    if not path.is_file():
        return ()
    lines = path.read_bytes().split(b"\n")
    rows = []
    # What follows the last line end is empty, or a line that Ctrl-C or a kill cut off.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line.decode("utf-8"))
        except ValueError as error:
            raise UserError(f"{path}:{number}: damaged, or not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: expected a JSON object")
        rows.append(row)
    return tuple(rows)
