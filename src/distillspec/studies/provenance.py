"""Where a number came from: versions, commit, machine, command, time. Imports no heavy package."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import distillspec


def provenance() -> dict[str, Any]:
    """Say with what, where and when this process runs, ready for JSON."""
    return {
        "versions": {
            "distillspec": distillspec.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in ("torch", "transformers")},
        },
        "code": _code(),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cpus": os.cpu_count(),
        },
        "command": list(sys.argv),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
    }


def _version(package: str) -> str | None:
    """Look the version up without importing the package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _code() -> dict[str, Any] | None:
    """Name the commit this package's files belong to; None where they are not under git."""
    source = Path(distillspec.__file__).resolve()
    # A package installed inside some other checkout's .venv is not of that checkout's commit.
    if _git(source.parent, "ls-files", "--error-unmatch", source.name) is None:
        return None
    commit = _git(source.parent, "rev-parse", "HEAD")
    changes = _git(source.parent, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
