"""What mkdocs fills in when it builds the pages: the help of every verb, as it is printed."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

from distillspec import cli

MARK = "<!-- the help of every verb -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the help of every verb in place of the mark."""
    if MARK not in markdown:
        return markdown
    return markdown.replace(MARK, "\n\n".join(map(_section, cli.VERBS)))


def _section(verb: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        cli.main([verb, "--help"])
    return f"## {verb}\n\n```text\n{printed.getvalue().rstrip()}\n```"
