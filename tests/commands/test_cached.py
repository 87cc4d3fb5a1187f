"""`distill --cache`: no target is loaded, and with every id kept the draft comes out the same."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from distillspec.models import load, wrap
from fake_server import serving
from support import module, word_tokenizer
from verbs import WORDS, refused, run, saved, write_rows


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A target, a draft, prompts; and what `generate` keeps of them."""
    folder = tmp_path_factory.mktemp("made")
    rows = [{"id": f"p{i}", "prompt": " ".join(WORDS[i : i + 3])} for i in range(6)]
    return {
        "folder": folder,
        "target": saved(folder / "target"),
        "draft": saved(folder / "draft", noise=0.1),
        "prompts": write_rows(folder / "prompts.jsonl", rows),
    }


@pytest.fixture
def kept(made, capsys, tmp_path):
    def make(k=48, target=None, *more):
        out, cache = tmp_path / f"{k}.jsonl", tmp_path / f"{k}.cache"
        code, _, err = run(
            capsys, "generate", "--target", target or made["target"], "--prompts", made["prompts"],
            "--out", out, "--cache", cache, "--cache-k", k, "--cache-dtype", "float32",
            "--max-new-tokens", 7, *more,
        )  # fmt: skip
        assert code == 0, err
        return out, cache

    return make


def training(made, prompts, out, *more):
    return ["distill", "--draft", made["draft"], "--prompts", prompts, "--out", out,
            "--steps", 4, "--batch-size", 3, "--recipe", "supervised_kd", *more]  # fmt: skip


def weights(out):
    return load_file(Path(out) / "draft" / "model.safetensors")


def test_with_every_id_kept_the_draft_is_the_one_of_the_loaded_target(capsys, tmp_path, made, kept):
    prompts, cache = kept()
    flags = ["--optimizer", "adamw", "--learning-rate", 0.01]
    run(capsys, *training(made, prompts, tmp_path / "live", "--target", made["target"], *flags))
    code, found, _ = run(
        capsys, *training(made, prompts, tmp_path / "offline", "--cache", cache, *flags)
    )
    assert (code, found["steps"]) == (0, 4)
    live, offline = weights(tmp_path / "live"), weights(tmp_path / "offline")
    start = load_file(Path(made["draft"]) / "model.safetensors")
    for name, expected in live.items():
        torch.testing.assert_close(offline[name], expected, atol=2e-4, rtol=1e-3)
    moved = max(float((live[name] - start[name]).abs().max()) for name in live)
    assert moved > 1e-2  # so that the comparison above says something


def test_no_target_is_loaded_or_needed(capsys, tmp_path, made, kept):
    target = tmp_path / "gone"
    shutil.copytree(made["target"], target)
    prompts, cache = kept(8, str(target))
    shutil.rmtree(target)
    code, found, _ = run(capsys, *training(made, prompts, tmp_path / "run", "--cache", cache))
    assert code == 0
    assert 0 < found["training_acceptance"] <= 1
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert recorded["target"] is None
    assert recorded["cache"] == str(cache)


def test_a_stale_cache_is_refused_naming_what_differs(capsys, tmp_path, made, kept):
    prompts, cache = kept(8)

    def told(*flags, rows=prompts):
        return refused(capsys, *training(made, rows, tmp_path / "run", *flags))

    other = saved(tmp_path / "other", seed=5)
    assert "weights was" in told("--cache", cache, "--target", other)
    assert "6 of 6 examples are not in" in told("--cache", cache, rows=_changed(prompts, tmp_path))
    assert "is no cache" in told("--cache", tmp_path / "absent")
    assert "--target is missing" in told()
    assert "--held-out" in told("--cache", cache, "--held-out", made["prompts"])
    assert "0.5 on-policy" in told("--cache", cache, "--recipe", "imitkd")
    assert "--reference" in told("--cache", cache, "--reference", made["draft"])
    assert not (tmp_path / "run").exists()


def _changed(prompts, tmp_path):
    rows = [json.loads(line) for line in Path(prompts).read_text().splitlines()]
    for row in rows:
        row["target_ids"] = [*row["target_ids"][:-1], 7, 7]
    return write_rows(tmp_path / "changed.jsonl", rows)


def test_a_run_from_a_cache_goes_on_with_that_cache_alone(capsys, tmp_path, made, kept):
    """Another k is another loss, under the same flags."""
    prompts, cache = kept(8)
    out = tmp_path / "run"
    arguments = training(made, prompts, out, "--cache", cache)
    assert run(capsys, *arguments)[0] == 0
    moved = cache.rename(tmp_path / "moved.cache")
    resumed = training(made, prompts, out, "--cache", moved, "--resume")
    assert run(capsys, *resumed)[0] == 0
    _, other = kept(9)
    said = refused(capsys, *training(made, prompts, out, "--cache", other, "--resume"))
    assert "other target" in said
    assert "--allow-change target" in said


def test_a_cache_goes_with_the_chat_template_that_its_prompts_were_made_with(
    capsys, tmp_path, made, kept
):
    """The draft has no template: only --target knows the one."""
    target = saved(tmp_path / "chat", chat=True)
    prompts, cache = kept(8, target)
    arguments = training(made, prompts, tmp_path / "run", "--cache", cache)
    assert "6 of 6 examples are not in" in (said := refused(capsys, *arguments))
    assert "another chat template" in said
    assert run(capsys, *arguments, "--target", target)[0] == 0


def test_a_server_s_cache_goes_with_the_template_and_the_tokenizer_of_its_target(
    capsys, tmp_path, made, kept
):
    """A server tells nothing of its weights: any folder's go with it, but no other vocabulary."""
    target = saved(tmp_path / "chat", chat=True)
    with serving(load(target), name="chat") as server:
        prompts, cache = kept(8, target, "--server", server.url)
    arguments = training(made, prompts, tmp_path / "run", "--cache", cache)
    other = tmp_path / "other"
    wrap(module("llama", rows=60), word_tokenizer(60)).save(other)
    assert "vocabulary was" in (said := refused(capsys, *arguments, "--target", other))
    assert "weights" not in said
    for file in Path(target).glob("*.safetensors"):  # they may be on the server's machine alone
        file.unlink()
    assert run(capsys, *arguments, "--target", target)[0] == 0
