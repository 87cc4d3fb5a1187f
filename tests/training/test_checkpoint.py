"""Checkpoints: resumed equals uninterrupted, whole or not there at all, newest by number."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from distillspec.errors import UserError
from distillspec.training import checkpoint
from distillspec.training.data import Batches, Example
from distillspec.training.distill import distill
from distillspec.training.optimization import Adafactor, AdamW, Schedule
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


def examples(count):
    g = torch.Generator().manual_seed(4)
    words = [torch.randint(6, 40, (2 + i % 3,), generator=g) for i in range(2 * count)]
    end = torch.tensor([1])
    return [
        Example(torch.cat([words[2 * i], end]), torch.cat([words[2 * i + 1], end]))
        for i in range(count)
    ]


def start(plan=PLAN, *, seed=2, family="t5", count=6):
    draft = tiny(family, seed=seed)
    for part in draft.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.3
    draft.module.train()
    batches = Batches(examples(count), plan.batch_size)
    return draft, batches, State(draft, batches, plan, seed=7)


def told(step):
    return (step.step, step.source, step.loss, step.accepted, step.tokens, step.gradient_norm,
            step.learning_rate)  # fmt: skip


def table_state(step=0, *, plan=PLAN):
    draft = random_table(6, seed=2)
    batches = Batches(examples(2), plan.batch_size)
    state = State(draft, batches, plan, seed=7)
    state.step = step
    return draft, state


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
    """As text, 10000 comes before 9900."""
    assert checkpoint.newest(tmp_path / "nothing") is None
    for step in (100, 9900, 10000):
        checkpoint.save(tmp_path, *table_state(step), keep=2)
    (tmp_path / "step-9900" / checkpoint.STATE).touch()
    (tmp_path / "notes.txt").touch()
    assert checkpoint.newest(tmp_path) == tmp_path / "step-10000"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt", "step-10000", "step-9900",
    ]  # fmt: skip


def test_a_step_that_is_there_already_is_not_overwritten(tmp_path):
    checkpoint.save(tmp_path, *table_state(1), keep=2)
    with pytest.raises(UserError, match="step-1 exists already"):
        checkpoint.save(tmp_path, *table_state(1), keep=2)
    with pytest.raises(ValueError, match="at least one"):
        checkpoint.save(tmp_path, *table_state(2), keep=0)


OPERATIONS = ("save_model", "torch.save", "_flush", "Path.rename", "shutil.rmtree")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_save_that_fails_at_any_moment_leaves_a_whole_checkpoint(
    tmp_path, monkeypatch, operation
):
    checkpoint.save(tmp_path, *table_state(1), keep=1)

    def fail(*_, **__):
        raise OSError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(f"distillspec.training.checkpoint.{operation}", fail)
        with pytest.raises(OSError, match="disk full"):
            checkpoint.save(tmp_path, *table_state(2), keep=1)
    draft, state = table_state()
    checkpoint.load(checkpoint.newest(tmp_path), draft, state)
    assert state.step == (2 if operation == "shutil.rmtree" else 1)
    # What the failure left behind is in nobody's way.
    checkpoint.save(tmp_path, *table_state(3), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_everything_is_on_the_disk_before_and_after_it_gets_its_name(tmp_path, monkeypatch):
    flushed, flush = [], checkpoint._flush
    monkeypatch.setattr(
        checkpoint,
        "_flush",
        lambda path: flushed.append((path.name, (tmp_path / "step-1").exists())) or flush(path),
    )
    checkpoint.save(tmp_path, *table_state(1), keep=1)
    files = {checkpoint.WEIGHTS, checkpoint.STATE, "step-1.partial"}
    assert {name for name, named in flushed if not named} == files
    assert [name for name, named in flushed if named] == [tmp_path.name]


@pytest.mark.parametrize("missing", [checkpoint.WEIGHTS, checkpoint.STATE])
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
    with pytest.raises(UserError, match=r"divergence was .* clip was 1\.0 and is 2\.0"):
        checkpoint.load(path, draft, state)
    assert state.step == 0
    assert not draft.logits.any()
    checkpoint.load(path, draft, state, allow=("clip", "divergence"))
    assert state.step == 1


def test_other_data_is_refused_unless_allowed(tmp_path):
    path = checkpoint.save(tmp_path, *table_state(1), keep=1)
    draft = random_table(6)
    state = State(draft, Batches(examples(3), 2), PLAN, seed=7)
    with pytest.raises(UserError, match=r"another run \(data\)"):
        checkpoint.load(path, draft, state)
    checkpoint.load(path, draft, state, allow=["data"])


@pytest.mark.parametrize("damaged", [checkpoint.WEIGHTS, checkpoint.STATE])
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
    with pytest.raises(UserError, match=f"another run .{key} was .*same settings and data$"):
        checkpoint.load(path, draft, state, allow=[key])


def test_a_checkpoint_of_another_draft_is_refused_by_name(tmp_path):
    path = checkpoint.save(tmp_path, *table_state(1), keep=1)
    draft = random_table(7, seed=2)
    state = State(draft, Batches(examples(2), 2), PLAN, seed=7)
    with pytest.raises(UserError, match=r"another draft than .* no logits of shape \[6, 6\]"):
        checkpoint.load(path, draft, state)
    assert state.step == 0
