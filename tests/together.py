"""Two processes on this machine's CPU that train one draft together, and what each made of it.

    python together.py plans FOLDER      with weights in every process (DDP) those of COPIED, in
                                         FOLDER/copied; in parts (FSDP2) SHARDED's, likewise
    python together.py verbs FOLDER FILE the command lines of a JSON file, one after the other; for
                                         each of two processes that a launcher starts

Both processes run every plan, write the weights they end with as NAME-INDEX.pt, and what the steps
said as NAME-INDEX.json. Halfway the run is saved in the folder NAME and another goes on from
there. Of a command line, what a process printed is FOLDER/NUMBER-INDEX.out and .err, and
its exit code .code. One interpreter serves all: it forks.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin

from distillspec import cli
from distillspec.commands import train
from distillspec.training import checkpoint
from distillspec.training.cache import HiddenCache
from distillspec.training.data import Batches, Example
from distillspec.training.distill import distill
from distillspec.training.group import Group
from distillspec.training.optimization import Adafactor, AdamW, Schedule
from distillspec.training.processes import ALONE, Processes, launched
from distillspec.training.recipes import Divergence, Mixture, Recipe
from distillspec.training.state import State
from support import random_table, tiny

EOS = 5
HALF = 3
"""Steps before a run is saved, and again after: an epoch each."""


@dataclass(frozen=True)
class Plan:
    """A run; its batches of 4 over 9 examples leave one of a single row an epoch."""

    family: str = "table"
    divergence: str = "forward_kl"
    mixture: tuple[float, float, float] = (0.0, 1.0, 0.0)
    reduction: str = "sequence_mean"
    rows_at_once: int | None = None
    optimizer: str = "adamw"
    kept: bool = False
    cached: bool = False
    recompute: bool = False

    @property
    def recipe(self):
        return Recipe(
            Divergence.parse(self.divergence),
            Mixture(*self.mixture),
            optimizer=AdamW() if self.optimizer == "adamw" else Adafactor(),
            schedule=Schedule(warmup=2),
            learning_rate=0.05 if self.family == "table" else 2e-3,
            batch_size=4,
            max_new_tokens=6,
            clip=0.5,
            reduction=self.reduction,
        )


COPIED = {
    "on-policy": Plan(),
    "token-mean": Plan(reduction="token_mean"),
    "row-by-row": Plan(reduction="token_mean", rows_at_once=1),
    "hard-labels": Plan(divergence="cross_entropy", mixture=(0, 0, 1), kept=True, rows_at_once=1),
    "path": Plan(divergence="path:2", mixture=(0, 0, 1), reduction="token_mean", rows_at_once=1),
    "llama": Plan("llama", "jsd:0.5", (0.4, 0.3, 0.3), rows_at_once=1),
    "llama-cached": Plan("llama", mixture=(1, 0, 0), optimizer="adafactor", cached=True),
    "t5": Plan("t5", mixture=(0.4, 0.3, 0.3), reduction="token_mean", recompute=True),
    "t5-untied": Plan("t5-untied", "total_variation", (1, 0, 0), optimizer="adafactor"),
}
SHARDED = {
    "llama-fixed": Plan("llama", mixture=(1, 0, 0)),
    "llama-mixed": Plan("llama", "jsd:0.5", (0.4, 0.3, 0.3), rows_at_once=1),
    "t5-fixed": Plan("t5", mixture=(1, 0, 0), reduction="token_mean", recompute=True),
    "t5-untied": Plan("t5-untied", "total_variation", (0.5, 0.5, 0)),
}


class Ground:
    """A pair, its data and a run at its beginning."""

    def __init__(self, plan: Plan, *, seed: int = 2):
        self.plan = plan
        if plan.family == "table":
            kept = torch.tensor([0, 2, 3, 5]) if plan.kept else None
            self.target = random_table(6, seed=1, scale=2.0, eos_ids=(EOS,))
            self.draft = random_table(6, seed=seed, eos_ids=(EOS,), kept=kept)
        else:
            self.target, self.draft = tiny(plan.family, seed=1), tiny(plan.family, seed=seed)
            # In float32 Adam makes whole updates of what is rounding alone in a tiny gradient.
            for model in (self.target, self.draft):
                model.module.double()
        self.batches = examples(*((0, 6) if plan.family == "table" else (6, 40)))
        self.state = State(self.draft, self.batches, plan.recipe, seed=3)

    def steps(self, count: int, processes: Processes = ALONE, **settings) -> list[dict]:
        """Make some steps; return what they said."""
        steps = distill(
            self.target,
            self.draft,
            self.batches,
            self.plan.recipe,
            state=self.state,
            cache=HiddenCache() if self.plan.cached else None,
            processes=processes,
            **settings,
        )
        told = [asdict(step) for step in islice(steps, count)]
        steps.close()
        return told

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: w.detach().clone() for name, w in self.draft.module.state_dict().items()}


def examples(low, high, count=9):
    g = torch.Generator().manual_seed(4)
    rows = [torch.randint(low, high, (1 + (5 * i) % 7,), generator=g) for i in range(2 * count)]
    return Batches([Example(rows[2 * i], rows[2 * i + 1]) for i in range(count)], 4)


def through(plan, processes, folder):
    """Train as planned, through a checkpoint in the folder; return what was said, and the end."""
    settings = {"rows_at_once": plan.rows_at_once, "recompute": plan.recompute}
    first = Ground(plan)
    told = first.steps(HALF, processes, **settings)
    saved = checkpoint.save(folder, first.draft, first.state, keep=1, processes=processes)
    second = Ground(plan, seed=8)
    checkpoint.load(saved, second.draft, second.state)
    return told + second.steps(HALF, processes, **settings), second.weights()


def all_of(plans, processes, folder):
    for name, plan in plans.items():
        told, weights = through(plan, processes, folder / name)
        torch.save(weights, folder / f"{name}-{processes.index}.pt")
        (folder / f"{name}-{processes.index}.json").write_text(json.dumps(told))


def plans(folder):
    for name, join, of_kind in (("copied", launched, COPIED), ("sharded", sharding, SHARDED)):
        (folder / name).mkdir()
        fork(2, partial(joined, join, of_kind, folder / name))


def joined(join, of_kind, folder):
    with join() as processes:
        all_of(of_kind, processes, folder)


@contextmanager
def sharding() -> Iterator[Group]:
    """Join the processes as FSDP2 would on GPUs.

    On CPUs Accelerate falls back to DDP without a word, but its FSDP2 itself, which is torch's
    `fully_shard`, runs there once its state says so.
    """
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )
    yield Group(accelerator)
    accelerator.end_training()


def verbs(folder, lines):
    """Run each command line as it was launched, in a fork: a process joins others only once.

    So each has a port of its own to join at, where the launcher's agent does not wait.
    """
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")
    for number, line in enumerate(lines):
        act = partial(verb, folder / str(number), line["argv"], line.get("stop"))
        end([start(act, MASTER_PORT=str(line["port"]))])


def verb(name, argv, stop):
    """Run a command line and keep what it prints; the second process stops it after a step."""
    index = os.environ["RANK"]
    honest = train.distill

    def stopped(*arguments, **settings):
        for step in honest(*arguments, **settings):
            if step.step == stop and index == "1":
                os.kill(os.getpid(), signal.SIGINT)
            yield step

    train.distill = stopped
    with (
        Path(f"{name}-{index}.out").open("w") as sys.stdout,
        Path(f"{name}-{index}.err").open("w") as sys.stderr,
    ):
        code = cli.main(argv)
    Path(f"{name}-{index}.code").write_text(str(code))


def free_ports(count):
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def fork(count, act):
    """Run `act` in so many processes that are told of one another as torchrun would tell them."""
    (port,) = free_ports(1)
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    end([start(act, RANK=str(i), LOCAL_RANK=str(i), **shared) for i in range(count)])


def start(act, **environment):
    """Run `act` in a fork, with this in its environment; return its number."""
    child = os.fork()
    if child == 0:
        os.environ |= environment
        try:
            act()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return child


def end(children):
    """Wait for forks; end as badly as any of them does."""
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit(f"exit codes {codes}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    how, where, *rest = sys.argv[1:]
    if how == "verbs":
        verbs(Path(where), json.loads(Path(rest[0]).read_text()))
    else:
        plans(Path(where))
