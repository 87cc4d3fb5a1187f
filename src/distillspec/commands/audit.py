"""`audit`: are these the target's outputs?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from distillspec.commands.logs import given_prompt
from distillspec.commands.pairs import (
    at_least,
    dtype_of,
    ids_of_text,
    load_both,
    load_model,
    prompt_ids,
    rows_of,
)
from distillspec.commands.progress import bar
from distillspec.commands.serving_settings import Audit, CheckExport
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.text import Tokenizer
from distillspec.studies.audit import Written, ends, tally
from distillspec.studies.lossless import Audit as Audited
from distillspec.studies.lossless import judged, unmet
from distillspec.tasks import Row


def run(settings: Audit) -> dict[str, Any]:
    """Audit the outputs and return what `--json` prints."""
    at_least(1, settings, "batch_size")
    if settings.max_new_tokens is not None:
        at_least(1, settings, "max_new_tokens")
    if not 0 < settings.level < 1:
        raise UserError(f"--level {settings.level:g}: expected a number between 0 and 1")
    check_tolerance(settings.tolerance)
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    rows = rows_of(settings.outputs, settings.limit, skip_invalid=False)
    where = {"dtype": settings.dtype, "device": settings.device}
    draft = None
    if settings.draft is None:
        target = load_model(settings.target, **where)
    else:
        target, draft = load_both(settings.target, settings.draft, **where)
    outputs = written(target.tokenizer, rows, raw=settings.raw)
    check_context(target, outputs)
    result = audited(settings, target, outputs, sampling, level=settings.level, draft=draft)
    return {
        "target": settings.target,
        "outputs": settings.outputs,
        "temperature": settings.temperature,
        "top_k": settings.top_k,
        "top_p": settings.top_p,
        "ids": "sampled" if all(row.target_ids for row in rows) else "from the text",
        **result,
        "unmet": unmet(result),
    }


def audited(
    settings: Audit | CheckExport,
    target: TransformersModel,
    outputs: Sequence[Written],
    sampling: Sampling,
    *,
    level: float,
    draft: TransformersModel | None = None,
    what: str = "audit",
) -> Audited:
    """Audit outputs at the tolerance and the number format of the flags, with a bar `what`."""
    with bar(what) as report:
        found = tally(
            target,
            outputs,
            sampling,
            stop=target.eos_ids,
            batch_size=settings.batch_size,
            dtype=coarser(target.dtype, dtype_of(settings.engine_dtype)),
            report=report,
            draft=None if draft is None else (draft, sampling),
        )
    ended = ends(outputs, target.eos_ids, settings.max_new_tokens)
    return judged(found, sampling, ended, level=level, tolerance=settings.tolerance)


def written(tokenizer: Tokenizer, rows: Sequence[Row], *, raw: bool) -> list[Written]:
    """Make ids of what an engine was asked and what it wrote.

    Args:
        tokenizer: The target's.
        rows: The log.
        raw: Whether prompts are taken as they stand.

    Raises:
        UserError: naming the row that has no answer.
    """
    asked = prompt_ids(tokenizer, rows, raw=raw)
    found = []
    for row, prompt in zip(rows, asked, strict=True):
        if row.target_ids is None and row.target is None:
            raise UserError(f"{row.id}: no answer to audit: give target_ids, or target")
        ids = (
            torch.tensor(row.target_ids)
            if row.target_ids is not None
            else ids_of_text(tokenizer, row.target or "", cut=row.cut)
        )
        given = given_prompt(tokenizer, row, prompt)
        found.append(Written(row.id, given, ids, row.blocks, row.finish_reason))
    return found


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance below 0, which would find fault with a sound engine.

    Raises:
        UserError: naming the flag.
    """
    if tolerance < 0:
        raise UserError(f"--tolerance {tolerance:g}: expected 0 or more")


def check_context(target: TransformersModel, outputs: Sequence[Written]) -> None:
    """Refuse outputs that the target has no room for.

    Raises:
        UserError: naming the output.
    """
    for one in outputs:
        length = max(len(one.prompt), len(one.ids))
        if not target.tokenizer.encoder_decoder:
            length = len(one.prompt) + len(one.ids) - 1
        if target.context is not None and length > target.context:
            raise UserError(
                f"{one.id}: {length} tokens, more than the context of {target.context} of "
                f"{target.name}; it cannot have written this"
            )


def coarser(one: torch.dtype, other: torch.dtype | None) -> torch.dtype:
    """Return the number format that rounds more."""
    if other is None or torch.finfo(one).eps >= torch.finfo(other).eps:
        return one
    return other


def tell(result: dict[str, Any]) -> str:
    """Show the tests that matter and the verdict."""
    tests = sorted(result["tests"], key=lambda test: test["p"])
    shown = [test for test in tests if test["rejected"]] or tests[:3]
    shown += [test for test in tests if test["name"] == "likelihood" and test not in shown]
    lines = []
    if shown:
        lines.append(
            f"{'test':<22} {'tokens':>7} {'expected':>9} {'excess per token':<28} {'z':>6} "
            "corrected p"
        )
    for test in shown[:12]:
        interval = f"{test['excess']:+.4f} [{test['low']:+.4f}, {test['high']:+.4f}]"
        lines.append(
            f"{test['name']:<22} {test['tokens']:>7} {test['expected']:>9.4f} {interval:<28} "
            f"{test['z']:>6.2f} {test['p_corrected']:.2g}"
        )
    if result["ids"] != "sampled":
        lines.append(
            "the log has no target_ids: its text was tokenized anew, which is not what was sampled"
        )
    if result["ends"]["lost_stop"]:
        lines.append(
            f"{result['ends']['lost_stop']} answers ended by a stop token that the log lacks: "
            "stop tokens are not tested"
        )
    return "\n".join([*lines, result["verdict"]])
