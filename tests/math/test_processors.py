"""Processors one by one, against their definitions and against transformers' own."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from distillspec.errors import UserError
from distillspec.math.processors import (
    BadWords,
    CountPenalty,
    MinNewTokens,
    NoRepeatNGram,
    RepetitionPenalty,
    SequenceBias,
    check_processors,
    process,
    processors_of,
)
from distillspec.math.sampling import Sampling

V = 6
IDS = st.lists(st.integers(0, V - 1), min_size=1, max_size=12)
WORDS = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=3), min_size=1, max_size=4)
LONGER = st.lists(st.integers(0, V - 1), min_size=3, max_size=12)  # no shorter than a word
LOGITS = torch.tensor([1.5, -0.5, 0.0, -math.inf, 2.0, -3.0])


def same(ours, theirs):
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(LONGER, st.sampled_from([0.5, 1.2, 3.0]), st.integers(1, 4), WORDS)
def test_each_is_transformers_own(ids, penalty, size, words):
    prefix = torch.tensor(ids)
    before = LOGITS.clone(), prefix.clone()
    biases = {tuple(word): float(len(word)) - 2.5 for word in words}
    forbidden = [list(word) for word in biases]
    for ours, theirs in (
        (RepetitionPenalty(penalty), RepetitionPenaltyLogitsProcessor(penalty)),
        (NoRepeatNGram(size), NoRepeatNGramLogitsProcessor(size)),
        (SequenceBias(tuple(biases.items())), SequenceBiasLogitsProcessor(biases)),
        (BadWords(tuple(biases)), NoBadWordsLogitsProcessor(forbidden)),
    ):
        same(ours(LOGITS, prefix, 1), theirs(prefix[None], LOGITS.clone()[None])[0])
    assert torch.equal(LOGITS, before[0])
    assert torch.equal(prefix, before[1])


@pytest.mark.parametrize("processor", [SequenceBias((((4, 2, 0), -1.0),)), BadWords(((4, 2, 0),))])
def test_the_whole_text_so_far_can_begin_a_sequence(processor):
    """transformers 5.0 wants one id more before it adds a bias; 5.24 does not."""
    found = processor(LOGITS, torch.tensor([4, 2]), 2)
    assert found[0] == (-math.inf if isinstance(processor, BadWords) else LOGITS[0] - 1)
    assert torch.equal(found[1:], LOGITS[1:])
    assert torch.equal(processor(LOGITS, torch.tensor([2]), 1), LOGITS)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(IDS, st.integers(0, 12))
def test_count_penalties_count_the_completion_alone(ids, prompt_length):
    """The formula of the OpenAI API: logit − count · frequency − [count > 0] · presence."""
    emitted = ids[prompt_length:]
    found = CountPenalty(presence=0.7, frequency=0.2)(LOGITS, torch.tensor(ids), prompt_length)
    for i, logit in enumerate(LOGITS.tolist()):
        n = emitted.count(i)
        assert found[i].item() == pytest.approx(logit - 0.2 * n - (0.7 if n else 0))


def test_min_new_tokens_forbids_every_stop_id_until_they_are_out():
    """transformers#40976: the first stop id may come as token count + 1."""
    processor = MinNewTokens(2, (0, 4))
    for emitted in range(4):
        found = processor(LOGITS, torch.zeros(3 + emitted, dtype=torch.int64), 3)
        assert (found[[0, 4]] == -math.inf).all() == (emitted < 2)
        assert torch.equal(found[[1, 2, 5]], LOGITS[[1, 2, 5]])


def test_each_position_has_its_own_prefix():
    logits = torch.stack([LOGITS, LOGITS, LOGITS])
    ids = torch.tensor([5, 4, 0, 4])
    chain = (RepetitionPenalty(2.0), CountPenalty(presence=1.0))
    found = process(chain, logits, ids, 1)
    for i in range(3):
        expected = LOGITS
        for processor in chain:
            expected = processor(expected, ids[: 2 + i], 1)
        assert torch.equal(found[i], expected)
    assert not torch.equal(found[0], found[1])
    assert process((), logits.bfloat16(), ids, 1).dtype == torch.float32


def test_the_chain_is_in_the_stated_order_and_empty_by_default():
    assert processors_of() == ()
    made = processors_of(
        min_new_tokens=3,
        bad_words_ids=[[1], [2, 3], [4]],
        no_repeat_ngram_size=2,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.1,
        sequence_bias={(1,): -2.0},
        stop=(4,),
    )
    assert made == (
        SequenceBias((((1,), -2.0),)),
        RepetitionPenalty(1.1),
        CountPenalty(presence=0.5, frequency=0.25),
        NoRepeatNGram(2),
        BadWords(((1,), (2, 3))),  # a stop id alone is no bad word
        MinNewTokens(3, (4,)),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RepetitionPenalty(0.0), "repetition_penalty is 0.0"),
        (lambda: RepetitionPenalty(math.nan), "repetition_penalty is nan"),
        (lambda: CountPenalty(presence=math.inf), "presence_penalty is inf"),
        (lambda: NoRepeatNGram(-1), "no_repeat_ngram_size is -1"),
        (lambda: MinNewTokens(-1, ()), "min_new_tokens is -1"),
        (lambda: BadWords(((1,), ())), "a bad word is empty"),
        (lambda: SequenceBias((((), 1.0),)), "a sequence to bias is empty"),
        (lambda: SequenceBias((((3,), math.inf),)), r"bias of \[3\] is inf"),
        (lambda: check_processors((BadWords(((1, 6),)),), 6), r"BadWords: id 6 in \[1, 6\]"),
        (lambda: check_processors((MinNewTokens(1, (-1,)),), 6), "id -1"),
        (lambda: Sampling(min_p=1.1), "min_p is 1.1"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_min_p_keeps_what_is_near_the_most_likely():
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    found = Sampling(min_p=0.5).probabilities(logits)
    assert torch.allclose(found, torch.tensor([2 / 3, 1 / 3, 0.0, 0.0]))
    assert torch.equal(Sampling(min_p=0.0).probabilities(logits), Sampling().probabilities(logits))
    one = Sampling(min_p=1.0).probabilities(torch.tensor([1.0, 3.0, 3.0]))
    assert one.tolist() == [0.0, 0.5, 0.5]
    # after temperature: what a high temperature brings near is kept
    assert (Sampling(4.0, min_p=0.5).probabilities(logits) > 0).all()
