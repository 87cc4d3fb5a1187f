"""What a model folder or a data file from elsewhere must not be able to do."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest
import torch

import distillspec
from distillspec.errors import UserError
from distillspec.models import load, wrap
from support import module, word_tokenizer

SOURCES = sorted(Path(distillspec.__file__).parent.rglob("*.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    wrap(module("llama"), word_tokenizer()).save(folder)
    return folder


@pytest.fixture
def copied(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "copy"))


class Payload:
    """Unpickling it writes a file."""

    def __init__(self, file):
        self.file = str(file)

    def __reduce__(self):
        return Path.write_text, (Path(self.file), "ran")


def test_pickled_weights_run_no_code(copied, tmp_path):
    proof = tmp_path / "proof"
    (copied / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Payload(proof)}, copied / "pytorch_model.bin")
    with pytest.raises(UserError):
        load(copied)
    assert not proof.exists()
    torch.load(copied / "pytorch_model.bin", weights_only=False)  # the payload works
    assert proof.exists()


def test_code_in_a_model_folder_does_not_run(copied, tmp_path):
    proof = tmp_path / "proof"
    config = json.loads((copied / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    config["model_type"] = "mine"
    (copied / "config.json").write_text(json.dumps(config))
    (copied / "mine.py").write_text(f"open({str(proof)!r}, 'w').write('ran')")
    with pytest.raises(UserError):
        load(copied)
    assert not proof.exists()


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/hosts", "a/../../b"])
def test_shards_outside_the_folder_are_refused(copied, name):
    index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
    (copied / "model.safetensors").rename(copied / "model-00001.safetensors")
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="outside"):
        load(copied)


def test_the_source_unpickles_nothing_and_trusts_no_remote_code():
    for path in SOURCES:
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name.split(".")[0] for alias in node.names}
                names.add(str(getattr(node, "module", "")).split(".")[0])
                names -= {"pickle"} if "UnpicklingError" in names else set()
                assert not names & {"pickle", "marshal", "shelve", "dill", "tarfile", "zipfile"}
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "torch.load", "yaml.load", "os.system"), path
                assert not any(word.arg == "trust_remote_code" for word in node.keywords), path
                assert not any(word.arg == "shell" for word in node.keywords), path
