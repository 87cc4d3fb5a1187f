"""The loop: what a step does, what it leaves alone, and that it makes a draft better."""

from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest
import torch

import distillspec.training.distill as loop
import training_checks as checks
from distillspec.decoding import complete
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.toy import TableModel
from distillspec.training.cache import HiddenCache, states_of
from distillspec.training.data import Batches, Example
from distillspec.training.distill import distill, sft
from distillspec.training.optimization import Adafactor, AdamW, Schedule
from distillspec.training.processes import ALONE
from distillspec.training.state import State
from support import perturbed, random_table, tiny
from training_checks import EOS, recipe, run, table_pair, with_dropout

SOFT = ["forward_kl", "reverse_kl", "jsd:0.5", "total_variation"]


def table_data(count=10, size=4):
    g = torch.Generator().manual_seed(3)
    rows = [torch.randint(0, 6, (1 + i % 4,), generator=g) for i in range(2 * count)]
    return Batches([Example(rows[2 * i], rows[2 * i + 1]) for i in range(count)], size)


def text_data(count=6, size=2):
    g = torch.Generator().manual_seed(4)
    words = [torch.randint(6, 40, (2 + i % 3,), generator=g) for i in range(2 * count)]
    end = torch.tensor([1])
    return Batches(
        [
            Example(torch.cat([words[2 * i], end]), torch.cat([words[2 * i + 1], end]))
            for i in range(count)
        ],
        size,
    )


