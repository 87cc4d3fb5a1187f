"""An on-policy step of `distillspec distill` against one of TRL's two distillation trainers.

    python3 -m venv .venv-trl
    .venv-trl/bin/pip install -c constraints.txt torch 'trl==1.16.*'
    .venv/bin/python benchmarks/against_trl.py [TARGET [DRAFT [PROMPTS]]] [--dtype bfloat16] ...

The first two lines make the environment with TRL, which is no dependency; `make bench` does too.
TARGET and DRAFT are folders, hub names or GGUF files, PROMPTS is a prompt file. By default the
target and the prompts are the demo's and the draft is six of the target's layers, spread evenly,
with its whole head. Exits 1 when a ratio is missed: GKDTrainer at least 3 times as long a step,
DistillationTrainer 1.5 times, our peak memory at most 0.5 and 0.9 of theirs.

**The same for all three.** The same prompts as ids, in the same batches in the same order, ours;
it puts prompts of similar length together, and the other two profit from it too. The draft writes
at temperature 1 from its whole distribution, exactly so many tokens a prompt: in the copies of the
pair that all three train, a sequence ends with an id that the draft never chooses, and the tokens
of every step are counted. Generalised JSD at β = ½, fused AdamW, one learning rate, gradients
clipped at norm 1, no accumulation, no saving in between, the same torch and the same threads.

**What TRL is given.** Gradient checkpointing off: it is on by default, takes a pass more, and in
GKDTrainer it switches off the cache that sampling needs. No logging and no saving at all. Its
time is that of the steps alone, from the first token sampled to the weights updated. Compiled
kernels (Liger, vLLM) need a GPU or a server and are not used.

**Dtype.** float32 is float32 throughout. bfloat16 is what each documents for training: float32
weights under autocast; TRL runs sampling and the target under it too, ours keeps both in float32.

**Seconds.** Each run is a fresh process: a first step, which is not counted, and then STEPS. Runs
take turns (ours, GKD, ours, Distillation, …), because a machine's speed drifts; a ratio is one of
medians over all steps.

**Memory.** *Peak* is the largest resident size of the process, ours with the checkpoint and the
draft that the verb saves at its end; it is what is judged, the median over runs. *Loaded* is the
size with both models there and no step made, *growth* the difference. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import torch

from distillspec.commands.demo import packaged_target
from distillspec.commands.pairs import examples
from distillspec.errors import UserError
from distillspec.models import load, load_pair
from distillspec.models.adapter import TransformersModel
from distillspec.models.protocol import Batch
from distillspec.models.surgery import keep_layers
from distillspec.tasks import Row, read_prompts
from distillspec.training.data import Batches

OURS, GKD, DISTILLATION = "distillspec distill", "GKDTrainer", "DistillationTrainer"
SLOWER = {GKD: 3.0, DISTILLATION: 1.5}
"""How many times our seconds a step of theirs must take at least."""
LEANER = {GKD: 0.5, DISTILLATION: 0.9}
"""What share of their peak memory ours may be at most."""
LAYERS = 6
LEARNING_RATE, CLIP = 1e-5, 1.0
TRAINERS = Path(__file__).parent / "peers" / "trl_trainers.py"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Ran:
    """What one process took."""

    seconds: list[float]
    """Of every step after the first."""
    tokens: list[int]
    """That the draft wrote in those steps."""
    loaded: float
    """MiB resident with both models loaded."""
    peak: float
    """Largest MiB resident."""


def main() -> int:
    """Run all three in turn, print the table and return the exit code."""
    options = _options()
    if not options.python.exists():
        print(f"{options.python}: no such Python; see the top of {__file__}", file=sys.stderr)
        return 2
    ran: dict[str, list[Ran]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            prompts = _prepare(options, folder)
        except UserError as error:
            print(error, file=sys.stderr)
            return 2
        for turn in range(options.rounds):
            for trainer in (OURS, GKD, OURS, DISTILLATION):
                place = folder / f"{turn}-{len(ran[trainer])}-{trainer.split()[0]}"
                place.mkdir()
                if trainer == OURS:
                    one = _ours(options, folder, place)
                else:
                    one = _theirs(trainer, options, prompts, folder, place)
                print(
                    f"{trainer:<20}{' '.join(f'{s:.2f}' for s in one.seconds)} s, "
                    f"{one.loaded:.0f} → {one.peak:.0f} MiB",
                    flush=True,
                )
                ran[trainer].append(one)
    return 1 if _tell(ran, options.batch_size * options.new_tokens) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", nargs="?", help="by default the demo's")
    parser.add_argument("draft", nargs="?", help=f"by default {LAYERS} of the target's layers")
    parser.add_argument("prompts", nargs="?", default="stdlib", help="by default the demo's")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=5, help="a run, after the first")
    parser.add_argument("--rounds", type=int, default=2, help="of four runs")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--python", type=Path, default=Path(".venv-trl/bin/python"))
    parser.add_argument(
        "--checkpointing", action="store_true", help="gradient checkpointing in TRL, for its memory"
    )
    return parser.parse_args()


def _prepare(options: argparse.Namespace, folder: Path) -> list[list[int]]:
    """Write the pair that all train, and the prompts; return the ids of these in batch order."""
    if options.draft is None:
        target = load(options.target or packaged_target())
        last = target.module.config.num_hidden_layers - 1
        draft = keep_layers(target, [round(i * last / (LAYERS - 1)) for i in range(LAYERS)])
    else:
        target, draft = load_pair(options.target, options.draft)
    wanted = options.batch_size * (1 + options.steps)
    rows = [Row(row.id, row.prompt) for row in read_prompts(options.prompts, limit=wanted)]
    if len(rows) < wanted:
        raise UserError(f"{options.prompts} has {len(rows)} prompts, and the steps need {wanted}")
    data = examples(target.tokenizer, rows)
    _never_end(target, draft, Batch(*zip(*[(e.prompt, e.prompt[-1:]) for e in data], strict=True)))
    target.save(folder / "target")
    draft.save(folder / "draft")
    lines = [json.dumps({"id": row.id, "prompt": row.prompt}) + "\n" for row in rows]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    batches = Batches(data, options.batch_size)
    order = [i for step in range(1 + options.steps) for i in batches.at(step, seed=0)]
    return [data[i].prompt.tolist() for i in order]


@torch.no_grad()
def _never_end(target: TransformersModel, draft: TransformersModel, batch: Batch) -> None:
    """Let sequences end with the id that the draft finds least likely after every prompt."""
    log_q = draft.head(draft.hidden(batch)).log_softmax(-1)
    known = range(len(target.tokenizer.hf))
    never = int(log_q[:, known].amax(0).argmin())
    for model in (target, draft):
        for settings in (model.module.config, model.module.generation_config):
            settings.eos_token_id = never
        model.tokenizer.hf.eos_token = model.tokenizer.hf.convert_ids_to_tokens(never)


def _ours(options: argparse.Namespace, folder: Path, place: Path) -> Ran:
    out = place / "run"
    flags = {
        "target": folder / "target",
        "draft": folder / "draft",
        "prompts": folder / "prompts.jsonl",
        "out": out,
        "recipe": "gkd",
        "divergence": "jsd:0.5",
        "steps": 1 + options.steps,
        "batch-size": options.batch_size,
        "max-new-tokens": options.new_tokens,
        "dtype": options.dtype,
        "optimizer": "adamw",
        "learning-rate": LEARNING_RATE,
        "clip": CLIP,
        "warmup": 0,
        "decay-from": 1,
    }
    command = [sys.executable, "-c", "from distillspec.cli import main; main()", "distill"]
    command += [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    loaded, peak = _watch(command, out / "run.json", place)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    ends = [row["seconds"] for row in rows]
    seconds = [end - begin for begin, end in zip(ends, ends[1:], strict=False)]
    return Ran(seconds, [row["tokens"] for row in rows[1:]], loaded, peak)


def _theirs(
    trainer: str, options: argparse.Namespace, prompts: list[list[int]], folder: Path, place: Path
) -> Ran:
    out = place / "out.json"
    job = {
        "trainer": trainer,
        "target": str(folder / "target"),
        "draft": str(folder / "draft"),
        "prompts": prompts,
        "out": str(out),
        "dtype": options.dtype,
        "batch_size": options.batch_size,
        "new_tokens": options.new_tokens,
        "learning_rate": LEARNING_RATE,
        "clip": CLIP,
        "checkpointing": options.checkpointing,
    }
    (place / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [str(options.python), str(TRAINERS), str(place / "job.json")]
    loaded, peak = _watch(command, place / "loaded", place)
    found = json.loads(out.read_text())
    return Ran(found["seconds"][1:], found["tokens"][1:], loaded, peak)


def _watch(command: list[str], sign: Path, place: Path) -> tuple[float, float]:
    """Run a command and return its resident MiB when `sign` appears, and at its largest.

    Raises:
        RuntimeError: with what it printed, if it fails.
    """
    loaded, peak = 0.0, 0.0
    with (place / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | OFFLINE)
        try:
            while process.poll() is None:
                size = _resident(process.pid)
                if size:
                    if not loaded and sign.exists():
                        loaded = size["VmRSS"]
                    peak = size["VmHWM"]
                time.sleep(0.02)
        finally:
            process.kill()
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)}\n{log.read()}")
    return loaded, peak


def _resident(pid: int) -> dict[str, float]:
    """Return VmRSS and VmHWM in MiB; empty once the process has let its memory go."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        name: int(value.split()[0]) / 1024
        for name, _, value in (line.partition(":") for line in lines)
        if name in ("VmRSS", "VmHWM")
    }


