"""`--lora`: adapters in place of all weights, merged into the draft that is written."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from distillspec.commands import train
from distillspec.models import load
from distillspec.models.surgery import keep_layers
from verbs import WORDS, refused, run, saved, write_rows


@pytest.fixture(scope="module", params=["llama", "t5"])
def pair(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("pair")
    return [saved(folder / "target", request.param), saved(folder / "draft", request.param, seed=1)]


@pytest.fixture
def flags(pair, tmp_path):
    rows = [
        {"prompt": " ".join(WORDS[i : i + 4]), "target": " ".join(WORDS[i + 4 : i + 7])}
        for i in range(6)
    ]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    return [
        "--draft", pair[1], "--prompts", prompts, "--steps", 6, "--batch-size", 3,
        "--optimizer", "adamw", "--learning-rate", "2e-2", "--lora", 4,
    ]  # fmt: skip


def test_sft_and_distill_train_adapters_alone_and_write_a_plain_draft(
    capsys, tmp_path, pair, flags
):
    before = load(pair[1]).module.state_dict()
    losses = {}
    for verb, more in (("sft", []), ("distill", ["--target", pair[0], "--max-new-tokens", 6])):
        out = tmp_path / verb
        code, result, _ = run(capsys, verb, *more, *flags, "--out", out)
        assert code == 0
        after = load(result["out"]).module.state_dict()
        assert after.keys() == before.keys()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed
        assert not [name for name in changed if "norm" in name or "shared" in name]
        assert not [name for name in changed if "embed" in name or "lm_head" in name]
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses[verb] = [row["loss"] for row in rows]
    assert losses["sft"][-1] < losses["sft"][0]


def test_a_trimmed_draft_is_adapted_below_its_head(capsys, tmp_path, pair, flags):
    kept = torch.arange(0, 48, 2)
    made = keep_layers(load(pair[0]), [1], kept=kept)
    made.save(tmp_path / "trimmed")
    more = ["--target", pair[0], "--max-new-tokens", 6, "--draft", tmp_path / "trimmed"]
    code, result, _ = run(capsys, "distill", *flags, *more, "--out", tmp_path / "run")
    assert code == 0
    before, after = made.module.state_dict(), load(result["out"]).module.state_dict()
    assert torch.equal(load(result["out"]).kept, made.kept)
    assert torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    assert any(not torch.equal(after[name], before[name]) for name in before)


def test_the_moments_are_those_of_the_adapters(capsys, tmp_path, flags):
    """What adapters are for: the optimizer's memory is that of the rank, not of the weights."""
    run(capsys, "sft", *flags, "--out", tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "step-6"
    with safe_open(folder / "draft.safetensors", framework="pt") as held:
        names = held.keys()
        sizes = [held.get_slice(name).get_shape() for name in names if "lora_" in name]
    moments = load_file(folder / "optimizer.safetensors")
    shapes = [list(value.shape) for name, value in moments.items() if name.endswith("exp_avg")]
    assert sorted(shapes) == sorted(sizes)


def test_another_rank_cannot_be_resumed(capsys, tmp_path, flags):
    out = ["--out", tmp_path / "run"]
    run(capsys, "sft", *flags, *out)
    for more in (["--lora", 2], ["--lora", "none"]):
        line = refused(capsys, "sft", *flags, *more, *out, "--resume")
        assert f"lora was 4 and is {'None' if 'none' in more else 2}" in line
        assert "allow-change" not in line
    line = refused(capsys, "sft", *flags, *out, "--resume", "--allow-change", "lora")
    assert "no such setting" in line


def test_what_could_not_train_is_refused_before_anything_is_loaded(
    capsys, tmp_path, flags, monkeypatch
):
    monkeypatch.setattr(train, "load_model", lambda *_, **__: pytest.fail("loaded"))
    line = refused(capsys, "sft", *flags, "--lora", 0, "--out", tmp_path / "run")
    assert "--lora 0: expected a whole number of at least 1" in line
    line = refused(capsys, "sft", *flags, "--optimizer", "adafactor", "--out", tmp_path / "run")
    assert "--optimizer adamw" in line
