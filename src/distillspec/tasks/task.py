"""A task: where its rows come from, how a prompt is written, how answers are judged.

A task is data. Every field of `Task` but two is a key of a TOML file, and nothing in it is code:
a task of one's own is a file beside one's data (docs/tasks.md).
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillspec.errors import UserError, nearest
from distillspec.tasks import hub, stdlib
from distillspec.tasks.lines import InvalidRowError, Problem, scan
from distillspec.tasks.records import Columns, Domain, Form
from distillspec.tasks.rows import Row, split


@dataclass(frozen=True)
class Hub:
    """A data set of the hub."""

    name: str
    """Such as "openai/gsm8k"."""
    split: str
    """The split to evaluate on."""
    columns: Columns
    """Where its records keep what a row needs."""
    config: str | None = None
    """Its configuration; "{domain}" where every domain is a configuration of its own."""
    revision: str | None = None
    """A commit of the data set, so that the rows stay the same; none takes the newest."""
    train_split: str | None = None
    """The split for training and for few-shot examples."""


@dataclass(frozen=True)
class Stdlib:
    """The documented functions of the running Python's standard library, on every machine."""

    characters: tuple[int, ...]
    """Least and greatest length of a function's source without its docstring."""
    held_out: float
    """Share of the functions that evaluation uses and training must not."""


