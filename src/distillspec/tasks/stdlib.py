"""Real text that is on every machine: the documented functions of Python's standard library.

python -c "from distillspec.tasks import stdlib; print(sum(1 for _ in stdlib.functions()))"
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Folders that are not the library: its tests, its bundled tools, and what others installed there.
_SKIPPED = frozenset(
    {
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "turtledemo",
        "ensurepip",
        "site-packages",
        "dist-packages",
        "__pycache__",
    }
)


@dataclass(frozen=True)
class Function:
    """A documented function."""

    id: str
    """`module:qualified.name`, such as "json.decoder:JSONDecoder.decode"."""
    source: str
    """Its source with decorators, dedented, without the docstring."""
    docstring: str
    """The docstring's first paragraph, on one line."""


def functions(root: Path | None = None, *, characters: tuple[int, int]) -> Iterator[Function]:
    """Yield the documented functions under `root`, each source and each id once.

    The order is fixed but shuffled (modules by a hash of their name, then as written), so that
    the first n are a fair sample and the rest of the library need not be read for them. Files
    that this Python cannot parse (templates, other versions' syntax) are passed over.

    Args:
        root: the folder to walk; default the running Python's standard library.
        characters: least and greatest length of `Function.source`, both included.
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    seen: set[str] = set()
    for path in sorted(_modules(root), key=lambda path: _shuffled(path.relative_to(root))):
        for function in _in_module(path, _name(path.relative_to(root))):
            if characters[0] <= len(function.source) <= characters[1]:
                source = " ".join(function.source.split())
                # One id may have several bodies: a property's setter, a definition per platform.
                if seen.isdisjoint((source, function.id)):
                    seen.update((source, function.id))
                    yield function


def _modules(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name not in _SKIPPED:
            yield from _modules(path)
        elif path.suffix == ".py":
            yield path


def _shuffled(path: Path) -> bytes:
    return hashlib.sha256(path.as_posix().encode()).digest()


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _in_module(path: Path, module: str) -> Iterator[Function]:
    try:
        text = path.read_bytes().decode("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library's own invalid escapes are not ours
            tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    # Split as `ast` counts lines; `splitlines` would also break at form feeds.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    yield from _in_body(tree, lines, module, ())


def _in_body(
    parent: ast.AST, lines: list[str], module: str, outer: tuple[str, ...]
) -> Iterator[Function]:
    """Yield the functions of a module or class, but not those inside functions."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            yield from _in_body(node, lines, module, (*outer, node.name))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = _first_paragraph(node)
            source = _without_docstring(node, lines)
            if docstring and source:
                name = ".".join((*outer, node.name))
                yield Function(f"{module}:{name}", source, docstring)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _in_body(node, lines, module, outer)


def _first_paragraph(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    docstring = ast.get_docstring(node, clean=False)
    if docstring is None or "\x00" in docstring:
        return ""
    return " ".join(inspect.cleandoc(docstring).split("\n\n")[0].split())


def _without_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> str:
    """Cut the docstring's lines out; "" where there is no other statement, or it shares a line."""
    docstring, rest = node.body[0], node.body[1:]
    if not rest or docstring.end_lineno is None or rest[0].lineno <= docstring.end_lineno:
        return ""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    if docstring.lineno - 1 <= first or lines[docstring.lineno - 1][: docstring.col_offset].strip():
        return ""
    head = lines[first : docstring.lineno - 1]
    body = "\n".join(lines[docstring.end_lineno : node.end_lineno]).strip("\n").split("\n")
    # Not textwrap.dedent: one line of a string at column 0 would keep it from doing anything.
    indent = head[0][: len(head[0]) - len(head[0].lstrip())]
    return "\n".join(line.removeprefix(indent).rstrip() for line in [*head, *body])