def weights(model):
    return {name: value.clone() for name, value in model.module.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# What a step makes better.


@pytest.mark.parametrize("divergence", SOFT)
def test_distilling_a_table_raises_the_acceptance_to_nearly_one(divergence):
    target, draft = table_pair()
    schedule = Schedule(decay_from=20, decay_to=60)
    plan = recipe(divergence, draft=0.5, target=0.5, learning_rate=0.2, schedule=schedule)
    steps = run(target, draft, table_data(), plan, 60)
    assert steps[0].expected_acceptance < 0.8
    last = steps[-10:]
    assert sum(s.accepted for s in last) / sum(s.tokens for s in last) > 0.95
    assert {step.source for step in steps} == {"draft", "target"}


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_distilling_a_transformer_raises_the_acceptance(family):
    target, draft = tiny(family, seed=1), tiny(family, seed=2, layers=1)
    plan = recipe(target=1, batch_size=4, max_new_tokens=5, learning_rate=5e-3, clip=1.0)
    steps = run(target, draft, text_data(4, 4), plan, 40)
    first, last = steps[:3], steps[-5:]

    def alpha(part):
        return sum(s.accepted for s in part) / sum(s.tokens for s in part)

    assert alpha(last) > alpha(first) + 0.15
    assert last[-1].loss < 0.5 * first[0].loss


def test_fine_tuning_lowers_the_cross_entropy_of_the_data():
    _, draft = table_pair()
    plan = recipe("cross_entropy", fixed=1)
    batches = table_data()
    state = State(draft, batches, plan, seed=0)
    steps = list(islice(sft(draft, batches, plan, state=state), 60))
    epoch = batches.per_epoch
    assert sum(s.loss for s in steps[-epoch:]) < 0.8 * sum(s.loss for s in steps[:epoch])
    assert steps[-1].expected_acceptance is None


def test_a_trimmed_draft_fine_tunes_on_the_labels_it_has():
    draft = random_table(6, seed=2, kept=torch.tensor([0, 2, 3, 5]))
    plan = recipe("cross_entropy", fixed=1)
    batches = table_data()
    assert any(1 in e.completion for e in batches.examples)
    state = State(draft, batches, plan, seed=0)
    steps = list(islice(sft(draft, batches, plan, state=state), 30))
    assert steps[-1].loss < steps[0].loss
    rows = [batches.examples[i].completion for i in batches.at(0, 0)]
    assert steps[0].left_out == sum(int((row == 1).sum() + (row == 4).sum()) for row in rows) > 0


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
def test_labels_that_a_trimmed_head_lacks_are_as_good_as_absent(reduction):
    """A whole batch of them died of a mean over nothing. Each step is that on the labels that are
    there, and one without any moves a fresh draft nowhere."""
    data = [
        Example(torch.tensor([0]), torch.tensor(labels))
        for labels in ([4], [1, 4], [2, 3], [5], [0, 0, 2], [3])
    ]
    bare = [Example(one.prompt, one.completion) for one in data[2:]]
    plan = recipe("cross_entropy", fixed=1, batch_size=6, reduction=reduction)

    def trained(examples, rows_at_once=None):
        draft = random_table(6, seed=2, kept=torch.tensor([0, 2, 3, 5]))
        (step,) = run(None, draft, Batches(examples, 6), plan, 1, rows_at_once=rows_at_once)
        return step, draft.logits.detach()

    expected, whole = trained(bare)
    assert (expected.left_out, expected.tokens) == (0, 7)
    for rows_at_once in (None, 1, 2):
        found, logits = trained(data, rows_at_once)
        assert (found.left_out, found.tokens) == (3, 10)
        assert found.loss == pytest.approx(expected.loss, rel=1e-12)
        torch.testing.assert_close(logits, whole, rtol=0, atol=1e-12)
    draft = random_table(6, seed=2, kept=torch.tensor([0, 2, 3, 5]))
    before = draft.logits.detach().clone()
    batches = Batches([data[0], data[0], data[5]], 1)
    small = recipe("cross_entropy", fixed=1, batch_size=1, reduction=reduction)
    seed = next(seed for seed in range(99) if batches.at(2, seed) == (2,))
    for step in run(None, draft, batches, small, 2, seed=seed):
        assert (step.loss, step.gradient_norm, step.left_out, step.tokens) == (0, 0, 1, 1)
    assert torch.equal(draft.logits, before)


def test_data_without_a_label_that_a_trimmed_head_has_is_refused():
    draft = random_table(6, seed=2, kept=torch.tensor([0, 2]))
    data = Batches([Example(torch.tensor([0]), torch.tensor([4, 5]))] * 3, 2)
    plan = recipe("cross_entropy", fixed=1, batch_size=2)
    with pytest.raises(UserError, match="none of the 6 labels .* among the 2 ids"):
        run(None, draft, data, plan, 1)


def test_a_trimmed_draft_learns_the_target_among_its_ids():
    target, _ = table_pair()
    draft = random_table(6, seed=2, kept=torch.tensor([0, 2, 3, 5]))
    steps = run(target, draft, table_data(), recipe(target=1, learning_rate=0.2), 60)
    p = target.logits.softmax(-1)[:, draft.kept]
    torch.testing.assert_close(
        draft.logits.softmax(-1)[:, draft.kept].div(
            draft.logits.softmax(-1)[:, draft.kept].sum(-1, keepdim=True)
        )[:5],
        (p / p.sum(-1, keepdim=True))[:5],
        rtol=0,
        atol=0.05,
    )
    assert steps[-1].expected_acceptance < 1


@pytest.mark.parametrize("divergence", SOFT)
def test_a_draft_that_is_the_target_stays_as_it_is(divergence):
    target, _ = table_pair()
    draft = TableModel(target.logits.detach(), eos_ids=(EOS,))
    plan = recipe(divergence, draft=0.5, fixed=0.5, optimizer=Adafactor(), learning_rate=1e-3)
    steps = run(target, draft, table_data(), plan, 5)
    # Rounding is all the gradient there is; Adafactor would scale a real one up to the rate.
    assert all(step.gradient_norm < 1e-12 for step in steps)
    assert all(step.accepted == pytest.approx(step.tokens, abs=1e-9) for step in steps)
    assert (draft.logits - target.logits).abs().max() < 1e-5


# What a step leaves alone.


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_target_is_left_alone(family):
    """trl#6526: the teacher's graph was kept and it was given gradients."""
    target, draft = tiny(family, seed=1), tiny(family, seed=2)
    target.module.train()
    before = weights(target)
    run(target, draft, text_data(), recipe(fixed=0.4, draft=0.3, target=0.3, batch_size=2), 10)
    assert same(weights(target), before)
    assert all(parameter.grad is None for parameter in target.module.parameters())
    assert all(parameter.requires_grad for parameter in target.module.parameters())
    assert target.module.training


def test_the_target_scores_without_dropout():
    """TaCL#11: the teacher scored with its dropout on."""
    target = with_dropout(tiny("t5", seed=1))
    target.module.train()
    batches = text_data()
    example = batches.examples[0]
    batch = loop.Batch((example.prompt,), (example.completion,))
    before = torch.get_rng_state()
    assert torch.equal(states_of(target, batch), states_of(target, batch))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("training", [True, False])
def test_the_draft_trains_in_the_mode_it_came_in(training):
    """TaCL#11: eval() on a shared model silenced the student's dropout. In train mode dropout is on
    and the losses differ from those of eval mode."""
    target, draft = tiny("t5", seed=1), with_dropout(tiny("t5", seed=2))
    draft.module.train(training)
    plan = recipe(draft=1, batch_size=2)
    steps = run(target, draft, text_data(), plan, 2)
    assert all(part.training == training for part in draft.module.modules())
    silent = run(target, with_dropout(tiny("t5", seed=2), 0.0), text_data(), plan, 2)
    assert (steps[0].loss == silent[0].loss) != training
    assert steps[0].tokens == silent[0].tokens, "rollouts are made without dropout"


def test_every_pass_of_every_step_has_dropout_of_its_own():
    """A seed that forgot step or row would train one thinned network for ever."""
    checks.check_dropout()


def test_the_global_random_state_is_left_alone():
    target, draft = tiny("t5", seed=1), with_dropout(tiny("t5", seed=2))
    draft.module.train()
    before = torch.get_rng_state()
    run(target, draft, text_data(), recipe(fixed=0.5, draft=0.5, batch_size=2), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen_parameters_stay_and_take_gradients_again_afterwards():
    target, draft = tiny("t5-untied", seed=1), tiny("t5-untied", seed=2)
    before = weights(draft)
    plan = recipe(fixed=1, batch_size=2, frozen=("shared*", "*layer_norm*"))
    batches = text_data()
    state = State(draft, batches, plan, seed=0)
    steps = distill(target, draft, batches, plan, state=state)
    next(steps)
    assert not draft.module.shared.weight.requires_grad
    steps.close()
    after = weights(draft)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert not any("shared" in name or "layer_norm" in name for name in moved)
    assert all(parameter.requires_grad for parameter in draft.module.parameters())


# How often things are done.


def watch(monkeypatch, model):
    """Record every teacher-forced pass of a model: whether it was made with gradient."""
    passes, hidden = [], model.hidden
    monkeypatch.setattr(
        model,
        "hidden",
        lambda batch: passes.append(torch.is_grad_enabled()) or hidden(batch),
        raising=False,
    )
    return passes


@pytest.mark.parametrize("shares", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.4, 0.3, 0.3)])
def test_a_step_takes_one_pass_of_each_model_and_samples_only_what_it_trains_on(
    monkeypatch, shares
):
    """trl#4560: a step became 3.5 times slower and nobody could say by which pass. trl#5726, #1814:
    the teacher's output was generated and thrown away, or the coins were the wrong way round."""
    target, draft = table_pair()
    target_passes, draft_passes = watch(monkeypatch, target), watch(monkeypatch, draft)
    writers, rollout = [], loop.rollout
    monkeypatch.setattr(
        loop, "rollout", lambda model, *a, **k: writers.append(model) or rollout(model, *a, **k)
    )
    plan = recipe(fixed=shares[0], draft=shares[1], target=shares[2])
    steps = run(target, draft, table_data(), plan, 12)
    written = sum(step.source == "target" for step in steps)
    assert target_passes == [False] * (12 - written), "decoding has its states already"
    assert draft_passes == [True] * 12
    sources = [step.source for step in steps]
    assert writers.count(draft) == sources.count("draft")
    assert writers.count(target) == sources.count("target")
    assert len(writers) == 12 - sources.count("fixed")
    for source, share in zip(("fixed", "draft", "target"), shares, strict=True):
        if share in (0, 1):
            assert sources.count(source) == 12 * share


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("gamma", [0, 2])
def test_target_data_brings_the_states_that_a_pass_would_compute(family, gamma):
    target, draft = tiny(family, seed=1), tiny(family, seed=2, layers=1)
    batches = text_data(4, 4)
    plan = recipe(target=1, max_new_tokens=6, target_gamma=gamma)
    state = State(draft, batches, plan, seed=0)
    whole = loop.Run(
        target=target,
        draft=draft,
        trained=draft,
        batches=batches,
        state=state,
        witness=loop.Witness(target),
        loss=torch.nn.Identity(),
        processes=ALONE,
        rows_at_once=3,
        clock=lambda: 0.0,
    )
    found = loop._complete(whole, (0, 1, 2, 3), "target")
    assert len(found) == 2
    for one in found:
        hidden = states_of(target, one.batch)
        torch.testing.assert_close(one.decoded, hidden, rtol=1e-4, atol=1e-5)