@dataclass(frozen=True)
class Task:
    """The content of a task's TOML file."""

    name: str
    """Its file's name, with the domain after a colon where only one was asked for."""
    description: str
    """One sentence for a list of tasks."""
    source: str
    """Who made the data."""
    prompt: str
    """The prompt, with `{input}` where the record's input goes."""
    metric: str
    """How outputs are judged: "rouge", "bleu", "gsm8k", "bbh" or "none"."""
    max_input_tokens: int | None = None
    """Longest prompt in tokens, of the model's own tokenizer; none sets no limit."""
    max_output_tokens: int | None = None
    """Longest answer in tokens; none leaves it to the verb."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer; what follows the first of them is not judged."""
    shot: str = "{prompt} {target}\n\n"
    """How an example stands before the prompt in a few-shot text."""
    continuation: int | None = None
    """Where set, the input is this many first words of a text and the target is the rest."""
    local: Columns = Columns()
    """Where a JSONL file keeps what a row needs."""
    hub: Hub | None = None
    """The data set on the hub."""
    stdlib: Stdlib | None = None
    """Where the rows are made from the standard library instead."""
    domains: tuple[Domain, ...] = ()
    """The kinds of prompts, where the task has several; a row of another kind is refused."""
    chosen: tuple[str, ...] | None = None
    """The subsets asked for; None for all. No key of the file."""

    def rows(self) -> Iterator[Row]:
        """Yield the task's rows without a file, in an order that is always the same.

        From the standard library every row (split them before training), from the hub those of
        the evaluation split.

        Raises:
            UserError: the hub cannot be reached, or the task has no rows without a file.
        """
        if self.stdlib is not None:
            yield from self._functions(self.stdlib)
        else:
            source = self._source()
            yield from self._of_hub(source, source.split)

    def read(
        self, data: Path | None = None, *, limit: int | None = None, seed: int = 0
    ) -> list[Row]:
        """Read the rows to evaluate on.

        Args:
            data: a JSONL file with the columns of `local`; None reads the hub's evaluation split,
                or the held-out functions of the standard library.
            limit: draw this many rows at random (the paper: random examples), keeping their
                order; None, or more than there are, takes all.
            seed: of the draw.

        Raises:
            UserError: an unreadable file, an invalid line (named "file:line: reason"), no rows.
        """
        if data is not None:
            return self._drawn(list(self._of_file(data)), str(data), limit, seed)
        rows = list(self.rows())
        if self.stdlib is not None:
            rows = list(split(rows, self.stdlib.held_out).held_out)
        return self._drawn(rows, self.name, limit, seed)

    def read_training(
        self, data: Path | None = None, *, limit: int | None = None, seed: int = 0
    ) -> list[Row]:
        """Read rows to train on or to show as examples: never those of the evaluation split.

        Args:
            data: a JSONL file of training rows; None reads the hub's training split, or the
                functions of the standard library that are not held out.
            limit: as for `read`.
            seed: of the draw.

        Raises:
            UserError: as `read`; and if the data set has no training split.
        """
        if data is not None:
            return self.read(data, limit=limit, seed=seed)
        if self.stdlib is not None:
            rows = list(split(self.rows(), self.stdlib.held_out).train)
        else:
            source = self._source()
            if source.train_split is None:
                raise UserError(
                    f"{self.name}: {source.name} has no training split; give a file of training "
                    "rows"
                )
            rows = list(self._of_hub(source, source.train_split))
        return self._drawn(rows, self.name, limit, seed)

    def only(self, domain: str) -> Task:
        """Keep one domain of the task, by its name or by that of one of its subsets.

        Raises:
            UserError: the task has no such domain.
        """
        if not self.domains:
            raise UserError(f"{self.name}:{domain}: the task {self.name} has no domains")
        name = f"{self.name}:{domain}"
        for known in self.domains:
            if domain == known.name:
                return dataclasses.replace(self, name=name, chosen=known.subsets)
            if domain in known.subsets:
                return dataclasses.replace(self, name=name, chosen=(domain,))
        names = {name for known in self.domains for name in (known.name, *known.subsets)}
        raise UserError(f"{name}: no such domain; {nearest(domain, sorted(names))}")

    @property
    def _form(self) -> Form:
        judged = self.metric != "none"
        return Form(self.prompt, self.continuation, self.domains, self.chosen, judged)

    def _drawn(self, rows: list[Row], where: str, limit: int | None, seed: int) -> list[Row]:
        if limit is not None and limit < 1:
            raise UserError(f"limit {limit}: expected at least 1 row")
        if not rows:
            raise UserError(f"{where}: no rows of the task {self.name}")
        if limit is None or limit >= len(rows):
            return rows
        indices = sorted(random.Random(seed).sample(range(len(rows)), limit))
        return [rows[index] for index in indices]

    def _functions(self, made: Stdlib) -> Iterator[Row]:
        least, greatest = made.characters
        for function in stdlib.functions(characters=(least, greatest)):
            prompt = self.prompt.replace("{input}", function.source)
            yield Row(function.id, prompt, function.docstring, domain=self.name)

    def _of_file(self, path: Path) -> Iterator[Row]:
        if not path.name.endswith((".jsonl", ".jsonl.gz")):
            raise UserError(f"{path}: expected a file ending in .jsonl or .jsonl.gz")
        form = self._form
        for row in scan(path, lambda line, path, n: form.line(line, path, n, self.local)):
            if isinstance(row, Problem):
                raise UserError(f"{row}; mend the line, or name the columns in a task of your own")
            yield row

    def _source(self) -> Hub:
        if self.hub is None:
            raise UserError(f"{self.name}: the task names no data set of the hub; give --data FILE")
        return self.hub

    def _of_hub(self, source: Hub, part: str) -> Iterator[Row]:
        """Yield the hub's rows; invalid ones (an empty article) are left out, and counted aloud."""
        form = self._form
        skipped: list[Problem] = []
        for number, (record, subset) in enumerate(self._records(source, part), start=1):
            try:
                row = form.row(record, source.columns, f"{self.name}-{part}-{number}", subset)
            except InvalidRowError as error:
                skipped.append(Problem(f"{source.name} {part}", number, str(error)))
            else:
                if row is not None:
                    yield row
        if skipped:
            text = f"{self.name}: left out {len(skipped)} rows of the hub, first {skipped[0]}"
            warnings.warn(text, stacklevel=2)

    def _records(self, source: Hub, part: str) -> Iterator[tuple[Mapping[str, Any], str | None]]:
        """Yield records with the name their domain has in the data, where the hub says it so."""
        configs: list[tuple[str | None, str | None]] = [(source.config, None)]
        if source.config is not None and "{domain}" in source.config:
            every = [subset for domain in self.domains for subset in domain.subsets]
            subsets = every if self.chosen is None else self.chosen
            configs = [(source.config.replace("{domain}", subset), subset) for subset in subsets]
        for config, subset in configs:
            for record in hub.records(
                source.name, config=config, split=part, revision=source.revision
            ):
                yield record, subset
