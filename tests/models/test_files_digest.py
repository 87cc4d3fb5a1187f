"""A fingerprint tells models apart and knows a copy."""

import json
import shutil
from pathlib import Path

import pytest

from distillspec.errors import UserError
from distillspec.models.files_digest import BLOCK, BLOCKS, files_digest
from support import perturbed, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "a"
    tiny("llama").save(folder)
    return folder


def test_a_copy_is_the_same_and_a_trained_one_another(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "copy")
    assert files_digest(tmp_path / "copy") == files_digest(folder)
    perturbed(tiny("llama"), 1e-6).save(tmp_path / "trained")
    assert files_digest(tmp_path / "trained") != files_digest(folder)


def test_the_config_counts_but_not_who_wrote_it(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "transformers_version": "9"}))
    assert files_digest(tmp_path / "copy") == files_digest(folder)
    path.write_text(json.dumps({**config, "rope_theta": 7.0}))
    assert files_digest(tmp_path / "copy") != files_digest(folder)


@pytest.mark.parametrize("place", [0, 1, -1])
def test_of_a_large_file_blocks_are_read_the_ends_among_them(tmp_path, folder, place):
    shutil.copytree(folder, tmp_path / "copy")
    weights = tmp_path / "copy" / "model.safetensors"
    content = bytearray(3 * BLOCK * BLOCKS)
    weights.write_bytes(content)
    before = files_digest(tmp_path / "copy")
    gap = (len(content) - BLOCK) // (BLOCKS - 1)
    content[place * gap if place >= 0 else -1] ^= 1
    weights.write_bytes(content)
    assert files_digest(tmp_path / "copy") != before
    content[place * gap if place >= 0 else -1] ^= 1
    content[BLOCK + 1] ^= 1  # between two blocks: what the docstring says goes unseen
    weights.write_bytes(content)
    assert files_digest(tmp_path / "copy") == before


@pytest.mark.parametrize("text", ["{", "7", '["a"]'])
def test_a_damaged_config_is_told_in_one_line(tmp_path, folder, text):
    """`study status` died of a traceback."""
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "config.json").write_text(text)
    with pytest.raises(UserError, match="config.json: damaged, or not there") as caught:
        files_digest(tmp_path / "copy")
    assert "\n" not in str(caught.value)


def test_a_model_without_weights_or_not_here_is_refused(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights"):
        files_digest(tmp_path / "copy")
    with pytest.raises(UserError, match="nowhere/nothing is neither"):
        files_digest("nowhere/nothing")
    with pytest.raises(UserError):
        files_digest(Path(tmp_path / "absent"))
