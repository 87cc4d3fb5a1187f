"""Vocabularies: agreement of a pair, padded heads, holes."""

from __future__ import annotations

import json

import pytest
import torch

from distillspec.errors import UserError
from distillspec.models import load_pair, wrap
from distillspec.models.protocol import Batch
from distillspec.models.vocabulary import Vocabulary, check_same
from support import module, tiny, word_tokenizer

BATCH = Batch((torch.tensor([7, 8, 9]),), (torch.tensor([20, 21, 1]),))


def test_equal_maps_pass_and_share_a_digest():
    one, other = (Vocabulary.of({"a": 0, "b": 2}) for _ in range(2))
    check_same(one, other, names=("T", "D"))
    assert one.digest == other.digest
    assert one.pieces == ("a", None, "b")
    assert (one.size, one.holes) == (3, (1,))


@pytest.mark.parametrize(
    ("target", "draft", "said"),
    [
        ({"a": 0, "b": 1}, {"a": 0, "c": 1}, r"id 1 is 'b' in the target and 'c' in the draft"),
        ({"a": 0, "b": 1}, {"a": 0}, r"id 1 is 'b' in the target and absent in the draft"),
        ({"a": 0, "b": 2}, {"a": 0, "x": 1, "b": 2}, r"id 1 is absent in the target and 'x'"),
    ],
)
def test_different_maps_are_refused_with_an_example(target, draft, said):
    """transformers#46936: different tokenizers were sent down a path for equal ones."""
    with pytest.raises(UserError, match=said) as caught:
        check_same(Vocabulary.of(target), Vocabulary.of(draft), names=("big", "small"))
    assert "big" in str(caught.value)
    assert "small" in str(caught.value)
    assert Vocabulary.of(target).digest != Vocabulary.of(draft).digest


def test_padded_heads_on_both_sides_give_one_distribution_over_real_ids():
    """Tokenizer 60, draft head 64, target head 72: the rows past the tokenizer mean nothing.

    vllm#7252, #5203, #10913, trl#2215: such shapes clashed. transformers#25729, #20043: ids beyond
    the tokenizer were emitted.
    """
    tokenizer = word_tokenizer(60)
    for family in ("llama", "gpt2", "t5"):
        for rows in (64, 72):
            made = module(family, rows=rows)
            with torch.no_grad():
                made.get_output_embeddings().weight[60:] += 100.0
            model = wrap(made, tokenizer)
            logits = model.head(model.hidden(BATCH))
            assert logits.shape == (3, 60)
            assert torch.isfinite(logits).all()
            probabilities = logits.softmax(-1)
            assert torch.allclose(probabilities.sum(-1), torch.ones(3))


def test_a_head_smaller_than_the_tokenizer_never_emits_what_it_lacks():
    model = wrap(module("llama", rows=48), word_tokenizer(50))
    logits = model.head(model.hidden(BATCH))
    assert logits.shape == (3, 50)
    assert torch.equal(logits[0].isinf(), torch.arange(50) >= 48)


def test_holes_of_the_tokenizer_are_never_emitted():
    tokenizer = word_tokenizer(40)
    tokenizer.add_tokens(["extra"])
    pieces = dict(tokenizer.get_vocab())
    assert pieces["extra"] == 40
    vocabulary = Vocabulary.of({piece: i for piece, i in pieces.items() if i != 17})
    made = tiny("llama")
    head = type(made._head)(made.module.lm_head, vocabulary)
    logits = head.whole(made.hidden(BATCH))
    assert torch.equal(logits[0].isinf(), torch.arange(41) == 17)


def test_a_mismatched_pair_is_refused_before_any_weight_is_read(tmp_path):
    for name, size in (("target", 60), ("draft", 61)):
        wrap(module("llama", rows=64), word_tokenizer(size)).save(tmp_path / name)
        (tmp_path / name / "model.safetensors").write_bytes(b"no weights here")
    with pytest.raises(UserError, match="id 60 is absent in the target and 'w60' in the draft"):
        load_pair(tmp_path / "target", tmp_path / "draft")


def test_a_pair_of_different_kinds_is_refused_before_any_weight_is_read(tmp_path):
    for family in ("llama", "t5"):
        tiny(family).save(tmp_path / family)
        (tmp_path / family / "model.safetensors").unlink()
    with pytest.raises(UserError, match="encoder-decoder and draft .* is decoder-only"):
        load_pair(tmp_path / "t5", tmp_path / "llama")


def test_a_pair_with_padded_heads_loads(tmp_path):
    wrap(module("llama", rows=72), word_tokenizer(60)).save(tmp_path / "target")
    wrap(module("llama", rows=64), word_tokenizer(60)).save(tmp_path / "draft")
    target, draft = load_pair(tmp_path / "target", tmp_path / "draft")
    assert target.vocabulary.size == draft.vocabulary.size == 60
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    assert config["vocab_size"] == 72
