"""Adapters: they start as nothing, train alone, and leave no trace in what is saved."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from distillspec.decoding import complete
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models import load, lora
from distillspec.models.lora import ALPHA_PER_RANK, add_lora, merged
from distillspec.models.protocol import Batch
from support import ADAPTER_RANK, FAMILIES, adapted, tiny

TEXT = torch.tensor([7, 8, 9, 10])
BATCH = Batch((TEXT, TEXT[:2]), (TEXT[:3], TEXT))


def logits(model):
    with torch.no_grad():
        return model.head(model.hidden(BATCH))


@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_adapters_change_nothing_and_train_alone(family):
    plain, model = tiny(family), adapted(family, trained=False)
    assert torch.equal(logits(model), logits(plain))
    training = {name for name, p in model.module.named_parameters() if p.requires_grad}
    assert training == {name for name, _ in model.module.named_parameters() if "lora_" in name}
    assert model.kept is None
    assert model.dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_layer_but_the_output_layer_is_adapted(family):
    """A null result with adapters on the query and value projections alone is on record."""
    plain, model = tiny(family), adapted(family)
    linear = {
        name
        for name, part in plain.module.named_modules()
        if type(part).__name__ in ("Linear", "Conv1D") and name != "lm_head"
    }
    names = {name for name, _ in model.module.named_modules()}
    assert {name for name in linear if f"{name}.lora_A.default" in names} == linear
    assert f"{'lm_head'}.lora_A.default" not in names


def test_alpha_is_twice_the_rank():
    model = adapted("llama")
    layer = model.module.get_submodule("model.layers.0.mlp.up_proj")
    assert layer.scaling == {"default": ALPHA_PER_RANK} == {"default": 2}


def test_the_seed_decides_and_the_global_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    first, again = (adapted("llama", trained=False).module.state_dict() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = tiny("llama")
    add_lora(other.module, ADAPTER_RANK, seed=6)
    assert not all(torch.equal(first[name], v) for name, v in other.module.state_dict().items())


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_runs_the_adapters(family):
    """Through the cache and, for a Llama, our own forward pass: as the merged model decodes."""
    model = adapted(family)
    plain = tiny(family)
    plain.module.load_state_dict(merged(model.module).state_dict())
    settings = {"gamma": 0, "max_new_tokens": 8, "sampling": Sampling(0.0)}
    ours, theirs, raw = (
        [output.ids for output in complete(one, None, [TEXT, TEXT[:2]], **settings)]
        for one in (model, plain, tiny(family))
    )
    assert ours == theirs
    assert ours != raw


# Merged.


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_is_a_plain_folder_and_training_may_go_on(tmp_path, family):
    plain, model = tiny(family), adapted(family)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    plain.save(tmp_path / "plain")
    model.save(tmp_path / "merged")
    after = model.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    names = [{path.name for path in (tmp_path / of).iterdir()} for of in ("plain", "merged")]
    assert names[0] == names[1]
    configs = [(tmp_path / of / "config.json").read_text() for of in ("plain", "merged")]
    assert configs[0] == configs[1]
    assert load(tmp_path / "merged").module.state_dict().keys() == plain.module.state_dict().keys()


def test_adapters_that_transformers_put_in_are_merged_too(tmp_path):
    """Its mark stayed on the merged copy, which was then saved as adapters that it had not."""
    model = adapted("llama")
    model.module._hf_peft_config_loaded = True  # as `load_adapter` and `add_adapter` leave it
    model.save(tmp_path)
    assert torch.allclose(logits(load(tmp_path)), logits(model), atol=1e-4)
    assert model.module._hf_peft_config_loaded


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trimmed_head_stays_trimmed_and_is_saved_whole(tmp_path, family):
    kept = torch.arange(0, 48, 2)
    model = adapted(family, kept=kept)
    model.save(tmp_path)
    again = load(tmp_path)
    assert torch.equal(again.kept, model.kept)
    assert torch.allclose(logits(again), logits(model), atol=1e-4)
    (tmp_path / "kept_ids.json").unlink()
    whole = load(tmp_path).module.state_dict()
    dropped = [i for i in range(48) if i not in model.kept.tolist()]
    assert not whole["lm_head.weight"][dropped].any()


def test_adapters_of_16_bit_weights_are_float32_and_the_draft_is_saved_in_its_own_type(tmp_path):
    """An update of 1e-3 of a weight is lost in bfloat16, whose steps are 4e-3."""
    model = adapted("llama", dtype=torch.bfloat16)
    kinds = {p.requires_grad: p.dtype for p in model.module.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    assert logits(model).dtype == torch.bfloat16
    model.save(tmp_path)
    again = load(tmp_path)
    assert again.dtype == torch.bfloat16
    off = (logits(again) - logits(model)).double().norm() / logits(model).double().norm()
    assert off < 0.05


def test_a_model_without_adapters_is_saved_as_it_is():
    module = tiny("llama").module
    assert merged(module) is module


def test_without_peft_it_is_one_line(monkeypatch):
    monkeypatch.setattr(lora, "find_spec", lambda name: None if name == "peft" else find_spec(name))
    with pytest.raises(UserError, match=r"pip install 'distillspec\[lora\]'"):
        add_lora(tiny("llama").module, ADAPTER_RANK, seed=0)
