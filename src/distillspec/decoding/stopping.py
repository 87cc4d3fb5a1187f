"""When a row ends by what it says, rather than by one of its stop ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Stop(Protocol):
    """A condition on the ids of a row, asked once a block; it remembers nothing."""

    def end(self, ids: Sequence[int], new: Sequence[int]) -> int | None:
        """Say where a row ends.

        Args:
            ids: What the row held before: its prompt (of an encoder-decoder model the decoder's
                start token) and what was emitted after it.
            new: The tokens to be emitted now, at least one.

        Returns:
            How many of `new` to keep, at least 1, if the row ends with the last of them; None if
            it goes on.
        """
        ...
