"""A target kept on disk: what is read is what was written, and what is stale is refused."""

import os
from dataclasses import replace

import pytest
import torch

from distillspec.errors import UserError
from distillspec.math.partial import known_of
from distillspec.models.protocol import Batch
from distillspec.training.data import Batches, Example
from distillspec.training.losses import DistillationLoss, position_weights
from distillspec.training.offline import Origin, make_cache, open_cache
from distillspec.training.offline_loss import OfflineLoss, check_offline, packed
from distillspec.training.recipes import GKD, SUPERVISED_KD, Divergence, Mixture
from support import random_table

SIZE = 6
SAMPLING = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "max_new_tokens": 8, "seed": 0}
SOFT = ["forward_kl", "reverse_kl", "jsd:0.5", "total_variation", "acceptance"]


def ids(*numbers):
    return torch.tensor(numbers)


PROMPTS = (ids(1, 2), ids(4), ids(3, 3, 3))
COMPLETIONS = (ids(3, 2, 5, 0, 3), ids(2, 0, 5), ids(1))


def target():
    return random_table(SIZE, seed=1, scale=2.0)


def origin(**changes):
    made = Origin(
        target="the target",
        weights="w" * 64,
        vocabulary=target().vocabulary.digest,
        size=SIZE,
        k=3,
        stored="float32",
        sampling=SAMPLING,
    )
    return replace(made, **changes)


def known(prompts, completions, k=3):
    model = target()
    batches = [Batch((p,), (c,)) for p, c in zip(prompts, completions, strict=True)]
    return [known_of(model.head(model.hidden(batch).detach()), k) for batch in batches]


def filled(folder, **changes):
    cache = make_cache(folder, origin(**changes))
    k = cache.origin.k
    cache.add(PROMPTS[:2], COMPLETIONS[:2], known(PROMPTS[:2], COMPLETIONS[:2], k))
    cache.add(PROMPTS[2:], COMPLETIONS[2:], known(PROMPTS[2:], COMPLETIONS[2:], k))
    return cache


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], [1]])
@pytest.mark.parametrize(
    ("stored", "near"), [("float32", 0), ("float16", 4e-3), ("bfloat16", 4e-2)]
)
def test_what_is_read_back_is_what_was_written_in_any_order(tmp_path, stored, near, rows):
    filled(tmp_path / "c", stored=stored)
    cache = open_cache(tmp_path / "c", {"vocabulary": target().vocabulary.digest})
    prompts, completions = [PROMPTS[i] for i in rows], [COMPLETIONS[i] for i in rows]
    found = cache.known(Batch(tuple(prompts), tuple(completions)))
    parts = known(prompts, completions)
    assert len(cache) == 3
    assert cache.positions == 9
    assert torch.equal(found.ids, torch.cat([part.ids for part in parts]))
    for name in ("logprobs", "tail"):
        expected = torch.cat([getattr(part, name) for part in parts]).float()
        torch.testing.assert_close(getattr(found, name), expected, rtol=1e-7, atol=near)


@pytest.mark.parametrize("size", [65_536, 65_537])
def test_the_largest_id_survives(tmp_path, size):
    cache = make_cache(tmp_path / "c", origin(size=size, k=1))
    logits = torch.zeros(1, size)
    logits[0, -1] = 9
    cache.add(PROMPTS[:1], (ids(1),), [known_of(logits, 1)])
    found = open_cache(tmp_path / "c").known(Batch(PROMPTS[:1], (ids(1),)))
    assert found.ids.tolist() == [[size - 1]]


@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("kept", [None, ids(0, 2, 3, 5)])
def test_with_every_id_known_the_loss_is_the_one_of_the_live_target(tmp_path, name, kept):
    cache = filled(tmp_path / "c", k=SIZE)
    draft = random_table(SIZE, seed=2, scale=2.0, kept=kept)
    batch, divergence = Batch(PROMPTS, COMPLETIONS), Divergence.parse(name)
    weights = position_weights(batch.lengths, "sequence_mean")
    live = DistillationLoss(draft, divergence, target_head=target().head)
    expected = live(batch, weights, target().hidden(batch).detach())
    (gradient,) = torch.autograd.grad(expected.value, [draft.logits])
    for chunk in (2, None):
        found = OfflineLoss(draft, divergence, chunk=chunk)(
            batch, weights, packed(cache.known(batch))
        )
        (own,) = torch.autograd.grad(found.value, [draft.logits])
        # The cache holds float32.
        torch.testing.assert_close(found.value, expected.value, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(own, gradient, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found.accepted, expected.accepted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"weights": "v" * 64}, "weights was 'wwwwwwwwwwww…' and is 'vvvvvvvvvvvv…'"),
        ({"vocabulary": "other"}, "vocabulary was"),
        ({"k": 4}, "k was 3 and is 4"),
        ({"stored": "float16"}, "stored was 'float32' and is 'float16'"),
        ({"sampling": {**SAMPLING, "temperature": 0.7}}, "temperature was 1.0 and is 0.7"),
        ({"sampling": {**SAMPLING, "max_new_tokens": 9}}, "max_new_tokens was 8 and is 9"),
        ({"sampling": {**SAMPLING, "seed": 1}}, "seed was 0 and is 1"),
    ],
)
def test_a_stale_cache_is_refused_and_what_differs_is_named(tmp_path, changes, told):
    filled(tmp_path / "c")
    with pytest.raises(UserError) as caught:
        make_cache(tmp_path / "c", origin(**changes))
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).count(" and is ") == 1  # and nothing else


