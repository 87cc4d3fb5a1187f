"""`bounds` from the command line, on tiny models."""

from __future__ import annotations

import json
import shutil

from verbs import WORDS, refused, run, saved, write_rows


def bounds_of(capsys, tmp_path, target, *drafts):
    prompts = write_rows(tmp_path / "p.jsonl", [{"prompt": word} for word in WORDS[:6]])
    code, found, _ = run(
        capsys, "bounds", "--target", target, "--draft", ",".join(map(str, drafts)), "--prompts",
        prompts, "--max-new-tokens", 5, "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0
    return found["drafts"]


def test_bounds_of_two_drafts(capsys, tmp_path):
    target = saved(tmp_path / "target")
    near, far = saved(tmp_path / "near", noise=0.02), saved(tmp_path / "far", noise=0.3)
    one, other = bounds_of(capsys, tmp_path, target, near, far)
    assert (one["draft"], other["draft"]) == ("near", "far")
    assert one["alpha"]["value"] > other["alpha"]["value"]
    assert one["kl"]["value"] < other["kl"]["value"]
    for draft in (one, other):
        assert draft["pinsker"]["value"] <= draft["alpha"]["value"]
        # H(p) is the same for both, as the outputs are.
        assert draft["cross_entropy"]["value"] > draft["kl"]["value"]
    entropy = [draft["cross_entropy"]["value"] - draft["kl"]["value"] for draft in (one, other)]
    assert abs(entropy[0] - entropy[1]) < 1e-9


def test_a_drafts_outputs_end_where_the_targets_would(capsys, tmp_path):
    """The bug: they ended at the draft's own stop ids, and training's do not."""
    target, near = saved(tmp_path / "target"), saved(tmp_path / "near", noise=0.2)
    other = tmp_path / "other"
    shutil.copytree(near, other)
    file = other / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": [*range(6, 30)]}))
    one, two = bounds_of(capsys, tmp_path, target, near, other)
    assert {**one, "draft": ""} == {**two, "draft": ""}


def test_a_trimmed_draft_has_no_bound(capsys, tmp_path):
    target = saved(tmp_path / "target")
    prompts = write_rows(tmp_path / "p.jsonl", [{"prompt": word} for word in WORDS[:6]])
    run(
        capsys, "new-draft", "--target", target, "--layers", "0", "--keep-ids", 12, "--prompts",
        prompts, "--out", tmp_path / "trimmed",
    )  # fmt: skip
    assert "trimmed head" in refused(
        capsys, "bounds", "--target", target, "--draft", tmp_path / "trimmed", "--prompts", prompts,
        "--out", tmp_path / "run",
    )  # fmt: skip
