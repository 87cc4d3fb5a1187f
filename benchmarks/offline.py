"""What a target known by k log-probabilities and a tail loses: error of every divergence over k.

    .venv/bin/python benchmarks/offline.py [TARGET DRAFT PROMPTS [POSITIONS]]

PROMPTS is a file that `generate` wrote; by default the demo's target answers its prompts, and the
draft is the one that `make demo` leaves in runs/demo. Over the first POSITIONS (2,000) completion
positions, for the divergences as defined in `math/partial.py` (the tail as one event), and beside
it, for what is often done instead, the tail spread evenly over the other ids:

- value: mean D of the part / mean D of the whole − 1: one event never gives more of a divergence,
  and never less of the acceptance;
- gradient: |g − g'| / |g|, in the 2-norm, of the mean D in the draft's logits;
- the same of k = 64 stored in 16 bits, and the bytes a position takes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from distillspec.commands.demo import packaged_target
from distillspec.commands.pairs import examples, prompt_ids
from distillspec.math import pairs
from distillspec.math.partial import Known, known_of, lumped
from distillspec.math.sampling import Sampling
from distillspec.models import load_pair
from distillspec.models.adapter import TransformersModel
from distillspec.models.protocol import Batch
from distillspec.studies.outputs import complete_all, seeded
from distillspec.tasks import read_prompts
from distillspec.training.cache import states_of

KS = (1, 4, 16, 20, 64, 256, 1024)
ROWS = 64
"""Positions at once: a dozen [rows, V] tensors are alive."""
FORMS: dict[str, Callable[[pairs.Pair], Tensor]] = {
    "forward KL": pairs.forward_kl_of,
    "reverse KL": pairs.reverse_kl_of,
    "JSD ½": lambda pair: pairs.jsd_of(pair, 0.5),
    "TVD": pairs.total_variation_of,
    "acceptance": pairs.acceptance_of,
}
DEMO = Path("runs/demo")
PROMPTS, TOKENS = 48, 64
"""Of the demo, and the length limit of their answers."""
Way = Callable[[Tensor, Tensor, Tensor | None], pairs.Pair]


def main() -> int:
    """Score both models on the completions and print the table."""
    given = sys.argv[1:]
    names = given[:2] or [packaged_target(), str(DEMO / "draft")]
    if len(given) in (1, 2) or not Path(names[1]).is_dir():
        print("no draft: run `make demo` first, or give TARGET DRAFT PROMPTS", file=sys.stderr)
        return 2
    target, draft = load_pair(*names)
    wanted = int(given[3]) if len(given) > 3 else 2_000
    states: tuple[list[Tensor], list[Tensor]] = ([], [])
    for batch in read(target, given[2]) if given else answered(target):
        for found, model in zip(states, (target, draft), strict=True):
            found.append(states_of(model, batch))
        if sum(map(len, states[0])) >= wanted:
            break
    both = [torch.cat(found)[:wanted] for found in states]
    size = target.vocabulary.size
    print(f"{len(both[0])} positions, V = {size}, {' and '.join(names)}")
    ways = {f"k = {k}": one_event(k) for k in KS if k < size}
    ways |= {f"{name}, k = 64": one_event(64, kind) for name, kind in KINDS.items()}
    ways |= {f"even, k = {k}": spread_evenly(k) for k in (16, 64, 256)}
    sums = measure(target.head, draft.narrow_head, both, draft.kept, ways)
    report(sums, size)
    return 0


def read(target: TransformersModel, file: str) -> list[Batch]:
    """Read prompts with completions, one a batch."""
    data = examples(target.tokenizer, read_prompts(file))
    if any(example.completion is None for example in data):
        raise SystemExit(f"{file}: a row has no completion; give what generate wrote")
    return [Batch((e.prompt,), (e.completion,)) for e in data if e.completion is not None]


def answered(target: TransformersModel) -> list[Batch]:
    """Let the target answer the demo's prompts, one a batch."""
    prompts = prompt_ids(target.tokenizer, read_prompts("stdlib", limit=PROMPTS))
    outputs = complete_all(
        target,
        prompts,
        sampling=Sampling(),
        max_new_tokens=TOKENS,
        batch_size=16,
        generators=seeded(0, len(prompts)),
        report=lambda done, total: None,
    )
    return [
        Batch((prompt,), (torch.tensor(output.ids),))
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


KINDS = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def one_event(k: int, stored: torch.dtype | None = None) -> Way:
    """Compare as `math/partial.py` does, from numbers kept in `stored`."""

    def way(p: Tensor, q: Tensor, kept: Tensor | None) -> pairs.Pair:
        known = known_of(p, k)
        if stored is not None:
            known = Known(known.ids, known.logprobs.to(stored).float(), known.tail)
        return lumped(known, q, kept=kept)

    return way


def spread_evenly(k: int) -> Way:
    """Give every id beyond the k the same part of the tail, and compare whole distributions."""

    def way(p: Tensor, q: Tensor, kept: Tensor | None) -> pairs.Pair:
        known = known_of(p, k)
        each = known.tail - math.log(p.shape[-1] - k)
        filled = each[:, None].expand_as(p).scatter(-1, known.ids, known.logprobs)
        return pairs.compare(filled, q, kept)

    return way


def whole(p: Tensor, q: Tensor, kept: Tensor | None) -> pairs.Pair:
    """Compare what is known in full."""
    return pairs.compare(p, q, kept)


def measure(
    target_head: Callable[[Tensor], Tensor],
    draft_head: Callable[[Tensor], Tensor],
    states: list[Tensor],
    kept: Tensor | None,
    ways: dict[str, Way],
) -> dict[str, dict[str, Tensor]]:
    """Return by way and form [Σ D, Σ |g − g'|², Σ |g|²]."""
    sums = {way: {form: torch.zeros(3, dtype=torch.float64) for form in FORMS} for way in ways}
    sums["whole"] = {form: torch.zeros(3, dtype=torch.float64) for form in FORMS}
    for p_states, q_states in zip(*(part.split(ROWS) for part in states), strict=True):
        with torch.no_grad():
            p, q = target_head(p_states).float(), draft_head(q_states).float()
        q.requires_grad_()
        for form, of in FORMS.items():
            value, slope = _sloped(of(whole(p, q, kept)).sum(), q)
            sums["whole"][form] += torch.tensor([value, 0.0, float(slope.square().sum())])
            for name, way in ways.items():
                part, own = _sloped(of(way(p, q, kept)).sum(), q)
                off = float((own - slope).square().sum())
                sums[name][form] += torch.tensor([part, off, 0.0])
    return sums


def _sloped(value: Tensor, logits: Tensor) -> tuple[float, Tensor]:
    (slope,) = torch.autograd.grad(value, logits)
    return float(value.detach()), slope


def report(sums: dict[str, dict[str, Tensor]], size: int) -> None:
    """Print errors by way and form."""
    wide = 2 if size <= 1 << 16 else 4
    print(f"{'value / gradient error':<18}" + "".join(f"{form:>18}" for form in FORMS) + "  bytes")
    for name, found in sums.items():
        if name == "whole":
            continue
        cells = []
        for form, total in found.items():
            exact = sums["whole"][form]
            value = 100 * float(total[0] / exact[0] - 1)
            slope = 100 * math.sqrt(float(total[1] / exact[2]))
            cells.append(f"{value:>+8.2f}% {slope:>7.2f}%")
        k = int(name.rpartition(" ")[2])
        each = 2 if "float16" in name else 4
        print(
            f"{name:<18}" + "".join(f"{cell:>18}" for cell in cells) + f"{k * (wide + each) + 4:>7}"
        )
    means = (f"{form} {float(total[0]):.1f}" for form, total in sums["whole"].items())
    print("sums of the whole forms: " + ", ".join(means))


if __name__ == "__main__":
    sys.exit(main())
