"""The one place that asks the hub for a data set."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from distillspec.errors import UserError, first_line


def records(
    name: str, *, config: str | None, split: str, revision: str | None
) -> Iterator[Mapping[str, Any]]:
    """Yield the records of one split in the order of the hub, without loading other splits.

    Args:
        name: the data set's name on the hub, or a folder in a form that `datasets` reads.
        config: its configuration; None where it has one.
        split: such as "test".
        revision: a commit of the data set; None for the newest.

    Raises:
        UserError: `datasets` is not installed, or it could not give the split.
    """
    where = name if config is None else f"{name} ({config})"
    try:
        # Streaming reads the files of this split alone: the training text of WMT14 stays away.
        yield from _load(name, config, split=split, revision=revision)
    except ImportError as error:
        raise UserError(
            f"{where}: data sets of the hub need the package datasets: pip install "
            "'distillspec[hub]', or give the rows with --data FILE"
        ) from error
    except Exception as error:  # whatever the library, its file system or its HTTP client raise
        raise UserError(
            f"{where}, split {split!r}: the hub did not give it: {first_line(error)}; check "
            "the connection, or give the rows with --data FILE"
        ) from error


def _load(
    name: str, config: str | None, *, split: str, revision: str | None
) -> Iterator[Mapping[str, Any]]:
    datasets = importlib.import_module("datasets")  # untyped, and an extra
    return iter(datasets.load_dataset(name, config, split=split, revision=revision, streaming=True))
