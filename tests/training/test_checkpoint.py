"""Checkpoints: resumed equals uninterrupted, whole or not there at all, newest by number."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

import killing
from distillspec.errors import UserError
from distillspec.training import checkpoint
from distillspec.training.data import Batches
from distillspec.training.distill import distill
from distillspec.training.optimization import Adafactor, AdamW
from distillspec.training.recipes import Divergence
from distillspec.training.state import State
from killing import PLAN, examples, start, table_state, worth
from support import random_table, tiny

FILES = (checkpoint.WEIGHTS, checkpoint.MOMENTS, checkpoint.STATE)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def told(step):
    return (step.step, step.source, step.loss, step.accepted, step.tokens, step.gradient_norm,
            step.learning_rate)  # fmt: skip


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.1), Adafactor()])
@pytest.mark.parametrize(("family", "saved_at"), [("t5", 4), ("gpt2", 6)])
def test_a_resumed_run_equals_an_uninterrupted_one_bitwise(tmp_path, family, saved_at, optimizer):
    """With on-policy sampling and dropout, through warm-up and decay; an epoch has three steps,
    so step 4 is inside one and step 6 at its edge. The resumed run starts from other weights."""
    plan = replace(PLAN, optimizer=optimizer)
    target = tiny(family, seed=1)
    draft, batches, state = start(plan, family=family)
    whole = list(islice(distill(target, draft, batches, plan, state=state), 10))

    first, batches, state = start(plan, family=family)
    before = list(islice(distill(target, first, batches, plan, state=state), saved_at))
    path = checkpoint.save(tmp_path, first, state, keep=1)

    second, batches, state = start(plan, seed=3, family=family)
    checkpoint.load(path, second, state)
    after = list(islice(distill(target, second, batches, plan, state=state), 10 - saved_at))

    assert [told(step) for step in before + after] == [told(step) for step in whole]
    assert {step.source for step in whole} == {"fixed", "draft", "target"}
    mine, theirs = second.module.state_dict(), draft.module.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_the_clock_of_the_schedule_goes_on(tmp_path):
    draft, state = table_state(5)
    state.seconds = 12.5
    path = checkpoint.save(tmp_path, draft, state, keep=1)
    other, resumed = table_state()
    checkpoint.load(path, other, resumed)
    assert (resumed.step, resumed.seconds, resumed.seed) == (5, 12.5, 7)


def test_tied_weights_are_tied_after_loading(tmp_path):
    draft, _, state = start(family="llama")
    path = checkpoint.save(tmp_path, draft, state, keep=1)
    other, _, resumed = start(family="llama", seed=3)
    checkpoint.load(path, other, resumed)
    module = other.module
    assert module.get_output_embeddings().weight is module.get_input_embeddings().weight
    assert torch.equal(
        module.get_input_embeddings().weight, draft.module.get_input_embeddings().weight
    )


def test_the_newest_is_the_largest_number_and_the_oldest_go(tmp_path):
    """As text, 10000 comes before 9900; times of change say nothing (transformers#27138, #26961,
    accelerate#1163: the newest checkpoint was removed)."""
    assert checkpoint.newest(tmp_path / "nothing") is None
    for step in (100, 9900, 10000):
        checkpoint.save(tmp_path, *table_state(step), keep=2)
        os.utime(tmp_path / f"step-{step}", (0, 10**6 - step))
    (tmp_path / "step-9900" / checkpoint.STATE).touch()
    (tmp_path / "notes.txt").touch()
    assert checkpoint.newest(tmp_path) == tmp_path / "step-10000"
    assert names(tmp_path) == ["notes.txt", "step-10000", "step-9900"]


def test_the_best_checkpoint_stays_beside_the_newest(tmp_path):
    """transformers#28862: rotation by age removed the best model."""
    for step in (1, 2, 3, 4):
        checkpoint.save(tmp_path, *table_state(step), keep=1, spare=(2,))
    assert names(tmp_path) == ["step-2", "step-4"]
    checkpoint.save(tmp_path, *table_state(5), keep=1)
    assert names(tmp_path) == ["step-5"]


def test_another_runs_checkpoints_are_neither_removed_nor_resumed_from(tmp_path):
    """Rotation would remove its older ones, and its later one would be taken for ours."""
    for step in (2, 100):
        checkpoint.save(tmp_path, *table_state(step, run="b"), keep=2)
    partial = tmp_path / "step-101.b.partial"
    partial.mkdir()
    with pytest.raises(UserError, match="step-2 is not of this run"):
        checkpoint.save(tmp_path, *table_state(3), keep=1)
    assert names(tmp_path) == ["step-100", "step-101.b.partial", "step-2"]
    checkpoint.remove(tmp_path / "step-2", "b")
    checkpoint.remove(tmp_path / "step-100", "b")
    checkpoint.save(tmp_path, *table_state(3), keep=1)
    assert names(tmp_path) == ["step-101.b.partial", "step-3"]  # it may be writing right now


def test_a_run_that_went_back_does_not_save_below_its_own_later_checkpoints(tmp_path):
    checkpoint.save(tmp_path, *table_state(6), keep=2)
    with pytest.raises(UserError, match="step-6 is later than step 5 of this run"):
        checkpoint.save(tmp_path, *table_state(5), keep=2)


def test_a_resumed_run_knows_its_own_checkpoints(tmp_path):
    checkpoint.save(tmp_path, *table_state(1), keep=1)
    draft, state = table_state(run="new")
    checkpoint.load(tmp_path / "step-1", draft, state)
    state.step = 2
    checkpoint.save(tmp_path, draft, state, keep=1)
    assert names(tmp_path) == ["step-2"]


@pytest.mark.parametrize("run", ["../../elsewhere", "a/b", "*", "", 7, None])
def test_a_checkpoint_from_elsewhere_names_no_other_folder_to_remove(tmp_path, run):
    """What the next save removes as its own leftovers is found by the run's name, which is read
    from the checkpoint: a star there removed what another run was writing."""
    path = checkpoint.save(tmp_path, *table_state(1), keep=1)
    plain = json.loads((path / checkpoint.STATE).read_text())
    (path / checkpoint.STATE).write_text(json.dumps({**plain, "run": run}))
    with pytest.raises(UserError, match="is not the name of a run"):
        checkpoint.load(path, *table_state())


@pytest.mark.parametrize("where", ["weight", "moment"])
def test_what_is_no_longer_finite_never_takes_a_good_checkpoints_place(tmp_path, where):
    """The update before a loss of NaN may have made the weights so."""
    checkpoint.save(tmp_path, *table_state(1), keep=1)
    draft, state = table_state(2)
    tensor = draft.logits if where == "weight" else state.optimizer.state[draft.logits]["exp_avg"]
    with torch.no_grad():
        tensor[0, 0] = float("inf")
    name = "logits" if where == "weight" else "0.exp_avg"
    with pytest.raises(UserError, match=f"step-2 is not written: {name} is no longer finite"):
        checkpoint.save(tmp_path, draft, state, keep=1)
    assert names(tmp_path) == ["step-1"]


def test_a_step_that_is_there_already_is_not_overwritten(tmp_path):
    checkpoint.save(tmp_path, *table_state(1), keep=2)
    with pytest.raises(UserError, match="step-1 exists already"):
        checkpoint.save(tmp_path, *table_state(1), keep=2)
    with pytest.raises(ValueError, match="at least one"):
        checkpoint.save(tmp_path, *table_state(2), keep=0)


OPERATIONS = ("save_model", "save_file", "flush", "Path.rename", "shutil.rmtree")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_save_that_fails_at_any_moment_leaves_a_whole_checkpoint(
    tmp_path, monkeypatch, operation
):
    checkpoint.save(tmp_path, *table_state(1), keep=1)

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(f"distillspec.training.checkpoint.{operation}", fail)
        with pytest.raises(UserError, match="cannot write in .*: No space left on device; .*stays"):
            checkpoint.save(tmp_path, *table_state(2), keep=1)
    assert worth(tmp_path) == (2 if operation == "shutil.rmtree" else 1)
    # What the failure left behind is in nobody's way.
    checkpoint.save(tmp_path, *table_state(3), keep=1)
    assert names(tmp_path) == ["step-3"]


@contextmanager
def nobody():
    """Do without the rights of root, which no read-only folder stops."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_read_only_folder_is_one_line(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "c", *table_state(1), keep=1)
    tmp_path.chmod(0o755)
    (tmp_path / "c").chmod(0o555)
    monkeypatch.chdir(tmp_path)  # the folders above may be closed to nobody
    words = "cannot write in c: Permission denied; c/step-1 is whole"
    with nobody(), pytest.raises(UserError, match=words):
        checkpoint.save(Path("c"), *table_state(2), keep=1)
    assert worth(Path("c")) == 1


def test_a_folder_that_is_no_runs_is_not_said_to_lack_a_checkpoint(tmp_path, monkeypatch):
    """An export is written by the same means."""

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("distillspec.training.checkpoint.flush", fail)
    told = pytest.raises(UserError, match="No space left on device$")
    with told, checkpoint.whole(tmp_path / "draft", "export"):
        pass


def test_a_file_too_large_for_the_disk_is_one_line_and_leaves_no_ruin(tmp_path):
    """The kernel itself refuses the write: safetensors reports it in its own exception."""
    checkpoint.save(tmp_path, *table_state(1), keep=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write in .*File too large.*step-1 is whole"):
            checkpoint.save(tmp_path, *table_state(2), keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-1"]
    assert worth(tmp_path) == 1


def test_a_save_killed_at_any_call_or_write_leaves_a_usable_newest_checkpoint(tmp_path):
    """Lightning#688, pytorch-image-models#98, speculators#739, SpecForge#659, transformers#40790: a
    SIGKILL in a save left a truncated newest checkpoint. Here: before every single call of Python
    into the system, and by the kernel in the middle of every file."""
    saves = killing.Saves(tmp_path)
    assert saves.calls > 50
    found = []
    for at in range(1, saves.calls + 1, 8):  # what is kept of a call is what a real death leaves
        assert saves.killed(at) == signal.SIGKILL
        assert killing.content(saves.run) == killing.content(saves.left(at))
        found.append(killing.after(saves.run))
    for size in range(0, saves.largest, max(1, saves.largest // 12)):
        assert saves.overrun(size) == signal.SIGXFSZ
        found.append(killing.after(saves.run))
    found += [killing.after(saves.left(at)) for at in range(1, saves.calls + 1)]
    for left, then in found:
        assert left in (2, 3), left
        # The run goes on, and what the killed save left half done is gone.
        assert then == [f"step-{left}", f"step-{left + 1}"]
    assert {left for left, _ in found} == {2, 3}


def test_the_killer_finds_what_is_wrong_with_a_save_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "whole", killing.in_place)
    saves = killing.Saves(tmp_path)
    kept = [killing.after(saves.left(at))[0] for at in range(1, saves.calls + 1)]
    wrong = [at for at, left in enumerate(kept, 1) if isinstance(left, str)]
    assert wrong
    assert saves.killed(wrong[0]) == signal.SIGKILL
    assert isinstance(killing.after(saves.run)[0], str)


def test_ten_steps_equal_some_a_sigkill_and_the_rest_bitwise(tmp_path):
    """transformers#17032, #46628, #8878, speculators#1026: random states were lost, or moved on
    while batches were skipped. With on-policy sampling and dropout; an epoch has three steps, so
    step 4 is inside one and step 6 at its edge; killed between an update and its count; resumed by
    another process, other weights and other global random states."""
    done = subprocess.run(
        [sys.executable, killing.__file__, "resumed", str(tmp_path), "t5", "4", "gpt2", "6"],
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"t5", "gpt2"}
    for told in found.values():
        assert told["signals"] == [0, signal.SIGKILL, 0]
        assert told["whole"].startswith("10 ")
        assert told["rest"] == told["whole"]


def test_everything_is_on_the_disk_before_and_after_it_gets_its_name(tmp_path, monkeypatch):
    flushed, flush = [], checkpoint.flush
    monkeypatch.setattr(
        checkpoint,
        "flush",
        lambda path: flushed.append((path.name, (tmp_path / "step-1").exists())) or flush(path),
    )
    checkpoint.save(tmp_path, *table_state(1), keep=1)
    files = {checkpoint.WEIGHTS, checkpoint.MOMENTS, checkpoint.STATE, "step-1.a.partial"}
    assert {name for name, named in flushed if not named} == files
    assert [name for name, named in flushed][-2:] == ["step-1.a.partial", tmp_path.name]
    assert [name for name, named in flushed if named] == [tmp_path.name]


@pytest.mark.parametrize("missing", FILES)
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path, missing):
    path = checkpoint.save(tmp_path, *table_state(1), keep=1)
    (path / missing).unlink()
    with pytest.raises(UserError, match=f"lacks {missing}"):
        checkpoint.load(path, *table_state())


def test_another_runs_checkpoint_is_refused_before_anything_changes(tmp_path):
    path = checkpoint.save(tmp_path, *table_state(1), keep=1)
    plan = replace(PLAN, clip=2.0, divergence=Divergence("jsd", 0.5))
    draft, state = table_state(plan=plan)
    with torch.no_grad():
        draft.logits.zero_()
    with pytest.raises(UserError, match=r"divergence.name was .* clip was 1\.0 and is 2\.0"):
        checkpoint.load(path, draft, state)
    assert state.step == 0
    assert not draft.logits.any()
    checkpoint.load(path, draft, state, allow=("clip", "divergence"))
    assert state.step == 1


def test_other_data_is_refused_unless_allowed(tmp_path):
    path = checkpoint.save(tmp_path, *table_state(1), keep=1)
    draft = random_table(6)
    state = State(draft, Batches(examples(3), 2), PLAN, seed=7)
    with pytest.raises(UserError, match=r"another run \(other data\)"):
        checkpoint.load(path, draft, state)
    checkpoint.load(path, draft, state, allow=["data"])


@pytest.mark.parametrize("damaged", FILES)
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda _: b"junk" * 9])
def test_a_damaged_file_is_one_line_and_changes_nothing(tmp_path, damaged, damage):
    path = checkpoint.save(tmp_path, *table_state(1), keep=1)
    (path / damaged).write_bytes(damage((path / damaged).read_bytes()))
    draft, state = table_state()
    before = draft.logits.detach().clone()
    with pytest.raises(UserError, match=f"cannot read .*{damaged}: .*"):
        checkpoint.load(path, draft, state)
    assert state.step == 0
    assert torch.equal(draft.logits, before)


def test_a_damaged_newest_checkpoint_names_the_whole_one_before_it(tmp_path):
    """It is neither trusted nor passed over in silence."""
    for step in (1, 2):
        path = checkpoint.save(tmp_path, *table_state(step), keep=2)
    (path / checkpoint.MOMENTS).unlink()
    with pytest.raises(UserError, match=r"lacks .*; remove .*step-2 to go on from .*step-1$"):
        checkpoint.load(path, *table_state())


def test_an_allowed_change_of_the_optimizers_settings_takes_effect(tmp_path):
    """torch restores the saved settings with the moments: the new decay would do nothing."""
    path = checkpoint.save(tmp_path, *table_state(1), keep=1)
    plan = replace(PLAN, optimizer=AdamW(weight_decay=0.5, beta1=0.8))
    draft, state = table_state(plan=plan)
    checkpoint.load(path, draft, state, allow=["optimizer"])
    (group,) = state.optimizer.param_groups
    assert (group["weight_decay"], group["betas"]) == (0.5, (0.8, 0.999))


@pytest.mark.parametrize(("key", "value"), [("optimizer", Adafactor()), ("frozen", ("*shared*",))])
def test_what_the_moments_belong_to_cannot_be_changed(tmp_path, key, value):
    draft, batches, state = start()
    path = checkpoint.save(tmp_path, draft, state, keep=1)
    draft, batches, state = start(replace(PLAN, **{key: value}))
    words = f"another run .{key}.* was .*same settings, data and models$"
    with pytest.raises(UserError, match=words):
        checkpoint.load(path, draft, state, allow=[key])


def test_a_checkpoint_of_another_draft_is_refused_by_name(tmp_path):
    path = checkpoint.save(tmp_path, *table_state(1), keep=1)
    draft = random_table(7, seed=2)
    state = State(draft, Batches(examples(2), 2), PLAN, seed=7)
    with pytest.raises(UserError, match=r"another draft than .* no logits of shape \[6, 6\]"):
        checkpoint.load(path, draft, state)
    assert state.step == 0
