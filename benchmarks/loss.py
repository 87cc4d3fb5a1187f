"""Head + divergence, chunked against plain: time, and growth of the peak memory.

    .venv/bin/python benchmarks/loss.py [N [V [H]]]

Forward and backward in float32 over N positions. Each variant runs in a process of its own, in
turn, because a process's peak memory never falls.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import torch

from distillspec.training.losses import CHUNK_BYTES, chunked, position_values
from distillspec.training.recipes import Divergence

ROUNDS = 3
NAMES = ("forward_kl", "reverse_kl", "jsd:0.5", "total_variation")


def main() -> None:
    """Run every variant in its own process and print a table."""
    sizes = [int(value) for value in sys.argv[1:4]]
    N, V, H = sizes + [2048, 49152, 576][len(sizes) :]
    print(f"N = {N}, V = {V}, H = {H}, float32, {torch.get_num_threads()} threads")
    print(f"{'':<18}{'plain s':>9}{'MiB':>7}{'chunked s':>11}{'MiB':>7}{'time':>7}{'memory':>8}")
    for name in NAMES:
        plain, ours = (_apart(name, kind, N, V, H) for kind in ("plain", "chunked"))
        print(
            f"{name:<18}{plain['seconds']:>9.2f}{plain['mib']:>7.0f}{ours['seconds']:>11.2f}"
            f"{ours['mib']:>7.0f}{ours['seconds'] / plain['seconds']:>7.2f}"
            f"{ours['mib'] / plain['mib']:>8.2f}"
        )


def _apart(name: str, kind: str, N: int, V: int, H: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, kind, str(N), str(V), str(H)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def one(name: str, kind: str, N: int, V: int, H: int) -> dict[str, float]:
    """Time one variant: the fastest of some rounds, and the growth of the peak memory."""
    torch.manual_seed(0)
    heads = [torch.nn.Linear(H, V, bias=False) for _ in range(2)]
    target, hidden = torch.randn(N, H), torch.randn(N, H, requires_grad=True)
    divergence, labels = Divergence.parse(name), torch.zeros(N, dtype=torch.int64)
    size = N if kind == "plain" else max(1, CHUNK_BYTES // (4 * V))

    def part(states: torch.Tensor, rows: slice) -> tuple[torch.Tensor, None]:
        with torch.no_grad():
            p = heads[0](target[rows])
        values = position_values(divergence, p, heads[1](states), labels[rows], None)
        return values.sum() / N, None

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(ROUNDS):
        heads[1].zero_grad(set_to_none=True)
        start = time.perf_counter()
        loss = (
            part(hidden, slice(0, N))[0]
            if kind == "plain"
            else chunked(part, hidden, heads[1], size).value
        )
        loss.backward()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": min(seconds), "mib": (peak - before) / 1024}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))))
    else:
        main()
