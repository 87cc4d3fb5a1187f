"""Our engine against transformers' assisted generation and against its own cost model.

    .venv/bin/python benchmarks/engine.py [TARGET [DRAFT]] [--gamma 2] [--dtype float32] ...

TARGET is a folder, hub name or GGUF file (the demo's target by default), DRAFT a folder (by default
six of the target's layers, spread evenly). Prints medians with their spread and exits 1 when one of
these is missed:

- *bound*: the measured speed-up of speculative decoding is at least 0.92 of what the two models'
  passes, timed alone, allow with the counted τ: τ · t(1) / (t(γ+1) + γ · t_draft), no overhead;
- *assisted*: at least 1.15 times the tokens per second of `generate(assistant_model=...)` with the
  same pair and γ, a constant schedule and no confidence threshold, greedy and sampled;
- *batch*: eight prompts at once give at least 4 times the tokens per second of assisted generation,
  which takes one prompt at a time;
- *hostile*: with a draft that knows nothing (two layers of the target, untrained), choosing γ
  while running is at most 3 % slower than decoding without a draft.

A draft whose head is trimmed gets it back whole for this, because transformers has no other. Every
lane decodes the same prompts to the same length, end tokens mean nothing, and lanes take turns,
because a machine's speed drifts: a ratio is the median of the ratios of single turns. Tokens per
second include reading the prompt; the bound is about blocks alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from distillspec.commands.demo import packaged_target
from distillspec.decoding import Gammas, Optimal, complete
from distillspec.math.rules import Rule
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models import load
from distillspec.models.adapter import TransformersModel
from distillspec.models.surgery import keep_layers
from distillspec.studies.clock import Lane, Timer
from distillspec.studies.outputs import seeded
from distillspec.studies.quick import measure_cost

BOUND, ASSISTED, BATCH, HOSTILE = 0.92, 1.15, 4.0, 0.97
QUESTIONS = (
    "Explain what this function does:\n\ndef area(width, height):\n    return width * height",
    "A baker sells 12 loaves in the morning and twice as many in the afternoon. How many in all?",
    "Write three sentences about a lighthouse keeper who has never seen the sea.",
    "List five countries and their capitals.",
    "Why is the sky blue? Explain it to a child.",
    "Summarise: The council met on Monday and agreed to repair the old bridge before winter.",
    "Translate into German: The train leaves at half past eight.",
    "What is the difference between a stack and a queue?",
)
SETTINGS = {"greedy": GREEDY, "sampled": Sampling()}


def main() -> int:
    """Run every comparison, print the tables and return the exit code."""
    options = _options()
    dtype = getattr(torch, options.dtype)
    target = load(options.target or packaged_target(), dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        draft = _whole(target, options.draft, Path(folder), dtype)
    for model in (target, draft):
        model.module.generation_config.eos_token_id = None  # lanes differ in nothing but speed
    prompts = [target.tokenizer.prompt(question) for question in QUESTIONS[: options.prompts]]
    print(
        f"{target.name}, {draft.name}, γ = {options.gamma}, {options.tokens} tokens, "
        f"{options.dtype}, {torch.get_num_threads()} threads"
    )
    missed = [
        line
        for name, sampling in SETTINGS.items()
        for line in (
            *_bound(target, draft, prompts, name, sampling, options),
            *_assisted(target, draft, prompts, name, sampling, options),
        )
    ]
    missed += _hostile(target, prompts, options)
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", nargs="?")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--gamma", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=8, choices=range(1, 9))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    return parser.parse_args()


def _whole(
    target: TransformersModel, path: str | None, folder: Path, dtype: torch.dtype
) -> TransformersModel:
    """Load a draft with its head whole, or cut one from the target."""
    if path is None:
        layers = target.module.config.num_hidden_layers
        return keep_layers(target, [i * (layers - 1) // 5 for i in range(6)])
    for file in Path(path).iterdir():
        if file.name != "kept_ids.json":
            (folder / file.name).symlink_to(file.resolve())
    return load(folder, dtype=dtype)


def _bound(
    target: TransformersModel,
    draft: TransformersModel,
    prompts: Sequence[Tensor],
    name: str,
    sampling: Sampling,
    options: argparse.Namespace,
) -> list[str]:
    """Compare blocks on the clock with the passes that they are made of."""
    rule = Rule(sampling, sampling)
    gamma = options.gamma
    timer = Timer(target, {"draft": draft}, rule, options.tokens, options.rounds, 0)
    lanes = {"speculative": Lane("draft", gamma, rule)}
    shares, speedups, bounds = [], [], []
    races = timer.race(prompts, lanes, lambda done, count: None)
    for prompt, race in zip(prompts, races, strict=True):
        passes = timer.passes([prompt], [1, gamma + 1])
        run = race.runs["speculative"]
        tau = len(run.output.ids) / len(run.blocks)
        block = passes.target[gamma + 1] + gamma * passes.drafts["draft"]
        bounds.append(tau * passes.target[1] / block)
        speedups.append(race.plain.seconds / run.seconds)
        shares.append(speedups[-1] / bounds[-1])
    print(f"\n{name}: speed-up {_spread(speedups)}, of a bound of {_spread(bounds)}")
    return _judged(f"{name}: speed-up / bound", shares, BOUND)


def _assisted(
    target: TransformersModel,
    draft: TransformersModel,
    prompts: Sequence[Tensor],
    name: str,
    sampling: Sampling,
    options: argparse.Namespace,
) -> list[str]:
    """Compare with transformers, one prompt at a time and all of them at once."""
    ours = _decode(target, draft, options.gamma, sampling, options.tokens)
    lanes: Mapping[str, Callable[[Sequence[Tensor]], int]] = {
        "transformers plain": _generate(target, None, sampling, options),
        "transformers assisted": _generate(target, draft, sampling, options),
        "ours, γ = 0": _one_by_one(_decode(target, None, 0, sampling, options.tokens)),
        f"ours, γ = {options.gamma}": _one_by_one(ours),
        "ours, all at once, γ = 0": _decode(target, None, 0, sampling, options.tokens),
        f"ours, all at once, γ = {options.gamma}": ours,
    }
    rates = _race(lanes, prompts, options.rounds)
    theirs = rates["transformers assisted"]
    for lane, found in rates.items():
        print(f"{lane:<28}{_spread(found, 1)} tok/s, {_spread(_over(found, theirs))} × assisted")
    single = rates[f"ours, γ = {options.gamma}"]
    batched = max(
        (rates["ours, all at once, γ = 0"], rates[f"ours, all at once, γ = {options.gamma}"]),
        key=statistics.median,
    )
    return [
        *_judged(f"{name}: ours / assisted", _over(single, theirs), ASSISTED),
        *_judged(f"{name}: {len(prompts)} at once / assisted", _over(batched, theirs), BATCH),
    ]


def _hostile(
    target: TransformersModel, prompts: Sequence[Tensor], options: argparse.Namespace
) -> list[str]:
    """Let γ adapt to a draft that is never right."""
    layers = target.module.config.num_hidden_layers
    draft = keep_layers(target, [0, layers - 1])
    tokens = max(100, options.tokens)
    cost = measure_cost(target, draft, prompts[:1], limit=4)
    lanes = {
        "ours, γ = 0": _one_by_one(_decode(target, None, 0, GREEDY, tokens)),
        "ours, γ = 4": _one_by_one(_decode(target, draft, 4, GREEDY, tokens)),
        "ours, γ adapts": _one_by_one(_decode(target, draft, Optimal(cost), GREEDY, tokens)),
    }
    rates = _race(lanes, prompts[:3], options.rounds)
    plain = rates["ours, γ = 0"]
    print(f"\nhostile draft, greedy, {tokens} tokens")
    for lane, found in rates.items():
        print(f"{lane:<28}{_spread(found, 1)} tok/s, {_spread(_over(found, plain))} × γ = 0")
    return _judged("hostile: adapting / γ = 0", _over(rates["ours, γ adapts"], plain), HOSTILE)


def _race(
    lanes: Mapping[str, Callable[[Sequence[Tensor]], int]],
    prompts: Sequence[Tensor],
    rounds: int,
) -> dict[str, list[float]]:
    """Time the lanes in turn and return each one's tokens per second, a round an entry."""
    rates: dict[str, list[float]] = {name: [] for name in lanes}
    for lane in lanes.values():
        lane(prompts[:2])
    for _ in range(rounds):
        for name, lane in lanes.items():
            start = time.perf_counter()
            tokens = lane(prompts)
            rates[name].append(tokens / (time.perf_counter() - start))
    return rates