def test_seqkd_never_scores_with_the_target(monkeypatch):
    target, draft = table_pair()
    passes = watch(monkeypatch, target)
    steps = run(target, draft, table_data(), recipe("cross_entropy", target=1), 5)
    assert passes == []
    assert {step.source for step in steps} == {"target"}


def test_fixed_data_is_trained_on_as_it_is(monkeypatch):
    target, draft = table_pair()
    seen, hidden = [], draft.hidden
    monkeypatch.setattr(
        draft, "hidden", lambda batch: seen.append(batch) or hidden(batch), raising=False
    )
    batches = table_data()
    run(target, draft, batches, recipe(fixed=1), batches.per_epoch)
    rows = sorted(
        (p.tolist(), c.tolist())
        for b in seen
        for p, c in zip(b.prompts, b.completions, strict=True)
    )
    assert rows == sorted((e.prompt.tolist(), e.completion.tolist()) for e in batches.examples)


def completions(monkeypatch, model):
    """Record the completions a model passes over, one list of rows a pass."""
    seen, hidden = [], model.hidden
    monkeypatch.setattr(
        model,
        "hidden",
        lambda batch: seen.append([c.tolist() for c in batch.completions]) or hidden(batch),
        raising=False,
    )
    return seen


def test_sampled_completions_end_where_the_target_would_end_them(monkeypatch):
    """Whoever writes them: the draft's own end, id 0 here, means nothing."""
    target, _ = table_pair()
    draft = random_table(6, seed=2, eos_ids=(0,))
    seen = completions(monkeypatch, draft)
    run(target, draft, table_data(), recipe(draft=0.5, target=0.5), 8)
    rows = [row for batch in seen for row in batch]
    assert not any(EOS in row[:-1] for row in rows)
    assert all(len(row) == 6 or row[-1] == EOS for row in rows)
    assert any(0 in row[:-1] for row in rows)
    assert any(len(row) < 6 for row in rows)


