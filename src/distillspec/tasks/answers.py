"""Final answers read out of a model's text: numbers (GSM8K) and the forms of BIG-Bench Hard.

The last statement of an answer wins: a text may recite an example's answer before its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

_NUMBER = re.compile(
    r"(?:(?<![\w)%])-)?(?:\$\s?(?:(?<=\$)-)?)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
)
_LONGEST = 60
"""Characters of a number; a longer run of digits is noise."""
_MARKED = re.compile(r"####\s*(?=(?:[^\w\n]|_){0,6}\d)")
_BOXED = re.compile(r"\\boxed\s*\{")
_STATED = re.compile(r"\banswer\s*(?:\([^)\n]*\)\s*)?(?:is|:|=)\s*:?\s*", re.IGNORECASE)
_GIVEN = re.compile(r"^\s*A:\s*(?=[-$.\d])", re.MULTILINE)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)|\n")
_OPTION = re.compile(r"^\(([A-Z])\)[ \t]*(.+)$", re.MULTILINE)
_LETTERS = (
    re.compile(r"(?:(?:option|choice)\s+)?\((?P<letter>[A-Z])\)", re.IGNORECASE),
    re.compile(r"(?:(?:[Oo]ption|[Cc]hoice)\s+)?(?P<letter>[A-Z])(?:[).:,]|\s*$)"),
)
_SEVERAL = re.compile(r"\([A-Z]\)\s*(?:or|and|,|/)\s*\([A-Z]\)", re.IGNORECASE)
_CHOICES = (("true", "false"), ("yes", "no"), ("valid", "invalid"))


def cut(text: str, stops: Sequence[str]) -> str:
    """Keep what stands before the first stop text; blanks before the answer are no answer.

    Raises:
        TypeError: the stops are one string, which would stop at each of its letters.
    """
    if isinstance(stops, str):
        raise TypeError(f"stops must be a list of texts, not the text {stops!r}")
    text = text.strip()
    return text[: min([len(text), *(text.find(stop) for stop in stops if stop in text)])]


def marked_number(text: str) -> Fraction | None:
    """Read the last `#### N`, the data set's own form; None where there is none.

    The number follows at once: "#### Step 2" is a heading of Markdown.
    """
    return _last_after(_MARKED, text)


def final_number(text: str) -> Fraction | None:
    r"""Read the number a text ends with, in whatever form it says so.

    In this order: the last `#### N`; the last `\\boxed{N}`; the last "answer is N" or line "A: N";
    the last number of all. An "answer is 5 * 3 = 15" is 15.

    >>> final_number("2 + 2 = 4. The answer is $1,204.50 in all.")
    Fraction(2409, 2)
    """
    for form in (_MARKED, _BOXED):
        found = _last_after(form, text)
        if found is not None:
            return found
    both = re.compile(f"{_STATED.pattern}|{_GIVEN.pattern}", _STATED.flags | _GIVEN.flags)
    found = _last_after(both, text)
    if found is not None:
        return found
    numbers = _numbers(text)
    return numbers[-1] if numbers else None


def _last_after(form: re.Pattern[str], text: str) -> Fraction | None:
    for match in reversed(list(form.finditer(text))):
        found = _number_of(_SENTENCE_END.split(text[match.end() :], maxsplit=1)[0])
        if found is not None:
            return found
    return None


def _number_of(clause: str) -> Fraction | None:
    """Read the number that a clause states: its first, or what its last equals sign gives."""
    numbers = _numbers(clause.rpartition("=")[2]) or _numbers(clause)
    return numbers[0] if numbers else None


def _numbers(text: str) -> list[Fraction]:
    text = text.replace("\u2212", "-").replace("{,}", ",").replace(",\\!", ",")  # TeX's thousands
    found = [match[0] for match in _NUMBER.finditer(text)]
    plain = [re.sub(r"[$,\s]", "", number).replace("--", "") for number in found]
    return [Fraction(number) for number in plain if len(number) <= _LONGEST]


def options(prompt: str) -> dict[str, str]:
    """Read the options of a question, by their letters; those after the last "Options:"."""
    return {
        letter: text.strip() for letter, text in _OPTION.findall(prompt.rpartition("Options:")[2])
    }


def agrees(text: str, gold: str, choices: Mapping[str, str]) -> bool:
    """Say whether a text's final answer is the one wanted, by the form of the one wanted.

    An option "(B)" may be named as (B), B, "B." or by its text. True and false, yes and no, valid
    and invalid are whole words in any case. Numbers are compared by value, lists of words without
    commas and case, brackets without blanks.

    Args:
        text: the model's answer; what it states after the last "answer is" counts, else its last
            line or all of it.
        gold: the reference.
        choices: the question's options by letter; empty where it has none.
    """
    stated, clauses = _clauses(text)
    return any(_same(clause, gold.strip(), choices, stated) for clause in clauses)


def _clauses(text: str) -> tuple[bool, list[str]]:
    """What a text may state as its answer, and whether it says that this is the answer.

    The readings are all of one place: the line after the last "answer is" and its first sentence,
    or the last line, its last word, and the text as a whole.
    """
    for match in reversed(list(_STATED.finditer(text))):
        line = text[match.end() :].strip().partition("\n")[0]
        if line:
            return True, [line, _SENTENCE_END.split(line, maxsplit=1)[0]]
    if not text.strip():
        return False, []
    line = text.strip().splitlines()[-1]
    return False, [line, line.split()[-1], text]


def _same(clause: str, gold: str, choices: Mapping[str, str], stated: bool) -> bool:
    """Compare one reading; where nothing was stated, a mention inside a sentence is no answer."""
    if _words(clause) == _words(gold):
        return True
    letter = gold[1] if re.fullmatch(r"\([A-Z]\)", gold) else _letter_by_text(gold, choices)
    if letter is not None:
        return _letter(clause, choices, stated) == letter
    if not gold.strip("()[]{}<> "):
        return re.sub(r"\s", "", _cleaned(clause)) == re.sub(r"\s", "", gold)
    for pair in _CHOICES:
        if gold.casefold() in pair:
            return _choice(clause, pair, stated) == gold.casefold()
    if _NUMBER.fullmatch(gold):
        number = _number_of(clause) if stated or _NUMBER.fullmatch(_cleaned(clause)) else None
        return number == _numbers(gold)[0]
    return False


def _cleaned(text: str) -> str:
    r"""Take off what only decorates an answer: quotes, emphasis, \boxed, the full stop."""
    text = re.sub(r"\\(?:boxed|text)\s*\{([^{}]*)\}", r"\1", text.strip())
    text = text.strip("*_`\"'“”$ \t\r\n")
    return re.sub(r"[.,;:!]+$", "", text).strip("*_`\"'“”$ \t")


def _words(text: str) -> str:
    return " ".join(_cleaned(text).replace(",", " ").casefold().split())


def _letter(clause: str, choices: Mapping[str, str], stated: bool) -> str | None:
    clause = _cleaned(clause)
    if _SEVERAL.match(clause):
        return None
    for form in _LETTERS:
        start = form.match(clause)
        if start is not None:
            return str(start["letter"]).upper()
    named: set[str] = set(re.findall(r"\(([A-Z])\)", clause)) if stated else set()
    return named.pop() if len(named) == 1 else _letter_by_text(clause, choices)


def _letter_by_text(text: str, choices: Mapping[str, str]) -> str | None:
    same = [letter for letter, option in choices.items() if _words(option) == _words(text)]
    return same[0] if len(same) == 1 else None


def _choice(clause: str, pair: tuple[str, str], stated: bool) -> str | None:
    """Read one of two words: the first word of the clause, or the only one of the two in it."""
    words: list[str] = re.findall(r"[^\W\d_]+", clause.casefold())
    if "or" in words and set(pair) <= set(words):
        return None
    if words and (words[0] in pair or not stated):
        return words[0]
    named = {
        pair[1 - pair.index(word)] if before == "not" else word
        for before, word in zip(["", *words], words, strict=False)
        if word in pair
    }
    return named.pop() if len(named) == 1 else None
