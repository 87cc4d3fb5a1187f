"""Which of how many processes this one is, as torchrun, `accelerate launch` or MPI started it.

Read from the environment alone, so that it costs nothing where one process runs by itself.
"""

from __future__ import annotations

import os

from distillspec.errors import UserError

_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_INDICES = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


def process_count() -> int:
    """Return how many processes were started together; 1 for one by itself.

    Raises:
        UserError: the environment does not say it as a number.
    """
    return _number(_COUNTS, 1)


def process_index() -> int:
    """Return this one's number among them, from 0; that of the main process is 0.

    Raises:
        UserError: as `process_count`.
    """
    return _number(_INDICES, 0) if process_count() > 1 else 0


def _number(names: tuple[str, ...], otherwise: int) -> int:
    name = next((name for name in names if os.environ.get(name)), None)
    if name is None:
        return otherwise
    value = os.environ[name]
    if not value.isdecimal():
        raise UserError(
            f"the environment's {name} is {value!r}: expected a whole number, as torchrun, "
            "accelerate launch and MPI set it; unset it to run one process"
        )
    return int(value)
