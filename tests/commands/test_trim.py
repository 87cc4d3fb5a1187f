"""`trim`, and the choice of a head's ids in `new-draft`."""

from __future__ import annotations

import json

import pytest
import torch

from distillspec.models.surgery import ids_covering
from verbs import WORDS, refused, run, saved, write_rows


@pytest.fixture
def files(tmp_path):
    rows = [
        {"id": str(i), "prompt": " ".join(WORDS[i : i + 4]), "target": " ".join(WORDS[i : i + 9])}
        for i in range(6)
    ]
    held_out = [{"id": f"h{i}", "prompt": " ".join(WORDS[i : i + 2])} for i in range(4)]
    return (
        saved(tmp_path / "target"),
        saved(tmp_path / "draft", noise=0.05),
        write_rows(tmp_path / "texts.jsonl", rows),
        write_rows(tmp_path / "held_out.jsonl", held_out),
    )


def test_sizes_are_weighed_before_training(capsys, files):
    target, draft, texts, held_out = files
    flags = ["trim", "--target", target, "--draft", draft, "--texts", texts, "--prompts", held_out]
    code, found, shown = run(
        capsys, *flags, "--sizes", "4,12,48", "--gamma", "1,2", "--max-new-tokens", 8,
        "--clock-prompts", 1, "--temperature", 2,
    )  # fmt: skip
    assert code == 0
    few, more, whole = found["sizes"]
    assert [row["keep_ids"] for row in found["sizes"]] == [4, 12, None]
    assert few["coverage"]["value"] < more["coverage"]["value"] < whole["coverage"]["value"]
    assert whole["alpha_lost"]["value"] == 0
    assert few["alpha_lost"]["value"] == pytest.approx(
        whole["alpha"]["value"] - few["alpha"]["value"]
    )
    for row in found["sizes"]:
        assert row["alpha"]["value"] <= row["coverage"]["value"] + 1e-6
        assert row["draft_ms"] > 0
    assert found["best"] in (4, 12, None)
    assert found["verdict"]
    assert "timing 3 heads" in shown
    assert "below the whole head's" in refused(capsys, *flags, "--sizes", "48,99")
    assert "6 of 6 prompts" in refused(capsys, *flags[:-1], texts, "--sizes", "4,12")


def test_a_share_of_the_tokens_chooses_the_size(capsys, tmp_path, files):
    target, _, texts, _ = files
    flags = ["new-draft", "--target", target, "--layers", 0, "--prompts", texts]
    sizes = []
    for share in (0.5, 1):
        out = tmp_path / f"draft{share}"
        code, made, _ = run(capsys, *flags, "--keep-share", share, "--out", out)
        assert code == 0
        kept = json.loads((out / "kept_ids.json").read_text())["kept_ids"]
        assert made["kept_ids"] == len(kept)
        sizes.append(len(kept))
    assert sizes[0] < sizes[1] < 48
    assert "above 0 and at most 1" in refused(
        capsys, *flags, "--keep-share", 1.5, "--out", tmp_path / "a"
    )
    both = refused(capsys, *flags, "--keep-share", 1, "--keep-ids", 9, "--out", tmp_path / "b")
    assert "either --keep-ids" in both
    assert "goes together with" in refused(capsys, *flags, "--out", tmp_path / "c")


def test_a_trimmed_draft_has_no_sizes_to_weigh(capsys, tmp_path, files):
    target, _, texts, held_out = files
    trimmed = tmp_path / "trimmed"
    run(
        capsys, "new-draft", "--target", target, "--layers", 0, "--keep-ids", 12,
        "--prompts", texts, "--out", trimmed,
    )  # fmt: skip
    assert "its head is trimmed already" in refused(
        capsys, "trim", "--target", target, "--draft", trimmed, "--texts", texts,
        "--prompts", held_out,
    )  # fmt: skip


def test_how_many_ids_cover_a_share():
    counts = torch.tensor([0, 5, 3, 0, 1, 1])
    assert [ids_covering(counts, share) for share in (0.4, 0.5, 0.51, 0.8, 0.9, 1.0)] == [
        1, 1, 2, 2, 3, 4,
    ]  # fmt: skip
