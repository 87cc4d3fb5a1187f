"""Keep transformers' own progress bars and notes from a user's terminal."""

from __future__ import annotations

import logging as levels
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transformers.utils import logging

_hide_bars: Callable[[], None] = logging.disable_progress_bar
_show_bars: Callable[[], None] = logging.enable_progress_bar


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers report errors only, and restore its settings afterwards."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(levels.ERROR)
    _hide_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            _show_bars()
