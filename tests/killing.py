"""Processes that kill themselves while they save or train, and what their folders are worth then.

`Saves` holds a save up at every call into the system and keeps what a death there would leave; and
it kills saves for good, in forks of the process that calls it: a save starts no thread and takes no
gradient, which a fork might not survive. Training is killed in forks of an interpreter of its own,
which prints what it found as JSON:

    python killing.py resumed FOLDER FAMILY N [FAMILY N …]    a checkpoint at step N of 10
    python killing.py verbs FILE                              the command lines of a JSON file
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

from distillspec import cli
from distillspec.commands import running
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


class Calls:
    """Counts calls of Python into the system and the file formats, and acts before each."""

    def __init__(self, before):
        self.count, self.before = 0, before

    def __call__(self, frame, event, function):
        if event != "c_call":
            return
        owner = function.__module__ or type(getattr(function, "__self__", None)).__module__
        if owner in SYSTEM:
            self.count += 1
            self.before(self.count)


class Saves:
    """The third save of a run, with two checkpoints before it, watched and killed."""

    def __init__(self, folder):
        self.run = folder / "checkpoints"
        self._earlier, self._left = folder / "earlier", folder / "left"
        for step in (1, 2):
            checkpoint.save(self._earlier, *table_state(step), keep=2)
        self._third = table_state(3)
        self._begin()
        self._left.mkdir()
        self.calls = self._save(lambda at: shutil.copytree(self.run, self._left / str(at)))
        self.largest = max(path.stat().st_size for path in (self.run / "step-3").iterdir())

    def _begin(self):
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self._earlier, self.run)

    def _save(self, before):
        """Save, acting before every call; return how many there were."""
        calls = Calls(before)
        sys.setprofile(calls)
        try:
            checkpoint.save(self.run, *self._third, keep=2)
        finally:
            sys.setprofile(None)
        return calls.count

    def left(self, at):
        """The folder that a death before call `at` leaves: what was not written yet is lost."""
        return self._left / str(at)

    def killed(self, at):
        """Kill a save before call `at`; return the number of the signal."""

        def die(now):
            if now == at:
                os.kill(os.getpid(), signal.SIGKILL)

        self._begin()
        return child(lambda: self._save(die))

    def overrun(self, size):
        """Have the kernel kill a save at the first byte past `size` in a file; return likewise."""

        def save():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            checkpoint.save(self.run, *self._third, keep=2)

        self._begin()
        return child(save)


def content(folder):
    """All that is in a folder, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def after(folder):
    """The newest checkpoint's step, or what is wrong with it; and all names once it went on."""
    left = restored(folder)
    if isinstance(left, str):
        return left, None
    draft, state = left
    step = state.step
    state.step += 1
    with torch.no_grad():
        draft.logits.fill_(state.step)
    checkpoint.save(folder, draft, state, keep=2)
    return step, sorted(path.name for path in folder.iterdir())


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


def verb(saved_at, dies_at, threads, argv):
    """Run a command line that saves at one step alone and dies in the row of a later one.

    It has as many threads as who compares it with another run, since they change the rounding.
    """
    torch.set_num_threads(threads)
    save, row = checkpoint.save, running.metrics_row

    def once(folder, draft, state, **settings):
        if state.step == saved_at:
            save(folder, draft, state, **settings)

    def killed(step, seconds):
        if step.step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return row(step, seconds)

    checkpoint.save, running.metrics_row = once, killed
    sys.stdout = sys.stderr
    cli.main(argv)


def main(how, where, *plans):
    torch.set_num_threads(1)
    if how == "verbs":
        lines = json.loads(Path(where).read_text())
        found = [child(partial(verb, **line)) for line in lines]
    else:
        found = {}
        for family, saved_at in zip(plans[::2], plans[1::2], strict=True):
            (Path(where) / family).mkdir()
            found[family] = resumed(Path(where) / family, family, int(saved_at))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
