"""Settings: every value is used as written, or refused in one line that names its key."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.errors import UserError
from distillspec.settings import as_dict, parse


@dataclass(frozen=True)
class Everything:
    """Do everything.

    At length.
    """

    target: str
    """The model whose output is kept."""
    steps: int = 10
    """Optimizer steps, 100 % of them."""
    learning_rate: float = 3e-4
    """Peak learning rate,
    per step."""
    shuffle: bool = True
    """Whether to shuffle."""
    out: Path | None = None
    """Run directory."""
    rule: Literal["sampled", "argmax"] = "sampled"
    """How the draft draws."""
    gamma: tuple[int, ...] = (1, 2, 3, 4)
    """Drafted tokens per block."""
    temperatures: tuple[float, ...] = field(default_factory=lambda: (0.0, 1.0))
    """Sampling temperatures."""
    minutes: float | None = None
    """Budget in minutes."""


@dataclass(frozen=True)
class Positional:
    """Draw."""

    folder: Path = field(metadata={"positional": True})
    """A run directory."""
    dark: bool = False
    """Dark page."""


def read(*argv: str) -> Everything:
    return parse(Everything, argv, prog="distillspec verb").settings


def refused(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        parse(Everything, argv, prog="distillspec verb")
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_the_dataclass_defaults() -> None:
    assert read("--target", "m") == Everything(target="m")


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (("--steps", "25"), "steps", 25),
        (("--learning-rate=1e-4",), "learning_rate", 1e-4),
        (("--learning-rate=-1e-4",), "learning_rate", -1e-4),
        (("--out", "runs/a"), "out", Path("runs/a")),
        (("--out", "none"), "out", None),
        (("--rule", "argmax"), "rule", "argmax"),
        (("--gamma", "1..8"), "gamma", tuple(range(1, 9))),
        (("--gamma", "1,3,5"), "gamma", (1, 3, 5)),
        (("--gamma", "1..3,8"), "gamma", (1, 2, 3, 8)),
        (("--gamma", "4"), "gamma", (4,)),
        (("--temperatures", "0,0.7, 1"), "temperatures", (0.0, 0.7, 1.0)),
        (("--minutes", "60"), "minutes", 60.0),
        (("--shuffle",), "shuffle", True),
    ],
)
def test_a_flag_reaches_its_field(argv: tuple[str, ...], name: str, value: object) -> None:
    found = getattr(read("--target", "m", *argv), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("word", ["true", "yes", "1", "True", "YES", "false", "no", "0", "False"])
def test_every_word_of_a_boolean_means_itself(word: str, tmp_path: Path) -> None:
    """A public bug: `--flag False` switched the flag on, because any text is true."""
    expected = word.lower() in ("true", "yes", "1")
    assert read("--target", "m", "--shuffle", word).shuffle is expected
    assert read("--target", "m", f"--shuffle={word}").shuffle is expected
    config = tmp_path / "c.yaml"
    config.write_text(f"shuffle: {word}\n")
    assert read("--target", "m", "--config", str(config)).shuffle is expected


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("5e-05", 5e-5), ("2e5", 2e5), ("0123", 123.0), ("'1e-4'", 1e-4)],
)
def test_numbers_in_yaml_are_numbers(text: str, value: float, tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-4 as a string and 0123 as octal; the field's type decides here."""
    config = tmp_path / "c.yaml"
    config.write_text(f"learning-rate: {text}\n")
    assert read("--target", "m", "--config", str(config)).learning_rate == value


