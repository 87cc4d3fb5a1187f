"""A record of a data set (a JSON object, a hub record) made into a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillspec.errors import nearest
from distillspec.tasks.lines import InvalidRowError, Problem, decoded, id_of, object_of, text_of
from distillspec.tasks.rows import Row


@dataclass(frozen=True)
class Columns:
    """Where a record keeps what a row needs; a dot goes a level down, as in `meta.task`."""

    input: str = "input"
    """What is put into the prompt; for a continuation the whole text."""
    target: str = "target"
    """The reference answer; not read for a continuation, whose target is the rest of the text."""
    domain: str | None = None
    """What kind of prompt it is."""
    id: str = "id"
    """Names the row; a record without it is named by its line."""


@dataclass(frozen=True)
class Domain:
    """One kind of prompt."""

    name: str
    """What results call it."""
    subsets: tuple[str, ...]
    """The names it has in the data."""


@dataclass(frozen=True)
class Form:
    """How a row is made of a record, whatever it was read from."""

    prompt: str
    """The prompt, with `{input}` where the record's input goes."""
    continuation: int | None
    """Where set, the input is this many first words of a text and the target is the rest."""
    domains: Sequence[Domain]
    """All domains of the task; none where it has none."""
    chosen: Sequence[str] | None
    """The subsets asked for; None for all."""
    judged: bool
    """Whether answers are held against the target, so that every row must have one."""

    def row(
        self, record: Mapping[str, Any], columns: Columns, fallback: str, subset: str | None
    ) -> Row | None:
        """Make a row.

        Args:
            record: the record.
            columns: where it keeps what a row needs.
            fallback: the row's id where the record has none.
            subset: the name its domain has in the data, where the record does not say.

        Returns:
            The row; None where its domain was not asked for, or where a text is no longer than
            the beginning that is to be continued.

        Raises:
            InvalidRowError: a column is missing, empty or no text, or the domain is unknown.
        """
        if subset is None and columns.domain is not None:
            subset = text_of(_value(record, columns.domain), columns.domain)
        domain = subset if subset is None or not self.domains else self._domain(subset)
        if self.chosen is not None and subset not in self.chosen:
            return None
        found = _value(record, columns.id, fallback)
        row_id = id_of(found, columns.id)
        text = text_of(_value(record, columns.input), columns.input)
        if self.continuation is None:
            target = self._target(record, columns.target)
            return Row(row_id, self.prompt.replace("{input}", text), target, domain)
        words = text.split()
        begun, rest = words[: self.continuation], words[self.continuation :]
        if not rest:
            return None
        return Row(row_id, self.prompt.replace("{input}", " ".join(begun)), " ".join(rest), domain)

    def line(self, line: bytes, path: Path, number: int, columns: Columns) -> Row | Problem | None:
        """Make a row of one line of a JSONL file, as `row`; None for a blank line too."""
        try:
            text = decoded(line, first=number == 1)
            if not text.strip():
                return None
            return self.row(object_of(text), columns, f"{path.name}:{number}", None)
        except InvalidRowError as error:
            return Problem(path, number, str(error))

    def _target(self, record: Mapping[str, Any], column: str) -> str | None:
        value = _value(record, column, None if self.judged else "")
        return text_of(value, column) if self.judged or value else None

    def _domain(self, subset: str) -> str:
        for domain in self.domains:
            if subset in domain.subsets:
                return domain.name
        known = [name for domain in self.domains for name in domain.subsets]
        raise InvalidRowError(f"the domain {subset!r} is unknown; {nearest(subset, known)}")


def _value(record: Mapping[str, Any], column: str, default: str | None = None) -> object:
    """Look a dotted column up; without a default it must be there."""
    value: object = record
    for key in column.split("."):
        if not isinstance(value, Mapping) or key not in value:
            if default is not None:
                return default
            chat = " (a chat: keep rows with messages in another file)"
            raise InvalidRowError(f"no column {column!r}{chat if 'messages' in record else ''}")
        value = value[key]
    return value
