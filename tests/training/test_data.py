"""The order of the data, and completions from our own engine."""

from collections import Counter

import pytest
import torch

from distillspec.errors import UserError
from distillspec.models.toy import TableModel
from distillspec.training.data import WINDOW, Batches, Example, rollout
from distillspec.training.randomness import derived, generator
from support import random_table, tiny


def examples(count, *, longest=30):
    g = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, longest + 1, (count,), generator=g).tolist()
    return [Example(torch.full((n,), 7), torch.tensor([1])) for n in lengths]


@pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 4), (12, 4), (13, 4), (70, 2), (5, 8)])
def test_every_epoch_visits_every_example_once(count, size):
    batches = Batches(examples(count), size)
    for epoch in range(3):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        visited = [batches.at(step, 0) for step in steps]
        assert sorted(i for batch in visited for i in batch) == list(range(count))
        assert sorted(len(batch) for batch in visited)[1:] == [size] * (len(visited) - 1)


def test_a_batch_depends_on_its_step_and_the_seed_alone():
    data = examples(40)
    in_order = [Batches(data, 4).at(step, 3) for step in range(25)]
    backwards = Batches(data, 4)
    assert [backwards.at(step, 3) for step in reversed(range(25))] == in_order[::-1]
    assert in_order[:10] != in_order[10:20], "a new epoch has a new order"
    assert in_order != [Batches(data, 4).at(step, 4) for step in range(25)]


def test_batches_hold_similar_lengths():
    data = examples(WINDOW * 8, longest=200)
    batches = Batches(data, 8)
    padding = sum(
        sum(max(lengths) - n for n in lengths)
        for step in range(batches.per_epoch)
        for lengths in [[data[i].length for i in batches.at(step, 0)]]
    )
    assert padding < 0.1 * sum(example.length for example in data)


def test_batches_do_not_come_from_short_to_long():
    """Sorted batches would come in order once in 16! shuffles."""
    data = examples(WINDOW * 8, longest=200)
    batches = Batches(data, 8)
    longest = [max(data[i].length for i in batches.at(step, 0)) for step in range(WINDOW)]
    assert longest != sorted(longest)


def test_the_digest_tells_data_apart():
    data = examples(6)
    digests = [
        Batches(data, 2).digest(),
        Batches(data, 3).digest(),
        Batches(data[:-1], 2).digest(),
        Batches([*data[:-1], Example(data[-1].prompt)], 2).digest(),
        Batches(data[::-1], 2).digest(),
    ]
    assert len(set(digests)) == len(digests)
    assert Batches(examples(6), 2).digest() == digests[0]


def test_no_examples_are_refused():
    with pytest.raises(UserError, match="no examples"):
        Batches([], 2)


@pytest.mark.parametrize("ids", [torch.tensor([]), torch.tensor([[1]]), torch.tensor([1.0])])
def test_an_example_no_model_could_score_is_refused(ids):
    with pytest.raises(ValueError, match="a prompt must be"):
        Example(ids)
    with pytest.raises(ValueError, match="a completion must be"):
        Example(torch.tensor([1]), ids)


def sample(model, prompts, *, seed=0, tokens=8, stop=(), ahead=None, gamma=0):
    outputs = rollout(
        model,
        prompts,
        ahead=ahead,
        gamma=gamma,
        max_new_tokens=tokens,
        stop=stop,
        generators=[generator(seed, row) for row in range(len(prompts))],
    )
    return [torch.tensor(output.ids, dtype=torch.int64) for output in outputs]


def test_rollouts_are_sampled_without_truncation():
    """trl#1814: transformers' own default of top_k=50 would give 50 ids. Each of 200 ids is missed
    by 5,000 uniform tokens with probability 1.3e-11."""
    uniform = TableModel(torch.zeros(200))
    ids = torch.cat(sample(uniform, [torch.tensor([0])] * 100, tokens=50))
    assert len(ids) == 5000
    assert len(ids.unique()) == 200


def test_rollouts_are_sampled_at_temperature_one():
    """The count of id 0 is binomial(5000, 0.75); five standard deviations miss once in 1.7e6."""
    model = TableModel(torch.tensor([3.0, 1.0]).log())
    ids = torch.cat(sample(model, [torch.tensor([0])] * 100, tokens=50))
    assert abs(Counter(ids.tolist())[0] - 3750) < 5 * (5000 * 0.75 * 0.25) ** 0.5


@pytest.mark.parametrize("gamma", [1, 3])
def test_a_draft_that_writes_ahead_does_not_change_the_law(gamma):
    """As above; the draft alone would write 1250 zeros."""
    model, draft = (TableModel(torch.tensor(p).log()) for p in ([0.75, 0.25], [0.25, 0.75]))
    ids = torch.cat(sample(model, [torch.tensor([0])] * 100, tokens=50, ahead=draft, gamma=gamma))
    assert abs(Counter(ids.tolist())[0] - 3750) < 5 * (5000 * 0.75 * 0.25) ** 0.5


def test_a_rollout_ends_with_the_given_stop_ids_and_nothing_after():
    model = random_table(6, eos_ids=(0,))
    rows = sample(model, [torch.tensor([1])] * 40, tokens=12, stop=(5,))
    assert any(len(row) < 12 for row in rows)
    for row in rows:
        assert 5 not in row[:-1]
        assert len(row) == 12 or row[-1] == 5
    assert any(0 in row[:-1] for row in rows), "the draft's own end means nothing"


def test_a_rollout_depends_on_its_own_generator_only():
    """vllm#6038: the seed of a request was ignored."""
    model = random_table(6)
    prompts = [torch.tensor([i]) for i in range(4)]
    before = torch.get_rng_state()
    rows = sample(model, prompts)
    assert torch.equal(torch.get_rng_state(), before)
    (alone,) = rollout(model, prompts[2:3], max_new_tokens=8, stop=(), generators=[generator(0, 2)])
    assert alone.ids == tuple(rows[2].tolist())
    assert not all(map(torch.equal, rows, sample(model, prompts, seed=1)))


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_one_prompt_three_times_gives_three_samples(family):
    """vllm#4934, #6137: asking for several samples of a prompt crashed."""
    rows = sample(tiny(family), [torch.tensor([6, 7, 1])] * 3)
    assert len({tuple(row.tolist()) for row in rows}) == 3


def test_a_rollout_gives_every_submodule_its_own_mode_back():
    """trl#5862, SpecForge#563: the student stayed in eval mode after it had been sampled from."""
    draft = tiny("t5")
    draft.module.train()
    draft.module.encoder.eval()
    before = [part.training for part in draft.module.modules()]
    assert len(set(before)) == 2
    (output,) = rollout(
        draft,
        [torch.tensor([6, 7, 1])],
        max_new_tokens=2,
        stop=(),
        generators=[generator(0, 0)],
    )
    assert not output.states.is_inference(), "a loss may use them"
    assert [part.training for part in draft.module.modules()] == before


def test_seeds_differ_by_every_part_of_their_purpose():
    seeds = {
        derived(s, name, i, j) for s in (0, 1) for name in "ab" for i in (0, 1) for j in (0, 1)
    }
    assert len(seeds) == 16
    assert derived(0, 1, 23) != derived(0, 12, 3)
    # Pinned, because a checkpoint resumed elsewhere must draw the same numbers.
    assert derived(0, "rollout", 3, 1) == 8862366475676394405
