"""`perplexity` from the command line, on tiny models."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from distillspec.commands.pairs import examples
from distillspec.models import load
from distillspec.studies.perplexity import perplexity, surprisals
from distillspec.tasks import read_prompts
from verbs import WORDS, refused, run, saved, write_rows

ROWS = [{"prompt": word, "target": f"{word} {other}"} for word, other in pairwise(WORDS)]


def test_it_is_what_hugging_face_says_of_the_targets(capsys, tmp_path):
    paths = [saved(tmp_path / "one"), saved(tmp_path / "other", noise=0.3)]
    prompts = write_rows(tmp_path / "p.jsonl", ROWS[:5])
    code, found, _ = run(
        capsys, "perplexity", "--models", ",".join(map(str, paths)), "--prompts", prompts,
        "--batch-size", 2, "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0
    assert [one["model"] for one in found["models"]] == ["one", "other"]
    for path, one in zip(paths, found["models"], strict=True):
        model = load(path)
        nats, tokens, size = 0.0, 0, 0
        for row in ROWS[:5]:
            prompt = model.tokenizer.prompt(row["prompt"])
            ids = model.tokenizer.completion(row["target"])
            whole = torch.cat([prompt, ids])[None]
            with torch.inference_mode():
                logits = model.module(whole).logits[0, len(prompt) - 1 : -1]
            nats += float(torch.nn.functional.cross_entropy(logits, ids, reduction="sum"))
            tokens += len(ids)
            size += len(row["target"].encode())
        assert one["tokens"] == tokens
        assert one["nats_per_token"]["value"] == pytest.approx(nats / tokens, rel=1e-5)
        assert one["perplexity"]["value"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
        assert one["bits_per_byte"]["value"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
        assert one["perplexity"]["low"] < one["perplexity"]["value"] < one["perplexity"]["high"]


def test_a_text_that_was_cut_is_not_scored_for_an_end(tmp_path):
    """It was trained on, scored and measured as if it had ended where the length limit cut it."""
    rows = [
        {**row, "finish_reason": reason}
        for row, reason in zip(ROWS[:2], ("stop", "length"), strict=True)
    ]
    tokenizer = load(saved(tmp_path / "model")).tokenizer
    whole, cut = examples(tokenizer, read_prompts(write_rows(tmp_path / "p.jsonl", rows)))
    assert whole.completion.tolist() == tokenizer.completion(ROWS[0]["target"]).tolist()
    assert cut.completion.tolist() == tokenizer.completion(ROWS[1]["target"]).tolist()[:-1]


def test_texts_that_cannot_be_scored_are_named(capsys, tmp_path):
    model = saved(tmp_path / "model")
    run_it = ("perplexity", "--models", model, "--out", tmp_path / "run", "--prompts")
    bare = write_rows(tmp_path / "bare.jsonl", [{"id": "x", "prompt": "a"}])
    assert "x: no target" in refused(capsys, *run_it, bare)
    trimmed = tmp_path / "trimmed"
    prompts = write_rows(tmp_path / "p.jsonl", ROWS)
    run(
        capsys, "new-draft", "--target", model, "--layers", "0", "--keep-ids", 8, "--prompts",
        write_rows(tmp_path / "one.jsonl", ROWS[:1]), "--out", trimmed,
    )  # fmt: skip
    assert "no probability" in refused(
        capsys, "perplexity", "--models", trimmed, "--prompts", prompts, "--out", tmp_path / "run2"
    )


def test_unigrams_know_the_frequencies_of_the_ids_alone():
    ids = [torch.tensor([3, 3, 5, 7]), torch.tensor([3, 3, 5, 7])]
    found = perplexity(np.array([4.0, 4.0]), ids, ["ab", "cd"])
    assert found["unigram_perplexity"] == pytest.approx(2**1.5)
    assert found["perplexity"]["value"] == pytest.approx(math.e)
    assert found["bits_per_byte"]["value"] == pytest.approx(2 / math.log(2))


def test_a_uniform_model_has_a_perplexity_of_its_vocabulary(tmp_path):
    model = load(saved(tmp_path / "model"))
    with torch.no_grad():
        model.module.get_output_embeddings().weight.zero_()
    ids = [torch.tensor([1, 2, 3])]
    (nats,) = surprisals(model, [torch.tensor([1, 2])], ids, batch_size=1)
    assert nats / 3 == pytest.approx(math.log(model.vocabulary.size), rel=1e-6)