def _decode(
    target: TransformersModel,
    draft: TransformersModel | None,
    gamma: int | Gammas,
    sampling: Sampling,
    tokens: int,
) -> Callable[[Sequence[Tensor]], int]:
    def lane(prompts: Sequence[Tensor]) -> int:
        outputs = complete(
            target,
            draft,
            prompts,
            gamma=gamma,
            max_new_tokens=tokens,
            sampling=sampling,
            stop=(),
            generators=seeded(0, len(prompts)),
        )
        return sum(len(output.ids) for output in outputs)

    return lane


def _one_by_one(
    lane: Callable[[Sequence[Tensor]], int],
) -> Callable[[Sequence[Tensor]], int]:
    return lambda prompts: sum(lane([prompt]) for prompt in prompts)


def _generate(
    target: TransformersModel,
    draft: TransformersModel | None,
    sampling: Sampling,
    options: argparse.Namespace,
) -> Callable[[Sequence[Tensor]], int]:
    settings = {"do_sample": False}
    if sampling.temperature:
        settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    assistant = {} if draft is None else {"assistant_model": draft.module}
    if draft is not None:  # transformers reads these from the draft alone
        draft.module.generation_config.num_assistant_tokens = options.gamma
        draft.module.generation_config.num_assistant_tokens_schedule = "constant"
        draft.module.generation_config.assistant_confidence_threshold = 0.0

    @torch.inference_mode()
    def lane(prompts: Sequence[Tensor]) -> int:
        torch.manual_seed(0)
        count = 0
        for prompt in prompts:
            whole = target.module.generate(
                prompt[None],
                attention_mask=torch.ones_like(prompt)[None],
                max_new_tokens=options.tokens,
                **settings,
                **assistant,
            )
            count += whole.shape[1] - len(prompt)
        return count

    return lane


def _over(own: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(own, other, strict=True)]


def _judged(what: str, ratios: Sequence[float], least: float) -> list[str]:
    """Print a ratio beside what it must be at least, and return it if it is less."""
    line = f"{what} {_spread(ratios)}, at least {least} wanted"
    print(line)
    return [line] if statistics.median(ratios) < least else []


def _spread(values: Sequence[float], digits: int = 2) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


if __name__ == "__main__":
    sys.exit(main())
