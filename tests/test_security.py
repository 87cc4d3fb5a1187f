"""What a model folder or a data file from elsewhere must not be able to do."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, dynamic_module_utils

import distillspec
from distillspec.errors import UserError
from distillspec.models import load, load_tokenizer, wrap
from distillspec.models.loading import Place
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


@pytest.mark.parametrize(
    ("kind", "auto"), [("mine", AutoConfig), ("vit", AutoModelForCausalLM)], ids=["config", "model"]
)
def test_code_in_a_model_folder_does_not_run_whatever_stands_in_stdin(
    copied, tmp_path, monkeypatch, kind, auto
):
    """transformers asked on the terminal whether to run it, and `yes |` or a y in a script's
    input said yes: the library asks unless it is told no."""
    proof = tmp_path / "proof"
    config = json.loads((copied / "config.json").read_text())
    config |= {"model_type": kind, "auto_map": {auto.__name__: "mine.Mine"}}
    (copied / "config.json").write_text(json.dumps(config))
    (copied / "mine.py").write_text(f"class Mine:\n    open({str(proof)!r}, 'w').write('ran')\n")
    monkeypatch.setattr("builtins.input", lambda _: "y")
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UserError, match="code of its own"):
        load(copied)
    assert not proof.exists()
    with pytest.raises(AttributeError):  # what transformers does by itself; the class is empty
        auto.from_pretrained(copied)
    assert proof.exists()


def test_a_chat_template_stays_in_its_sandbox(copied):
    reach = "{{ messages.__class__.__base__.__subclasses__() }}"
    (copied / "chat_template.jinja").write_text(reach)
    tokenizer = load_tokenizer(copied)
    with pytest.raises(UserError, match="chat template.*unsafe"):
        tokenizer.prompt("Hello!")


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/hosts", "a/../../b"])
def test_shards_outside_the_folder_are_refused(copied, name):
    index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
    (copied / "model.safetensors").rename(copied / "model-00001.safetensors")
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="lies outside of the folder; it is not loaded"):
        load(copied)


def test_the_source_unpickles_nothing_and_runs_no_code_of_a_model():
    for path in SOURCES:
        assert faults(path.read_text("utf-8")) == [], path


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads, UnpicklingError",
        "import zipfile as z",
        "torch.load(file, weights_only=True)",
        "yaml.load(text)",
        "np.load(file, allow_pickle=True)",
        "subprocess.run(line, shell=True)",
        "AutoModel.from_pretrained(folder)",
        "AutoModel.from_pretrained(folder, trust_remote_code=True)",
        "AutoModel.from_pretrained(folder, trust_remote_code=settings.trust)",
        "Environment(loader=loader)",
        "Environment(loader=loader, autoescape=False)",
    ],
)
def test_what_the_source_must_not_do_is_seen(source):
    """The negative control: the check above can fail."""
    assert len(faults(source)) == 1


FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "joblib", "tarfile", "zipfile"}
CALLS = ("eval", "exec", "torch.load", "yaml.load", "np.load", "numpy.load", "os.system")


def faults(source):
    """What a module does that it must not."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names if one.name.split(".")[0] in FORBIDDEN]
        elif isinstance(node, ast.ImportFrom):
            # An error's name unpickles nothing
            harmless = [one.name for one in node.names] == ["UnpicklingError"]
            if str(node.module).split(".")[0] in FORBIDDEN and not harmless:
                found.append(node.module)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            # `arguments` of a place says no for them all
            says_no = (
                given.get("trust_remote_code") == "False" or "place.arguments" in given.values()
            )
            needs = {
                "from_pretrained": says_no or called.startswith("GenerationConfig."),
                "Environment": given.get("autoescape") == "True",
            }
            if called in CALLS or "shell" in given or not needs.get(called.split(".")[-1], True):
                found.append(ast.unparse(node))
    return found


def test_every_model_is_loaded_with_a_plain_no():
    for gguf in (None, "model.gguf"):
        assert Place("m", "m", gguf).arguments["trust_remote_code"] is False
