"""The settings of sampling on the command line: `decode` and `generate`."""

from __future__ import annotations

import json

import pytest

from distillspec.commands.settings import Decode
from distillspec.commands.shaping import shape_of
from distillspec.commands.shaping_settings import Shaping, changed
from distillspec.errors import UserError
from distillspec.math.processors import BadWords, MinNewTokens, RepetitionPenalty, SequenceBias
from distillspec.models.text import Tokenizer
from scripted import save_scripted
from support import word_tokenizer
from verbs import refused, run, write_rows

WORDS = [f"w{i}" for i in range(10)]
SCRIPT = {f"w{i}": f"w{i + 1}" for i in range(9)}
TOKENIZER = Tokenizer(word_tokenizer(), name="plain")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A model that counts from w0 to w9 and ends there."""
    return save_scripted(tmp_path_factory.mktemp("models") / "target", SCRIPT, WORDS)


def test_flags_become_values_of_the_engine():
    settings = Shaping(
        repetition_penalty=1.2,
        bad_words=("w7 w8", "w9"),
        logit_bias=("11:-2.5", "12:-inf"),
        min_new_tokens=3,
        stop_strings=(r"\n\n", r"a\u002c\u0020"),
        eos_token_id=(5, 6),
    )
    shape = shape_of(settings, TOKENIZER, (1,))
    assert shape.processors == (
        SequenceBias((((11,), -2.5), ((12,), -float("inf")))),
        RepetitionPenalty(1.2),
        BadWords(((7, 8), (9,))),
        MinNewTokens(3, (5, 6)),
    )
    assert shape.stop == (5, 6)
    assert shape.stop_when is not None
    assert shape.stop_when.strings == ("\n\n", "a, ")
    plain = shape_of(Shaping(), TOKENIZER, (1,))
    assert (plain.processors, plain.stop, plain.stop_when) == ((), (1,), None)
    assert changed(Decode(target="t", prompt="p", gamma=2, min_p=0.1)) == {"min_p": 0.1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logit_bias": ("11",)}, "--logit-bias 11: expected ID:BIAS"),
        ({"logit_bias": ("11:inf",)}, "--logit-bias 11:inf"),
        ({"logit_bias": ("99:1",)}, "id 99"),
        ({"stop_strings": ("a\\",)}, "--stop-strings .*JSON escape"),
        ({"stop_strings": ("",)}, "stop strings"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"bad_words": ("",)}, "--bad-words"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(settings, message):
    with pytest.raises(UserError, match=message):
        shape_of(Shaping(**settings), TOKENIZER, (1,))


def test_decode_and_generate_obey_the_flags(capsys, target, tmp_path):
    def said(*flags):
        argv = ("decode", "--target", target, "--draft", target, "--prompt", "w0", *flags)
        code, result, err = run(capsys, *argv)
        assert code == 0, err
        assert len(result["tokens"]) == len(result["origin"])
        return result["text"], result["finish_reason"]

    assert said() == ("w1 w2 w3 w4 w5 w6 w7 w8 w9", "stop")
    assert said("--stop-strings", "w3 w4,never") == ("w1 w2 w3 w4", "stop")
    assert said("--eos-token-id", "6,8") == ("w1 w2 w3", "stop")
    assert said("--bad-words", "w2 w3", "--max-new-tokens", 4)[0].startswith("w1 w2")
    assert "w3" not in said("--bad-words", "w2 w3", "--max-new-tokens", 3)[0]
    assert said("--logit-bias", "5:-inf", "--max-new-tokens", 2)[0] != "w1 w2"
    assert said("--min-new-tokens", 12, "--max-new-tokens", 12)[1] == "length"
    prompts = write_rows(tmp_path / "p.jsonl", [{"prompt": "w0"}])
    argv = ("generate", "--target", target, "--prompts", prompts, "--temperature", 0)
    code, _, err = run(capsys, *argv, "--out", tmp_path / "a.jsonl", "--stop-strings", "w3")
    assert code == 0, err
    assert json.loads((tmp_path / "a.jsonl").read_text())["target"] == "w1 w2 w3"
    line = refused(capsys, *argv, "--out", tmp_path / "b.jsonl", "--min-p", 0.1, "--logprobs")
    assert "leave out --min-p" in line
    server = ("--server", "http://127.0.0.1:9/v1", "--presence-penalty", 1)
    assert "--presence-penalty" in refused(capsys, *argv, "--out", tmp_path / "b.jsonl", *server)
