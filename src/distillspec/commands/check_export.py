"""`check-export`: does the pair do in the engine what was promised of it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from distillspec.commands import engines, llama_cpp
from distillspec.commands.asking import (
    Engine,
    ask_engine,
    check_engine,
    check_room,
    exported_gamma,
    longest,
)
from distillspec.commands.audit import audited, check_tolerance
from distillspec.commands.pairs import (
    answer_all,
    at_least,
    load_both,
    prompt_ids,
    rows_of,
)
from distillspec.commands.serving_settings import CheckExport
from distillspec.commands.tables import interval
from distillspec.errors import UserError
from distillspec.math.rules import Rule, argmax_draft, exact_match, ratio_test
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.models.exporting import shape_of
from distillspec.studies.audit import Written
from distillspec.studies.lossless import Audit
from distillspec.studies.outputs import TargetOutputs
from distillspec.studies.serving import (
    Answered,
    Served,
    held_against,
    rate,
    same_greedy,
    speedup,
)
from distillspec.tasks import Row

NO_VARIANCE = "nothing left to chance, near ties allowed one call in twenty"
"""What stands in place of z where a rule leaves no variance."""


def run(settings: CheckExport) -> dict[str, Any]:
    """Run the prompts through the engine and hold what it did against the forecast."""
    _check(settings)
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    rows = rows_of(settings.prompts, settings.limit, skip_invalid=False)
    # What engines load: the head whole, whatever kept_ids.json may say beside it
    target, draft = load_both(
        settings.target, settings.draft, dtype=settings.dtype, device=settings.device
    )
    gamma = exported_gamma(draft) if settings.gamma is None else settings.gamma
    prompts = prompt_ids(target.tokenizer, rows, context=target.context)
    length = longest(target, prompts, settings.max_new_tokens)
    check_room(target.name, target.context, length)
    causes = _before(settings, target, draft, length)
    answers = answer_all(target, prompts, settings, sampling=sampling, what="target outputs")
    promised = TargetOutputs.of(prompts, answers, sampling)
    engine = ask_engine(settings, target, draft, rows, prompts, sampling, gamma=gamma)
    law = _law(settings, target, rows, engine.prompts, engine.drafted, sampling, "with the draft")
    served = held_against(
        target,
        draft,
        engine.prompts,
        engine.drafted,
        promised,
        _rules(sampling, settings.engine),
        rule="ratio" if sampling.temperature == 0 else settings.rule,
        gamma=gamma,
        batch_size=settings.batch_size,
    )
    plain = None
    if engine.plain is not None:
        plain = _law(settings, target, rows, engine.prompts, engine.plain, sampling, "without it")
    causes += _after(settings, served, law, plain, engine)
    of_law = [f"output law: {point}" for point in law["points_to"]]
    result: dict[str, Any] = {
        "target": settings.target,
        "draft": settings.draft,
        "engine": settings.engine,
        "temperature": settings.temperature,
        **served,
        "tokens_per_second": rate(engine.drafted),
        "tokens_per_second_plain": None if engine.plain is None else rate(engine.plain),
        "speedup": None if engine.plain is None else speedup(engine.plain, engine.drafted),
        "same_greedy": same_greedy(promised.completions, [one.ids for one in engine.drafted])
        if sampling.temperature == 0
        else None,
        "audit": law,
        "audit_plain": plain,
        "causes": [*of_law, *causes],
    }
    result["unmet"] = _unmet(settings, result, served, law, causes)
    result["verdict"] = " ".join(result["unmet"]) or _as_promised(settings.engine, served)
    return result


def _check(settings: CheckExport) -> None:
    """Refuse flags that mean nothing, before anything is loaded.

    Raises:
        UserError: naming the flag.
    """
    at_least(1, settings, "limit", "max_new_tokens", "batch_size")
    if settings.gamma is not None:
        at_least(1, settings, "gamma")
    check_tolerance(settings.tolerance)
    if settings.timeout <= 0:
        raise UserError(f"--timeout {settings.timeout:g}: expected more than 0 seconds")
    if settings.min_speedup is not None and settings.min_speedup <= 0:
        raise UserError(f"--min-speedup {settings.min_speedup:g}: expected more than 0")
    check_engine(settings)


def _rules(sampling: Sampling, engine: str) -> dict[str, Rule]:
    if sampling.temperature == 0:
        return {"ratio": ratio_test(sampling)}
    drafted = {
        "vllm": engines.draft_sampling(sampling),
        "llama.cpp": llama_cpp.draft_sampling(sampling),
    }.get(engine, sampling)
    return {
        "ratio": ratio_test(sampling, drafted),
        "argmax": argmax_draft(sampling),
        "exact-match": exact_match(sampling),
    }


def _before(
    settings: CheckExport,
    target: TransformersModel,
    draft: TransformersModel,
    length: int,
) -> list[str]:
    """Name what can be seen to be wrong before anything runs."""
    found = []
    shapes = shape_of(settings.target), shape_of(settings.draft)
    if shapes[0].rows != shapes[1].rows:
        found.append(
            f"vocabulary: the target has {shapes[0].rows} rows and the draft {shapes[1].rows}; "
            "vLLM refuses the pair: export the draft"
        )
    if shapes[1].context is not None and length > shapes[1].context:
        found.append(
            f"context length: prompts and answers reach {length} tokens, the draft's positions "
            f"{shapes[1].context}"
        )
    if target.tokenizer.hf.chat_template != draft.tokenizer.hf.chat_template:
        found.append("chat template: the draft's folder has another than the target's")
    if draft.kept is not None:
        found.append(
            f"vocabulary: the draft's head is trimmed to {len(draft.kept)} ids here, and whole in "
            "an engine: export it, and check the export"
        )
    return found


def _law(
    settings: CheckExport,
    target: TransformersModel,
    rows: Sequence[Row],
    prompts: Sequence[Tensor],
    answered: Sequence[Answered],
    sampling: Sampling,
    how: str,
) -> Audit:
    """Audit what the engine wrote, `how` for the bar."""
    outputs = [
        Written(row.id, prompt, one.ids, one.blocks, one.reason)
        for row, prompt, one in zip(rows, prompts, answered, strict=True)
    ]
    return audited(settings, target, outputs, sampling, level=0.05, what=f"audit, {how}")


def _after(
    settings: CheckExport, served: Served, law: Audit, plain: Audit | None, engine: Engine
) -> list[str]:
    """Name what explains a difference beyond the audit's points, each by a check of its own."""
    found = []
    if engine.template_differs:
        found.append(
            "chat template: the engine renders a chat otherwise than the target's folder does; "
            "chats meet the draft with other prompts than these"
        )
    if not served["fits"]:
        others = [one["rule"] for one in served["rules"] if one["fits"]]
        if others:
            found.append(f"rule: the engine's counts are those of {' or '.join(others)}")
    calls = sum(one.calls for one in engine.drafted)
    drafted = sum(one.drafted for one in engine.drafted)
    gamma = served["gamma"]
    # Engines draft no further than the length limit: γ, γ − 1, …, 1 fewer in the last blocks
    at_the_end = len(engine.drafted) * gamma * (gamma + 1) / 2
    if not 0.8 * gamma * calls - at_the_end <= drafted <= gamma * calls:
        per_call = served["drafted_per_call"]
        found.append(f"γ: the engine drafts {per_call:.2f} tokens a block, not {gamma}")
    if law["rejected"]:
        if plain is not None and not plain["rejected"]:
            found.append("output law: without the draft the engine passes: it verifies wrongly")
        fitted = law["temperature_fitted"]
        if fitted is not None and not fitted["low"] <= settings.temperature <= fitted["high"]:
            found.append(f"sampler: the outputs look drawn at temperature {interval(fitted)}")
    return found


