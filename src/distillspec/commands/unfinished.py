"""Rows of a file that is being made: on the disk as they are finished, so that a rerun goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distillspec.errors import UserError, changes
from distillspec.files import flush, write_whole


class Unfinished:
    """`OUT.part` beside OUT: what the rows belong to in its first line, then a row a line."""

    def __init__(
        self,
        out: Path,
        belongs: Mapping[str, Any],
        *,
        keep: Callable[[int, dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Begin, or go on where an earlier run with the same settings ended.

        Args:
            out: The file to be made.
            belongs: What decides the rows; a run in which it differs is another run.
            keep: What stays in memory of a row that is on the disk, with its number; None for all.

        Raises:
            UserError: the file holds another run's rows (naming what differs), or it is damaged
                or cannot be written.
        """
        self.out = out
        self.path = out.with_name(f"{out.name}.part")
        self.rows: dict[int, dict[str, Any]] = {}
        """What is kept of finished rows, by the prompt's number."""
        self._keep = keep
        try:
            if self.path.exists():
                self._read(belongs)
            if not self.rows:  # where nothing is finished yet, there is no run to go on with
                out.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.path, _line({"unfinished": dict(belongs)}))
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from error

    def add(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> None:
        """Put finished rows on the disk.

        Raises:
            UserError: the disk is full; the rows before stay, and a rerun goes on from them.
        """
        try:
            with self.path.open("ab") as file:
                file.write(b"".join(_line({"number": i, "row": row}) for i, row in rows))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from error
        for i, row in rows:
            self._take(i, row)

    def finish(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the file whole or not at all, and drop what it was made from.

        Raises:
            UserError: the disk is full; a rerun finishes it.
        """
        try:
            write_whole(self.out, b"".join(_line(row) for row in rows))
            self.path.unlink()
            flush(self.path.parent)
        except OSError as error:
            raise UserError(f"{self.out}: cannot be written: {error.strerror}") from error

    def _take(self, number: int, row: dict[str, Any]) -> None:
        self.rows[number] = row if self._keep is None else self._keep(number, row)

    def _read(self, belongs: Mapping[str, Any]) -> None:
        """Take the rows one by one, so that no more is in memory than is kept of them."""
        count = 0
        with self.path.open("rb") as file:
            with self._understood():
                recorded = dict(json.loads(file.readline())["unfinished"])
            stale, end = changes(recorded, belongs), file.tell()
            for line in file:
                if not line.endswith(b"\n"):  # a kill cut it off
                    break
                with self._understood():
                    found = json.loads(line)
                    number, row = int(found["number"]), dict(found["row"])
                count, end = count + 1, end + len(line)
                if not stale:
                    self._take(number, row)
        if stale and count:
            raise UserError(
                f"{self.path} has {count} rows of another run ({'; '.join(stale)}); give "
                "the same settings to go on with it, remove it, or give another --out"
            )
        os.truncate(self.path, end)

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.path}: not what an interrupted run leaves; remove it, or give another --out"
            ) from error


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode()
