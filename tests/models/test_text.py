"""Prompts, completions and text streams."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rules
from tokenizers import decoders, models
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from distillspec.errors import UserError
from distillspec.models.text import Raw, TextStream, Tokenizer
from support import byte_tokenizer, word_tokenizer

PLAIN = Tokenizer(word_tokenizer(), name="plain")
CHAT = Tokenizer(word_tokenizer(chat=True), name="chat")
BYTES = Tokenizer(byte_tokenizer())


def with_special_tokens(template: str) -> Tokenizer:
    hf = word_tokenizer()
    hf.backend_tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=[("<s>", 3), ("</s>", 1)]
    )
    return Tokenizer(hf)


def test_a_string_is_plain_text_or_a_users_message():
    assert PLAIN.prompt("w7 w8").tolist() == [7, 8]
    expected = [3, 4, 7, 8, 1, 5]
    assert CHAT.prompt("w7 w8").tolist() == expected
    assert CHAT.prompt([{"role": "user", "content": "w7 w8"}]).tolist() == expected
    assert CHAT.prompt(Raw("w7 w8")).tolist() == [7, 8]
    assert CHAT.prompt("w7").dtype == torch.int64


def test_the_beginning_token_comes_exactly_once():
    """A rendered template that already has one must not get a second (alignment-handbook#127)."""
    adding = with_special_tokens("<s> $A")
    assert adding.prompt("w7").tolist() == [3, 7]
    assert adding.prompt("<s> w7").tolist() == [3, 7]
    chat = with_special_tokens("<s> $A")
    chat.hf.chat_template = CHAT.hf.chat_template
    assert chat.prompt("w7").tolist().count(3) == 1


def test_a_source_ends_once_and_other_prompts_never_end():
    """trlx#422: a T5 source without its end token."""
    for template in ("$A", "$A </s>"):
        hf = with_special_tokens(template).hf
        assert Tokenizer(hf, encoder_decoder=True).prompt("w7 w8").tolist() == [7, 8, 1]
        assert Tokenizer(hf, encoder_decoder=True).prompt("w7 </s>").tolist() == [7, 1]
        assert Tokenizer(hf).prompt("w7 w8").tolist() == [7, 8]


def test_a_completion_ends_with_one_end_token():
    for tokenizer in (PLAIN, CHAT, with_special_tokens("<s> $A </s>")):
        assert tokenizer.completion("w9 w10").tolist() == [9, 10, 1]
        assert tokenizer.completion("w9 </s>").tolist() == [9, 1]
        assert tokenizer.completion("").tolist() == [1]


def test_what_cannot_be_tokenized_is_refused_by_name():
    with pytest.raises(UserError, match="plain has no chat template"):
        PLAIN.prompt([{"role": "user", "content": "w7"}])
    with pytest.raises(UserError, match="came out empty for plain"):
        PLAIN.prompt("")
    endless = word_tokenizer()
    endless.eos_token = None
    with pytest.raises(UserError, match="no end-of-sequence token"):
        Tokenizer(endless, name="endless").completion("w7")


def test_decoding_leaves_special_tokens_out_and_pieces_show_them():
    assert PLAIN.decode(torch.tensor([7, 8, 1])) == "w7 w8"
    assert PLAIN.piece(1) == "</s>"
    assert PLAIN.special_ids == (0, 1, 2, 3)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    text=st.text(st.sampled_from("aé漢🙂👩‍👩‍👧̈ \n\ufffd"), max_size=12),
    cuts=st.lists(st.integers(1, 5), max_size=60),
)
def test_a_stream_gives_the_same_text_as_decoding_at_once(text, cuts):
    """Characters split over tokens wait; a true U+FFFD, at the end too, survives."""
    ids = BYTES.hf(text, add_special_tokens=False)["input_ids"]
    stream, given, start = TextStream(BYTES), "", 0
    for cut in [*cuts, len(ids)]:
        given += stream.push(ids[start : start + cut])
        assert text.startswith(given)
        start += cut
    assert given + stream.finish() == text == BYTES.decode(ids)


def test_a_stream_gives_out_what_is_certain():
    ids = BYTES.hf("aé", add_special_tokens=False)["input_ids"]
    stream = TextStream(BYTES)
    assert [stream.push([i]) for i in ids] == ["a", "", "é"]
    broken = TextStream(BYTES)
    assert broken.push(ids[:2]) == "a"
    assert broken.finish() == "\ufffd"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    ids=st.lists(st.integers(0, 9), max_size=12),
    cuts=st.lists(st.integers(1, 4), max_size=6),
)
def test_bytes_of_sentencepiece_stream_as_they_decode_at_once(ids, cuts):
    """A broken byte turns its whole run of bytes into U+FFFD: none may have been given out.

    dynamo#12630, sglang#31598: a character split over tokens was sent broken, or twice.
    """
    pieces = ["<0xE2>", "<0x82>", "<0xAC>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "a", "▁b", "é"]
    rules = Rules(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    rules.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rules))
    stream, given, start = TextStream(tokenizer), "", 0
    for cut in [*cuts, len(ids)]:
        given += stream.push(ids[start : start + cut])
        start += cut
    assert given + stream.finish() == tokenizer.decode(ids)


def test_what_a_chat_template_refuses_is_told_in_one_line():
    """The template's own exception left as a traceback."""
    hf = word_tokenizer(chat=True)
    hf.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(UserError, match="System role not supported"):
        Tokenizer(hf, name="m").prompt([{"role": "system", "content": "w6"}])
