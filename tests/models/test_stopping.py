"""Stop strings: where they end a row, through the engine and against transformers' own."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rules
from tokenizers import decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.generation.stopping_criteria import StopStringCriteria

import decoding_checks as checks
from distillspec.decoding import collect, complete, speculate
from distillspec.errors import UserError
from distillspec.math.sampling import GREEDY
from distillspec.models import wrap
from distillspec.models.stopping import StopStrings
from distillspec.models.text import Tokenizer
from support import SPREAD, perturbed, seeded, word_tokenizer


def letters() -> PreTrainedTokenizerFast:
    """Make a byte-level tokenizer of some letters, the two bytes of é, and three longer pieces."""
    merges = [("a", "b"), ("ab", "c"), ("c", "d")]
    pieces = [*"abcdefghijklmnopqrstuvwxyzÃ©<|>", "ab", "abc", "cd", "<|endoftext|>"]
    rules = Rules(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges=merges))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=rules, eos_token="<|endoftext|>")


HF = letters()
BYTES = Tokenizer(HF)
PIECES = ["a", "b", "c", "d", "ab", "abc", "cd", "é", "<|endoftext|>"]
IDS = [i for piece in PIECES for i in HF(piece)["input_ids"]]
SEED = 3
"""Of a model whose greedy text wanders."""
PROMPT = torch.tensor(HF("xaby")["input_ids"])


def plainly(strings, ids, new):
    """Where a string first ends behind the text before, whole texts compared."""
    before = len(HF.decode(ids).rstrip("\ufffd"))
    for n in range(1, len(new) + 1):
        text = HF.decode([*ids, *new[:n]])
        for s in strings:
            if any(text.startswith(s, i) and i + len(s) > before for i in range(len(text))):
                return n
    return None


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    st.lists(st.sampled_from(IDS), max_size=40),
    st.lists(st.sampled_from(IDS), min_size=1, max_size=7),
    st.lists(st.sampled_from(["ab", "bc", "é", "dé", "abcd", "text|>a", "ca"]), min_size=1),
)
def test_a_row_ends_at_the_first_token_that_completes_a_string(ids, new, strings):
    found = StopStrings(BYTES, tuple(strings)).end(ids, new)
    assert found == plainly(strings, ids, new)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.sampled_from(IDS), min_size=2, max_size=12))
def test_it_is_the_token_at_which_transformers_stops(ids):
    strings = ["bc", "abcd", "é"]
    criterion = StopStringCriteria(HF, strings)
    theirs = next(
        (n for n in range(1, len(ids)) if bool(criterion(torch.tensor([ids[: n + 1]]), None))), None
    )
    assert StopStrings(BYTES, tuple(strings)).end(ids[:1], ids[1:]) == theirs


@pytest.fixture(scope="module")
def pair():
    config = GPT2Config(
        vocab_size=len(HF),
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=96,
        initializer_range=SPREAD,
        eos_token_id=HF.eos_token_id,
        bos_token_id=HF.eos_token_id,
    )
    target = wrap(seeded(lambda: GPT2LMHeadModel(config), SEED), HF)
    return target, perturbed(target, 0.04)


def test_vllm_47616_ids_text_and_origin_end_at_one_boundary_wherever_a_string_ends(pair):
    """vllm#47616: the text was cut and the ids were not. sglang#23802: a string early in a long
    block was missed. Every pair and every single character of the greedy text in turn."""
    target, draft = pair
    path = checks.plain_greedy(target, PROMPT, 24)
    text = [BYTES.whole_text([i]) for i in path]
    assert len(set(path)) > 8
    offsets, spans = set(), set()
    for (i, one), (_, two) in pairwise(enumerate(text)):
        for string in (two, one + two):
            if "\ufffd" in string:
                continue
            stop = StopStrings(target.tokenizer, (string, "never said"))
            end = plainly(stop.strings, PROMPT.tolist(), list(path))
            for gamma in (5,) if i % 3 else (0, 5):
                blocks = list(
                    speculate(
                        target,
                        draft if gamma else None,
                        [PROMPT],
                        gamma=gamma,
                        max_new_tokens=24,
                        sampling=GREEDY,
                        stop=(),
                        stop_when=stop,
                    )
                )
                (output,) = collect(blocks, 1)
                assert output.ids == path[:end]
                assert len(output.roles) == len(output.ids) == len(output.states)
                assert output.counts.tokens == len(output.ids)
                assert output.finish_reason == "stop"
                assert string in target.tokenizer.whole_text([*PROMPT.tolist(), *output.ids])
            last = len(blocks[-1].ids[0])
            offsets.add(last - 1)
            spans.add(last == 1 and len(string) == 2)
        if i > 8:
            break
    assert {0, 1, 2} <= offsets
    assert spans == {False, True}  # a string may span two blocks


def test_a_stop_string_is_transformers_own(pair):
    target, draft = pair
    path = checks.plain_greedy(target, PROMPT, 16)
    string = BYTES.whole_text(path[5:8])
    assert string.isalpha()
    expected = target.module.generate(
        PROMPT[None],
        attention_mask=torch.ones_like(PROMPT)[None],
        max_new_tokens=16,
        do_sample=False,
        eos_token_id=10_000,
        stop_strings=[string],
        tokenizer=HF,
        pad_token_id=0,
    )[0, len(PROMPT) :]
    for gamma in (0, 1, 3):
        (output,) = complete(
            target,
            draft,
            [PROMPT],
            gamma=gamma,
            max_new_tokens=16,
            sampling=GREEDY,
            stop=(),
            stop_when=StopStrings(target.tokenizer, (string,)),
        )
        assert list(output.ids) == expected.tolist()
        assert 6 < len(output.ids) < 16


def test_a_stop_id_before_the_string_comes_first(pair):
    target, draft = pair
    path = checks.plain_greedy(target, PROMPT, 16)
    place = next(i for i in range(3, 12) if path[i] not in path[:i])
    string = BYTES.whole_text(path[place + 1 : place + 3])
    settings = {"gamma": 5, "max_new_tokens": 16, "sampling": GREEDY}
    stop_when = StopStrings(target.tokenizer, (string,))
    (output,) = complete(
        target, draft, [PROMPT], stop=(path[place],), stop_when=stop_when, **settings
    )
    assert output.ids == path[: place + 1]


def test_a_string_that_begins_in_the_prompt_counts():
    stop = StopStrings(Tokenizer(word_tokenizer()), ("w7 w8",))
    assert stop.end([7], [8, 9]) == 1
    assert stop.end([7, 8], [9, 10]) is None
    assert stop.end([3], [7, 8, 9]) == 2


@pytest.mark.parametrize("strings", [(), ("",), ("a", "")])
def test_an_empty_stop_string_is_refused(strings):
    with pytest.raises(UserError, match="stop strings"):
        StopStrings(BYTES, strings)
