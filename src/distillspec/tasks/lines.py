"""One line of a prompt file: a row, or the reason why it is none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillspec.tasks.rows import Row

_BOM = b"\xef\xbb\xbf"  # some editors put it before the first line


@dataclass(frozen=True)
class Problem:
    """An invalid line."""

    path: Path
    """The file."""
    line: int
    """Counted from 1."""
    reason: str
    """What is wrong with it."""

    def __str__(self) -> str:
        """Name file, line and reason, in the form editors jump to."""
        return f"{self.path}:{self.line}: {self.reason}"


class _InvalidError(Exception):
    """Why a line is invalid; it never leaves this module."""


def row_of(line: bytes, path: Path, number: int) -> Row | Problem | None:
    """Read one line, with or without its line end (LF or CRLF).

    Args:
        line: the raw bytes.
        path: the file; its suffix says whether a line is JSON or plain text.
        number: the line's number, from 1; the row's id unless the line gives one.

    Returns:
        The row, or what is wrong with the line, or None for a blank line.
    """
    try:
        text = _decoded(line.removeprefix(_BOM) if number == 1 else line)
        if not text.strip():
            return None
        fallback = f"{path.name}:{number}"
        return Row(fallback, text) if path.suffix == ".txt" else _from_json(text, fallback)
    except _InvalidError as error:
        return Problem(path, number, str(error))


def _decoded(line: bytes) -> str:
    try:
        text = line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise _InvalidError(f"not UTF-8 at byte {error.start + 1}") from error
    if "\x00" in text:
        raise _InvalidError("holds a NUL character")
    return text


def _from_json(text: str, fallback: str) -> Row:
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise _InvalidError(f"not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise _InvalidError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _InvalidError('expected a JSON object, such as {"prompt": "…"}')
    given = [key for key in ("prompt", "input", "messages") if key in value]
    if len(given) != 1:
        found = " and ".join(f"'{key}'" for key in given) or "none of them"
        raise _InvalidError(f"expected one of 'prompt', 'input' or 'messages', found {found}")

    target_ids = _ids(value["target_ids"]) if "target_ids" in value else None
    # Ids are what is trained on; the text beside them may be empty (an answer that ended at once)
    # or hold any character that a model wrote.
    target = _string(value, "target", loose=target_ids is not None) if "target" in value else None
    domain = _string(value, "domain") if "domain" in value else None
    row_id = str(value["id"]) if _is_whole(value.get("id")) else None
    if row_id is None:
        row_id = _string(value, "id") if "id" in value else fallback
    if given != ["messages"]:
        return Row(row_id, _string(value, given[0]), target, domain, target_ids)
    messages, answer = _messages(value["messages"])
    if answer is not None and target is not None:
        raise _InvalidError("both 'target' and a last message of the assistant; give one")
    return Row(row_id, messages, target if answer is None else answer, domain, target_ids)


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _InvalidError(f"the key {key!r} stands twice")
        found[key] = value
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids or not all(_is_whole(i) and i >= 0 for i in ids):
        raise _InvalidError("'target_ids' must be a non-empty list of ids")
    return tuple(ids)


def _string(value: dict[str, Any], key: str, *, loose: bool = False) -> str:
    text = value[key]
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        raise _InvalidError(f"{key!r} must be a string, not {kind}")
    if not loose and not text.strip():
        raise _InvalidError(f"{key!r} is empty")
    if not loose and "\x00" in text:
        raise _InvalidError(f"{key!r} holds a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _InvalidError(f"{key!r} holds half of a surrogate pair, which is no text") from error
    return text


def _messages(value: object) -> tuple[tuple[dict[str, str], ...], str | None]:
    """Check chat messages; a last one of the assistant is the answer, not part of the prompt."""
    if not isinstance(value, list) or not value:
        raise _InvalidError("'messages' must be a non-empty list")
    messages = []
    for position, message in enumerate(value, start=1):
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            raise _InvalidError(f"message {position} must have 'role' and 'content'")
        try:
            messages.append({key: _string(message, key) for key in ("role", "content")})
        except _InvalidError as error:
            raise _InvalidError(f"message {position}: {error}") from error
    answer = messages.pop()["content"] if messages[-1]["role"] == "assistant" else None
    if not messages:
        raise _InvalidError("'messages' holds an answer but nothing to answer")
    return tuple(messages), answer
