"""`measure`: will this draft pay off?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distillspec.commands.pairs import (
    answer_all,
    at_least,
    load_both,
    prompt_ids,
    rows_of,
)
from distillspec.commands.progress import bar
from distillspec.commands.settings import Measure
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.settings import as_dict
from distillspec.studies.measure import Plan, measure
from distillspec.studies.outputs import TargetOutputs
from distillspec.studies.store import RESULT, Run


def run(settings: Measure) -> dict[str, Any]:
    """Measure the pair on the file's prompts."""
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    at_least(1, settings, "max_new_tokens", "repetitions", "batch_size")
    at_least(0, settings, "clock_prompts")
    plan = Plan(
        gammas=_checked(settings.gamma),
        draft_sampling=_draft_sampling(sampling, settings.draft_temperature),
        max_new_tokens=settings.max_new_tokens,
        batch_size=settings.batch_size,
        clock_prompts=settings.clock_prompts,
        repetitions=settings.repetitions,
        seed=settings.seed,
    )
    rows = rows_of(settings.prompts, settings.limit, skip_invalid=settings.skip_invalid)
    target, draft = load_both(
        settings.target, settings.draft, dtype=settings.dtype, device=settings.device
    )
    prompts = prompt_ids(target.tokenizer, rows, context=target.context)
    store = None
    if settings.out is not None:
        store = Run.create(
            settings.out,
            verb="measure",
            config=as_dict(settings),
            seed=settings.seed,
            device=str(target.device),
        )
    answers = answer_all(target, prompts, settings, sampling=sampling, what="target outputs")
    with bar("on the clock") as report:
        outputs = TargetOutputs.of(prompts, answers, sampling)
        found = measure(target, {"draft": draft}, outputs, plan, report)["draft"]
    result = {"target": settings.target, "draft": settings.draft, **found.result}
    if store is not None:
        store.write_json(RESULT, result)
    return result


def _checked(gammas: tuple[int, ...]) -> tuple[int, ...]:
    if not gammas or min(gammas) < 1:
        raise UserError(f"--gamma {gammas}: expected numbers of at least 1, such as 1..8")
    return tuple(sorted(set(gammas)))


def _draft_sampling(sampling: Sampling, temperature: float | None) -> Sampling:
    """Return the draft's settings: the target's, unless its temperature is given."""
    if temperature is None:
        return sampling
    return Sampling(temperature, sampling.top_k, sampling.top_p)


def tell(result: dict[str, Any]) -> str:
    """Show the table of γ and the verdict."""
    return "\n".join([table(result), "", result["verdict"]])


def table(result: Mapping[str, Any]) -> str:
    """Write a measurement as text: its cost, and a line per γ."""
    cost, alpha = result["cost"], result["alpha"]
    lines = [
        f"α {_shown(alpha)} (rule: {result['rule']}, T = {result['temperature']:g}, "
        f"{result['prompts']} prompts, {result['tokens']} tokens)",
        f"target {cost['target_ms']:.1f} ms, draft {cost['draft_ms']:.1f} ms, "
        f"overhead {cost['overhead_ms']:.1f} ms, c {cost['c']:.3f}; headroom "
        f"{result['headroom']:.2f}×",
        f"{'γ':>3}  {'τ forecast':<20} {'τ counted':<20} {'speed-up forecast':<20} measured",
    ]
    for row in result["gammas"]:
        cells = [
            _shown(row[key]) if key in row else ""
            for key in ("tau_forecast", "tau_counted", "speedup_forecast", "speedup_measured")
        ]
        lines.append(f"{row['gamma']:>3}  " + " ".join(f"{cell:<20}" for cell in cells).rstrip())
    return "\n".join(lines)


def _shown(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.2f} [{estimate['low']:.2f}, {estimate['high']:.2f}]"
