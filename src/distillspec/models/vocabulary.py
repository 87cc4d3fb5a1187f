"""The ids that two models share: which strings they stand for, and whether a pair agrees on them.

A vocabulary comes from a tokenizer alone, so a pair is checked before any weight is loaded. Rows
that a model's head has beyond the tokenizer (151936 against 152064, T5's 32128 against 32100) mean
nothing: they are no part of a vocabulary and the adapters cut them off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from distillspec.errors import UserError


@dataclass(frozen=True)
class Vocabulary:
    """A map from ids to strings, with holes."""

    pieces: tuple[str | None, ...]
    """The string of each id as the tokenizer stores it; None where the tokenizer has no such id."""

    @staticmethod
    def plain(size: int) -> Vocabulary:
        """Make a vocabulary of `size` ids that stand for their own number."""
        return Vocabulary(tuple(str(i) for i in range(size)))

    @staticmethod
    def of(pieces: Mapping[str, int]) -> Vocabulary:
        """Make the vocabulary of a tokenizer from its map of strings to ids (`get_vocab()`)."""
        strings: list[str | None] = [None] * (max(pieces.values(), default=-1) + 1)
        for piece, i in pieces.items():
            strings[i] = piece
        return Vocabulary(tuple(strings))

    @property
    def size(self) -> int:
        """V, the number of ids, holes included: one more than the largest id."""
        return len(self.pieces)

    @cached_property
    def holes(self) -> tuple[int, ...]:
        """The ids below `size` that stand for nothing and may never be emitted."""
        return tuple(i for i, piece in enumerate(self.pieces) if piece is None)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 of the whole map, for records and quick comparison."""
        text = "\n".join(f"{i}\t{piece!r}" for i, piece in enumerate(self.pieces))
        return sha256(text.encode()).hexdigest()


def check_same(target: Vocabulary, draft: Vocabulary, *, names: tuple[str, str]) -> None:
    """Refuse a pair whose ids stand for different strings.

    Args:
        target: The target's vocabulary.
        draft: The draft's vocabulary.
        names: What to call the two models in the message, target first.

    Raises:
        UserError: naming the first id on which the two differ.
    """
    if target.pieces == draft.pieces:
        return
    longest = max(target.size, draft.size)
    i = next(i for i in range(longest) if _piece(target, i) != _piece(draft, i))
    differing = sum(_piece(target, j) != _piece(draft, j) for j in range(longest))
    raise UserError(
        f"target {names[0]} ({target.size} ids) and draft {names[1]} ({draft.size} ids) do not "
        f"share a tokenizer: id {i} is {_say(target, i)} in the target and {_say(draft, i)} in the "
        f"draft ({differing} ids differ); use a draft made with the target's tokenizer"
    )


def _piece(vocabulary: Vocabulary, i: int) -> str | None:
    return vocabulary.pieces[i] if i < vocabulary.size else None


def _say(vocabulary: Vocabulary, i: int) -> str:
    piece = _piece(vocabulary, i)
    return "absent" if piece is None else repr(piece)
