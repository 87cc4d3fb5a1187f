"""What target data costs: decoded with a draft or without, its states reused or computed anew.

    .venv/bin/python benchmarks/rollouts.py [TARGET START END PROMPTS [ROWS [TOKENS]]]

START and END are a draft before and after a training run; by default the demo's target, the drafts
that `make demo` leaves in runs/demo and its prompts. ROWS (8) prompts of the file are answered
at temperature 1 with at most TOKENS (48) tokens, in batches of 1 and of ROWS, by the target alone
and by exact speculation with either draft at γ = 1, 2, 3. Then one training step on the answers
(forward KL, AdamW) is timed with the target's states taken from decoding, and with a target pass of
its own. All ways run in turn; medians over rounds, and ratios within a round.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from distillspec.commands.demo import packaged_target
from distillspec.commands.pairs import prompt_ids
from distillspec.decoding import Output, complete
from distillspec.math.sampling import Sampling
from distillspec.models import load_together
from distillspec.models.adapter import TransformersModel
from distillspec.models.protocol import Batch
from distillspec.studies.outputs import seeded
from distillspec.tasks import read_prompts
from distillspec.training.cache import states_of
from distillspec.training.losses import DistillationLoss, position_weights
from distillspec.training.recipes import Divergence

DEMO = Path("runs/demo")
ROUNDS = 5


def main() -> int:
    """Time both halves and print two tables."""
    given = sys.argv[1:]
    names = given[:3] or [packaged_target(), str(DEMO / "before"), str(DEMO / "draft")]
    if len(given) in (1, 2, 3) or not all(Path(name).is_dir() for name in names[1:]):
        print("no drafts: run `make demo` first, or give TARGET START END PROMPTS", file=sys.stderr)
        return 2
    target, start, end = load_together(names[0], names[1:])
    count = int(given[4]) if len(given) > 4 else 8
    tokens = int(given[5]) if len(given) > 5 else 48
    rows = read_prompts(given[3] if given else "stdlib", limit=count)
    prompts = prompt_ids(target.tokenizer, rows, context=target.context)
    for batch in sorted({1, len(prompts)}):
        lanes = {"target alone": _lane(target, None, 0, prompts, batch, tokens)}
        for name, draft in (("start", start), ("end", end)):
            lanes |= {
                f"{name}, γ = {gamma}": _lane(target, draft, gamma, prompts, batch, tokens)
                for gamma in (1, 2, 3)
            }
        _print(f"decoding, batch {batch}", lanes, "target alone", "tok/s")
    outputs = _decode(target, None, 0, prompts, len(prompts), tokens)
    completions = tuple(torch.tensor(output.ids) for output in outputs)
    batch_of = Batch(tuple(prompts), completions)
    reused = torch.cat([output.states for output in outputs])
    far = (reused - states_of(target, batch_of)).abs().max()
    print(f"states of decoding against a pass of its own: {float(far):.1e} at most")
    step = _step(target, start, batch_of)
    ways: dict[str, Callable[[], int]] = {
        "own target pass": lambda: step(states_of(target, batch_of)),
        "states reused": lambda: step(reused),
    }
    _print("one training step", ways, "own target pass", "tok/s")
    return 0


def _decode(
    target: TransformersModel,
    draft: TransformersModel | None,
    gamma: int,
    prompts: Sequence[Tensor],
    batch: int,
    tokens: int,
) -> list[Output]:
    generators = seeded(0, len(prompts))
    return [
        output
        for at in range(0, len(prompts), batch)
        for output in complete(
            target,
            draft,
            prompts[at : at + batch],
            gamma=gamma,
            max_new_tokens=tokens,
            sampling=Sampling(),
            generators=generators[at : at + batch],
        )
    ]


def _lane(
    target: TransformersModel,
    draft: TransformersModel | None,
    gamma: int,
    prompts: Sequence[Tensor],
    batch: int,
    tokens: int,
) -> Callable[[], int]:
    def lane() -> int:
        outputs = _decode(target, draft, gamma, prompts, batch, tokens)
        return sum(len(output.ids) for output in outputs)

    return lane


def _step(
    target: TransformersModel, draft: TransformersModel, batch: Batch
) -> Callable[[Tensor], int]:
    loss_of = DistillationLoss(draft, Divergence("forward_kl"), target_head=target.head)
    weights = position_weights(batch.lengths, "sequence_mean")
    optimizer = torch.optim.AdamW(draft.module.parameters(), lr=1e-6, fused=True)

    def step(hidden: Tensor) -> int:
        loss_of(batch, weights, hidden).value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return sum(batch.lengths)

    return step


def _print(title: str, lanes: dict[str, Callable[[], int]], against: str, unit: str) -> None:
    for lane in lanes.values():
        lane()
    rates: dict[str, list[float]] = {name: [] for name in lanes}
    for _ in range(ROUNDS):
        for name, lane in lanes.items():
            start = time.perf_counter()
            done = lane()
            rates[name].append(done / (time.perf_counter() - start))
    print(f"{title:<24}{unit:>8}{'min':>8}{'max':>8}{'ratio':>8}")
    for name, found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, rates[against], strict=True))
        middle = statistics.median(found)
        print(f"{name:<24}{middle:>8.1f}{min(found):>8.1f}{max(found):>8.1f}{ratio:>8.2f}")


if __name__ == "__main__":
    sys.exit(main())
