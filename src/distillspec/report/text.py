"""The text view: what was written, token by token, and whose token each one is.

Models and prompts may write anything: it is escaped, and what would be invisible or would turn the
direction of reading is shown by its code point.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from distillspec.report.reading import reading
from distillspec.studies.store import OUTPUTS, StoredRun

PROMPTS, ANSWERS, TOKENS = 8, 32, 400
"""At most so many prompts are shown, so many answers in all, and so many tokens of each."""
_PROMPT = 4000  # characters of a prompt
ROLES = {
    "a": ("accepted", "drafted, and accepted by the target"),
    "c": ("corrected", "the target's correction, where it rejected a drafted token"),
    "b": ("bonus", "the target's own token after a block that was accepted whole"),
    "t": ("target", "the target's own token where nothing was drafted"),
}
"""Letter of a token's role: its name, and what it means."""
_JOINERS = "\u200c\u200d"  # invisible, yet they shape the letters of many scripts


class Answer(NamedTuple):
    """One answer, ready for the page."""

    setting: str
    """What it was made with."""
    tokens: Markup
    """One element a token."""
    left_out: int
    """Tokens that are not shown."""
    facts: str
    """Its counts, in words."""


class Example(NamedTuple):
    """A prompt and the answers to it."""

    title: str
    """Its id, and its domain where it has one."""
    prompt: Markup
    """What was asked."""
    cut: bool
    """Whether the prompt goes on."""
    answers: tuple[Answer, ...]
    """One per setting shown."""
    left_out: int
    """Settings that are not shown."""


class TextView(NamedTuple):
    """The examples shown, of all that are stored."""

    examples: tuple[Example, ...]
    """A prompt each."""
    prompts: int
    """Prompts stored."""
    roles: tuple[str, ...]
    """Letters of the roles that appear."""

    @property
    def shown(self) -> int:
        """Prompts shown."""
        return len(self.examples)


def text_view(run: StoredRun) -> TextView | None:
    """Read the stored outputs for the page; None where there are none.

    Raises:
        UserError: the file is damaged, or a row of it lacks a field.
    """
    by_prompt: dict[tuple[str, str, str], list[tuple[int, Mapping[str, Any]]]] = {}
    path = run.folder / OUTPUTS
    for line, row in enumerate(run.rows(OUTPUTS), start=1):
        with reading(path, f"row {line}: ", "an output", "run it again"):
            key = (str(row.get("task")), str(row["id"]), str(row["prompt"]))
            by_prompt.setdefault(key, []).append((line, row))
    if not by_prompt:
        return None
    count = min(PROMPTS, max(1, ANSWERS // max(map(len, by_prompt.values()))))
    chosen = list(by_prompt.values())[:count]
    examples = tuple(_example(rows, path) for rows in chosen)
    roles = {role for rows in chosen for _, row in rows for role in row["roles"][:TOKENS]}
    return TextView(examples, len(by_prompt), tuple(role for role in ROLES if role in roles))


def visible(text: str) -> Markup:
    """Escape text, and show by their code points the characters that hide or turn it."""
    return Markup("").join(_visible(character) for character in text)


def plain(text: str) -> str:
    """Replace by their code points the characters that hide or turn a name, for a figure."""
    return "".join(_code(one) if _hidden(one) or one in "\n\t" else one for one in text)


def _example(rows: Sequence[tuple[int, Mapping[str, Any]]], path: Path) -> Example:
    _, first = rows[0]
    prompt = str(first["prompt"])
    return Example(
        title=_joined(first.get("task"), first["id"], first.get("domain")),
        prompt=visible(prompt[:_PROMPT]),
        cut=len(prompt) > _PROMPT,
        answers=tuple(_answer(row, path, line) for line, row in rows[:ANSWERS]),
        left_out=max(0, len(rows) - ANSWERS),
    )


def _answer(row: Mapping[str, Any], path: Path, line: int) -> Answer:
    with reading(path, f"row {line}: ", "an output", "run it again"):
        pieces, roles = [str(piece) for piece in row["pieces"]], str(row["roles"])
        if len(pieces) != len(roles) or set(roles) - set(ROLES):
            raise ValueError(f"{len(pieces)} pieces with the roles {roles!r}")
        return Answer(
            setting=_joined(row.get("target"), row["setting"]),
            tokens=Markup("").join(map(_token, pieces[:TOKENS], roles)),
            left_out=max(0, len(pieces) - TOKENS),
            facts=_facts(row, len(pieces)),
        )


def _joined(*names: object) -> str:
    return " · ".join(str(name) for name in names if name is not None)


def _facts(row: Mapping[str, Any], tokens: int) -> str:
    facts = [f"{tokens} tokens", f"{int(row['target_calls'])} target calls"]
    if row["drafted"]:
        facts.append(
            f"{int(row['drafted'])} drafted, {int(row['judged'])} judged, "
            f"{int(row['accepted'])} accepted"
        )
    facts += [f"{name} {float(value):.3g}" for name, value in (row.get("quality") or {}).items()]
    if row.get("seconds") is not None:
        facts.append(f"{float(row['seconds']):.2f} s")
    facts.append("ended by itself" if row["finish_reason"] == "stop" else "cut at the length limit")
    return " · ".join(facts)


def _token(piece: str, role: str) -> Markup:
    if not piece:  # bytes of a character that a later token completes
        return Markup('<span class="tok {}" title="no text of its own">∅</span>').format(role)
    return Markup('<span class="tok {}">{}</span>').format(role, visible(piece))


def _visible(character: str) -> Markup:
    if character == "\n":
        return Markup('<span class="eol">↵</span>\n')
    if not _hidden(character):
        return escape(character)
    name = unicodedata.name(character, "CONTROL CHARACTER")
    return Markup('<span class="code" title="{}">{}</span>').format(name, _code(character))


def _hidden(character: str) -> bool:
    if character in "\n\t" or character in _JOINERS:
        return False
    # Controls, formats (bidi, zero width, tags), surrogates, private use, unassigned; separators.
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
