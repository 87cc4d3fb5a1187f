"""The architecture: who imports whom, how large a module is, what stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import distillspec

ROOT = Path(distillspec.__file__).parent
ROOMS = (
    "math",
    "models",
    "decoding",
    "training",
    "tasks",
    "studies",
    "report",
    "commands",
    "cli",
)
"""A room imports only rooms before it; what stands beside them (errors, settings) is for all."""
COMMON = ("distillspec.errors", "distillspec.convert", "distillspec.settings")
MODULES = sorted(ROOT.rglob("*.py"))
LONGEST = 350


def name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str | None:
    """The room of a module, or None for what stands beside the rooms or outside the package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "distillspec" and len(parts) > 1 and parts[1] in ROOMS else None


def imported(module: str, source: str) -> Iterator[str]:
    """Every module a source names in an import, wherever in the file, absolute or relative."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import; write it out"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def faults(module: str, source: str) -> list[str]:
    """What a module imports that its room must not."""
    own = room(module)
    found = []
    for other in imported(module, source):
        target = room(other)
        if own is not None and target is not None and ROOMS.index(target) > ROOMS.index(own):
            found.append(f"{module} imports {other}, a later room")
        if own is None and module in COMMON and target is not None:
            found.append(f"{module} is for all rooms and imports {other}")
        if other.split(".")[0] == "transformers" and own != "models":
            found.append(f"{module} imports transformers, which only models/ may")
        if own == "report" and target not in (None, "report"):
            # `from distillspec.studies import store` names the room first.
            allowed = (
                other.startswith("distillspec.studies.store") or other == "distillspec.studies"
            )
            if not allowed:
                found.append(f"{module} imports {other}; report/ reads studies.store only")
        if own == "report" and other.split(".")[0] == "torch":
            found.append(f"{module} imports torch; report/ computes nothing")
    return found


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_keeps_to_its_room(path: Path) -> None:
    assert faults(name(path), path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_is_short_enough_to_read(path: Path) -> None:
    """The aim is 300 lines; this is where it must be cut."""
    assert len(path.read_text("utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("distillspec.math.forecast", "from distillspec.models import protocol"),
        ("distillspec.decoding.speculative", "def f():\n    import distillspec.training.losses"),
        ("distillspec.training.distill", "from distillspec import studies"),
        ("distillspec.training.distill", "from transformers import AutoModel"),
        ("distillspec.cli", "import transformers.models"),
        ("distillspec.studies.measure", "from distillspec.commands import progress"),
        ("distillspec.report.html", "from distillspec.studies.measure import measure"),
        ("distillspec.report.html", "from distillspec.math import forecast"),
        ("distillspec.report.html", "import torch.nn"),
        ("distillspec.settings", "from distillspec.tasks import load"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    """The negative control: the check above can fail."""
    assert len(faults(module, source)) >= 1


def test_allowed_imports_pass() -> None:
    source = "import torch\nfrom distillspec.models import load\nfrom distillspec.errors import x"
    assert faults("distillspec.decoding.speculative", source) == []
    assert faults("distillspec.report.html", "from distillspec.studies import store") == []
    assert faults("distillspec.models.causal", "import transformers") == []


@pytest.mark.parametrize("module", ["report", "studies.store", "tasks", "settings"])
def test_what_needs_no_torch_loads_none(module: str) -> None:
    code = (
        f"import sys, distillspec.{module}; "
        "heavy = {'torch', 'transformers'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