def _tell(ran: dict[str, list[Ran]], tokens: int) -> int:
    """Print medians and ratios; return how many ratios are missed, wrong lengths included."""
    missed = 0
    seconds = {name: [s for one in runs for s in one.seconds] for name, runs in ran.items()}
    memory = {name: median(one.peak for one in runs) for name, runs in ran.items()}
    print(
        f"\n{'':<20}{'s/step':>8}{'quartiles':>14}{'min – max':>15}{'steps':>7}"
        f"{'peak MiB':>10}{'loaded':>8}{'growth':>8}"
    )
    for name, runs in ran.items():
        found = seconds[name]
        low, _, high = quantiles(found, n=4) if len(found) > 1 else found * 3
        loaded = median(one.loaded for one in runs)
        growth = median(one.peak - one.loaded for one in runs)
        print(
            f"{name:<20}{median(found):>8.2f}{f'{low:.2f} – {high:.2f}':>14}"
            f"{f'{min(found):.2f} – {max(found):.2f}':>15}{len(found):>7}"
            f"{memory[name]:>10.0f}{loaded:>8.0f}{growth:>8.0f}"
        )
        if any(written != tokens for one in runs for written in one.tokens):
            print(f"{name}: a step did not write {tokens} tokens: {[one.tokens for one in runs]}")
            missed += 1
    for name in (GKD, DISTILLATION):
        slower = median(seconds[name]) / median(seconds[OURS])
        leaner = memory[OURS] / memory[name]
        for what, value, bound, good in (
            ("time over ours", slower, f"≥ {SLOWER[name]}", slower >= SLOWER[name]),
            ("our peak over its", leaner, f"≤ {LEANER[name]}", leaner <= LEANER[name]),
        ):
            missed += not good
            print(f"{name:<20}{what:<19}{value:>6.2f}  {bound}{'' if good else '  missed'}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
