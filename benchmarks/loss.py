"""Head + divergence, chunked against the textbook form: growth of the peak memory, and time.

    .venv/bin/python benchmarks/loss.py [N [V [H]]]

Forward and backward in float32 over N positions, target's head included; ours also measures the
acceptance, as training does. Memory: each form in a fresh process, the growth of its peak over
what the inputs take; the matrix's own gradient counts for both. Time: both forms in one process in
turn, the median of the ratios. Exits 1 if ours takes more than 15 % of the memory or 1.1 times the
time. Then how both grow with N and with V. Linux (/proc).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMORY, TIME = 0.15, 1.1
"""What is asked for: ours over the textbook form."""
ROUNDS = 3
NAMES = ("forward_kl", "reverse_kl", "jsd:0.5", "total_variation", "acceptance")


def main() -> int:
    """Print the tables; return 1 if a line misses."""
    sizes = [int(value) for value in sys.argv[1:4]]
    N, V, H = sizes + [2048, 49152, 576][len(sizes) :]
    print(f"N = {N}, V = {V}, H = {H}, float32")
    print(f"{'':<18}{'textbook s':>11}{'MiB':>7}{'ours s':>9}{'MiB':>7}{'time':>7}{'memory':>8}")
    missed = [name for name in NAMES if not _line(name, N, V, H)]
    print("growth, forward_kl: N, then V")
    for n, v in ((N // 4, V), (N // 2, V), (2 * N, V), (N, V // 4), (N, V // 2)):
        _line("forward_kl", n, v, H, label=f"{n} × {v}", rounds=1)
    print(f"missed: {', '.join(missed)}" if missed else "all within bounds")
    return 1 if missed else 0


def _line(name: str, N: int, V: int, H: int, *, label: str = "", rounds: int = ROUNDS) -> bool:
    plain, ours = (_apart("memory", name, N, V, H, form)["mib"] for form in ("plain", "ours"))
    times = _apart("time", name, N, V, H, str(rounds))
    ratio = statistics.median(a / b for a, b in zip(times["ours"], times["plain"], strict=True))
    print(
        f"{label or name:<18}{min(times['plain']):>11.2f}{plain:>7.0f}{min(times['ours']):>9.2f}"
        f"{ours:>7.0f}{ratio:>7.2f}{ours / plain:>8.2f}",
        flush=True,
    )
    return bool(ratio <= TIME and ours <= MEMORY * plain)


def _apart(what: str, name: str, N: int, V: int, H: int, rest: str) -> dict[str, Any]:
    """Run in a process of its own; this one stays small, since a child begins with its peak."""
    command = [sys.executable, __file__, "--" + what, name, str(N), str(V), str(H), rest]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def forms(name: str, N: int, V: int, H: int) -> dict[str, Callable[[], None]]:
    """Make the inputs, and both forms of the loss with its gradient."""
    import torch
    from torch.nn.functional import kl_div

    from distillspec.models.heads import Head
    from distillspec.models.vocabulary import Vocabulary
    from distillspec.training.chunks import Objective, Rows, chunked
    from distillspec.training.losses import scored
    from distillspec.training.recipes import Divergence

    torch.manual_seed(0)
    heads = [torch.nn.Linear(H, V, bias=False) for _ in range(2)]
    target, hidden = torch.randn(N, H), torch.randn(N, H, requires_grad=True)
    divergence = Divergence.parse(name)

    class Draft:
        module, projection, kept = heads[1], heads[1], None
        narrow_head = Head(heads[1], Vocabulary.plain(V)).narrow

    objective = Objective(
        draft=Draft(),
        score=lambda p, q, labels, kept: scored(divergence, p, q, labels, kept),
        target_head=heads[0],
        target_hidden=target,
        log_z=None,
        labels=torch.zeros(N, dtype=torch.int64),
        weights=torch.full((N,), 1 / N),
        rows=Rows.fitting(V, hidden.device),
    )

    def textbook() -> torch.Tensor:
        with torch.no_grad():
            log_p = heads[0](target).log_softmax(-1)
        log_q = heads[1](hidden).log_softmax(-1)
        if name == "forward_kl":
            return kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
        if name == "reverse_kl":
            return kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)
        p, q = log_p.exp(), log_q.exp()
        if name == "total_variation":
            return 0.5 * (p - q).abs().sum(-1)
        if name == "acceptance":
            return -torch.minimum(p, q).sum(-1).log()
        log_m = ((p + q) / 2).log()
        return 0.5 * ((p * (log_p - log_m)).sum(-1) + (q * (log_q - log_m)).sum(-1))

    def fresh() -> None:
        heads[1].weight.grad = hidden.grad = None

    def plain() -> None:
        fresh()
        textbook().mean().backward()

    def ours() -> None:
        fresh()
        chunked(objective, hidden)[0].backward()

    return {"plain": plain, "ours": ours}


def memory(run: Callable[[], None]) -> float:
    """Return by how many MiB the peak exceeds what was resident before."""
    torch_warm_up()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    run()
    return (_status("VmHWM") - before) / 1024


def torch_warm_up() -> None:
    """Start threads and buffers that the first product makes, which belong to neither form."""
    import torch

    a = torch.randn(64, 64, requires_grad=True)
    (a @ a).sum().backward()


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])  # KiB


def seconds(run: Callable[[], None]) -> float:
    """Time one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def child(what: str, name: str, N: int, V: int, H: int, rest: str) -> dict[str, Any]:
    """Do one measurement."""
    both = forms(name, N, V, H)
    if what == "--memory":
        return {"mib": memory(both[rest])}
    for run in both.values():
        run()  # the first call pays for pages and threads
    times: dict[str, list[float]] = {form: [] for form in both}
    for _ in range(int(rest)):
        for form, run in both.items():
            times[form].append(seconds(run))
    return times


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("--"):
        print(json.dumps(child(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6])))
    else:
        sys.exit(main())
