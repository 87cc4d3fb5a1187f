"""Sessions on transformers models against the models' own uncached passes, row by row."""

from __future__ import annotations

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, MistralConfig, MistralForCausalLM

from distillspec.errors import UserError
from distillspec.models import wrap
from distillspec.models.cache import RaggedCache
from distillspec.models.protocol import Batch
from support import FAMILIES, SIZE, SPREAD, seeded, tiny, word_tokenizer

PROMPTS = [[7], [8, 9, 10, 11, 12, 13, 14, 15, 16], [30, 31, 32, 33]]
TOLERANCE = 1e-4
"""Largest difference of logits relative to the largest logit: float32 rounding is about 1e-6."""


def windowed():
    """A tiny Mistral whose window is much shorter than the sequences."""
    config = MistralConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        initializer_range=SPREAD,
        eos_token_id=1,
    )
    return wrap(seeded(lambda: MistralForCausalLM(config), 0), word_tokenizer())


MODELS = {family: tiny(family) for family in FAMILIES} | {
    "mistral-window": windowed(),
    "llama-static": tiny("llama").static(lambda forward: forward),
    "gpt2-static": tiny("gpt2").static(lambda forward: forward),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]


@torch.no_grad()
def plain(model, prompt, tokens):
    """Logits after the prompt and after each of `tokens`, by transformers alone, uncached."""
    if model.module.config.is_encoder_decoder:
        decoder = torch.tensor([[0, *tokens]])
        return model.module(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0]
    ids = torch.tensor([[*prompt, *tokens]])
    return model.module(input_ids=ids).logits[0, len(prompt) - 1 :]


