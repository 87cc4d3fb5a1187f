"""A batch that is refilled: every row what it is alone, never too many rows, places not left idle.

The public complaints: batch 1 only (transformers#29769, hemingkx/Spec-Bench#17), rows of a ragged
batch that spoil each other (mlx-vlm#1962, #2113, #1155), generation that goes on for a client that
left (vllm#32439).
"""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BartConfig, BartForConditionalGeneration

import decoding_checks as checks
from distillspec.decoding import complete, queue, speculate
from distillspec.decoding.state import open_state
from distillspec.errors import UserError
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models import wrap
from distillspec.models.toy import TableModel
from support import FAMILIES, perturbed, random_table, seeded, tiny, word_tokenizer

PROMPTS = [
    torch.tensor(ids)
    for ids in ([7, 9], [5], [8, 8, 3, 20, 41, 6], list(range(20, 37)), [11], [30, 31, 32], [9, 9])
]


@pytest.mark.parametrize(
    ("family", "sampling"),
    [*((family, Sampling(0.8, top_p=0.95)) for family in FAMILIES), ("llama", GREEDY)],
    ids=[*FAMILIES, "llama, greedy"],
)
def test_rows_admitted_late_are_what_they_are_alone(family, sampling):
    target = checks.lively(family)
    draft = perturbed(target, 0.02)
    settings = {"gamma": 3, "max_new_tokens": 9, "sampling": sampling, "stop": tuple(range(8))}
    count = len(PROMPTS)
    alone = [
        complete(target, draft, [prompt], generators=[generator], **settings)[0]
        for prompt, generator in zip(PROMPTS, checks.seeded(count), strict=True)
    ]
    assert len({len(output.ids) for output in alone}) > 1
    for size in (2, 4):
        refilled = complete(
            target, draft, PROMPTS, generators=checks.seeded(count), batch_size=size, **settings
        )
        assert refilled == alone


def test_tables_in_a_queue():
    checks.check_queue()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    size=st.integers(1, 7),
    gamma=st.integers(0, 3),
    context=st.sampled_from([None, 6, 8]),
    short=st.sampled_from([None, 4, 7]),
)
def test_any_queue_gives_what_its_rows_give_alone(lengths, size, gamma, context, short):
    """Contexts that end rows and drafting included: some rows have no use for the draft at all."""
    target = random_table(seed=31, order=2, context=context)
    draft = random_table(seed=32, order=2, context=short)
    prompts = [torch.arange(length) % 5 for length in lengths]
    options = {"gamma": gamma, "max_new_tokens": 6, "sampling": Sampling(), "stop": (2,)}
    alone = [
        complete(target, draft, [prompt], generators=[generator], **options)[0]
        for prompt, generator in zip(prompts, checks.seeded(len(prompts)), strict=True)
    ]
    refilled = complete(
        target,
        draft,
        prompts,
        generators=checks.seeded(len(prompts)),
        batch_size=size,
        **options,
    )
    assert refilled == alone


def test_the_batch_stays_full_and_never_overflows():
    """Of 40 rows of 1…12 tokens in 8 places: idle places only while fewer than a quarter wait."""
    target = random_table(seed=33, order=2)
    prompts = [torch.tensor([i % 5, i % 3]) for i in range(40)]
    options = {"gamma": 2, "max_new_tokens": 12, "sampling": Sampling(), "stop": (1,)}
    started: set[int] = set()
    for block in speculate(
        target, target, prompts, generators=checks.seeded(40), batch_size=8, **options
    ):
        started |= set(block.rows)
        assert len(block.rows) <= 8
        assert len(block.rows) > 6 or len(started) == 40
    assert started == set(range(40))


def test_the_last_prompts_wait_for_no_more_places_than_they_need():
    """A quarter of the batch need not be free for one prompt."""
    logits = torch.eye(3, dtype=torch.float64) * 9  # an id writes itself
    logits[1] = torch.tensor([9.0, 0.0, 0.0])
    target = TableModel(logits)
    prompts = [torch.tensor([1]), *[torch.tensor([2])] * 8]  # the first ends at once
    options = {"gamma": 0, "max_new_tokens": 4, "sampling": GREEDY, "stop": (0,)}
    first, second, *_ = speculate(target, None, prompts, batch_size=8, **options)
    assert first.rows == tuple(range(8))
    assert second.rows == tuple(range(1, 9))


def test_prompts_are_admitted_in_their_order_and_only_when_needed():
    target = checks.Watched(random_table(seed=34))
    prompts = [torch.tensor([i]) for i in range(5)]
    options = {"gamma": 0, "max_new_tokens": 3, "sampling": GREEDY, "stop": ()}
    blocks = speculate(target, None, prompts, batch_size=1, **options)
    assert [next(blocks).rows for _ in range(4)] == [(0,), (0,), (0,), (1,)]
    blocks.close()
    assert len(target.sessions) == 2


def test_a_batch_size_that_is_none_is_refused():
    for size in (0, 2.5):
        with pytest.raises(UserError, match=f"batch_size is {size}; expected a whole number"):
            speculate(
                random_table(),
                None,
                [torch.tensor([1])],
                gamma=0,
                max_new_tokens=1,
                sampling=GREEDY,
                batch_size=size,
            )


def test_a_session_that_was_joined_to_an_empty_one_stays_as_it_was():
    """The empty one has no layers of its own yet: it must not take the other's."""
    model = tiny("llama")
    empty, other = model.open([torch.tensor([7])]), model.open([torch.tensor([8, 9, 10])])
    before = [layer.keys.clone() for layer in other.cache.own.layers]
    empty.join(other)
    one = torch.ones(2, dtype=torch.int64)
    empty.extend(empty.pending[:, None], one)
    for layer, keys in zip(other.cache.own.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)
    alone = other.extend(other.pending[:, None], one[:1])
    again = model.open([torch.tensor([8, 9, 10])])
    assert torch.equal(alone, again.extend(again.pending[:, None], one[:1]))


def test_bart_queues_one_by_one():
    """It numbers the decoder's positions for the whole batch: two rows at once are refused."""
    config = BartConfig(
        vocab_size=48,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=64,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=3,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    model = wrap(seeded(lambda: BartForConditionalGeneration(config), 0), word_tokenizer())
    options = {"gamma": 2, "max_new_tokens": 5, "sampling": GREEDY, "stop": ()}
    outputs = complete(model, model, PROMPTS[:3], batch_size=1, **options)
    for prompt, output in zip(PROMPTS, outputs, strict=False):
        assert output.ids == checks.plain_greedy(model, prompt, 5)
    with pytest.raises(UserError, match="decode one prompt at a time"):
        speculate(model, model, PROMPTS[:3], batch_size=2, **options)


def test_a_finished_batch_has_let_its_caches_go_before_the_next_prompts_are_read(monkeypatch):
    """The bug: at batch size 1 every prompt but the first was read beside the one before."""
    table = random_table(seed=0)
    prompts = [torch.tensor([i]) for i in range(4)]
    opened: list[weakref.ref] = []
    alive: list[int] = []

    def watched(*args, **named):
        alive.append(sum(ref() is not None for ref in opened))
        state = open_state(*args, **named)
        opened.extend(weakref.ref(session) for session in (state.target, state.draft))
        return state

    monkeypatch.setattr(queue, "open_state", watched)
    complete(
        table,
        random_table(seed=1),
        prompts,
        gamma=2,
        max_new_tokens=3,
        sampling=Sampling(),
        batch_size=1,
    )
    assert alive == [0] * len(prompts)
