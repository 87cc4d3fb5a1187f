"""`trim`: how many ids a draft's head should keep, before it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from distillspec.commands.new_draft import id_counts
from distillspec.commands.pairs import (
    answer_all,
    ascending,
    at_least,
    examples,
    load_both,
    prompt_ids,
    rows_of,
)
from distillspec.commands.progress import console
from distillspec.commands.tables import interval
from distillspec.commands.trim_settings import Trim
from distillspec.errors import UserError
from distillspec.math.rules import ratio_test
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.surgery import most_frequent_ids, with_special
from distillspec.studies.answer import Measurement, at_gamma
from distillspec.studies.estimates import ratio
from distillspec.studies.forecast import Prompts, forecast
from distillspec.studies.outputs import TargetOutputs
from distillspec.studies.trimming import WHOLE, Trimmed, score_trimmed, trimmed_costs
from distillspec.tasks import overlap


def run(settings: Trim) -> dict[str, Any]:
    """Score and time heads of several sizes."""
    gammas = ascending("--gamma", settings.gamma)
    at_least(1, settings, "clock_prompts", "max_new_tokens", "batch_size", "limit")
    sizes = ascending("--sizes", settings.sizes)
    rule = ratio_test(Sampling(settings.temperature, settings.top_k, settings.top_p))
    counted = rows_of(settings.texts, None, skip_invalid=False, training=True)
    rows = rows_of(settings.prompts, settings.limit, skip_invalid=False, seed=settings.seed)
    shared = overlap(counted, rows)
    if shared:
        raise UserError(
            f"{shared} of {len(rows)} prompts of --prompts {settings.prompts} are in --texts too: "
            "ids chosen by them cannot be judged on them; take them out of one"
        )
    target, draft = load_both(
        settings.target, settings.draft, dtype=settings.dtype, device=settings.device
    )
    if draft.kept is not None:
        raise UserError(f"--draft {settings.draft}: its head is trimmed already; give a whole one")
    heads = _heads(target, id_counts(target, examples(target.tokenizer, counted)), sizes)
    prompts = prompt_ids(target.tokenizer, rows, context=target.context)
    answers = answer_all(target, prompts, settings, sampling=rule.sampling, what="target outputs")
    outputs = TargetOutputs.of(prompts, answers, rule.sampling)
    found = score_trimmed(target, draft, outputs, rule, heads, batch_size=settings.batch_size)
    console().print(f"timing {len(heads)} heads")
    clocked = prompts[: settings.clock_prompts]
    costs = trimmed_costs(target, draft, clocked, rule, heads, gammas)
    about = Prompts(tuple(map(len, prompts)), tuple(row.domain for row in rows))
    results = {
        name: forecast(found[name].scores, about, rule, {1: costs[name]}, gammas) for name in heads
    }
    table = [
        _row(name, kept, found, results, target.vocabulary.size) for name, kept in heads.items()
    ]
    best = max(table, key=lambda row: row["speedup_forecast"]["value"])
    return {
        "target": settings.target,
        "draft": settings.draft,
        "temperature": settings.temperature,
        "prompts": len(prompts),
        "tokens": int(outputs.lengths.sum()),
        "sizes": table,
        "best": best["keep_ids"],
        "verdict": _verdict(best, table[-1]),
    }


def _heads(
    target: TransformersModel, counts: Tensor, sizes: tuple[int, ...]
) -> dict[str, Tensor | None]:
    """Choose the ids of every size below the whole vocabulary; the whole head comes last."""
    V, least = target.vocabulary.size, len(set(target.eos_ids))
    fitting = [size for size in sizes if least <= size < V]
    if not fitting:
        raise UserError(f"--sizes: expected some from {least} to {V - 1}, below the whole head's")
    heads: dict[str, Tensor | None] = {}
    for size in fitting:
        chosen = most_frequent_ids(counts, size, always=target.eos_ids)
        heads[str(size)] = with_special(target, chosen)
    return {**heads, WHOLE: None}


def _row(
    name: str,
    kept: Tensor | None,
    found: Mapping[str, Trimmed],
    results: Mapping[str, Measurement],
    whole: int,
) -> dict[str, Any]:
    """Say of one head what it keeps, loses, takes and brings."""
    mine, result = found[name], results[name]
    lengths = mine.scores.lengths
    lost = found[WHOLE].scores.alpha_sums - mine.scores.alpha_sums
    best = at_gamma(result["gammas"], result["best_gamma"])
    return {
        "keep_ids": None if kept is None else int(name),
        "kept_ids": whole if kept is None else len(kept),
        "coverage": ratio(mine.coverage, lengths),
        "alpha": result["alpha"],
        "alpha_lost": ratio(lost, lengths),
        "draft_ms": result["cost"]["draft_ms"],
        "best_gamma": result["best_gamma"],
        "speedup_forecast": best["speedup_forecast"],
    }


def _verdict(best: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    gain = best["speedup_forecast"]["value"]
    against = whole["speedup_forecast"]["value"]
    if best["keep_ids"] is None:
        return f"Keep the whole head: no smaller one is forecast to be faster than its {gain:.2f}×."
    return (
        f"--keep-ids {best['keep_ids']}: forecast {gain:.2f}× against {against:.2f}× with the "
        f"whole head, for {best['alpha_lost']['value']:.3f} of α."
    )


def tell(result: dict[str, Any]) -> str:
    """Write the table and the verdict."""
    lines = [
        f"T = {result['temperature']:g}, {result['prompts']} prompts, {result['tokens']} tokens",
        f"{'ids':>8}  {'coverage':<20} {'α':<20} {'α lost':<23} {'draft':>8}    γ  speed-up",
    ]
    lines += [
        f"{row['kept_ids']:>8,}  {interval(row['coverage']):<20} {interval(row['alpha']):<20} "
        f"{interval(row['alpha_lost'], 3):<23} {row['draft_ms']:>5.1f} ms  {row['best_gamma']:>3}  "
        f"{interval(row['speedup_forecast'])}"
        for row in result["sizes"]
    ]
    return "\n".join([*lines, "", result["verdict"]])
