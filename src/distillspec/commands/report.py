"""`report`: figures and one page from stored results."""

from __future__ import annotations

from typing import Any

from distillspec.commands.settings import Report
from distillspec.report import report


def run(settings: Report) -> dict[str, Any]:
    """Draw the run."""
    return {"files": [str(path) for path in report(settings.run, settings.out)]}


def tell(result: dict[str, Any]) -> str:
    """Say which file to open, and list the figures."""
    page, *figures = result["files"]
    return "\n".join([f"open {page}", *figures])
