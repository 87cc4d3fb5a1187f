"""Every objective on one budget: the same data, start, seconds and steps' settings for each.

    .venv/bin/python benchmarks/objectives.py [TARGET DRAFT PROMPTS [SECONDS [OUT]]]

TARGET is a folder, hub name or GGUF file, DRAFT a folder (the start of every run), PROMPTS a file;
by default the demo's target, the start that `make demo` leaves in runs/demo and its prompts. The
target answers all prompts at T = 1 once; its states are kept, so that no run pays for the target
again, and one answer in eight is held out. Each objective then trains a fresh copy of DRAFT for
SECONDS (60) of steps, and is judged by α and by τ at γ = 5 on the held-out answers, against the
start, paired over prompts. The selective objective is judged twice: its reference is what forward
KL has made of the same start, and the seconds of that reference are not in its budget, which is
said beside it. With OUT, every line is appended there as JSON, curves included.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distillspec.commands.demo import packaged_target
from distillspec.commands.pairs import prompt_ids
from distillspec.commands.tables import interval
from distillspec.math.rules import ratio_test
from distillspec.math.sampling import Sampling
from distillspec.models import load, load_pair
from distillspec.models.adapter import TransformersModel
from distillspec.studies.breakdown import calls
from distillspec.studies.comparison import compare
from distillspec.studies.outputs import Scores, TargetOutputs, complete_all, score, seeded
from distillspec.tasks import read_prompts
from distillspec.training.cache import HiddenCache
from distillspec.training.data import Batches, Example
from distillspec.training.distill import distill
from distillspec.training.optimization import AdamW, Schedule
from distillspec.training.recipes import Divergence, Mixture, Recipe
from distillspec.training.state import State

DEMO = Path("runs/demo")
OBJECTIVES = (
    "cross_entropy",
    "forward_kl",
    "reverse_kl",
    "jsd:0.5",
    "total_variation",
    "acceptance",
    "path:5",
    "select:0.4",
)
"""The paper's hard labels and divergences, then the newer ones."""
GAMMA, TOKENS, BATCH, RATE, LIMIT, SEED = 5, 64, 16, 1e-3, 256, 0
CURVE = 4
"""Evaluations on the way, beside the last."""


@dataclass(frozen=True)
class Ground:
    """What all runs share."""

    target: TransformersModel
    start: str
    batches: Batches
    cache: HiddenCache
    held: TargetOutputs


def main() -> int:
    """Prepare the data once, train with each objective, print a line each."""
    given = sys.argv[1:]
    target = given[0] if given else packaged_target()
    start = given[1] if len(given) > 1 else str(DEMO / "before")
    prompts = given[2] if len(given) > 2 else "stdlib"
    budget = float(given[3]) if len(given) > 3 else 60.0
    out = Path(given[4]) if len(given) > 4 else None
    if not Path(start).is_dir():
        print("no draft: run `make demo` first, or give TARGET DRAFT PROMPTS", file=sys.stderr)
        return 2
    ground = prepare(target, start, prompts)
    first = judge(ground, fresh(ground))
    print(f"{'start':<28}{_figures(first)}", flush=True)
    reference: TransformersModel | None = None
    for name in OBJECTIVES:
        draft = fresh(ground)
        selects = Divergence.parse(name).fraction is not None
        row = train(ground, draft, name, budget, reference if selects else None)
        last = judge(ground, draft)
        change = compare(last, first, GAMMA)
        row |= {"objective": name, "change": change, "budget": budget}
        alpha = change["alpha_difference"]
        print(
            f"{name:<28}{_figures(last)}  Δα {interval(alpha, 4, '+')}  {row['steps']} steps, "
            f"{row['tokens']} tokens" + (" (+ its reference)" if selects else ""),
            flush=True,
        )
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if name == "forward_kl":
            reference = draft
    return 0


def prepare(target_path: str, start: str, prompts_file: str) -> Ground:
    """Let the target answer, and keep its states."""
    target, draft = load_pair(target_path, start)
    prompts = prompt_ids(target.tokenizer, read_prompts(prompts_file, limit=LIMIT))
    begin = time.monotonic()
    outputs = complete_all(
        target,
        prompts,
        sampling=Sampling(),
        max_new_tokens=TOKENS,
        batch_size=BATCH,
        generators=seeded(SEED, len(prompts)),
        report=lambda done, total: None,
    )
    print(f"{len(prompts)} answers in {time.monotonic() - begin:.0f} s", flush=True)
    held = range(0, len(prompts), 8)
    kept = [i for i in range(len(prompts)) if i not in held]
    cache = HiddenCache()
    cache.fill(range(len(kept)), [outputs[i].states for i in kept])
    data = TargetOutputs.of(prompts, outputs, Sampling())
    return Ground(
        target,
        start,
        Batches([Example(prompts[i], data.completions[i]) for i in kept], BATCH),
        cache,
        TargetOutputs.of([prompts[i] for i in held], [outputs[i] for i in held], Sampling()),
    )


def fresh(ground: Ground) -> TransformersModel:
    """Load the start once more; the target is not kept twice."""
    return load(ground.start, dtype=ground.target.dtype)


def judge(ground: Ground, draft: TransformersModel) -> Scores:
    """Score a draft on the held-out answers."""
    return score(ground.target, draft, ground.held, ratio_test(Sampling()), batch_size=BATCH)


def train(
    ground: Ground,
    draft: TransformersModel,
    name: str,
    budget: float,
    reference: TransformersModel | None,
) -> dict[str, Any]:
    """Train for some seconds of steps; evaluations do not count."""
    recipe = Recipe(
        Divergence.parse(name),
        Mixture(fixed=1),
        optimizer=AdamW(),
        schedule=Schedule(0.05 * budget, 0.3 * budget, budget, 0.1, "seconds"),
        learning_rate=RATE,
        batch_size=BATCH,
    )
    state = State(draft, ground.batches, recipe, seed=SEED)
    target = ground.target
    steps = distill(
        target,
        draft,
        ground.batches,
        recipe,
        state=state,
        cache=ground.cache,
        reference=reference,
    )
    tokens, curve = 0, []
    while state.seconds < budget:
        tokens += next(steps).tokens
        if state.seconds >= budget * (len(curve) + 1) / (CURVE + 1) and len(curve) < CURVE:
            curve.append(
                {"seconds": state.seconds, "tokens": tokens, **_point(judge(ground, draft))}
            )
    return {"steps": state.step, "tokens": tokens, "curve": curve}


def _point(scores: Scores) -> dict[str, float]:
    tokens = float(scores.lengths.sum())
    return {
        "alpha": float(scores.alpha_sums.sum()) / tokens,
        "tau": tokens / float(calls(scores, GAMMA)[0].sum()),
    }


def _figures(scores: Scores) -> str:
    point = _point(scores)
    return f"α {point['alpha']:.4f}  τ({GAMMA}) {point['tau']:.3f}"


if __name__ == "__main__":
    sys.exit(main())