@pytest.mark.parametrize("source", ["draft", "target"])
def test_a_prompt_is_answered_afresh_at_every_step(monkeypatch, source):
    target, draft = table_pair()
    seen = completions(monkeypatch, draft)
    batches = Batches([Example(torch.tensor([1]))], 1)
    run(target, draft, batches, recipe(**{source: 1}, batch_size=1, learning_rate=0), 8)
    assert len({tuple(batch[0]) for batch in seen}) > 4


# What a step reports.


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    def trajectory(seed):
        target, draft = table_pair()
        plan = recipe(fixed=0.4, draft=0.3, target=0.3)
        steps = run(target, draft, table_data(), plan, 8, seed=seed)
        return [(s.loss, s.accepted, s.tokens, s.source) for s in steps], draft.logits.detach()

    (steps, logits), (again, same_logits) = trajectory(0), trajectory(0)
    assert steps == again
    assert torch.equal(logits, same_logits)
    assert steps != trajectory(1)[0]


def test_the_logged_rate_is_the_schedules():
    target, draft = table_pair()
    schedule = Schedule(warmup=3, decay_from=5, decay_to=8)
    for optimizer in (Adafactor(), AdamW()):
        plan = recipe(fixed=1, schedule=schedule, optimizer=optimizer, learning_rate=1e-3)
        steps = run(target, draft, table_data(), plan, 10)
        assert [s.learning_rate for s in steps] == [1e-3 * schedule.factor(n) for n in range(1, 11)]
        assert [s.step for s in steps] == list(range(1, 11))


