"""Progress on stderr with the time left, so that stdout holds results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from distillspec import launch

Report = Callable[[int, int], None]
"""Called with (done, total)."""


def console() -> Console:
    """Return the console that messages go to: stderr, of the main process alone.

    Names stand in them as they are: no line of a log breaks within a path, and `[x]` is no style.
    """
    return Console(
        stderr=True,
        highlight=False,
        markup=False,
        soft_wrap=True,
        quiet=launch.process_index() > 0,
    )


@contextmanager
def bar(what: str) -> Iterator[Report]:
    """Show a bar while work runs; it appears with the first report and stays when it ends."""
    with _progress(MofNCompleteColumn()) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def training_bar(what: str) -> Iterator[Callable[[float, str], None]]:
    """Show a bar of a run's share done (0…1) with a text of its figures beside it."""
    with _progress(TextColumn("{task.fields[figures]}")) as progress:
        task = progress.add_task(what, total=1.0, figures="")
        yield lambda share, figures: progress.update(task, completed=share, figures=figures)


def _progress(*extra: MofNCompleteColumn | TextColumn) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        *extra,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(),
    )
