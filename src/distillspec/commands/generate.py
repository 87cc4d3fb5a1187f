"""`generate`: the target's answers, written as fixed data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from distillspec.commands.pairs import (
    answer_all,
    at_least,
    load_model,
    prompt_ids,
    training_rows,
)
from distillspec.commands.settings import Generate
from distillspec.decoding import Output
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.studies.outputs import logprobs
from distillspec.studies.store import write_text


def run(settings: Generate) -> dict[str, Any]:
    """Decode every prompt and write the file, whole or not at all."""
    at_least(1, settings, "max_new_tokens", "batch_size")
    _make_way(settings.out)
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    rows = training_rows(settings)
    target = load_model(settings.target, dtype=settings.dtype, device=settings.device)
    prompts = prompt_ids(target.tokenizer, rows, context=target.context)
    outputs = answer_all(target, prompts, settings, sampling=sampling, what="target data")
    lines = [
        {
            "id": row.id,
            **({"prompt": row.prompt} if isinstance(row.prompt, str) else {"messages": row.prompt}),
            "target": target.tokenizer.decode(output.ids),
            "target_ids": output.ids,
            **_logprobs(target, output, sampling, wanted=settings.logprobs),
            "finish_reason": output.finish_reason,
        }
        for row, output in zip(rows, outputs, strict=True)
    ]
    write_text(settings.out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return {
        "out": str(settings.out),
        "prompts": len(outputs),
        "tokens": sum(len(output.ids) for output in outputs),
        "stopped": sum(output.finish_reason == "stop" for output in outputs),
    }


def _logprobs(
    target: TransformersModel, output: Output, sampling: Sampling, *, wanted: bool
) -> dict[str, list[float]]:
    if not wanted:
        return {}
    found = logprobs(target, output.states, torch.tensor(output.ids), sampling)
    return {"target_logprobs": found.tolist()}


def _make_way(out: Path) -> None:
    """Refuse a file that cannot be written, before the target has worked for it."""
    if out.suffix != ".jsonl":
        raise UserError(f"--out {out}: expected a name ending in .jsonl, which prompt files have")
    if out.exists():
        raise UserError(f"--out {out}: exists already; give a new file, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error


def tell(result: dict[str, Any]) -> str:
    """Say what was written."""
    return (
        f"{result['out']}: {result['prompts']} answers, {result['tokens']} tokens, "
        f"{result['stopped']} ended by themselves"
    )