def test_a_schedule_in_seconds_follows_the_time_spent_in_steps():
    """The clock moves by one second per reading, and is read five times a step: four seconds."""
    target, draft = table_pair()
    ticks = iter(range(10**6))
    plan = recipe(fixed=1, schedule=Schedule(warmup=10, unit="seconds"), learning_rate=1.0)
    plan = replace(plan, learning_rate=1e-2)
    batches = table_data()
    state = State(draft, batches, plan, seed=0)
    rates = []
    for step in islice(
        distill(target, draft, batches, plan, state=state, clock=lambda: next(ticks)), 4
    ):
        rates.append(step.learning_rate)
        assert step.seconds == loop.Seconds(1, 1, 1, 1)
        next(ticks)  # the caller's own time does not count
    assert rates == pytest.approx([3e-3, 7e-3, 1e-2, 1e-2])
    assert state.seconds == 16


def test_adafactor_is_never_cut_in_silence():
    """torch caps Adafactor's rate at 1/√step, below 0.55 from step 4 on. A run used to die of it
    hours later; now what a step says of its rate is what was applied."""
    target, draft = table_pair()
    plan = recipe(fixed=1, optimizer=Adafactor(), learning_rate=0.55)
    steps = run(target, draft, table_data(), plan, 6)
    rates = [0.55] * 3 + [0.5, 5**-0.5, 6**-0.5]
    assert [step.learning_rate for step in steps] == pytest.approx(rates, rel=1e-15)


def test_clipping_limits_the_update_but_not_what_is_reported():
    target, draft = table_pair()
    _, clipped = table_pair()
    free = run(target, draft, table_data(), recipe(fixed=1), 1)[0]
    tight = run(target, clipped, table_data(), recipe(fixed=1, clip=1e-9), 1)[0]
    assert free.gradient_norm == tight.gradient_norm > 1e-3
    # AdamW divides the gradient by its size plus 1e-8, so one of norm 1e-9 moves far less.
    _, start = table_pair()
    assert (clipped.logits - start.logits).abs().max() < 0.1 * (
        draft.logits - start.logits
    ).abs().max()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(bad):
    target, draft = table_pair()
    plan = recipe(fixed=1)
    batches = table_data()
    state = State(draft, batches, plan, seed=0)
    steps = distill(target, draft, batches, plan, state=state)
    next(steps)
    with torch.no_grad():
        draft.logits[:, 2] = bad
    before = draft.logits.detach().clone()
    with pytest.raises(UserError, match="step 2: the loss is nan"):
        next(steps)
    assert torch.equal(draft.logits.isnan(), before.isnan())
    assert torch.equal(draft.logits[:, 0], before[:, 0])
    assert draft.logits.grad is None
    assert state.step == 1


# What is refused.


def test_what_cannot_be_trained_is_refused_before_the_first_step():
    target, draft = table_pair()
    bare = Batches([Example(torch.tensor([1]))] * 4, 4)
    cases = [
        (None, table_data(), recipe(fixed=1), "needs a target"),
        (None, table_data(), recipe("cross_entropy", target=1), "needs a target"),
        (
            target,
            bare,
            recipe(fixed=0.1, draft=0.9),
            "4 of 4 prompts have none .*: have `distillspec generate`",
        ),
        (random_table(7), table_data(), recipe(fixed=1), "do not share a tokenizer"),
        (target, table_data(), recipe(fixed=1, frozen=("x*",)), "matches no parameter"),
        (target, table_data(), recipe(fixed=1, frozen=("*",)), "nothing is left to train"),
    ]
    for judge, batches, plan, words in cases:
        with pytest.raises(UserError, match=words):
            run(judge, draft, batches, plan, 1)


def test_a_draft_that_shares_the_targets_weights_is_refused():
    target, draft = table_pair()
    draft.logits = target.logits
    with pytest.raises(ValueError, match="shares weights"):
        run(target, draft, table_data(), recipe(fixed=1), 1)


def test_state_and_batches_must_be_the_recipes_own():
    target, draft = table_pair()
    batches, plan = table_data(), recipe(fixed=1)
    state = State(draft, batches, plan, seed=0)
    for data, other in ((batches, replace(plan, clip=1.0)), (table_data(size=2), plan)):
        with pytest.raises(ValueError, match="made for the recipe"):
            next(distill(target, draft, data, other, state=state))


# The cache of the target's states.


