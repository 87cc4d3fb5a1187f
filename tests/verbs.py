"""Running the command line in tests: verbs on tiny models, their JSON and their one-line errors."""

from __future__ import annotations

import json

from distillspec import cli
from distillspec.models import wrap
from support import module, perturbed, word_tokenizer

WORDS = [f"w{i}" for i in range(6, 30)]


def saved(folder, family="llama", *, seed=0, chat=False, noise=None):
    """Save a tiny random model, perturbed where `noise` is given; return the folder's name."""
    tokenizer = word_tokenizer(chat=chat)
    model = wrap(module(family, seed=seed), tokenizer)
    if noise is not None:
        model = perturbed(model, noise)
    model.save(folder)
    return str(folder)


def write_rows(file, rows):
    """Write JSON lines; return the file's name."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def run(capsys, *argv):
    """Run a verb with --json; return exit code, the JSON of the last line, and stderr."""
    code = cli.main([*map(str, argv), "--json"])
    captured = capsys.readouterr()
    lines = captured.out.strip().splitlines()
    return code, json.loads(lines[-1]) if lines and code in (0, 3) else None, captured.err


def refused(capsys, *argv):
    """Run a verb that must be refused; return its one line."""
    code, _, err = run(capsys, *argv)
    assert code == 2
    lines = [line for line in err.strip().splitlines() if line.startswith("distillspec: error")]
    assert len(lines) == 1
    assert "Traceback" not in err
    return lines[0]
