"""The functions of a library, with their docstrings apart."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

from distillspec.tasks import stdlib

MODULE = '''"""Module."""

import functools


def documented(x):
    """First line,
    continued.

    Second paragraph.
    """

    # a comment stays
    return x + 1


class Outer:
    """Class."""

    class Inner:
        @functools.cache
        async def method(self):
            """Do it."""
            return "one"

    @property
    def value(self):
        """The value."""
        return self._value

    @value.setter
    def value(self, value):
        """Set the value."""
        self._value = value


def undocumented(x):
    return x


def only_documented():
    """Nothing else."""


def one_line(): "Doc."; return 1


def inside():
    """Outside."""

    def nested():
        """Not a function of the module."""
        return 1

    return nested


if True:

    def conditional(x):
        \'\'\'Is conditional.\'\'\'
        text = """
not dedented
"""
        return text
'''


def library(folder: Path) -> Path:
    (folder / "pkg" / "test").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text('def here():\n    """Here."""\n    return 1\n')
    (folder / "pkg" / "test" / "test_a.py").write_text('def no():\n    """No."""\n    return 1\n')
    (folder / "module.py").write_text(MODULE)
    (folder / "copy.py").write_text('def here():\n    """Again."""\n    return   1\n')
    (folder / "broken.py").write_text("def (:\n")
    (folder / "latin.py").write_bytes(b"# \xe9\n")
    (folder / "notes.txt").write_text("def not_python(): pass\n")
    return folder


def test_functions_are_found_with_source_and_docstring_apart(tmp_path: Path) -> None:
    found = {f.id: f for f in stdlib.functions(library(tmp_path), characters=(1, 1000))}
    # `pkg` and `copy` hold the same source, so only the first of them in the fixed order is kept.
    assert set(found) - {"pkg:here", "copy:here"} == {
        "module:documented",
        "module:Outer.Inner.method",
        "module:Outer.value",
        "module:inside",
        "module:conditional",
    }
    assert len({"pkg:here", "copy:here"} & set(found)) == 1
    documented = found["module:documented"]
    assert documented.docstring == "First line, continued."
    assert documented.source == "def documented(x):\n    # a comment stays\n    return x + 1"
    method = found["module:Outer.Inner.method"]
    assert method.source == '@functools.cache\nasync def method(self):\n    return "one"'
    assert found["module:Outer.value"].docstring == "The value."
    conditional = found["module:conditional"].source
    text = '    text = """\nnot dedented\n"""'
    assert conditional == f"def conditional(x):\n{text}\n    return text"


def test_the_bounds_are_inclusive_and_the_order_fixed(tmp_path: Path) -> None:
    folder = library(tmp_path)
    every = list(stdlib.functions(folder, characters=(1, 1000)))
    assert every == list(stdlib.functions(folder, characters=(1, 1000)))
    length = len(every[0].source)
    exact = list(stdlib.functions(folder, characters=(length, length)))
    assert every[0] in exact
    assert {len(f.source) for f in exact} == {length}


def test_the_running_librarys_functions_are_code_without_their_docstring() -> None:
    found = list(itertools.islice(stdlib.functions(characters=(80, 500)), 2000))
    assert len(found) == 2000  # enough for training and measuring
    assert len({f.id for f in found}) == 2000
    for function in found:
        assert 80 <= len(function.source) <= 500
        assert "\x00" not in function.source
        assert function.docstring
        (node,) = ast.parse(function.source).body
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        assert function.id.endswith(node.name)
