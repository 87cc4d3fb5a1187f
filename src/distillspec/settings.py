"""Settings of a verb: a frozen dataclass in, a command line and a config file out.

The fields of the dataclass are the flags, their docstrings the help, their types the check. A
value may stand on the command line or in `--config file.yaml`; the command line wins. Every value
arrives as text, from YAML too, and one converter reads it by the field's type. So `1e-4` is a
number and `no` a string or a boolean as the field says, not as YAML 1.1 guesses.

    @dataclass(frozen=True)
    class Settings:
        \"\"\"Measure a pair.\"\"\"
        target: str
        \"\"\"Folder, hub name or GGUF file of the target.\"\"\"
        gamma: tuple[int, ...] = (1, 2, 4)
        \"\"\"Drafted tokens per block.\"\"\"

    parsed = parse(Settings, ["--target", "m", "--gamma", "1..8"], prog="distillspec measure")

argparse rather than jsonargparse: the latter reads neither `0` nor `1` as a boolean, proposes no
nearest name for an unknown key, spreads an error over several lines, and takes a third of the
second that `--help` may take. What is left to do here is the typed converter.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from distillspec.convert import convert, kind, show
from distillspec.errors import UserError, nearest
from distillspec.yaml_keys import read_yaml

T = TypeVar("T")


@dataclass(frozen=True)
class Parsed(Generic[T]):
    """What a command line said."""

    settings: T
    """The verb's settings, complete and checked."""
    json: bool
    """Whether the last line on stdout shall be one JSON object (`--json`, common to all verbs)."""


def parse(settings_class: type[T], argv: Sequence[str], *, prog: str) -> Parsed[T]:
    """Read the settings of one verb from its arguments and its config file.

    Args:
        settings_class: a dataclass; a field is a flag (`max_new_tokens` is `--max-new-tokens`),
            or an argument without a flag where its metadata says `{"positional": True}`. Types:
            str, int, float, bool, Path, Literal of str, tuple[one of these, ...], `| None`.
        argv: the arguments after the verb.
        prog: what messages call the command, such as "distillspec measure".

    Returns:
        The settings, with `--json` beside them.

    Raises:
        UserError: an unknown key (the nearest valid one is named), a missing key, a key twice in
            the file, a value of the wrong type; the message names the key.
        SystemExit: code 0, after `--help` was printed.
    """
    fields = _fields(settings_class)
    for argument in argv:
        if argument == "--" or argument.endswith("=--"):  # argparse would drop it without a word
            raise UserError(f"{prog}: {argument}: '--' is no value; see {prog} --help")
    known, extra = _parser(settings_class, fields, prog).parse_known_args(list(argv))
    given = vars(known)
    if extra:
        flags = [field.flag for field in fields.values() if not field.positional]
        raise UserError(_unknown(prog, extra[0], [*flags, "--config", "--json", "--help"]))

    as_json, config = given.pop("json"), given.pop("config")
    values = {} if config is None else _read_config(config, fields)
    for name, text in given.items():
        values[name] = convert(text, fields[name].hint, f"{prog}: {fields[name].flag}")
    for field in fields.values():
        if field.required and field.name not in values:
            raise UserError(f"{prog}: {field.flag} is missing: {field.help}")
    return Parsed(settings_class(**values), bool(as_json))


def as_dict(settings: object) -> dict[str, Any]:
    """Turn settings (a dataclass instance) into what JSON holds: paths as text, tuples as lists."""

    def plain(value: object) -> object:
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, (tuple, list)):
            return [plain(item) for item in value]
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        return value

    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        raise TypeError(f"settings must be a dataclass instance, not {settings!r}")
    return {key: plain(value) for key, value in dataclasses.asdict(settings).items()}


@dataclass(frozen=True)
class _Field:
    name: str
    hint: Any
    default: Any
    help: str
    positional: bool

    @property
    def flag(self) -> str:
        name = self.name.replace("_", "-")
        return name.upper() if self.positional else f"--{name}"

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING


def _fields(settings_class: type) -> dict[str, _Field]:
    if not dataclasses.is_dataclass(settings_class):
        raise TypeError(f"settings must be a dataclass, not {settings_class!r}")
    hints = typing.get_type_hints(settings_class)
    docs = _field_docstrings(settings_class)
    fields = {}
    for field in dataclasses.fields(settings_class):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        positional = bool(field.metadata.get("positional", False))
        fields[field.name] = _Field(
            field.name, hints[field.name], default, docs.get(field.name, ""), positional
        )
    return fields


@functools.cache
def _field_docstrings(settings_class: type) -> dict[str, str]:
    """Read the string under each field; Python keeps no trace of it but the source."""
    docs = {}
    for part in reversed(settings_class.__mro__):
        if not dataclasses.is_dataclass(part):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, below in zip(body, body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                docs[field.target.id] = " ".join(below.value.value.split())
    return docs


class _Parser(argparse.ArgumentParser):
    """argparse with its errors raised: overriding `error` is its documented way to do so."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")


def _parser(settings_class: type, fields: Mapping[str, _Field], prog: str) -> _Parser:
    """Make the argparse side. It only collects text, so that one converter serves YAML too."""
    parser = _Parser(
        prog=prog,
        description=inspect.getdoc(settings_class),
        allow_abbrev=False,  # an abbreviation would change its meaning when a flag is added
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for field in fields.values():
        default = "required" if field.required else f"default: {show(field.default)}"
        about = f"{field.help} ({default})".strip().replace("%", "%%")
        values = kind(field.hint)
        if field.positional:
            parser.add_argument(field.name, nargs="?", metavar=field.flag, help=about)
        elif values == "true|false":
            parser.add_argument(
                field.flag, dest=field.name, nargs="?", const="true", metavar=values, help=about
            )
        else:
            parser.add_argument(field.flag, dest=field.name, metavar=values, help=about)
    parser.add_argument(
        "--config", type=Path, default=None, metavar="FILE", help="a YAML file of these settings"
    )
    parser.add_argument(
        "--json", action="store_true", default=False, help="end stdout with one line of JSON"
    )
    return parser


def _unknown(prog: str, argument: str, flags: Iterable[str]) -> str:
    name = argument.partition("=")[0]
    if name.startswith("-"):
        return f"{prog}: unknown flag {name!r}; {nearest(name, flags)}"
    return f"{prog}: unexpected argument {argument!r}; values follow their flag, as in --flag value"


def build(settings_class: type[T], values: Mapping[str, str | list[str]], where: str) -> T:
    """Make settings from texts by the fields' types, as a line of a config file would be read.

    Args:
        settings_class: as for `parse`.
        values: the text, or list of texts, of every field that is given.
        where: what stands before a field's name in messages.

    Raises:
        UserError: as `parse`.
    """
    fields = _fields(settings_class)
    read = {}
    for name, text in values.items():
        if name not in fields:
            raise UserError(f"{where}: {name}: unknown key; {nearest(name, fields)}")
        read[name] = convert(text, fields[name].hint, f"{where}: {name}")
    for field in fields.values():
        if field.required and field.name not in read:
            raise UserError(f"{where}: {field.name} is missing: {field.help}")
    return settings_class(**read)


def _read_config(path: Path, fields: Mapping[str, _Field]) -> dict[str, Any]:
    """Read `key: value` lines of a YAML file by the fields' types."""
    values: dict[str, Any] = {}
    for entry in read_yaml(path, "--config "):
        if entry.name not in fields:
            raise UserError(f"{entry.where}: unknown key; {nearest(entry.name, fields)}")
        values[entry.name] = convert(entry.text(), fields[entry.name].hint, entry.where)
    return values
