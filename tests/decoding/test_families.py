"""Every family: greedy by a draft that is partly right is transformers' own greedy text."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import GenerationConfig

import decoding_checks as checks
from distillspec.decoding import Counts, Schedule, complete
from distillspec.errors import UserError
from distillspec.math.processors import processors_of
from distillspec.math.sampling import GREEDY, Sampling
from families import ALONE, MADE, WINDOW, family_model
from support import perturbed, tiny

PROMPTS = [torch.tensor(ids) for ids in ([7, 9, 12, 9], [5], [8, 8, 3, 20, 41, 6, 30, 31])]
COUNT = 12
SETTINGS = {"max_new_tokens": COUNT, "sampling": GREEDY, "stop": ()}
BATCHED = [family for family in MADE if family not in ALONE]


@cache
def pair(family):
    target = family_model(family)
    return target, perturbed(target, 0.1 if family in ("qwen3", "gemma3") else 0.04)


def theirs(model, prompt, eos=(), **settings):
    """transformers' own greedy completion, cached as it caches."""
    module = model.module
    ids = module.generate(
        prompt[None],
        attention_mask=torch.ones_like(prompt)[None],
        generation_config=GenerationConfig(
            max_new_tokens=COUNT,
            do_sample=False,
            eos_token_id=list(eos) or NO_ID,
            pad_token_id=0,
            decoder_start_token_id=0,
            **settings,
        ),
    )[0].tolist()
    return tuple(ids[1 if module.config.is_encoder_decoder else len(prompt) :])


NO_ID = 10_000
"""A stop id that no model has: generation goes on to its budget."""


@pytest.mark.parametrize("family", MADE)
def test_a_familys_greedy_text_is_transformers_own(family):
    """transformers#30042, #30413: assisted text that differs from greedy."""
    target, draft = pair(family)
    assert COUNT + len(PROMPTS[0]) > 3 * WINDOW
    total = Counts()
    expected = theirs(target, PROMPTS[0])
    assert len(set(expected)) > 2
    for gamma in (0, 1, 3):
        (output,) = complete(target, draft if gamma else None, PROMPTS[:1], gamma=gamma, **SETTINGS)
        assert output.ids == expected, gamma
        total += output.counts
    assert 0 < total.accepted < total.judged


@pytest.mark.parametrize("family", MADE)
def test_a_familys_text_under_many_settings_is_transformers_own(family):
    """Rows of a batch that end at different times, behind windows far shorter than they are."""
    target, draft = pair(family)
    rows = PROMPTS[:1] if family in ALONE else PROMPTS
    path = theirs(target, PROMPTS[0])
    eos = (path[-1], 40, 17)
    settings = {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[path[1]], list(path[3:5])],
        "sequence_bias": {(path[2],): -2.0, (33,): 1.0},
        "min_new_tokens": 4,
    }
    expected = [theirs(target, prompt, eos, **settings) for prompt in rows]
    assert expected[0] != path
    total = Counts()
    for gamma in (0, 3, Schedule(2, limit=5)):
        outputs = complete(
            target,
            draft if gamma else None,
            rows,
            gamma=gamma,
            **{**SETTINGS, "stop": eos},
            processors=processors_of(**settings, stop=eos),
            batch_size=None if family in ALONE else 2,
        )
        assert [output.ids for output in outputs] == expected
        total = sum((output.counts for output in outputs), total)
    assert total.judged > 0


@pytest.mark.parametrize("family", BATCHED)
def test_a_familys_batch_is_its_rows_alone(family):
    target, draft = pair(family)
    settings = {**SETTINGS, "gamma": 3, "sampling": Sampling(0.7), "stop": (1, 9)}
    together = complete(target, draft, PROMPTS, generators=checks.seeded(3), **settings)
    for row, generator in enumerate(checks.seeded(3)):
        (alone,) = complete(target, draft, [PROMPTS[row]], generators=[generator], **settings)
        assert together[row] == alone


@pytest.mark.parametrize("family", MADE)
def test_a_familys_states_after_rollbacks_are_those_of_a_fresh_pass(family):
    """Every state of a sampled run, both models', against an uncached pass."""
    target, draft = pair(family)
    prompts = PROMPTS[2:] if family in ALONE else PROMPTS
    checks.check_caches(
        target, draft, prompts, gamma=3, count=9, sampling=Sampling(), tolerance=2e-3
    )


@pytest.mark.parametrize("family", ALONE)
def test_a_family_that_numbers_rows_alike_refuses_several_by_name(family):
    """Several prompts, and several samples of one."""
    target, draft = pair(family)
    for prompts in (PROMPTS, [PROMPTS[0], PROMPTS[0]]):
        with pytest.raises(
            UserError, match=f"{type(target.module).__name__}.*one prompt at a time"
        ):
            complete(target, draft, prompts, gamma=2, **SETTINGS)


def test_several_samples_of_a_source_are_read_once_by_the_encoder():
    target = tiny("t5")
    draft = perturbed(target, 0.05)
    seen = []
    hook = target.module.encoder.register_forward_pre_hook(
        lambda _, __, arguments: seen.append(len(arguments["input_ids"])), with_kwargs=True
    )
    settings = {**SETTINGS, "gamma": 3, "sampling": Sampling()}
    together = complete(target, draft, [PROMPTS[0]] * 3, generators=checks.seeded(3), **settings)
    assert seen == [1]
    hook.remove()
    for row, generator in enumerate(checks.seeded(3)):
        (alone,) = complete(target, draft, [PROMPTS[0]], generators=[generator], **settings)
        assert together[row] == alone
