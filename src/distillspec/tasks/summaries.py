"""ROUGE of one summary, in any script.

Words are runs of letters and digits of any script, in lower case; a Chinese or Japanese sign is a
word of its own. For plain ASCII text these are rouge-score's own words; its tokenizer drops every
other letter, so that two equal Russian texts score 0.

Sentences are the lines of a text, cut further after ".", "!", "?" or "…" (with closing quotes and
brackets) where blanks and then no small letter follow; not after an initial or Mr, Mrs, Ms, Dr,
St, Prof, Gen, Sen, Rep, Gov, No. ROUGE-Lsum sees one sentence a line.
"""

from __future__ import annotations

import functools
import importlib
import re
import unicodedata
from typing import Any

_SIGN = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_WORD = re.compile(rf"{_SIGN}|(?:(?!{_SIGN})[^\W_])+")
_END = re.compile(r"([.!?…]+[\"'”’)\]]*)\s+(?=(?P<next>\S))")
_ABBREVIATED = re.compile(r"(?:\b[A-Z]|\b(?:Mr|Mrs|Ms|Dr|St|Prof|Gen|Sen|Rep|Gov|No))\.$")
_KINDS = ("rouge1", "rouge2", "rougeLsum")


class Words:
    """rouge-score's tokenizer interface over `words`."""

    def tokenize(self, text: str) -> list[str]:
        """Split a text into its words."""
        return words(text)


def words(text: str) -> list[str]:
    """Split a text into words in lower case.

    >>> words("Don't panic: 3.5 кота!")
    ['don', 't', 'panic', '3', '5', 'кота']
    """
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


def sentences(text: str) -> list[str]:
    """Split a text into sentences, by the rule above.

    >>> sentences("Mr. Day left. Nobody saw it at 5 p.m. on Monday.")
    ['Mr. Day left.', 'Nobody saw it at 5 p.m. on Monday.']
    """
    found = []
    for line in text.splitlines():
        start = 0
        for match in _END.finditer(line):
            begun = line[start : match.end(1)]
            if not match["next"].islower() and _ABBREVIATED.search(begun) is None:
                found.append(begun)
                start = match.end()
        found.append(line[start:])
    return [sentence.strip() for sentence in found if sentence.strip()]


def rouge(text: str, reference: str) -> tuple[float, float, float] | None:
    """Compute the F-measures of ROUGE-1, ROUGE-2 and ROUGE-Lsum, from 0 to 1.

    Args:
        text: the output; an empty one scores 0.
        reference: the summary wanted.

    Returns:
        The three, or None where the reference has no word, which no output could match.
    """
    if not words(reference):
        return None
    found = _scorer().score("\n".join(sentences(reference)), "\n".join(sentences(text)))
    first, second, last = (float(found[kind].fmeasure) for kind in _KINDS)
    return first, second, last


@functools.cache
def _scorer() -> Any:
    scorers = importlib.import_module("rouge_score.rouge_scorer")  # untyped, and slow to load
    return scorers.RougeScorer(list(_KINDS), tokenizer=Words())
