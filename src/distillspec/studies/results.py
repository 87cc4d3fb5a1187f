"""The results of a study: one row of results.jsonl a cell that ended.

A row: `key` (the hash of the cell's content), `step`, `verb`, `axes`, `settings`, `seconds`,
`started`, `versions`, `code`, `machine`, `device`, `seed`, `sources` (`step` and `axes` of every
cell it took something from, by key), and either `failed` (the error) or `result` (what the verb's
`--json` prints) with, where the verb wrote them, `examples` (rows of examples.jsonl) and
`evaluations` (rows of metrics.jsonl on held-out prompts). Rows are only ever added; of two with one
key the later counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from distillspec.errors import UserError
from distillspec.studies.grid import Cell
from distillspec.studies.store import read_rows

RESULTS = "results.jsonl"
"""The file of rows, in the study's folder."""
State = Literal["done", "left", "failed", "blocked"]
"""Of a cell: its result is there; it can be made; it ended in an error; what it needs is not there
and cannot be made, as one of those failed."""


@dataclass(frozen=True)
class Results:
    """The rows that count, by key."""

    rows: Mapping[str, Mapping[str, Any]]
    """The latest of every key."""

    @staticmethod
    def read(path: Path) -> Results:
        """Read a file of rows; one that is not there has none.

        Raises:
            UserError: a line is damaged, or no row of a study. A last one that was cut off passes.
        """
        found: dict[str, Mapping[str, Any]] = {}
        for row in read_rows(path):
            if "key" not in row:
                raise UserError(f"{path}: a row has no key: these are no results of a study")
            found[str(row["key"])] = row
        return Results(found)

    def done(self, key: str) -> Mapping[str, Any] | None:
        """Return the row of a cell that ended well, if there is one."""
        row = self.rows.get(key)
        return None if row is None or "failed" in row else row

    def of(self, step: str, **labels: str) -> list[Mapping[str, Any]]:
        """Return the rows of a step that ended well and have some labels, in the file's order."""
        return [
            row
            for row in self.rows.values()
            if row["step"] == step
            and "failed" not in row
            and all(row["axes"].get(axis) == label for axis, label in labels.items())
        ]


def states(cells: Sequence[Cell], keys: Mapping[Cell, str], results: Results) -> dict[Cell, State]:
    """Tell the state of every cell; the next run tries one that failed again."""
    found: dict[Cell, State] = {}
    for cell in cells:
        if results.done(keys[cell]) is not None:
            found[cell] = "done"
        elif keys[cell] in results.rows:
            found[cell] = "failed"
        elif any(found[one] in ("failed", "blocked") for one in cell.sources):
            found[cell] = "blocked"
        else:
            found[cell] = "left"
    return found


def foreseen(cell: Cell, results: Results) -> float | None:
    """Foresee a cell's seconds: what the step's own cells took, else those of the same verb.

    Returns:
        The median; None where no such cell has ended yet.
    """
    for name, value in (("step", cell.step), ("verb", cell.verb)):
        took = [
            float(row["seconds"])
            for row in results.rows.values()
            if row[name] == value and "failed" not in row
        ]
        if took:
            return statistics.median(took)
    return None