def close(ours, theirs):
    return bool((ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max())


def cached(model, prompt):
    """The tokens that a fresh session's cache may still forget."""
    return [] if model.module.config.is_encoder_decoder else prompt[:-1]


class Rows:
    """A session beside the plain lists of what each row should hold."""

    def __init__(self, model, prompts):
        self.model, self.prompts = model, [list(p) for p in prompts]
        self.session = model.open([torch.tensor(p) for p in prompts])
        start = [[p[-1]] if cached(model, p + [0]) else [0] for p in self.prompts]
        assert self.session.pending.tolist() == [row[0] for row in start]
        self.waiting = start
        self.tokens = [[] for _ in prompts]

    def extend(self, lengths, width, generator):
        """Feed `lengths` tokens a row, in a rectangle `width` wide, and compare every state."""
        fed = torch.randint(4, SIZE, (len(self.prompts), width), generator=generator)
        for row, waiting in enumerate(self.waiting):
            if waiting and lengths[row]:
                fed[row, 0] = waiting.pop()
            elif lengths[row]:
                self.tokens[row].append(int(fed[row, 0]))
            self.tokens[row] += fed[row, 1 : lengths[row]].tolist()
        states = self.session.extend(fed, torch.tensor(lengths))
        assert states.shape[:2] == (len(self.prompts), width)
        for row, n in enumerate(lengths):
            if n:
                expected = plain(self.model, self.prompts[row], self.tokens[row])[-n:]
                assert close(self.model.head(states[row, :n]), expected), (row, n)

    def rollback(self, surplus):
        self.session.rollback(torch.tensor(surplus))
        for row, n in enumerate(surplus):
            for _ in range(n):
                if self.tokens[row]:
                    self.tokens[row].pop()
                else:
                    raise AssertionError("the test forgets completion tokens only")

    def check_lengths(self):
        lengths = [
            len(cached(self.model, p)) + (0 if w else 1) + len(t)
            for p, w, t in zip(self.prompts, self.waiting, self.tokens, strict=True)
        ]
        assert self.session.cache.lengths == lengths
        if isinstance(self.session.cache, RaggedCache):
            assert self.session.cache.own.get_seq_length() == max(lengths)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_ragged_rollbacks_equal_fresh_passes(model, seed):
    """transformers#31166: cross-attention was cropped too. candle#899, keras-hub#2932: T5's
    relative bias did not know where the cache ended."""
    generator = torch.Generator().manual_seed(seed)
    rows = Rows(model, PROMPTS)
    rows.extend([1, 3, 2], 3, generator)
    for _ in range(6):
        width = int(torch.randint(1, 6, (), generator=generator))
        rows.extend(
            torch.randint(0, width + 1, (3,), generator=generator).tolist(), width, generator
        )
        rows.check_lengths()
        rows.rollback(
            [
                int(torch.randint(0, min(4, len(t)) + 1, (), generator=generator))
                for t in rows.tokens
            ]
        )
        rows.check_lengths()
    rows.extend([2, 2, 2], 2, generator)
    if rows.session.cache.cross is not None:
        assert rows.session.cache.cross.get_seq_length() == max(len(p) for p in PROMPTS)


def test_without_the_rollback_the_states_would_differ(model):
    """The comparison has teeth: a token that stays in the cache changes what follows."""
    rows = Rows(model, [PROMPTS[2]])
    generator = torch.Generator().manual_seed(0)
    rows.extend([3], 3, generator)
    rows.tokens[0].pop()
    with pytest.raises(AssertionError):
        rows.extend([2], 2, generator)


def test_keep_and_join_carry_rows_unchanged(model):
    generator = torch.Generator().manual_seed(3)
    rows, later = (
        Rows(model, PROMPTS),
        Rows(model, [[20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 5, 6]]),
    )
    rows.extend([4, 2, 3], 4, generator)
    rows.session.keep(torch.tensor([2, 0]))
    for name in ("prompts", "tokens", "waiting"):
        setattr(rows, name, [getattr(rows, name)[i] for i in (2, 0)])
    rows.check_lengths()
    rows.extend([1, 3], 3, generator)
    rows.session.join(later.session)
    for name in ("prompts", "tokens", "waiting"):
        setattr(rows, name, getattr(rows, name) + getattr(later, name))
    rows.extend([2, 0, 2], 3, generator)
    rows.rollback([1, 2, 1])
    rows.check_lengths()
    rows.extend([1, 2, 3], 3, generator)


def test_an_empty_session_takes_in_a_long_one(model):
    """One-token prompts have nothing cached yet, which join must not mistake for zero rows."""
    generator = torch.Generator().manual_seed(4)
    rows, later = Rows(model, [[7], [8]]), Rows(model, [[9, 10, 11]])
    rows.session.join(later.session)
    for name in ("prompts", "tokens", "waiting"):
        setattr(rows, name, getattr(rows, name) + getattr(later, name))
    rows.extend([1, 2, 2], 2, generator)
    rows.session.join(Rows(model, [[12]]).session)
    assert len(rows.session.pending) == 4


def test_teacher_forcing_equals_step_by_step_with_padding(model):
    completions = [[40, 41, 42, 1], [43], [44, 45, 46, 47, 40, 41, 1]]
    batch = Batch(
        tuple(torch.tensor(p) for p in PROMPTS), tuple(torch.tensor(c) for c in completions)
    )
    forced = model.hidden(batch)
    assert forced.shape[0] == sum(batch.lengths)
    assert forced.requires_grad
    expected = [plain(model, p, c[:-1]) for p, c in zip(PROMPTS, completions, strict=True)]
    assert close(model.head(forced), torch.cat(expected))
    session = model.open(batch.prompts)
    steps = []
    for t in range(7):
        fed = torch.tensor(
            [
                [([int(session.pending[r])] + c)[min(t, len(c) - 1)]]
                for r, c in enumerate(completions)
            ]
        )
        lengths = torch.tensor([int(t < len(c)) for c in completions])
        steps.append(model.head(session.extend(fed, lengths))[:, 0])
    stacked = torch.stack(steps, dim=1)
    flat = torch.cat([stacked[r, : len(c)] for r, c in enumerate(completions)])
    assert close(flat, model.head(forced))


def test_a_row_is_the_same_alone_and_in_company(model):
    """Left padding moves a row's columns, not its positions. trl#3722, #469, unsloth#4078: padding
    at the wrong side, or positions that rows shared."""
    for extra in range(1, 6):
        long = PROMPTS[2] * 3
        company = model.open([torch.tensor(PROMPTS[2]), torch.tensor(long[: 4 + extra])])
        alone = model.open([torch.tensor(PROMPTS[2])])
        both = company.extend(company.pending[:, None], torch.tensor([1, 1]))[:1]
        one = alone.extend(alone.pending[:, None], torch.tensor([1]))
        assert close(model.head(both), model.head(one))


def test_the_decoder_input_is_start_then_the_completion_but_its_last():
    """No token lost, no start token twice (transformers#5987, #7077)."""
    model = tiny("t5")
    seen = []
    hook = model.module.decoder.register_forward_pre_hook(
        lambda _, __, arguments: seen.append(arguments["input_ids"]), with_kwargs=True
    )
    model.hidden(Batch((torch.tensor([7, 1]),), (torch.tensor([20, 21, 1]),)))
    hook.remove()
    assert [ids.tolist() for ids in seen] == [[[0, 20, 21]]]


def test_the_encoder_runs_once_a_request_and_never_sees_padding():
    model = tiny("t5")
    calls = []
    hook = model.module.encoder.register_forward_pre_hook(
        lambda _, __, arguments: calls.append(arguments), with_kwargs=True
    )
    session = model.open([torch.tensor([7, 8, 1]), torch.tensor([9, 1])])
    for _ in range(3):
        session.extend(session.pending[:, None], torch.tensor([1, 1]))
    hook.remove()
    assert len(calls) == 1
    assert calls[0]["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_the_room_is_exact_and_the_context_is_a_wall():
    model = tiny("gpt2", context=8)
    session = model.open([torch.tensor([5, 6, 7]), torch.tensor([5])])
    assert session.room.tolist() == [6, 8]
    session.extend(torch.full((2, 6), 9), torch.tensor([6, 1]))
    assert session.room.tolist() == [0, 7]
    session.rollback(torch.tensor([1, 0]))
    states = session.extend(torch.full((2, 4), 9), torch.tensor([1, 4]))
    expected = plain(model, [9], [9, 9, 9, 9])
    assert close(model.head(states[1]), expected[-4:])
    with pytest.raises(ValueError, match="cannot take"):
        session.extend(torch.full((2, 1), 9), torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="cannot forget"):
        session.rollback(torch.tensor([0, 9]))
    with pytest.raises(ValueError, match="lengths must lie"):
        session.extend(torch.full((2, 1), 9), torch.tensor([2, 0]))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_what_is_longer_than_the_context_is_not_scored(family):
    """Absolute positions would raise from deep inside, rotary ones would go on in silence."""
    model = tiny(family, context=8)
    prompt, completion = torch.tensor([5, 6, 7]), torch.arange(10, 16)
    assert model.hidden(Batch((prompt,), (completion,))).shape == (6, 32)  # the last is not fed
    longer = Batch((prompt, prompt), (completion, torch.arange(10, 17)))
    with pytest.raises(UserError, match=r"row of 9 tokens.*context of 8 of \w+"):
        model.hidden(longer)


def test_a_decoder_that_numbers_rows_alike_takes_one_prompt_at_a_time():
    config = BartConfig(
        vocab_size=SIZE,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        init_std=SPREAD,
        decoder_start_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=3,
    )
    made = seeded(lambda: BartForConditionalGeneration(config), 0)
    generator = torch.Generator().manual_seed(0)
    made.final_logits_bias.copy_(torch.randn(1, SIZE, generator=generator))
    model = wrap(made, word_tokenizer())
    rows = Rows(model, [[7, 8, 1]])
    rows.extend([4], 4, generator)
    rows.rollback([2])
    rows.extend([3], 3, generator)
    with pytest.raises(UserError, match="BartForConditionalGeneration"):
        model.open([torch.tensor([7]), torch.tensor([8])])
    with pytest.raises(UserError, match="one prompt at a time"):
        rows.session.join(model.open([torch.tensor([7])]))


def test_feeding_nothing_changes_nothing(model):
    session = model.open([torch.tensor(p) for p in PROMPTS[:2]])
    before = list(session.cache.lengths)
    states = session.extend(torch.full((2, 3), 9), torch.tensor([0, 0]))
    assert states.shape == (2, 3, 32)
    assert session.cache.lengths == before
    session.keep(torch.tensor([], dtype=torch.int64))
    assert session.room.tolist() == []


def test_an_empty_prompt_and_a_foreign_session_are_errors():
    model, other = tiny("llama"), tiny("llama", seed=1)
    with pytest.raises(ValueError, match="at least one token"):
        model.open([torch.tensor([7]), torch.tensor([], dtype=torch.int64)])
    with pytest.raises(ValueError, match="same model"):
        model.open([torch.tensor([7])]).join(other.open([torch.tensor([7])]))
    with pytest.raises(ValueError, match="expected 1 rows"):
        model.open([torch.tensor([7])]).extend(torch.zeros(2, 1).long(), torch.tensor([1, 1]))


def test_sessions_leave_the_global_random_state_alone(model):
    before = torch.random.get_rng_state()
    session = model.open([torch.tensor([7, 8])])
    session.extend(session.pending[:, None], torch.tensor([1]))
    assert torch.equal(before, torch.random.get_rng_state())
