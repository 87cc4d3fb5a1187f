"""`tune`: which recipe makes this draft agree most after the same seconds of training?"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from distillspec.commands.candidates import Texts, baseline, candidates, distill_settings
from distillspec.commands.held_out import Evaluation
from distillspec.commands.judging import held_out_rows, served
from distillspec.commands.pairs import (
    answer_all,
    at_least,
    check_fit,
    examples,
    load_both,
    prompt_ids,
    rows_of,
)
from distillspec.commands.progress import training_bar
from distillspec.commands.study_settings import Tune
from distillspec.commands.tables import interval
from distillspec.commands.turns import WAITING, Lab, Runner, prepared, turn
from distillspec.errors import UserError
from distillspec.models.widths import widen
from distillspec.settings import as_dict
from distillspec.studies.halving import better_half, first_rung, moved, rungs
from distillspec.studies.outputs import TargetOutputs
from distillspec.studies.store import RESULT, Run, write_text
from distillspec.training import checkpoint
from distillspec.training.cache import HiddenCache
from distillspec.training.checks import NotFiniteError

WINNER = "winner.yaml"
"""The winner as settings of `distill`."""
AGAINST = "against"
"""What the recipe that the winner is held against is called among the candidates."""


class _Searched(NamedTuple):
    """How a search ended."""

    winner: str
    seconds: float
    """Of training of those that came furthest."""
    stopped: str
    failed: dict[str, str]
    """Candidates that ended before, and why."""


def run(settings: Tune) -> dict[str, Any]:
    """Search, and return what `--json` prints."""
    at_least(1, settings, "gamma", "batch_size", "max_new_tokens")
    if settings.minutes <= 0:
        raise UserError(f"--minutes {settings.minutes:g}: expected more than 0")
    if any(rate <= 0 for rate in settings.learning_rates):
        raise UserError("--learning-rates: expected numbers above 0: at 0 nothing is trained")
    named, left_out = candidates(settings)
    texts = {AGAINST: baseline(settings), **named}
    first = first_rung(60 * settings.minutes, len(named))
    lab = _lab(settings, texts)
    try:
        runners = {name: prepared(lab, of, settings, first) for name, of in texts.items()}
        checkpoint.save(lab.start.parent, lab.draft, runners[AGAINST].state, keep=1)
        found = _search(lab, runners, list(named), first)
    finally:
        shutil.rmtree(settings.out / WAITING, ignore_errors=True)  # there may be none yet
    config = _config(texts[found.winner], found.seconds)
    winner = runners[found.winner]
    result = {
        "winner": found.winner,
        "config": config,
        "against": settings.against,
        "seconds_each": found.seconds,
        "stopped": found.stopped,
        **_confirmed(winner, runners[AGAINST]),
        "candidates": [_row(name, one, winner) for name, one in runners.items()],
        "failed": found.failed,
        "left_out": left_out,
        "out": str(settings.out / WINNER),
    }
    write_text(settings.out / WINNER, yaml.safe_dump(config, sort_keys=False))
    lab.store.write_json(RESULT, result)
    return result


def _search(lab: Lab, runners: Mapping[str, Runner], left: list[str], first: float) -> _Searched:
    """Train, judge and halve until one is left or nothing moves."""
    count, trained, failed, stopped = rungs(len(left)), 0.0, dict[str, str](), "one left"
    for rung in range(count):
        trained = first * 2**rung
        best = None if rung == 0 else max(left, key=lambda n: _half(runners[n], 0).tau["value"])
        before = None if best is None else _half(runners[best], 0)
        _climb(lab, runners, [AGAINST, *left], rung, trained, failed)
        left = [name for name in left if name not in failed]
        if not left or AGAINST in failed:
            lost = ", ".join(f"{name}: {why}" for name, why in failed.items())
            raise UserError(f"nothing is left to compare; {lost}")
        if before is not None and not moved(
            {name: _half(runners[name], 0).tau_change(before) for name in left}
        ):
            stopped = "nothing moved"
            break
        if len(left) > 1 and rung + 1 < count:
            better = better_half({name: _half(runners[name], 0).tau["value"] for name in left})
            for name in set(left) - set(better):
                shutil.rmtree(runners[name].folder)
            left = better
    winner = max(left, key=lambda name: _half(runners[name], 0).tau["value"])
    return _Searched(winner, trained, stopped, failed)


def _lab(settings: Tune, texts: Mapping[str, Texts]) -> Lab:
    """Load the pair and the data, and let the target answer the held-out prompts."""
    one = distill_settings(texts[AGAINST], settings)
    serving = served(one)
    rows = rows_of(
        settings.prompts, settings.limit, skip_invalid=False, training=True, seed=settings.seed
    )
    held_rows = held_out_rows(rows, settings.held_out)
    if len(held_rows) < 4:
        raise UserError(
            f"--held-out {settings.held_out} has {len(held_rows)} prompts; give at least 4: half "
            "choose, half judge, and one gives no interval"
        )
    target, draft = load_both(settings.target, settings.draft, device=settings.device)
    widen(draft.module)
    data = examples(target.tokenizer, rows)
    for model in (target, draft):
        check_fit(model, rows, data)
    prompts = prompt_ids(target.tokenizer, held_rows, context=target.context)
    store = Run.create(
        settings.out,
        verb="tune",
        config=as_dict(settings),
        seed=settings.seed,
        device=str(draft.device),
    )
    sampling = serving.rule.sampling
    answers = answer_all(target, prompts, one, sampling=sampling, what="held-out answers")
    held = TargetOutputs.of(prompts, answers, sampling)
    start = settings.out / WAITING / "start" / "step-0"
    return Lab(target, draft, start, HiddenCache(), data, held, serving, store)


def _climb(
    lab: Lab,
    runners: Mapping[str, Runner],
    names: Sequence[str],
    rung: int,
    until: float,
    failed: dict[str, str],
) -> None:
    """Train candidates until each has trained for so many seconds in all, and evaluate them."""
    with training_bar(f"rung {rung + 1}, {len(names)} recipes") as show:
        for number, name in enumerate(names):
            try:
                found = turn(lab, runners[name], until)
            except NotFiniteError as error:
                failed[name] = str(error)
                continue
            runners[name].tests.append(found)
            lab.store.log({"candidate": name, "rung": rung, **found.row()})
            show((number + 1) / len(names), f"τ {found.tau['value']:.3f} {name}")


def _half(runner: Runner, side: int, rung: int = -1) -> Evaluation:
    """Return a candidate's evaluation on the prompts that choose (0), or that judge (1)."""
    found = runner.tests[rung]
    return dataclasses.replace(
        found,
        lengths=found.lengths[side::2],
        alpha_sums=found.alpha_sums[side::2],
        calls=found.calls[side::2],
    )


