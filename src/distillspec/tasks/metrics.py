"""How outputs are judged: counts for each prompt, and the figures made of their sums.

Every figure is a function of sums over prompts, in points from 0 to 100, so that an interval comes
from resampling the prompts (`studies.estimates.estimate(statistic, columns)`), and the difference
of two models from resampling both alike (`difference`).

rouge   ROUGE-1, -2 and -Lsum, the mean F-measure over prompts, by the package rouge-score, with the
        tokenizer and the sentences of `tasks.summaries`; no stemmer, as T5's own evaluation.
bleu    BLEU of the corpus by sacrebleu: mixed case, tokenizer 13a, exponential smoothing.
gsm8k   Share of right final numbers. `accuracy`: with calculator, the answer in any form (what the
        paper calls accuracy); `accuracy_strict`: with calculator, `#### N` only;
        `accuracy_unaided`, `accuracy_strict_unaided`: the same without calculator.
bbh     `accuracy_by_task`, the mean over the tasks of their shares of right answers (the paper's
        average), and `accuracy`, the share of all prompts.
none    No figure: any output will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from distillspec.errors import UserError
from distillspec.tasks.answers import agrees, cut, final_number, marked_number, options
from distillspec.tasks.calculator import calculated
from distillspec.tasks.rows import Row
from distillspec.tasks.task import Task

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Sums [n, k] -> figures [n]."""


@dataclass(frozen=True)
class Scored:
    """Outputs judged."""

    names: tuple[str, ...]
    """What each column counts."""
    columns: Floats
    """[prompts, k]; every figure is a function of the sums of these columns."""
    statistics: Mapping[str, Statistic]
    """The figures by name, in points from 0 to 100; the first is the metric's main one."""

    def value(self, name: str) -> float:
        """Compute a figure of the whole sample."""
        return float(self.statistics[name](self.columns.sum(axis=0, keepdims=True))[0])


@dataclass(frozen=True)
class Metric:
    """A way to judge outputs."""

    name: str
    """As in the task's file."""
    figures: tuple[str, ...]
    """The names of its figures; the first is the main one."""
    score: Callable[[Sequence[Row], Sequence[str]], Scored]
    """Judges one output a row; raises UserError for a row without a usable reference."""


def metric_of(task: Task) -> Metric | None:
    """Make a task's metric; None where the task has none.

    Raises:
        ValueError: the task names a metric that nobody makes.
    """

    def judged(score: Callable[[Sequence[Row], Sequence[str]], Scored]) -> Metric:
        def checked(rows: Sequence[Row], texts: Sequence[str]) -> Scored:
            if len(rows) != len(texts) or not rows:
                raise ValueError(f"{len(rows)} rows and {len(texts)} outputs: expected as many")
            return score(rows, [cut(text, task.stop) for text in texts])

        return Metric(task.metric, _FIGURES[task.metric], checked)

    if task.metric == "none":
        return None
    if task.metric not in _FIGURES:
        raise ValueError(f"unknown metric {task.metric!r}")
    return judged(_SCORES[task.metric])


def difference(name: str, first: Scored, second: Scored) -> tuple[Statistic, Floats]:
    """Pair two models' outputs of the same rows.

    Returns:
        A statistic, the first's figure minus the second's, and its columns [prompts, 2k], to be
        given to `estimate`.

    Raises:
        ValueError: the two did not judge as many prompts.
    """
    if len(first.columns) != len(second.columns):
        raise ValueError(f"{len(first.columns)} and {len(second.columns)} prompts cannot be paired")
    width = first.columns.shape[1]

    def statistic(sums: Floats) -> Floats:
        return first.statistics[name](sums[:, :width]) - second.statistics[name](sums[:, width:])

    return statistic, np.hstack([first.columns, second.columns])


def _share(column: int, of: int) -> Statistic:
    def statistic(sums: Floats) -> Floats:
        shares: Floats = 100.0 * sums[:, column] / sums[:, of]
        return shares

    return statistic


def _reference(row: Row) -> str:
    if row.target is None or not row.target.strip():
        raise UserError(f"{row.id}: no reference to judge the output by")
    return row.target


def _bleu(rows: Sequence[Row], texts: Sequence[str]) -> Scored:
    return bleu(texts, [[_reference(row)] for row in rows])


def bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> Scored:
    """Count what BLEU is made of: matching and all n-grams of orders 1 to 4, and the lengths.

    Args:
        texts: the outputs.
        references: one list of references for each output (not a list of reference files).

    Raises:
        ValueError: the lengths differ, or an output has a single string for its references.
    """
    from sacrebleu.metrics.bleu import BLEU

    if len(texts) != len(references):
        raise ValueError(f"{len(texts)} outputs and references for {len(references)}")
    if any(isinstance(each, str) or not each for each in references):
        raise ValueError("expected a list of references for each output")
    scorer = BLEU(effective_order=True)  # changes a sentence's score, which is not used, not counts

    def counted(text: str, wanted: Sequence[str]) -> list[float]:
        found = scorer.sentence_score(text, list(wanted))
        return [*found.counts, *found.totals, found.sys_len, found.ref_len]

    def statistic(sums: Floats) -> Floats:
        scores = []
        for row in np.rint(sums).astype(int).tolist():
            made = BLEU.compute_bleu(row[:4], row[4:8], row[8], row[9], smooth_method="exp")
            scores.append(made.score)
        return np.asarray(scores, dtype=np.float64)

    columns = [counted(text, wanted) for text, wanted in zip(texts, references, strict=True)]
    orders = range(1, 5)
    names = (*(f"matches{n}" for n in orders), *(f"ngrams{n}" for n in orders))
    return Scored(
        (*names, "length", "reference_length"),
        np.asarray(columns, dtype=np.float64),
        {"bleu": statistic},
    )


def _rouge(rows: Sequence[Row], texts: Sequence[str]) -> Scored:
    from distillspec.tasks.summaries import rouge

    columns = []
    for row, text in zip(rows, texts, strict=True):
        found = rouge(text, _reference(row))
        if found is None:
            raise UserError(f"{row.id}: the reference has no word to compare with")
        columns.append([*found, 1.0])
    return Scored(
        ("rouge1", "rouge2", "rougeLsum", "prompts"),
        np.asarray(columns, dtype=np.float64),
        {
            name: _share(column, 3)
            for column, name in ((1, "rouge2"), (0, "rouge1"), (2, "rougeLsum"))
        },
    )


def _gsm8k(rows: Sequence[Row], texts: Sequence[str]) -> Scored:
    readers: tuple[tuple[bool, Callable[[str], Fraction | None]], ...] = (
        (True, final_number),
        (True, marked_number),
        (False, final_number),
        (False, marked_number),
    )
    columns = []
    for row, text in zip(rows, texts, strict=True):
        wanted = final_number(_reference(row))
        if wanted is None:
            raise UserError(f"{row.id}: the reference has no number")
        aided = calculated(text)
        right = [float(read(aided if help else text) == wanted) for help, read in readers]
        columns.append([*right, 1.0])
    names = _FIGURES["gsm8k"]
    return Scored(
        (*names, "prompts"),
        np.asarray(columns, dtype=np.float64),
        {name: _share(column, len(names)) for column, name in enumerate(names)},
    )


def _bbh(rows: Sequence[Row], texts: Sequence[str]) -> Scored:
    domains = list(dict.fromkeys(row.domain for row in rows))
    count = len(domains)
    columns = np.zeros((len(rows), 2 * count), dtype=np.float64)
    for index, (row, text) in enumerate(zip(rows, texts, strict=True)):
        column = domains.index(row.domain)
        columns[index, column] = agrees(text, _reference(row), options(str(row.prompt)))
        columns[index, count + column] = 1.0

    def by_task(sums: Floats) -> Floats:
        asked = sums[:, count:] > 0  # a resample may lack a task
        shares = np.divide(
            sums[:, :count], sums[:, count:], out=np.zeros_like(sums[:, :count]), where=asked
        )
        means: Floats = 100.0 * shares.sum(axis=1) / asked.sum(axis=1)
        return means

    def overall(sums: Floats) -> Floats:
        shares: Floats = 100.0 * sums[:, :count].sum(axis=1) / sums[:, count:].sum(axis=1)
        return shares

    names = [f"right {name}" for name in domains] + [f"prompts {name}" for name in domains]
    return Scored(tuple(names), columns, {"accuracy_by_task": by_task, "accuracy": overall})


_FIGURES: Mapping[str, tuple[str, ...]] = {
    "rouge": ("rouge2", "rouge1", "rougeLsum"),
    "bleu": ("bleu",),
    "gsm8k": ("accuracy", "accuracy_strict", "accuracy_unaided", "accuracy_strict_unaided"),
    "bbh": ("accuracy_by_task", "accuracy"),
}
_SCORES: Mapping[str, Callable[[Sequence[Row], Sequence[str]], Scored]] = {
    "rouge": _rouge,
    "bleu": _bleu,
    "gsm8k": _gsm8k,
    "bbh": _bbh,
}
