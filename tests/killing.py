"""Processes that kill themselves while they save or train, and what their folders are worth then.

`points` kills a save at every call into the system, in forks of the process that calls it: a save
starts no thread and takes no gradient, which a fork might not survive. `resumed` kills training
after a checkpoint, in forks of an interpreter of its own:

    python killing.py FOLDER FAMILY N [FAMILY N …]    a checkpoint at step N of 10

It prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from distillspec.errors import UserError
from distillspec.training import checkpoint
from distillspec.training.data import Batches, Example
from distillspec.training.distill import distill
from distillspec.training.optimization import AdamW, Schedule
from distillspec.training.recipes import Divergence, Mixture, Recipe
from distillspec.training.state import State
from support import random_table, tiny

PLAN = Recipe(
    Divergence("forward_kl"),
    Mixture(fixed=0.2, draft=0.4, target=0.4),
    optimizer=AdamW(weight_decay=0.1),
    schedule=Schedule(warmup=3, decay_from=5, decay_to=9),
    learning_rate=1e-2,
    batch_size=2,
    max_new_tokens=4,
    clip=1.0,
)
STEPS = 10


def examples(count):
    g = torch.Generator().manual_seed(4)
    words = [torch.randint(6, 40, (2 + i % 3,), generator=g) for i in range(2 * count)]
    end = torch.tensor([1])
    return [
        Example(torch.cat([words[2 * i], end]), torch.cat([words[2 * i + 1], end]))
        for i in range(count)
    ]


def start(plan=PLAN, *, seed=2, family="t5", count=6):
    """A draft with dropout, its data (three steps an epoch) and a run at its beginning."""
    draft = tiny(family, seed=seed)
    for part in draft.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.3
    draft.module.train()
    batches = Batches(examples(count), plan.batch_size)
    return draft, batches, State(draft, batches, plan, seed=7)


def table_state(step=0, *, plan=PLAN, run="a"):
    """A table whose logits are its step, and a run there with moments; one run unless named."""
    draft = random_table(6, seed=2)
    batches = Batches(examples(2), plan.batch_size)
    state = State(draft, batches, plan, seed=7)
    state.run = run
    draft.logits.grad = torch.ones_like(draft.logits)
    state.update(0.0)
    state.step = step
    with torch.no_grad():
        draft.logits.fill_(step)
    return draft, state


def restored(folder):
    """The draft and the state of the newest checkpoint, or what is wrong with it."""
    newest = checkpoint.newest(folder)
    if newest is None:
        return "no checkpoint"
    draft, state = table_state()
    try:
        checkpoint.load(newest, draft, state)
    except UserError as error:
        return str(error)
    right = bool((draft.logits == state.step).all()) and state.optimizer.state
    return (draft, state) if right and newest.name == f"step-{state.step}" else "other content"


def worth(folder):
    """The step of the newest checkpoint if it is whole and usable, else what is wrong with it."""
    found = restored(folder)
    return found if isinstance(found, str) else found[1].step


def child(act):
    """Run `act` in a fork; return the number of the signal that killed it, 0 if none did."""
    process = os.fork()
    if process == 0:
        try:
            torch.set_num_threads(1)  # those of the parent's pool are not here
            act()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("a child failed by itself")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


SYSTEM = ("posix", "io", "_io", "safetensors", "safetensors._safetensors_rust")


class Death:
    """Counts calls of Python into the system and the file formats, and dies before call `at`."""

    def __init__(self, at):
        self.calls, self.at = 0, at

    def __call__(self, frame, event, function):
        if event != "c_call":
            return
        owner = function.__module__ or type(getattr(function, "__self__", None)).__module__
        if owner in SYSTEM:
            self.calls += 1
            if self.calls == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


def points(folder):
    """Kill a save at every call into the system, and in the middle of every write.

    It ends at the first death that leaves no usable checkpoint.

    Returns:
        How many calls a save makes; and of every death what `after` says.
    """
    earlier, run, count = folder / "earlier", folder / "checkpoints", folder / "count"
    for step in (1, 2):
        checkpoint.save(earlier, *table_state(step), keep=2)
    third = table_state(3)

    def counted(at):
        death = Death(at)
        sys.setprofile(death)
        checkpoint.save(run, *third, keep=2)
        sys.setprofile(None)
        count.write_text(str(death.calls))

    def limited(size):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel kills at the byte past `size`
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        checkpoint.save(run, *third, keep=2)

    def killed(act):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(earlier, run)
        return child(act)

    killed(lambda: counted(0))
    calls = int(count.read_text())
    largest = max(path.stat().st_size for path in (run / "step-3").iterdir())
    sizes = range(0, largest, max(1, largest // 12))
    found = []
    for act in [
        *(partial(counted, at) for at in range(1, calls + 1)),
        *(partial(limited, size) for size in sizes),
    ]:
        found.append(after(killed(act), run))
        if isinstance(found[-1][1], str):
            break
    return calls, found


def after(died, folder):
    """What a death leaves: its signal, the newest checkpoint, and all names once it went on."""
    left = restored(folder)
    if isinstance(left, str):
        return died, left, None
    draft, state = left
    step = state.step
    state.step += 1
    with torch.no_grad():
        draft.logits.fill_(state.step)
    checkpoint.save(folder, draft, state, keep=2)
    return died, step, sorted(path.name for path in folder.iterdir())


@contextmanager
def in_place(final, owner):
    """What `checkpoint.whole` must not be: no temporary name."""
    final.mkdir(parents=True)
    yield final


def digest(draft, state):
    total = sha256()
    moments = [m for _, part in sorted(state.optimizer.state_dict()["state"].items())
               for _, m in sorted(part.items())]  # fmt: skip
    weights = [w for _, w in sorted(draft.module.state_dict().items())]
    for tensor in [*weights, *moments]:
        total.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"{state.step} {total.hexdigest()}"


def die_after(act):
    act()
    os.kill(os.getpid(), signal.SIGKILL)


def resumed(folder, family, saved_at):
    """Compare ten steps with some, a SIGKILL in the step after the next, and the rest."""
    target = tiny(family, seed=1)

    def whole():
        draft, batches, state = start(family=family)
        told = [one.loss for one in islice(distill(target, draft, batches, PLAN, state=state), 10)]
        (folder / "whole").write_text(f"{digest(draft, state)} {told[saved_at:]}")

    def killed():
        draft, batches, state = start(family=family)
        for step in distill(target, draft, batches, PLAN, state=state):
            if step.step == saved_at:
                checkpoint.save(folder / "checkpoints", draft, state, keep=1)
            if step.step == saved_at + 1:
                state.optimizer.step = partial(die_after, state.optimizer.step)

    def rest():
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - the global state is what this disturbs
        torch.manual_seed(1)
        draft, batches, state = start(family=family, seed=3)
        checkpoint.load(checkpoint.newest(folder / "checkpoints"), draft, state)
        steps = distill(target, draft, batches, PLAN, state=state)
        told = [one.loss for one in islice(steps, STEPS - saved_at)]
        (folder / "rest").write_text(f"{digest(draft, state)} {told}")

    signals = [child(act) for act in (whole, killed, rest)]
    texts = [(folder / name).read_text() for name in ("whole", "rest")]
    return {"signals": signals, "whole": texts[0], "rest": texts[1]}


def main(folder, *plans):
    torch.set_num_threads(1)
    found = {}
    for family, saved_at in zip(plans[::2], plans[1::2], strict=True):
        (Path(folder) / family).mkdir()
        found[family] = resumed(Path(folder) / family, family, int(saved_at))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
