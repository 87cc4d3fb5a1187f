"""Seconds of the pure functions at the sizes of a real pair, on this machine.

    make bench
    python benchmarks/mathematics.py

Prints a table of medians with the spread of the middle half, then one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch

from distillspec.math.divergences import forward_kl, jsd, reverse_kl, total_variation
from distillspec.math.forecast import expected_calls
from distillspec.math.sampling import GREEDY, Sampling, draw
from distillspec.math.verification import verify

V, GAMMA, ROWS, POSITIONS, LENGTH = 49_152, 4, 4, 64, 512
REPETITIONS = 15


def median_ms(function: Callable[[], object]) -> dict[str, float]:
    """Time a function, its first call left out."""
    function()
    milliseconds = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        function()
        milliseconds.append(1e3 * (time.perf_counter() - start))
    low, middle, high = statistics.quantiles(milliseconds, n=4)
    return {"median_ms": middle, "low_ms": low, "high_ms": high}


def cases() -> dict[str, Callable[[], object]]:
    """Name what is timed; every input is made here, outside the clock."""
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.randn(2, POSITIONS, V, generator=generator)
    p = Sampling().probabilities(torch.randn(ROWS, GAMMA + 1, V, generator=generator))
    q = Sampling().probabilities(torch.randn(ROWS, GAMMA, V, generator=generator))
    drafted = draw(q, torch.rand(ROWS, GAMMA, generator=generator))
    lengths = torch.full((ROWS,), GAMMA)
    uniforms = torch.rand(ROWS, GAMMA + 1, generator=generator)
    ratios = torch.rand(LENGTH, generator=generator)
    token = target[:1]
    divergences = {
        "forward KL": forward_kl,
        "reverse KL": reverse_kl,
        "JSD": jsd,
        "total variation": total_variation,
    }
    named: dict[str, Callable[[], object]] = {
        f"{name}, {POSITIONS} positions": lambda divergence=divergence: divergence(target, draft)
        for name, divergence in divergences.items()
    }
    return {
        **named,
        "probabilities, T = 1": lambda: Sampling().probabilities(token),
        "probabilities, top-k 50, top-p 0.9": lambda: Sampling(1.0, 50, 0.9).probabilities(token),
        "probabilities, greedy": lambda: GREEDY.probabilities(token),
        f"verify, {ROWS} rows, γ = {GAMMA}": lambda: verify(
            p, q, drafted, lengths=lengths, uniforms=uniforms
        ),
        f"forecast, {LENGTH} tokens, γ = 16": lambda: expected_calls(ratios, 16),
    }


def main() -> None:
    """Time every case and print."""
    results = {name: median_ms(function) for name, function in cases().items()}
    for name, found in results.items():
        print(
            f"{name:<36} {found['median_ms']:9.3f} ms"
            f"  [{found['low_ms']:.3f}, {found['high_ms']:.3f}]"
        )
    print(json.dumps({"vocabulary": V, "threads": torch.get_num_threads(), "results": results}))


if __name__ == "__main__":
    main()
