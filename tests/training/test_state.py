"""A run's state: what it refuses to go on with, the rate it applies, and what Ctrl-C cannot cut."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

from distillspec.errors import UserError
from distillspec.training import checkpoint
from distillspec.training.checks import NotFiniteError, finite
from distillspec.training.data import Batches
from distillspec.training.identity import fingerprint
from distillspec.training.interrupts import undivided
from distillspec.training.optimization import Adafactor, AdamW, Schedule
from distillspec.training.recipes import Divergence, Recipe
from distillspec.training.state import State, bound, make_optimizer, told
from killing import PLAN, examples, table_state
from support import random_table, tiny

PAPER = Schedule(5_000, 150_000, 300_000, 0.1)


def state_of(plan=PLAN, *, data=4, seed=7, target=None):
    batches = Batches(examples(data), plan.batch_size)
    return State(random_table(6, seed=2), batches, plan, seed=seed, target=target)


# What differs.


def test_nothing_differs_between_a_run_and_itself():
    assert state_of().changes(state_of().state_dict()) == {}
    assert state_of(replace(PLAN, reference="elsewhere")).changes(state_of().state_dict()) == {}


@pytest.mark.parametrize(
    ("other", "keys"),
    [
        (state_of(replace(PLAN, divergence=Divergence("jsd", 0.5))), {"divergence"}),
        (state_of(replace(PLAN, schedule=Schedule(3, 5, 99))), {"schedule"}),
        (state_of(replace(PLAN, batch_size=3)), {"batch_size"}),
        (state_of(data=5), {"data"}),
        (state_of(replace(PLAN, batch_size=3), data=5), {"batch_size", "data"}),
        (state_of(seed=8), {"seed"}),
        (state_of(target=random_table(6, seed=1)), {"target"}),
    ],
)
def test_a_changed_recipe_data_seed_or_target_is_refused_unless_allowed(other, keys):
    """SpecForge test_checkpoint_resume: another objective or other data were gone on with in
    silence."""
    saved = state_of()
    saved.step = 3
    assert set(other.changes(saved.state_dict())) == keys
    for allowed in ([], ["clip", "learning_rate"], sorted(keys)[1:]):
        with pytest.raises(UserError, match=f"allow the change of .*{min(keys)}"):
            other.load_state_dict(saved.state_dict(), allow=allowed)
        assert other.step == 0
    assert set(other.load_state_dict(saved.state_dict(), allow=keys)) == keys
    assert other.step == 3


def test_an_allowed_seed_is_the_one_given():
    other = state_of(seed=8)
    other.load_state_dict(state_of().state_dict(), allow=["seed"])
    assert other.seed == 8


def test_differences_are_told_by_what_differs_in_them():
    other = state_of(replace(PLAN, schedule=Schedule(3, 5, 99), clip=2.0), data=5)
    said = told(other.changes(state_of().state_dict()))
    assert said == "schedule.decay_to was 9 and is 99, clip was 1.0 and is 2.0, other data"


def test_what_cannot_be_allowed():
    saved = state_of().state_dict()
    assert bound(state_of(replace(PLAN, optimizer=AdamW(weight_decay=0.5))).changes(saved)) == set()
    assert bound(state_of(replace(PLAN, optimizer=Adafactor())).changes(saved)) == {"optimizer"}


# By what a model is known.


def test_a_model_is_known_again_wherever_it_lies_and_another_is_not():
    model = tiny("llama")
    assert fingerprint(model.module) == fingerprint(tiny("llama").module)
    seen = {fingerprint(model.module), fingerprint(tiny("llama", seed=1).module)}
    seen.add(fingerprint(tiny("llama", layers=1).module))
    seen.add(fingerprint(tiny("llama").module.bfloat16()))
    optimizer = torch.optim.SGD(model.module.parameters(), lr=1e-3)
    model.module(input_ids=torch.tensor([[6, 7]]), labels=torch.tensor([[6, 7]])).loss.backward()
    optimizer.step()
    seen.add(fingerprint(model.module))
    assert len(seen) == 5


def test_the_last_value_of_a_large_tensor_is_in_the_fingerprint():
    """49,152 × 576: in float32 its last place, 28,311,551, rounds to one past the end."""
    module = torch.nn.Module()
    module.register_buffer("large", torch.zeros(49152 * 576, dtype=torch.int8))
    before = fingerprint(module)
    module.large[-1] = 1
    assert fingerprint(module) != before


def test_scalars_and_empty_tensors_have_fingerprints():
    module = nn.Module()
    module.register_buffer("one", torch.tensor(3))
    module.register_buffer("none", torch.empty(0))
    assert len(fingerprint(module)) == 64


# The rate.


@pytest.mark.parametrize("step", [1, 4_999, 5_000, 150_000, 150_001, 225_000, 299_999, 300_000])
def test_the_rate_neither_restarts_nor_skips_on_resume(tmp_path, step):
    """speculators#900, slime#1547, the_well#63: the warm-up began again, or the schedule moved
    twice. At the corners of the paper's schedule."""
    plan = replace(PLAN, schedule=PAPER, learning_rate=3e-4)
    draft, state = table_state(step - 1, plan=plan)
    checkpoint.save(tmp_path, draft, state, keep=1)
    other, resumed = table_state(plan=plan)
    checkpoint.load(checkpoint.newest(tmp_path), other, resumed)
    rates = []
    for model, run in ((draft, state), (other, resumed)):
        model.logits.grad = torch.ones_like(model.logits)
        rates += [run.update(0.0), run.optimizer.param_groups[0]["lr"]]
    assert rates == [3e-4 * PAPER.factor(step)] * 4
    assert torch.equal(draft.logits, other.logits)


