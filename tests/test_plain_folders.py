"""Every folder that we write, opened by transformers in a process that has neither us nor peft.

speculators#1041: what we write and what we read may agree on a mistake. One process opens all of
them, because most of its time goes into importing transformers.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from distillspec import cli
from distillspec.models import load
from distillspec.models.surgery import keep_layers
from support import FAMILIES, SIZE, adapted, tiny
from verbs import saved

IDS = torch.tensor([[6, 9, 12, 7]])
KEPT = torch.arange(10, 30)
READ = """
import json, sys, torch
sys.modules["peft"] = None  # any import of it fails
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
ids, *folders = sys.argv[1:]
ids, found = torch.tensor(json.loads(ids)), {}
for folder in folders:
    name = folder.rpartition("/")[2]
    family = AutoModelForSeq2SeqLM if "t5" in name else AutoModelForCausalLM
    model, report = family.from_pretrained(folder, output_loading_info=True)
    given = {"decoder_input_ids": ids} if "t5" in name else {}
    with torch.no_grad():
        logits = model.eval()(input_ids=ids, **given).logits
    found[name] = {
        "logits": logits.double().tolist(),
        "tied": model.get_input_embeddings().weight is model.get_output_embeddings().weight,
        "unexpected": sorted(report["unexpected_keys"]),
        "ids": AutoTokenizer.from_pretrained(folder)("w7 w8").input_ids,
    }
assert not any(name.startswith("distillspec") for name in sys.modules)
print(json.dumps(found))
"""


@torch.no_grad()
def logits(model):
    """In float64; of a trimmed head those of its ids."""
    module = model.module
    given = {"decoder_input_ids": IDS} if module.config.is_encoder_decoder else {}
    return module(input_ids=IDS, **given).logits.double()


def export(draft, target, out, *flags):
    words = ["export", draft, "--target", target, "--out", out, "--gamma", 3, *flags]
    assert cli.main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The models that were written, by their folders."""
    folder = tmp_path_factory.mktemp("written")
    models = {folder / f"merged-{family}": adapted(family) for family in FAMILIES}
    trimmed = keep_layers(tiny("llama"), [1], kept=KEPT)
    models[folder / "trimmed"] = trimmed
    for path, model in models.items():
        model.save(path)
    drafts, targets = {}, {}
    for family in ("llama", "t5"):
        drafts[family] = saved(folder / f"draft-{family}", family, seed=1)
        targets[family] = saved(folder / f"target-{family}", family)
        export(drafts[family], targets[family], folder / f"exported-{family}")
        models[folder / f"exported-{family}"] = load(drafts[family])
    export(drafts["llama"], targets["llama"], folder / "exported-half", "--dtype", "bfloat16")
    models[folder / "exported-half"] = load(drafts["llama"], dtype=torch.bfloat16)
    export(folder / "trimmed", targets["llama"], folder / "exported-trimmed")
    models[folder / "exported-trimmed"] = trimmed
    return models


@pytest.fixture(scope="module")
def read(models, tmp_path_factory):
    """What the other process found in each, by name: its logits, and ours."""
    command = [sys.executable, "-c", READ, json.dumps(IDS.tolist()), *map(str, models)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path_factory.getbasetemp()
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for path, model in models.items():
        theirs = torch.tensor(found[path.name]["logits"], dtype=torch.float64)
        found[path.name] |= {"logits": theirs, "ours": logits(model), "kept": model.kept}
    return found


def test_each_has_its_tokenizer_and_no_weight_that_nobody_knows(read):
    assert len(read) == 9
    for name, one in read.items():
        assert one["ids"] == [7, 8], name
        assert one["unexpected"] == [], name


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_merged(read, family):
    one = read[f"merged-{family}"]
    assert torch.allclose(one["logits"], one["ours"], atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "t5", "half"])
def test_an_export_gives_the_same_logits_bit_for_bit_and_is_tied_as_its_draft(read, name):
    one = read[f"exported-{name}"]
    assert torch.equal(one["logits"], one["ours"])
    assert one["tied"]


@pytest.mark.parametrize("name", ["trimmed", "exported-trimmed"])
def test_a_trimmed_head_is_whole_and_0_where_it_was_cut(read, name):
    one = read[name]
    assert torch.allclose(one["logits"][..., one["kept"]], one["ours"], atol=1e-5)
    dropped = torch.ones(SIZE, dtype=torch.bool).index_fill(0, one["kept"], False)
    assert dropped.any()
    assert (one["logits"][..., dropped] == 0).all()