def _confirmed(winner: Runner, against: Runner) -> dict[str, Any]:
    """Hold the winner against the named recipe on the prompts that chose nothing."""
    own, other = _half(winner, 1), _half(against, 1)
    change = own.tau_change(other)
    better = "better" if change["low"] > 0 else "worse" if change["high"] < 0 else "open"
    return {
        "tau": own.tau,
        "tau_against": other.tau,
        "tau_difference": change,
        "alpha_difference": own.alpha_change(other),
        "better": better,
        "prompts_choosing": len(_half(winner, 0).lengths),
        "prompts_judging": len(own.lengths),
    }


def _row(name: str, one: Runner, winner: Runner) -> dict[str, Any]:
    """Say how far a candidate came, and how it stood to the winner after equal seconds."""
    if not one.tests:
        return {"name": name, "rungs": 0}
    rung = len(one.tests) - 1
    mine = _half(one, 0, rung)
    return {
        "name": name,
        "rungs": len(one.tests),
        "seconds": mine.seconds,
        "steps": mine.step,
        "tau": mine.tau,
        "below_winner": _half(winner, 0, rung).tau_change(mine),
    }


def _config(texts: Texts, seconds: float) -> dict[str, Any]:
    """Return the winner as settings of `distill`, to run for as long again as it has won by."""
    kept = {key: value for key, value in texts.items() if key != "device"}
    return {**kept, "minutes": str(math.ceil(seconds / 6) / 10), "out": "runs/tuned"}


def tell(result: Mapping[str, Any]) -> str:
    """Show the candidates, the winner against the named recipe, and the winner's config."""
    lines = [f"{'recipe':<48} {'rungs':>5} {'steps':>6}  τ (choosing prompts)"]
    done = [one for one in result["candidates"] if one["rungs"]]
    for one in sorted(done, key=lambda c: (-c["rungs"], -c["tau"]["value"])):
        lines.append(
            f"{one['name']:<48} {one['rungs']:>5} {one['steps']:>6}  {interval(one['tau'], 3)}"
        )
    lines += [f"failed: {name}: {why}" for name, why in result["failed"].items()]
    lines += [f"left out: {name}: {why}" for name, why in result["left_out"].items()]
    judged = {
        "better": f"{result['winner']} beats {result['against']}",
        "worse": f"{result['winner']} is worse than {result['against']}",
        "open": f"{result['winner']} and {result['against']} cannot be told apart",
    }[result["better"]]
    lines.append(
        f"{judged} on {result['prompts_judging']} other prompts: τ {result['tau']['value']:.3f} "
        f"against {result['tau_against']['value']:.3f}, difference "
        f"{interval(result['tau_difference'], 3, '+')}, after {result['seconds_each']:.0f} s of "
        f"training each ({result['stopped']})"
    )
    lines += ["", yaml.safe_dump(result["config"], sort_keys=False).rstrip(), ""]
    return "\n".join([*lines, f"distillspec distill --config {result['out']}"])
