"""What the verbs on tasks share: their rows and prompts, and what is refused before a model loads.

A prompt longer than the task's limit loses the end of its input, as in T5's own set-up; the text
of the template around the input stays whole. A chat template's tokens are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from distillspec.commands.pairs import prompt_ids
from distillspec.commands.task_settings import OnTask
from distillspec.decoding import Output
from distillspec.errors import UserError
from distillspec.models import load_tokenizer
from distillspec.models.adapter import TransformersModel
from distillspec.models.text import Raw, Tokenizer
from distillspec.models.vocabulary import check_same
from distillspec.studies import quality
from distillspec.studies.clock import Lane, Run
from distillspec.studies.transcripts import transcript
from distillspec.tasks import Row, Task, load_task, shortened, with_shots
from distillspec.tasks.metrics import Metric, Scored, metric_of


@dataclass(frozen=True)
class Benchmark:
    """A task with the rows it is run on."""

    task: Task
    """The task."""
    metric: Metric | None
    """How its outputs are judged; None where any output will do."""
    rows: tuple[Row, ...]
    """What is asked, in full length and without examples."""
    max_new_tokens: int
    """Tokens per output, at most."""
    shots: int = 0
    """Examples before every prompt."""
    training: tuple[Row, ...] = ()
    """Where these are drawn from."""
    seed: int = 0
    """Of that draw."""


@dataclass(frozen=True)
class Asked:
    """What a benchmark asks one model."""

    rows: tuple[Row, ...]
    """With prompts as they are asked."""
    prompts: tuple[Tensor, ...]
    """Their ids, 1-D int64."""
    truncated: int
    """How many were longer than the task allows."""


def benchmark(asked: OnTask, *, shots: int = 0, shots_data: Path | None = None) -> Benchmark:
    """Read a task and its rows, and try its metric on them.

    Args:
        asked: The task, its rows and the length of its outputs.
        shots: Examples before every prompt, from training rows.
        shots_data: A file of these; None for where the task itself finds them.

    Raises:
        UserError: no such task or file, a row that cannot be judged, or a missing limit.
    """
    task = load_task(asked.task)
    length = asked.max_new_tokens
    if length is None:
        length = task.max_output_tokens
    if length is None:
        raise UserError(
            f"--max-new-tokens is missing: the task {asked.task} sets no limit of its own"
        )
    if length < 1:
        raise UserError(f"--max-new-tokens {length}: expected a whole number of at least 1")
    if shots_data is not None and not shots:
        raise UserError(f"--shots-data {shots_data} does nothing without --shots; leave it out")
    rows = task.read(asked.data, limit=asked.limit, seed=asked.seed)
    metric = metric_of(task)
    if metric is not None:
        metric.score(rows, [""] * len(rows))  # refuses a row without a usable reference by now
    training = task.read_training(shots_data) if shots else []
    if shots:
        with_shots(task, rows, training, count=shots, seed=asked.seed)  # likewise an example
    return Benchmark(task, metric, tuple(rows), length, shots, tuple(training), asked.seed)


def judged_benchmark(asked: OnTask) -> tuple[Benchmark, Metric]:
    """Read the task, where ways to decode it are compared by quality.

    Raises:
        UserError: as `benchmark`; and if the task has no metric.
    """
    bench = benchmark(asked)
    if bench.metric is None:
        raise UserError(
            f"--task {asked.task} has no metric, so that there is no quality to compare; give "
            "a task with one"
        )
    return bench, bench.metric


def ask(bench: Benchmark, model: TransformersModel) -> Asked:
    """Make the prompts of a benchmark for one model.

    Raises:
        UserError: naming the row whose prompt cannot be used.
    """
    tokenizer = model.tokenizer
    whole = [
        shortened(bench.task, row, lambda text: len(tokenizer.prompt(Raw(text))))
        for row in bench.rows
    ]
    truncated = sum(
        row.prompt != short.prompt for row, short in zip(bench.rows, whole, strict=True)
    )
    rows = (
        with_shots(bench.task, whole, bench.training, count=bench.shots, seed=bench.seed)
        if bench.shots
        else whole
    )
    prompts = prompt_ids(tokenizer, rows, context=model.context)
    return Asked(tuple(rows), tuple(prompts), truncated)


def judge(
    metric: Metric, rows: Sequence[Row], outputs: Sequence[Output], tokenizer: Tokenizer
) -> Scored:
    """Score outputs, one a row."""
    return metric.score(rows, [tokenizer.decode(output.ids) for output in outputs])


def judged_rows(
    metric: Metric | None,
    setting: str,
    lane: Lane | None,
    rows: Sequence[Row],
    outputs: Sequence[Output],
    tokenizer: Tokenizer,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of outputs.jsonl of one way to decode, each with its own figures.

    Args:
        metric: How outputs are judged; None leaves them without figures.
        setting: What the way is called.
        lane: That way; None for the target alone.
        rows: What was asked.
        outputs: What came out, one a row.
        tokenizer: The target's.
    """
    scores = (
        [{} for _ in outputs]
        if metric is None
        else quality.rows(judge(metric, rows, outputs, tokenizer))
    )
    for row, output, own in zip(rows, outputs, scores, strict=True):
        yield {**transcript(setting, lane, row, output, tokenizer), "quality": own}


def clocked_rows(
    metric: Metric | None,
    setting: str,
    lane: Lane | None,
    rows: Sequence[Row],
    runs: Sequence[Run],
    tokenizer: Tokenizer,
) -> Iterator[dict[str, Any]]:
    """Yield the same of runs on the clock, with their seconds of decoding."""
    outputs = [run.output for run in runs]
    written = judged_rows(metric, setting, lane, rows, outputs, tokenizer)
    for row, run in zip(written, runs, strict=True):
        yield {**row, "seconds": run.seconds}


def check_tokens(targets: Sequence[str], drafts: Sequence[str]) -> None:
    """Check from the tokenizers alone that every draft shares the tokens of every target.

    Raises:
        UserError: naming a pair that does not; or there is no such model.
    """
    of_drafts = [load_tokenizer(draft) for draft in drafts]
    for target in targets:
        own = load_tokenizer(target)
        for draft in of_drafts:
            check_same(own.vocabulary, draft.vocabulary, names=(own.name, draft.name))
