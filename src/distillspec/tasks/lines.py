"""One line of a file: a JSON object, a row, or the reason why it is none."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillspec.errors import UserError
from distillspec.tasks.rows import EngineCounts, Row

_BOM = b"\xef\xbb\xbf"  # some editors put it before the first line


@dataclass(frozen=True)
class Problem:
    """An invalid line, or an invalid row of a hub data set."""

    path: Path | str
    """The file; for a data set of the hub its name and split."""
    line: int
    """Counted from 1."""
    reason: str
    """What is wrong with it."""

    def __str__(self) -> str:
        """Name file, line and reason, in the form editors jump to."""
        return f"{self.path}:{self.line}: {self.reason}"


class InvalidRowError(Exception):
    """Why a row is invalid; it never leaves this room."""


def scan(
    path: Path, read: Callable[[bytes, Path, int], Row | Problem | None]
) -> Iterator[Row | Problem]:
    """Read a plain or gzip file line by line; an id given twice is a problem too.

    Args:
        path: the file.
        read: what makes a row of a line, given its bytes, the path and the line's number from 1;
            None passes the line over.

    Raises:
        UserError: the file cannot be read.
    """
    ids: set[str] = set()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                row = read(line, path, number)
                if isinstance(row, Row) and row.id in ids:
                    yield Problem(path, number, f"the id {row.id!r} was given to an earlier line")
                elif row is not None:
                    ids.update([row.id] if isinstance(row, Row) else [])
                    yield row
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: cannot be read: {reason}") from error


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
        text = decoded(line, first=number == 1)
        if not text.strip():
            return None
        fallback = f"{path.name}:{number}"
        if path.suffix == ".txt":
            return Row(fallback, text)
        return _from_object(object_of(text), fallback)
    except InvalidRowError as error:
        return Problem(path, number, str(error))


def decoded(line: bytes, *, first: bool) -> str:
    """Decode one line without its line end; the first may begin with a byte order mark.

    Raises:
        InvalidRowError: it is not UTF-8, or holds a NUL.
    """
    try:
        text = (line.removeprefix(_BOM) if first else line).rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRowError(f"not UTF-8 at byte {error.start + 1}") from error
    if "\x00" in text:
        raise InvalidRowError("holds a NUL character")
    return text


def object_of(text: str) -> dict[str, Any]:
    """Read a line as one JSON object.

    Raises:
        InvalidRowError: it is none.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise InvalidRowError(f"not JSON: {what} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRowError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRowError('expected a JSON object, such as {"prompt": "…"}')
    return value


def _from_object(value: dict[str, Any], fallback: str) -> Row:
    given = [key for key in ("prompt", "input", "messages") if key in value]
    if len(given) != 1:
        found = " and ".join(f"'{key}'" for key in given) or "none of them"
        raise InvalidRowError(f"expected one of 'prompt', 'input' or 'messages', found {found}")

    target_ids = _ids(value, "target_ids") if "target_ids" in value else None
    logprobs = _logprobs(value, target_ids) if "target_logprobs" in value else None
    # Ids are what is trained on; the text beside them may be empty (an answer that ended at once)
    # or hold any character that a model wrote.
    loose = target_ids is not None
    target = text_of(value["target"], "target", loose=loose) if "target" in value else None
    domain = text_of(value["domain"], "domain") if "domain" in value else None
    reason = value.get("finish_reason")
    ended = reason if isinstance(reason, str) else None
    prompt_ids = _ids(value, "prompt_ids") if "prompt_ids" in value else None
    blocks = _blocks(value, target_ids) if value.get("blocks") is not None else None
    counts = _counts(value["counts"]) if value.get("counts") is not None else None
    row_id = id_of(value["id"], "id") if "id" in value else fallback
    prompt: str | tuple[dict[str, str], ...]
    if given == ["messages"]:
        prompt, answer = _messages(value["messages"])
        if answer is not None and target is not None:
            raise InvalidRowError("both 'target' and a last message of the assistant; give one")
        target = target if answer is None else answer
    else:
        prompt = text_of(value[given[0]], given[0])
    return Row(
        id=row_id,
        prompt=prompt,
        target=target,
        domain=domain,
        target_ids=target_ids,
        target_logprobs=logprobs,
        cut=reason == "length",
        finish_reason=ended,
        prompt_ids=prompt_ids,
        blocks=blocks,
        counts=counts,
    )


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidRowError(f"the key {key!r} stands twice")
        found[key] = value
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(value: dict[str, Any], key: str) -> tuple[int, ...]:
    ids = value[key]
    if not isinstance(ids, list) or not ids or not all(_is_whole(i) and i >= 0 for i in ids):
        raise InvalidRowError(f"{key!r} must be a non-empty list of ids")
    return tuple(ids)


def _blocks(value: dict[str, Any], ids: tuple[int, ...] | None) -> tuple[int, ...]:
    sizes = _ids(value, "blocks")
    if ids is None or min(sizes) < 1 or sum(sizes) != len(ids):
        raise InvalidRowError("'blocks' must be the sizes of blocks that add up to 'target_ids'")
    return sizes


def _counts(value: object) -> EngineCounts:
    whole = ("calls", "drafted", "accepted", "alone")
    if not isinstance(value, dict) or set(value) != {*whole, "seconds"}:
        raise InvalidRowError(
            f"'counts' must have {', '.join(whole)} and seconds, and no other key"
        )
    if not all(_is_whole(value[key]) and value[key] >= 0 for key in whole):
        raise InvalidRowError(f"'counts': {', '.join(whole)} must be whole numbers of at least 0")
    seconds = value["seconds"]
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 < seconds < math.inf:
        raise InvalidRowError("'counts': seconds must be a number above 0")
    return EngineCounts(**value)


def _logprobs(value: dict[str, Any], ids: tuple[int, ...] | None) -> tuple[float, ...]:
    logged = value["target_logprobs"]
    numbers = isinstance(logged, list) and all(
        isinstance(one, (int, float)) and not isinstance(one, bool) and one <= 0 for one in logged
    )
    if not numbers:
        raise InvalidRowError("'target_logprobs' must be a list of numbers, none above 0")
    zero = next((one for one in logged if math.exp(one) == 0), None)
    if zero is not None:
        raise InvalidRowError(f"'target_logprobs' holds {zero}, ln 0: no such token is sampled")
    if ids is None or len(ids) != len(logged):
        given = "are missing" if ids is None else f"are {len(ids)}"
        raise InvalidRowError(f"{len(logged)} 'target_logprobs', but 'target_ids' {given}")
    return tuple(map(float, logged))


def id_of(value: object, key: str) -> str:
    """Check a row's id: text, or a whole number.

    Raises:
        InvalidRowError: naming `key`.
    """
    return str(value) if _is_whole(value) else text_of(value, key)


def text_of(text: object, key: str, *, loose: bool = False) -> str:
    """Check a text that a row holds.

    Args:
        text: the value found.
        key: what it is called, for the message.
        loose: let it be empty or hold a NUL.

    Raises:
        InvalidRowError: naming `key`.
    """
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        raise InvalidRowError(f"{key!r} must be a string, not {kind}")
    if not loose and not text.strip():
        raise InvalidRowError(f"{key!r} is empty")
    if not loose and "\x00" in text:
        raise InvalidRowError(f"{key!r} holds a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRowError(
            f"{key!r} holds half of a surrogate pair, which is no text"
        ) from error
    return text


def _messages(value: object) -> tuple[tuple[dict[str, str], ...], str | None]:
    """Check chat messages; a last one of the assistant is the answer, not part of the prompt."""
    if not isinstance(value, list) or not value:
        raise InvalidRowError("'messages' must be a non-empty list")
    messages = []
    for position, message in enumerate(value, start=1):
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            raise InvalidRowError(f"message {position} must have 'role' and 'content'")
        try:
            messages.append({key: text_of(message[key], key) for key in ("role", "content")})
        except InvalidRowError as error:
            raise InvalidRowError(f"message {position}: {error}") from error
    answer = messages.pop()["content"] if messages[-1]["role"] == "assistant" else None
    if not messages:
        raise InvalidRowError("'messages' holds an answer but nothing to answer")
    return tuple(messages), answer