def test_a_setting_of_then_that_is_none_now_is_a_difference(tmp_path):
    """A cache made with a penalty took answers without one, and still said it had the penalty."""
    make_cache(tmp_path / "c", origin(sampling={**SAMPLING, "repetition_penalty": 1.3}))
    with pytest.raises(UserError, match="repetition_penalty was 1.3 and is None"):
        make_cache(tmp_path / "c", origin())


def test_a_sampler_with_a_list_is_the_same_when_it_is_read_back(tmp_path):
    """`generate --cache --stop-strings` could not be gone on with: a tuple is a list on file."""
    made = origin(sampling={**SAMPLING, "stop_strings": ("a", "b")})
    make_cache(tmp_path / "c", made)
    assert make_cache(tmp_path / "c", made).origin.fingerprint == made.fingerprint


def test_a_moved_target_is_the_same_target_and_its_cache_goes_on(tmp_path):
    filled(tmp_path / "c")
    cache = make_cache(tmp_path / "c", origin(target="elsewhere"))
    before = {path.name for path in (tmp_path / "c").iterdir()}
    cache.add(PROMPTS, COMPLETIONS, known(PROMPTS, COMPLETIONS))  # all there already
    assert {path.name for path in (tmp_path / "c").iterdir()} == before
    cache.add((ids(5),), (ids(5),), known((ids(5),), (ids(5),)))
    assert len(open_cache(tmp_path / "c")) == 4


def test_prompt_and_completion_are_not_glued_together(tmp_path):
    """(1 2 | 3) and (1 | 2 3) have the same ids and are two examples."""
    cache = make_cache(tmp_path / "c", origin())
    cache.add((ids(1, 2),), (ids(3),), known((ids(1, 2),), (ids(3),)))
    assert cache.holds(ids(1, 2), ids(3))
    assert not cache.holds(ids(1), ids(2, 3))


def test_a_folder_of_other_things_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="holds no cache"):
        make_cache(tmp_path, origin())
    with pytest.raises(UserError, match="is no cache"):
        open_cache(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_shard_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    """A full disk: one line, the earlier shard stays, nothing half-written is left."""
    cache = make_cache(tmp_path / "c", origin())
    cache.add(PROMPTS[:1], COMPLETIONS[:1], known(PROMPTS[:1], COMPLETIONS[:1]))

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left"):
            cache.add(PROMPTS[1:], COMPLETIONS[1:], known(PROMPTS[1:], COMPLETIONS[1:]))
    names = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert names == ["cache.json", "shard-000000.safetensors"]
    assert len(open_cache(tmp_path / "c")) == 1
    cache.add(PROMPTS[1:], COMPLETIONS[1:], known(PROMPTS[1:], COMPLETIONS[1:]))
    assert len(open_cache(tmp_path / "c")) == 3


@pytest.mark.parametrize("keep", [0, 7, 60, -1])
def test_a_shard_cut_by_hand_is_told_in_one_line(tmp_path, keep):
    filled(tmp_path / "c")
    shard = tmp_path / "c" / "shard-000001.safetensors"
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(UserError, match="shard-000001.safetensors: damaged"):
        open_cache(tmp_path / "c")


def test_a_damaged_record_is_told_in_one_line(tmp_path):
    filled(tmp_path / "c")
    for text in ("{", "[]", '{"format": "distillspec target cache 1"}', '{"format": "other"}'):
        (tmp_path / "c" / "cache.json").write_text(text)
        with pytest.raises(UserError):
            open_cache(tmp_path / "c")


def test_what_a_cache_cannot_serve_is_refused_before_the_first_step(tmp_path):
    cache, draft = filled(tmp_path / "c"), random_table(SIZE, seed=2)
    data = [Example(p, c) for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    recipe = replace(SUPERVISED_KD, batch_size=2)
    check_offline(cache, draft, Batches(data, 2), recipe)

    def told(batches=None, model=draft, **changes):
        with pytest.raises(UserError) as caught:
            check_offline(cache, model, batches or Batches(data, 2), replace(recipe, **changes))
        return str(caught.value)

    assert "1 on-policy" in told(mixture=GKD.mixture)
    assert "0.5 target data" in told(mixture=Mixture(fixed=0.5, target=0.5))
    assert "sft" in told(divergence=Divergence("cross_entropy"))
    assert "needs the target itself" in told(divergence=Divergence.parse("path:3"))
    assert "vocabulary was" in told(model=random_table(SIZE + 1, seed=2))
    other = [*data, Example(ids(5), ids(5)), Example(ids(5), None)]
    assert "2 of 5 examples" in told(batches=Batches(other, 2))
    assert "number 3" in told(batches=Batches(other, 2))
    with pytest.raises(UserError, match="does not hold example 0 of 2 tokens"):
        cache.known(Batch((ids(5),), (ids(5, 5),)))
