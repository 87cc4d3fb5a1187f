"""Files that are there whole or not at all, for every room."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a module or nothing


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all: to a temporary name, to the disk, then renamed.

    Raises:
        OSError: the disk is full or the folder cannot be written; an earlier file is untouched.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp gives 0600, which would hide results from colleagues
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)
    return path


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Hold a lock file while work runs; yield whether it was free.

    The operating system frees it when the process ends, however it ends. Where there are no such
    locks (Windows) it is always free.
    """
    if fcntl is None:
        yield True
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def flush(path: Path) -> None:
    """Have the operating system put a file, or a folder's list of names, on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders; its rename is durable
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