@pytest.mark.parametrize("family", ["table", "t5", "llama"])
def test_a_cached_run_equals_an_uncached_one(family):
    def trained(cache):
        if family == "table":
            (target, draft), batches = table_pair(), table_data(size=2)
        else:
            target, draft, batches = tiny(family, seed=1), tiny(family, seed=2), text_data()
        plan = recipe(fixed=0.8, draft=0.2, batch_size=2, learning_rate=1e-3)
        steps = run(target, draft, batches, plan, 12, cache=cache)
        return [step.loss for step in steps], weights(draft)

    losses, cold = trained(None)
    cached_losses, warm = trained(HiddenCache())
    assert cached_losses == pytest.approx(losses, rel=1e-4)
    for name in cold:
        torch.testing.assert_close(warm[name], cold[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_a_cache_filled_by_the_engine_trains_as_one_that_scores(family, monkeypatch):
    """The target's own answers, their states taken from the verification that wrote them."""
    target = tiny(family, seed=1)
    prompts = [torch.tensor(ids) for ids in ([7, 8, 1], [9, 1], [10, 11, 12, 13, 1], [14, 15, 1])]
    outputs = complete(
        target,
        perturbed(target, 0.05),
        prompts,
        gamma=2,
        max_new_tokens=9,
        sampling=Sampling(),
        stop=(1, *range(6, 18)),
        generators=[torch.Generator().manual_seed(i) for i in range(4)],
    )
    assert len({len(output.ids) for output in outputs}) > 1
    assert sum(output.counts.accepted for output in outputs) > 0
    examples = [
        Example(prompt, torch.tensor(output.ids))
        for prompt, output in zip(prompts, outputs, strict=True)
    ]

    def trained(cache):
        draft, batches = tiny(family, seed=2), Batches(examples, 2)
        plan = recipe(fixed=1, batch_size=2, learning_rate=1e-3)
        return [s.loss for s in run(target, draft, batches, plan, 8, cache=cache)], weights(draft)

    scored_losses, scored = trained(HiddenCache())
    cache = HiddenCache()
    cache.fill(range(4), [output.states for output in outputs])
    passes = watch(monkeypatch, target)
    losses, filled = trained(cache)
    assert not passes
    assert cache.passes == 0
    assert losses == pytest.approx(scored_losses, rel=1e-4)
    for name in scored:
        torch.testing.assert_close(filled[name], scored[name], rtol=1e-3, atol=1e-4)


def test_from_the_second_epoch_on_fixed_data_costs_no_target_pass(monkeypatch):
    target, draft = table_pair()
    passes = watch(monkeypatch, target)
    cache = HiddenCache()
    batches = table_data()
    run(target, draft, batches, recipe(fixed=1), 4 * batches.per_epoch, cache=cache)
    assert len(passes) == cache.passes == batches.per_epoch


def test_the_cache_scores_only_what_is_new_and_gives_rows_in_the_order_asked():
    target, _ = table_pair()
    batches, cache = table_data(), HiddenCache()

    def batch(*indices):
        rows = [batches.examples[i] for i in indices]
        return loop.Batch(tuple(e.prompt for e in rows), tuple(e.completion for e in rows))

    cache.states(target, (1, 3), batch(1, 3))
    for indices in ((3, 2, 1), (2, 3)):
        torch.testing.assert_close(
            cache.states(target, indices, batch(*indices)),
            states_of(target, batch(*indices)),
            rtol=1e-6,
            atol=1e-6,
        )
    assert cache.passes == 2


def test_the_cache_keeps_what_the_target_computed_bit_for_bit():
    """In the target's own type: 16 bits stay 16 bits, and what is kept is what is computed."""
    target = tiny("llama", seed=1)
    target.module.bfloat16()
    examples = text_data().examples[:2]
    batch = loop.Batch(tuple(e.prompt for e in examples), tuple(e.completion for e in examples))
    cache = HiddenCache()
    for _ in range(2):
        found = cache.states(target, (0, 1), batch)
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, states_of(target, batch))
    assert cache.passes == 1
    assert cache.bytes == found.nbytes == 2 * 32 * sum(batch.lengths)


@pytest.mark.parametrize("kept", [None, torch.tensor([0, 2, 3, 5])])
@pytest.mark.parametrize("share", [0, 0.4, 1])
def test_what_finds_no_room_is_computed_again(kept, share):
    """The memory is bounded, and the run is the same, with a whole head and a trimmed one."""
    batches = table_data()
    count = 3 * batches.per_epoch

    def trained(cache):
        target = random_table(6, seed=1, scale=2.0, eos_ids=(EOS,))
        draft = random_table(6, seed=2, eos_ids=(EOS,), kept=kept)
        steps = run(target, draft, batches, recipe(fixed=1), count, cache=cache)
        return [step.loss for step in steps], draft.logits.detach()

    whole = HiddenCache()
    losses, weights = trained(whole)
    limit = int(share * whole.bytes)
    cache = HiddenCache(limit)
    found_losses, found = trained(cache)
    assert found_losses == pytest.approx(losses, rel=1e-12)
    torch.testing.assert_close(found, weights, rtol=1e-12, atol=0)
    assert 0.5 * limit <= cache.bytes <= limit
    assert (cache.passes == batches.per_epoch) == (share == 1)
    assert (cache.passes == count) == (share < 1)


def test_the_cache_notices_other_data_under_the_same_number():
    target, _ = table_pair()
    one, two = (table_data().examples[i] for i in (0, 1))
    cache = HiddenCache()
    cache.states(target, (0,), loop.Batch((one.prompt,), (one.completion,)))
    with pytest.raises(ValueError, match=r"examples \[0\] have completions of \(4,\) tokens"):
        cache.states(target, (0,), loop.Batch((two.prompt,), (two.completion,)))


def test_a_trimmed_draft_on_cached_data_asks_the_target_for_its_kept_ids(monkeypatch):
    """From the second epoch on the whole head runs no more, and the weights come out the same."""
    kept = torch.tensor([0, 2, 3, 5])

    def trained(cache):
        target = random_table(6, seed=1, scale=2.0, eos_ids=(EOS,))
        draft = random_table(6, seed=2, eos_ids=(EOS,), kept=kept)
        heads, head = [], target.head
        monkeypatch.setattr(
            target, "head", lambda h: heads.append(len(h)) or head(h), raising=False
        )
        monkeypatch.setattr(
            target, "head_at", lambda ids: lambda h: head(h)[..., ids], raising=False
        )
        batches = table_data()
        steps = run(target, draft, batches, recipe(fixed=1), 2 * batches.per_epoch, cache=cache)
        return [s.loss for s in steps], draft.logits.detach(), heads

    losses, weights, heads = trained(None)
    cached_losses, cached_weights, cached_heads = trained(HiddenCache())
    assert cached_losses == pytest.approx(losses, rel=1e-9)
    torch.testing.assert_close(cached_weights, weights, rtol=1e-9, atol=1e-12)
    assert 0 < sum(cached_heads) < sum(heads)


def test_a_selection_needs_a_reference_draft_and_nothing_else_does():
    target, draft = table_pair()
    batches = table_data()
    for name, reference, words in (
        ("select:0.5", None, "give that draft as the reference"),
        ("forward_kl", draft, "looks at no reference"),
    ):
        plan = recipe(name, fixed=1)
        state = State(draft, batches, plan, seed=0)
        with pytest.raises(UserError, match=words):
            next(distill(target, draft, batches, plan, state=state, reference=reference))


@pytest.mark.parametrize("name", ["acceptance", "path:2", "select:0.5"])
def test_the_newer_objectives_raise_the_acceptance(name):
    target, draft = table_pair()
    batches, plan = table_data(), recipe(name, target=1)
    reference = TableModel(target.logits.detach().clone(), eos_ids=(EOS,))
    chosen = reference if "select" in name else None
    steps = run(target, draft, batches, plan, 40, reference=chosen)
    first, last = (sum(s.accepted for s in part) / sum(s.tokens for s in part)
                   for part in (steps[:5], steps[-5:]))  # fmt: skip
    assert last > first + 0.1


def test_generated_rows_count_to_their_own_end(monkeypatch):
    """trl#2058: what followed the end of a generated row was trained on. Rows that end after 3 and
    9 tokens count 12, and nothing else enters their mean."""
    target, draft = table_pair()
    rows = (torch.tensor([1, 2, EOS]), torch.tensor([1, 2, 3, 4, 0, 1, 2, 3, EOS]))
    outputs = [SimpleNamespace(ids=row.tolist()) for row in rows]
    monkeypatch.setattr(loop, "rollout", lambda *_, **__: outputs)
    batches = Batches([Example(torch.tensor([3]))] * 2, 2)
    fed = torch.cat([torch.cat([torch.tensor([3]), row[:-1]]) for row in rows])
    p, q = (model.logits[fed].detach().softmax(-1) for model in (target, draft))
    plan = recipe("total_variation", draft=1, batch_size=2, reduction="token_mean")
    (step,) = run(target, draft, batches, plan, 1)
    assert step.tokens == len(fed) == 12
    assert step.loss == pytest.approx(float(0.5 * (p - q).abs().sum(-1).mean()), abs=1e-12)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_run_changes_no_setting_of_either_model(family):
    """transformers#40739, #28759, #27833: settings of one call stayed on the model for the next.
    The first rollout of a model that has trained and one that has not is the same."""
    target, draft = tiny(family, seed=1), tiny(family, seed=2)

    def settings():
        models = (target.module, draft.module)
        return [m.config.to_dict() for m in models] + [
            m.generation_config.to_dict() for m in models
        ]

    before = settings()
    plan = recipe(fixed=0.4, draft=0.3, target=0.3, batch_size=2, learning_rate=0)
    steps = run(target, draft, text_data(), plan, 6)
    assert {step.source for step in steps} == {"fixed", "draft", "target"}
    assert settings() == before
    again = run(target, draft, text_data(), plan, 6)
    assert [(s.loss, s.tokens, s.source) for s in again] == [
        (s.loss, s.tokens, s.source) for s in steps
    ]


# Passes and processes.


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_a_run_that_computes_activations_again_is_the_same_run_and_samples_with_its_cache(family):
    """trl#3683. One new token a pass; in passes with gradient the layers run twice."""

    def trained(**settings):
        target, draft = tiny(family, seed=1), tiny(family, seed=2)
        seen = []
        draft.module.get_decoder().get_input_embeddings().register_forward_pre_hook(
            lambda _, inputs: seen.append((torch.is_grad_enabled(), inputs[0].shape[1]))
        )
        plan = recipe(draft=0.5, fixed=0.5, batch_size=2, learning_rate=1e-3)
        steps = run(target, draft, text_data(), plan, 4, **settings)
        return [s.loss for s in steps], weights(draft), seen, [s.source for s in steps]

    losses, expected, plain, sources = trained()
    again, found, seen, _ = trained(recompute=True)
    assert set(sources) == {"draft", "fixed"}
    assert again == pytest.approx(losses, rel=1e-5)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=2e-4)
    assert seen == plain
    sampled = [width for gradient, width in seen if not gradient]
    assert sampled.count(1) >= len(sampled) - sources.count("draft") > 0


