"""Stop strings: a row ends with the token that completes one, wherever tokens split it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distillspec.errors import UserError
from distillspec.models.text import UNSURE, Tokenizer

MARGIN = 4
"""Characters at the start of a piece of text that may read otherwise inside the whole."""


@dataclass(frozen=True)
class StopStrings:
    """End a row at the first token that completes one of some strings; a `Stop` of the engine.

    The token is kept, with whatever it says behind the string, so that ids, text and origins end
    at the same boundary; special tokens are text here, and a string that begins in the prompt
    counts. All of that is as in transformers' `stop_strings`.
    """

    tokenizer: Tokenizer
    """What turns the ids into text."""
    strings: tuple[str, ...]
    """The strings, none empty."""

    def __post_init__(self) -> None:
        """Refuse a string that is completed before anything is said."""
        if not self.strings or not all(self.strings):
            raise UserError(
                f"the stop strings are {list(self.strings)}: give one or more, none of them empty"
            )

    def end(self, ids: Sequence[int], new: Sequence[int]) -> int | None:
        """Return how many of the new ids to keep if a string is completed, else None."""
        lead = self._tail(ids)
        sure = len(self._text(lead).rstrip(UNSURE))
        if not self._ends_behind(sure, [*lead, *new]):
            return None
        return next(n for n in range(1, len(new) + 1) if self._ends_behind(sure, [*lead, *new[:n]]))

    def _ends_behind(self, sure: int, ids: Sequence[int]) -> bool:
        """Tell whether a string ends behind the first `sure` characters of the ids' text."""
        text = self._text(ids)
        return any(text.find(s, max(0, sure + 1 - len(s))) >= 0 for s in self.strings)

    def _tail(self, ids: Sequence[int]) -> list[int]:
        """Return as many of the last ids as a string that ends behind them can reach into."""
        reach = max(map(len, self.strings)) + MARGIN
        count = reach
        while count < len(ids) and len(self._text(ids[-count:]).rstrip(UNSURE)) < reach:
            count *= 2
        return list(ids[-count:])

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.whole_text(ids)
