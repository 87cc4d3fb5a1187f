"""Two processes that train one draft: what one would have made of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import together
from distillspec.errors import UserError
from distillspec.training import checkpoint
from distillspec.training.data import parts_of
from distillspec.training.processes import ALONE, Main, check_environment, launched
from together import COPIED, HALF, SHARDED, Ground


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Let two processes run every plan, copied and sharded, on one interpreter's start."""
    folder = tmp_path_factory.mktemp("plans")
    command = [sys.executable, together.__file__, "plans", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def copied(folder):
    return folder / "copied"


@pytest.fixture(scope="module")
def sharded(folder):
    return folder / "sharded"


def read(folder, name, index=0):
    steps = json.loads((folder / f"{name}-{index}.json").read_text())
    return steps, torch.load(folder / f"{name}-{index}.pt")


def agree(found, expected):
    """Compare steps and weights, to the rounding of float64."""
    (steps, weights), (alone, whole) = found, expected
    figures = [
        [[s["loss"], s["accepted"] or 0, s["tokens"], s["gradient_norm"]] for s in told]
        for told in (steps, alone)
    ]
    torch.testing.assert_close(*map(torch.tensor, figures), rtol=1e-12, atol=1e-12)
    assert [s["source"] for s in steps] == [s["source"] for s in alone]
    assert weights.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-11, msg=name)


def one(plan):
    """The same run in one process, whole batches at once, without a stop."""
    ground = Ground(plan)
    before = ground.weights()
    told = ground.steps(2 * HALF)
    assert max((before[k] - w).abs().max() for k, w in ground.weights().items()) > 2e-3
    return told, ground.weights()


@pytest.mark.parametrize("name", COPIED)
def test_two_processes_make_the_run_that_one_with_the_whole_batch_makes(copied, name):
    """On-policy, target and fixed data, both reductions, accumulated or not, uneven shares, a
    batch of one row, and a checkpoint between: trl#4719 and ms-swift#10076 took a mean of means."""
    agree(read(copied, name), one(COPIED[name]))


@pytest.mark.parametrize("name", SHARDED)
def test_two_processes_with_a_part_of_the_weights_each_make_the_same_run(sharded, name):
    """Layer by layer, the head's matrix and tied embeddings included, whose gradient our own
    product sums up; rollouts come from a whole copy."""
    agree(read(sharded, name), one(SHARDED[name]))


@pytest.mark.parametrize("name", [*COPIED, *SHARDED])
def test_the_processes_never_drift_apart(request, name):
    folder = request.getfixturevalue("copied" if name in COPIED else "sharded")
    (steps, weights), (others, theirs) = read(folder, name, 0), read(folder, name, 1)
    assert all(torch.equal(weights[key], theirs[key]) for key in weights)
    for key in ("loss", "accepted", "tokens", "gradient_norm", "learning_rate"):
        assert [s[key] for s in steps] == [s[key] for s in others]


@pytest.mark.parametrize("name", ["llama", "llama-mixed"])
def test_one_process_goes_on_where_two_were_stopped(request, name):
    """A checkpoint is whole, however the run was spread that wrote it."""
    plans, how = (COPIED, "copied") if name in COPIED else (SHARDED, "sharded")
    folder = request.getfixturevalue(how)
    ground = Ground(plans[name], seed=8)
    checkpoint.load(checkpoint.newest(folder / name), ground.draft, ground.state)
    told = ground.steps(HALF)
    steps, weights = read(folder, name)
    agree((steps[HALF:], weights), (told, ground.weights()))


# Cutting a batch.


@pytest.mark.parametrize("rows_at_once", [None, 1, 2, 3])
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_every_row_counts_once_and_all_make_as_many_passes(count, processes, rows_at_once):
    cut = [parts_of(count, processes, i, rows_at_once=rows_at_once) for i in range(processes)]
    counted = [row for parts in cut for part in parts if part.counts for row in part.rows]
    assert counted == list(range(count))
    assert len({len(parts) for parts in cut}) == 1
    for parts in cut:
        assert all(0 < len(part.rows) <= (rows_at_once or count) for part in parts)
        rows = sorted({row for part in parts for row in part.rows})
        assert rows == list(range(rows[0], rows[-1] + 1))
        assert len(rows) <= max(1, -(-count // processes))


# What is refused.


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ACCELERATE_MIXED_PRECISION", "bf16", "give --dtype bfloat16"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "--rows-at-once says"),
        ("ACCELERATE_USE_FSDP", "true", "which Accelerate does on GPUs alone"),
        ("ACCELERATE_USE_DEEPSPEED", "true", "asks for DeepSpeed; draft and target train by DDP"),
    ],
)
def test_what_the_launcher_asks_for_in_vain_is_refused(monkeypatch, name, value, words):
    """On CPUs Accelerate takes DDP for FSDP without a word. One process by itself, which needs no
    Accelerate, ignored all of them."""
    with launched() as processes:
        assert processes is ALONE
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=words), launched():
        pass


def test_on_a_gpu_sharding_is_refused_where_it_would_load_the_target_in_one_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for version, loading, words in (("1", "false", "FSDP 1"), ("2", "true", "loading")):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        monkeypatch.setenv("FSDP_VERSION", version)
        monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", loading)
        with pytest.raises(UserError, match=words):
            check_environment()


# One process by itself.


def test_alone_the_main_process_is_this_one():
    with launched() as processes:
        assert processes is ALONE
        kept = Main.of(processes, lambda: [1])
        assert kept.told(lambda value: value + [2]) == [1, 2]
    with pytest.raises(UserError, match="mine"), ALONE.together():
        raise UserError("mine")


def test_a_missing_accelerate_is_one_line(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.delitem(sys.modules, "distillspec.training.group")
    with pytest.raises(UserError, match=r"distillspec\[scale\]"), launched():
        pass