@pytest.mark.parametrize("reduction", ["sequence_mean", "token_mean"])
@pytest.mark.parametrize("divergence", ["forward_kl", "acceptance", "cross_entropy", "path:2"])
def test_a_step_row_by_row_is_the_step_of_the_whole_batch(divergence, reduction):
    """trl#4719: (1/1 + 9/3)/2 = 2.0 instead of 10/4 = 2.5."""
    checks.check_row_by_row(divergence, reduction)


def test_a_pass_sees_no_more_rows_than_asked(monkeypatch):
    target, draft = table_pair()
    seen = completions(monkeypatch, draft)
    asked = completions(monkeypatch, target)
    run(target, draft, table_data(), recipe(fixed=1), 3, rows_at_once=3)
    # Four rows are two and two; the last batch of the ten has two.
    assert [len(batch) for batch in seen] == [len(batch) for batch in asked] == [2] * 5


def test_a_selection_is_not_cut():
    target, draft = table_pair()
    plan = recipe("select:0.5", fixed=1)
    reference = random_table(6, seed=3, eos_ids=(EOS,))
    with pytest.raises(UserError, match="picks among all tokens of a step"):
        run(target, draft, table_data(), plan, 1, reference=reference, rows_at_once=2)
    run(target, draft, table_data(), plan, 1, reference=reference, rows_at_once=4)
    with pytest.raises(UserError, match="at least 1"):
        run(target, draft, table_data(), recipe(fixed=1), 1, rows_at_once=0)