def _unmet(
    settings: CheckExport,
    result: dict[str, Any],
    served: Served,
    law: Audit,
    causes: Sequence[str],
) -> list[str]:
    """Say what is not as promised, and why: the audit's verdict names its own points."""
    found = []
    because = f" Likely: {'; '.join(causes)}." if causes else ""
    if not causes and not law["points_to"]:
        because = " No cause that is tested explains it."
    if law["rejected"]:
        found.append(law["verdict"])
    if not served["fits"]:
        fit = next(one for one in served["rules"] if one["rule"] == served["rule"])
        found.append(
            f"Acceptance is not what the rule {served['rule']} gives on these outputs: τ "
            f"{interval(served['tau_served'])} served, {interval(fit['tau_expected'])} expected."
        )
    elif served["overlaps"] is False:
        found.append(
            f"Acceptance is not what was promised: τ {interval(served['tau_served'])} served, "
            f"{interval(served['tau_promised'])} on the target's own outputs."
        )
    gain = result["speedup"]
    least = settings.min_speedup
    if least is not None and gain is not None and gain["value"] < least:
        found.append(f"--min-speedup {least:g} is not met: {interval(gain)}.")
    return [*found[:-1], found[-1] + because] if found else []


def _as_promised(engine: str, served: Served) -> str:
    """Say what was found where nothing is amiss."""
    taus = f"τ {interval(served['tau_served'])} served, {interval(served['tau_promised'])} promised"
    if served["overlaps"] is None:
        return (
            f"{engine} accepts as its rule does, and its outputs are the target's; {taus}: one "
            "answer gives no interval to hold one against the other. Take more prompts."
        )
    return f"{engine} does what was promised: {taus}, and its outputs are the target's."


def tell(result: dict[str, Any]) -> str:
    """Show promised against served, and the verdict."""
    lines = [
        f"{result['engine']}, γ = {result['gamma']}, T = {result['temperature']:g}, "
        f"{result['prompts']} prompts, {result['tokens']} tokens",
        f"  τ promised {interval(result['tau_promised'])}, served {interval(result['tau_served'])}",
    ]
    for one in result["rules"]:
        z = NO_VARIANCE if one["z"] is None else f"z = {one['z']:+.2f}"
        mark = "fits" if one["fits"] else "does not fit"
        rule = f"{one['rule']}, as it is served," if one["rule"] == result["rule"] else one["rule"]
        lines.append(f"  on its own outputs by {rule} {interval(one['tau_expected'])}, {z}: {mark}")
    lines.append(f"  {interval(result['tokens_per_second'], 1)} tokens a second")
    if result["speedup"] is not None:
        lines.append(f"  speed-up over the same engine alone {interval(result['speedup'])}")
    if not result["unmet"]:  # else the verdict has them
        lines += [f"  note: {cause}" for cause in result["causes"]]
    return "\n".join([*lines, result["verdict"]])
