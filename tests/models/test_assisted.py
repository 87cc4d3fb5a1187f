"""transformers' own generation, asked with every setting of ours."""

import copy

import pytest
import torch

from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models.assisted import generate
from support import perturbed, tiny

OWN = [
    {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0},
    {"no_repeat_ngram_size": 1},
    {"forced_bos_token_id": 7, "forced_eos_token_id": 8},
    {"suppress_tokens": list(range(6, 40)), "bad_words_ids": [[40]]},
    {"min_p": 0.9},
    {"typical_p": 0.1, "epsilon_cutoff": 0.5},
    {"min_length": 40},
]
"""Settings of published models, summarisers among them, that are not those asked for."""


@pytest.mark.parametrize("sampling", [Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(min_p=1.0)])
def test_a_cut_to_the_likeliest_token_is_greedy(sampling):
    """min-p was not handed on: text followed another law than the one it was held against."""
    target, prompt = tiny("llama"), torch.arange(6, 12)
    found = [
        generate(target, None, prompt, sampling=one, max_new_tokens=12, seed=3).ids.tolist()
        for one in (sampling, GREEDY)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_the_targets_own_settings_fill_nothing_in(family):
    """What our settings left unset came from its generation_config.json: a summariser wrote by
    beams, its draft never asked, and the audit rejected a sound pair."""
    target, prompt = tiny(family), torch.arange(6, 12)
    draft = perturbed(target, 0.02)

    def written():
        return generate(target, draft, prompt, sampling=Sampling(), max_new_tokens=12, seed=0)

    plain = written()
    assert len(plain.ids) > 9
    assert plain.drafted > 0
    settings = target.module.generation_config
    for own in OWN:
        changed = copy.deepcopy(settings)
        vars(changed).update(own)
        target.module.generation_config = changed
        found = written()
        assert found.ids.tolist() == plain.ids.tolist(), own
        assert found.drafted == plain.drafted, own
        assert target.module.generation_config is changed
        assert {name: getattr(changed, name) for name in own} == own


def test_a_model_that_fails_has_its_own_settings_again(monkeypatch):
    target = tiny("llama")
    settings = target.module.generation_config

    def fail(*_, **__):
        assert target.module.generation_config is not settings
        raise KeyboardInterrupt

    monkeypatch.setattr(target.module, "generate", fail)
    with pytest.raises(KeyboardInterrupt):
        generate(target, None, torch.arange(6, 9), sampling=GREEDY, max_new_tokens=2, seed=0)
    assert target.module.generation_config is settings
