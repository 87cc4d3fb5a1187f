"""The command line: a mapping from verb to settings and function, and nothing more.

    distillspec VERB [flags]

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 2 a user's error told
in one line, 3 done but a demand such as --min-speedup was not met, 130 interrupted, 141 nobody
reads stdout any more. The functions are imported when their verb is called, because torch takes
seconds to import and `--help` must not.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import TextIO

import distillspec
from distillspec import launch
from distillspec.commands.verbs import VERBS
from distillspec.errors import UserError, nearest
from distillspec.settings import parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code; of several processes the main one alone speaks."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        index = launch.process_index()
    except UserError as error:
        return _refused(error, sys.stderr)
    if index > 0:
        unheard = io.StringIO()
        with redirect_stdout(unheard):
            return _main(arguments, unheard)
    return _main(arguments, sys.stderr)


def _main(arguments: list[str], messages: TextIO) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A stdout that knows no α (a Windows pipe, LC_ALL=C) must not cost an hour's result.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        text, code = _run(arguments, messages)
    except UserError as error:
        return _refused(error, messages)
    except KeyboardInterrupt:
        print("distillspec: interrupted", file=messages)
        return 130
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `distillspec … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else exit flushes again
        return 141
    return code


def _refused(error: UserError, messages: TextIO) -> int:
    print(f"distillspec: error: {error}", file=messages)
    return 2


def _run(arguments: list[str], messages: TextIO) -> tuple[str, int]:
    """Run a verb; return what goes to stdout, and the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return _overview(), 0
    name, *rest = arguments
    if name == "--version":
        return distillspec.__version__, 0
    if name not in VERBS:
        raise UserError(f"unknown verb {name!r}; {nearest(name, VERBS)}")
    verb = VERBS[name]
    if launch.process_count() > 1 and not verb.together:
        raise UserError(
            f"{name} runs in one process, and {launch.process_count()} were started: start it "
            "without accelerate launch, torchrun or MPI"
        )
    asked = io.StringIO()  # --help goes the way of every text, to a reader that may have gone
    try:
        with redirect_stdout(asked):
            parsed = parse(verb.settings, rest, prog=f"distillspec {name}")
    except SystemExit:
        return asked.getvalue().rstrip("\n"), 0
    module = import_module(f"distillspec.commands.{verb.module}")
    result = getattr(module, verb.function)(parsed.settings)
    text, code = module.tell(result), 3 if result.get("unmet") else 0
    if parsed.json:
        print(text, file=messages)
        text = json.dumps(result, allow_nan=False)
    return text, code


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [
        f"  {name:<{width}}  {(verb.settings.__doc__ or '').strip().splitlines()[0]}"
        for name, verb in VERBS.items()
    ]
    return "\n".join(
        [
            "usage: distillspec VERB [flags]",
            "",
            (distillspec.__doc__ or "").strip(),
            "",
            *lines,
            "",
            "distillspec VERB --help lists the flags of a verb. What it calls docs/ is in the",
            "repository, and in the site that is made of it.",
        ]
    )