def test_adafactor_leaves_the_rate_of_the_schedule_alone():
    """transformers#9751, ParlAI#2547, #2443: it changed the rate in the group while stepping, from
    the scale of the weights. Two weights of very different scale get one rate."""
    small, large = (nn.Parameter(torch.full((4, 4), scale)) for scale in (1e-6, 1e3))
    optimizer = make_optimizer(Adafactor(), [small, large], 1e-3)
    for _ in range(3):
        for weight in (small, large):
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert [group["lr"] for group in optimizer.param_groups] == [1e-3]
    # Each moves by the rate times its own size (at least 1e-3), whatever the other is.
    assert float((1e3 - large.detach()).abs().max()) == pytest.approx(3 * 1e-3 * 1e3, rel=0.01)
    assert float((small.detach() - 1e-6).abs().max()) == pytest.approx(3 * 1e-3 * 1e-3, rel=0.01)


def test_a_given_rate_is_used_and_recorded_and_never_a_relative_one():
    """transformers#11612, #10526: a rate beside Adafactor's relative step was an error, and the
    relative step is the default there. Here there is none: what is recorded is all there is."""
    recorded = replace(PLAN, optimizer=Adafactor(), learning_rate=2e-3).to_dict()
    assert recorded["learning_rate"] == 2e-3
    assert set(recorded["optimizer"]) == {"name", "weight_decay"}
    (group,) = make_optimizer(Adafactor(), [nn.Parameter(torch.ones(2, 2))], 2e-3).param_groups
    assert group["lr"] == 2e-3
    assert not {"relative_step", "warmup_init", "scale_parameter"} & set(group)


# A loss that is no number.


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (1.0, float("inf"))])
def test_a_loss_that_is_not_finite_names_step_and_batch(loss, norm):
    """transformers#14189, #9295, #23918, t5#539: which step and which rows?"""
    finite(5, (3, 1), "fixed", loss=1.0, gradient_norm=2.0)
    with pytest.raises(
        NotFiniteError, match=r"step 5: .* fixed data of the examples 3, 1"
    ) as found:
        finite(5, (3, 1), "fixed", loss=loss, gradient_norm=norm)
    assert found.value.indices == (3, 1)


def test_training_in_half_precision_is_refused():
    """T5 v1.1 was made for bfloat16: its float16 states overflow."""
    with pytest.raises(UserError, match="precision 'float16'"):
        Recipe(PLAN.divergence, PLAN.mixture, precision="float16")


@pytest.mark.parametrize("width", [torch.bfloat16, torch.float16])
def test_weights_that_round_updates_away_are_refused_unless_they_are_frozen(width):
    draft = tiny("llama")
    draft.module.model.norm.to(width)
    batches = Batches(examples(4), PLAN.batch_size)
    with pytest.raises(UserError, match=r"float16, which rounds .* draft\.module\.float\(\)"):
        State(draft, batches, PLAN, seed=0)
    State(draft, batches, replace(PLAN, frozen=("model.norm*",)), seed=0)


# Ctrl-C.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_between_the_update_and_its_count_waits_for_the_count(number, monkeypatch):
    """The bug: a checkpoint could hold weights one step newer than its number."""
    draft, state = table_state(3)
    draft.logits.grad = torch.ones_like(draft.logits)
    before = draft.logits.detach().clone()
    step = state.optimizer.step

    def interrupted():
        step()
        os.kill(os.getpid(), number)

    def stop(*_):
        raise KeyboardInterrupt

    earlier = signal.signal(number, stop)
    try:
        monkeypatch.setattr(state.optimizer, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            state.update(0.0)
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, earlier)
    assert state.step == 4
    assert not torch.equal(draft.logits, before)
    assert draft.logits.grad is None


def test_a_stop_that_is_ignored_stays_ignored():
    earlier = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with undivided():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, earlier)
