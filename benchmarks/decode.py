"""Autoregressive and speculative decoding by our engine against transformers' `generate`.

    .venv/bin/python benchmarks/decode.py [TARGET [DRAFT]]

TARGET is a folder, hub name or GGUF file (the demo's target by default), DRAFT a folder such as
runs/demo/draft. Batch 1, greedy, the same tokens for all, run in turn; medians over rounds, and
ratios to transformers in the same round, because the machine's speed drifts.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

from distillspec.commands.demo import packaged_target
from distillspec.decoding import complete
from distillspec.math.sampling import GREEDY
from distillspec.models import load
from distillspec.models.adapter import TransformersModel

TOKENS, ROUNDS = 48, 5
PROMPT = "Explain what this function does:\n\ndef area(width, height):\n    return width * height"


def main() -> None:
    """Time the lanes in turn and print a table."""
    target = load(sys.argv[1] if len(sys.argv) > 1 else packaged_target())
    draft = load(sys.argv[2]) if len(sys.argv) > 2 else None
    lanes = {
        "transformers generate": lambda: _generate(target),
        "ours, γ = 0": _ours(target, None, 0),
    }
    if draft is not None:
        lanes |= {f"ours, γ = {gamma}": _ours(target, draft, gamma) for gamma in (1, 2, 3)}
    for lane in lanes.values():
        lane()
    rates: dict[str, list[float]] = {name: [] for name in lanes}
    for _ in range(ROUNDS):
        for name, lane in lanes.items():
            start = time.perf_counter()
            tokens = lane()
            rates[name].append(tokens / (time.perf_counter() - start))
    print(f"{'':<24}{'tok/s':>8}{'min':>8}{'max':>8}{'ratio':>8}")
    for name, found in rates.items():
        against = statistics.median(
            own / other for own, other in zip(found, rates["transformers generate"], strict=True)
        )
        low, middle, high = min(found), statistics.median(found), max(found)
        print(f"{name:<24}{middle:>8.1f}{low:>8.1f}{high:>8.1f}{against:>8.2f}")


def _ours(
    target: TransformersModel, draft: TransformersModel | None, gamma: int
) -> Callable[[], int]:
    prompt = target.tokenizer.prompt(PROMPT)

    def lane() -> int:
        (output,) = complete(
            target, draft, [prompt], gamma=gamma, max_new_tokens=TOKENS, sampling=GREEDY
        )
        return len(output.ids)

    return lane


@torch.inference_mode()
def _generate(target: TransformersModel) -> int:
    prompt = target.tokenizer.prompt(PROMPT)[None]
    whole = target.module.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS, do_sample=False
    )
    return int(whole.shape[1] - prompt.shape[1])


if __name__ == "__main__":
    main()
