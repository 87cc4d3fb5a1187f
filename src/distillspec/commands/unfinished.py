"""Rows of a file that is being made: on the disk as they are finished, so that a rerun goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distillspec.errors import UserError, changes
from distillspec.files import flush, write_whole


class Unfinished:
    """`OUT.part` beside OUT: what the rows belong to in its first line, then a row a line."""

    def __init__(self, out: Path, belongs: Mapping[str, Any]) -> None:
        """Begin, or go on where an earlier run with the same settings ended.

        Args:
            out: The file to be made.
            belongs: What decides the rows; a run in which it differs is another run.

        Raises:
            UserError: the file holds another run's rows (naming what differs), or it is damaged
                or cannot be written.
        """
        self.out = out
        self.path = out.with_name(f"{out.name}.part")
        self.rows: dict[int, dict[str, Any]] = {}
        """Finished rows by the prompt's number."""
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
        self.rows |= dict(rows)

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

    def _read(self, belongs: Mapping[str, Any]) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            first, *lines = [json.loads(line) for line in whole.splitlines()]
            recorded = dict(first["unfinished"])
            self.rows = {int(line["number"]): dict(line["row"]) for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.path}: not what an interrupted run leaves; remove it, or give another --out"
            ) from error
        stale = changes(recorded, belongs)
        if stale and self.rows:
            raise UserError(
                f"{self.path} has {len(self.rows)} rows of another run ({'; '.join(stale)}); give "
                "the same settings to go on with it, remove it, or give another --out"
            )
        if len(whole) < len(content):  # a line that a kill cut off
            write_whole(self.path, whole)


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode()