def test_words_in_yaml_stay_words_and_lists_are_lists(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("target: no\ngamma: [1..2, 5]\ntemperatures:\n  - 0\n  - 1e-1\nout: null\n")
    found = read("--config", str(config))
    assert (found.target, found.gamma, found.temperatures) == ("no", (1, 2, 5), (0.0, 0.1))
    assert found.out is None


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("target: file\nsteps: 3\n")
    found = read("--config", str(config), "--steps", "4")
    assert (found.target, found.steps) == ("file", 4)


def test_json_is_common_to_all_and_no_setting() -> None:
    assert parse(Everything, ["--target", "m", "--json"], prog="p").json is True
    assert parse(Everything, ["--target", "m"], prog="p").json is False
    found = parse(Positional, ["--json", "runs/demo"], prog="p")
    assert (found.json, found.settings.folder) == (True, Path("runs/demo"))


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ((), ("--target", "missing", "output is kept")),
        (("--target",), ("--target",)),
        (("--target", "m", "--step", "1"), ("--step", "'--steps'")),
        (("--target", "m", "--learning_rate=1"), ("--learning_rate", "'--learning-rate'")),
        (("--target", "m", "stray"), ("stray", "--flag value")),
        (("--target", "m", "--steps", "1.5"), ("--steps", "'1.5'", "whole number")),
        (("--target", "m", "--steps", "ten"), ("--steps", "'ten'")),
        (("--target", "m", "--learning-rate", "nan"), ("--learning-rate", "finite")),
        (("--target", "m", "--learning-rate", "inf"), ("--learning-rate", "finite")),
        (("--target", "m", "--shuffle", "maybe"), ("--shuffle", "'maybe'", "boolean")),
        (("--target", "m", "--rule", "argmix"), ("--rule", "'argmax'")),
        (("--target", "m", "--gamma", "8..1"), ("--gamma", "'8..1'", "upwards")),
        (("--target", "m", "--gamma", "1..999999999999"), ("--gamma", "at most")),
        (("--target", "m", "--gamma", f"1..{'9' * 5000}"), ("--gamma", "range")),
        (("--target", "m", "--gamma", ""), ("--gamma",)),
        (("--target", "m", "--gamma", "1,,2"), ("--gamma",)),
        (("--target", "m", "--minutes", "\n"), ("--minutes",)),
        (("--target", "m", "--config", "absent.yaml"), ("absent.yaml", "cannot be read")),
    ],
)
def test_a_mistake_on_the_command_line_names_the_flag(
    argv: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    message = refused(*argv)
    assert all(part in message for part in parts), message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("learning_rat: 1\n", (":1: learning_rat", "'learning_rate'")),
        ("target: m\nsteps: [1, 2]\n", (":2: steps", "one value")),
        ("steps: {a: 1}\n", (":1: steps", "nested")),
        ("steps: 1\nsteps: 2\n", (":2: steps", "twice")),
        ("max: &a [*a]\n", ("max",)),
        ("gamma: []\n", ("gamma", "empty")),
        ("[1, 2]\n", ("key: value",)),
        ("? [a]\n: 1\n", ("not a name",)),
        ("a: [\n", ("not YAML",)),
        ("json: true\n", ("json", "unknown key")),
        ("config: a\n", ("config", "unknown key")),
        ("steps: 0x10\n", ("steps", "'0x10'")),
        ("learning_rate: .inf\n", ("learning_rate", "'.inf'")),
        ("learning_rate: !!python/object:os.system 1\nshuffle: maybe\n", ("shuffle",)),
        ("a: \x00\n", ("not YAML",)),
    ],
)
def test_a_mistake_in_the_file_names_file_line_and_key(
    text: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(text)
    message = refused("--target", "m", "--config", str(config))
    assert "c.yaml" in message
    assert all(part in message for part in parts), message


def test_an_empty_file_changes_nothing_and_a_wrong_encoding_is_named(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_bytes(b"# nothing\n")
    assert read("--target", "m", "--config", str(config)) == Everything(target="m")
    config.write_bytes(b"target: \xff\xfe\n")
    assert "UTF-8" in refused("--config", str(config))


def test_help_shows_docstrings_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Do everything. At length." in text
    assert "--learning-rate X Peak learning rate, per step. (default: 0.0003)" in text
    assert "Drafted tokens per block. (default: 1..4)" in text
    assert "Optimizer steps, 100 % of them. (default: 10)" in text
    assert "The model whose output is kept. (required)" in text
    assert "--rule sampled|argmax" in text
    assert "--config FILE" in text


def test_help_shows_what_a_list_of_numbers_is_made_of_not_some_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It said `--layers 1..8` and `--eos-token-id 1..8`, which read like a range to keep to."""
    with pytest.raises(SystemExit):
        read("--help")
    assert "--gamma N,…" in capsys.readouterr().out


def test_every_field_of_the_settings_appears_in_its_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(Positional, ["--help"], prog="p")
    text = capsys.readouterr().out
    assert "FOLDER" in text
    assert "A run directory. (required)" in text


def test_importing_and_parsing_is_fast_and_light() -> None:
    """The help of a verb has one second on a slow machine; torch alone would take more."""
    code = (
        "import sys, distillspec.settings; "
        "heavy = {'torch', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_as_dict_is_ready_for_json() -> None:
    found = as_dict(Everything(target="m", out=Path("a/b")))
    assert found["out"] == "a/b"
    assert found["gamma"] == [1, 2, 3, 4]
    assert set(found) == {item.name for item in fields(Everything)}
    with pytest.raises(TypeError):
        as_dict({"a": 1})


def outcome(*argv: str) -> tuple[Everything | None, str]:
    """The settings, or None and the message; anything but a UserError fails the test."""
    try:
        return parse(Everything, argv, prog="p").settings, ""
    except UserError as error:
        return None, str(error)


def number(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(text)
    return float(text)


def boolean(text: str) -> bool:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
        text.lower()
    ]


EXPECTED: dict[str, Callable[[str], Any]] = {
    "steps": int,
    "learning_rate": number,
    "target": str,
    "shuffle": boolean,
    "minutes": lambda text: None if text.lower() in ("none", "null", "~", "") else number(text),
}
TEXTS = st.one_of(
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["true", "no", "1e-4", "0123", "1..8", "8..1", "none", "", "-", "--", "1,2"]),
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(name=st.sampled_from([*EXPECTED, "unknown_key", "stepss"]), text=TEXTS)
def test_any_value_is_used_as_written_or_refused_by_name(name: str, text: str) -> None:
    """Never clamped, never ignored, never a traceback."""
    flag = f"--{name.replace('_', '-')}"
    found, message = outcome(*["--target=m"] * (name != "target"), f"{flag}={text}")
    try:
        expected = EXPECTED[name](text)
        valid = text != "--"  # argparse cannot carry it, so it is refused
    except (KeyError, ValueError):
        valid = False
    if valid:
        assert found is not None, message
        assert getattr(found, name) == expected
    else:
        assert found is None
        assert flag in message
        assert "\n" not in message


@settings(deadline=None, derandomize=True, max_examples=300)
@given(text=st.one_of(st.text(max_size=60), st.from_regex(r"(steps|shuffle|gamm?a): .{0,20}\n")))
def test_any_file_is_read_or_refused_in_one_line(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    config.write_bytes(text.encode("utf-8", "surrogatepass"))
    found, message = outcome("--target=m", "--config", str(config))
    if found is None:
        assert "fuzz.yaml" in message
        assert "\n" not in message
        return
    written = dict(re.findall(r"^(steps|shuffle): *([^\s#'\"]+) *$", text, flags=re.MULTILINE))
    for name, value in written.items():
        assert getattr(found, name) == EXPECTED[name](value)
