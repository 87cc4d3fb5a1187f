"""What Ctrl-C may cut in two, and what it may not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what a scheduler sends before it kills."""


@contextmanager
def undivided() -> Iterator[None]:
    """Let a stop signal wait until the block is done, then let it do what it would have done."""
    waiting: list[int] = []
    previous: dict[int, Any] = {}
    with handled(lambda number, _: waiting.append(number), previous):
        yield
    for number in waiting:
        if callable(previous[number]):
            previous[number](number, None)
        else:  # the system's own action
            signal.raise_signal(number)


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], object], previous: dict[int, Any] | None = None
) -> Iterator[None]:
    """Handle the stop signals within the block.

    Only the main thread can: in any other the signals go where they went.

    Args:
        handler: What to call.
        previous: Filled with what would have handled each signal.
    """
    earlier: dict[int, Any] = {} if previous is None else previous
    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            found = signal.getsignal(number)
            if found is not None:  # None: set outside Python, and could not be put back
                earlier[number] = found
                signal.signal(number, handler)
    try:
        yield
    finally:
        for handled_number, found in earlier.items():
            signal.signal(handled_number, found)
