"""Caches and bookkeeping between blocks: none, some and all drafted tokens accepted."""

from __future__ import annotations

import pytest
import torch

import decoding_checks as checks
from distillspec.math.sampling import GREEDY, Sampling
from support import FAMILIES, perturbed, tiny

PROMPTS = [torch.tensor(ids) for ids in ([7, 9, 11], [5], [8, 8, 3, 20, 41, 6])]


def test_caches_hold_a_prefix_after_every_block():
    """mlxcel#1002: the draft was rolled back by the target's surplus, and fell behind unnoticed."""
    checks.check_caches_tables()


def test_rows_that_draft_different_numbers_share_a_batch():
    checks.check_caches_ragged()


def test_the_models_contexts_end_rows_and_drafting():
    """exllamav2#274, vllm#16087, #57941: drafting ran past a context."""
    checks.check_context()


def test_position_two_of_four_rejected():
    """openvino.genai#4190: a rejection that came a round late kept what followed the word."""
    checks.check_forced_rejection_tables()


@pytest.mark.parametrize("family", FAMILIES)
def test_caches_of_real_models_equal_uncached_passes(family):
    target = checks.lively(family)
    draft = perturbed(target, 0.03)
    for sampling in (GREEDY, Sampling()):
        checks.check_caches(
            target, draft, PROMPTS, gamma=3, count=12, sampling=sampling, tolerance=TOLERANCE
        )


@pytest.mark.parametrize("family", ["llama", "t5-untied"])
def test_position_two_of_four_rejected_by_real_models(family):
    target = tiny(family)
    checks.check_forced_rejection(target, perturbed(target, 0.2), PROMPTS[0], TOLERANCE)


TOLERANCE = 2e-3
"""Logits of these models reach 30 in size; float32 kernels differ by the shape of the batch."""


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_real_draft_with_a_short_context_stops_drafting(family):
    target = tiny(family, context=64)
    draft = perturbed(tiny(family, context=64), 0.02)
    short = tiny(family, context=32)
    prompt = torch.tensor([7, 9, 11, 6])
    expected = checks.plain_greedy(target, prompt, 50)
    for model in (draft, short):
        blocks = list(
            checks.speculate(
                target, model, [prompt], gamma=5, max_new_tokens=50, sampling=GREEDY, stop=()
            )
        )
        (output,) = checks.collect(blocks, 1)
        assert output.ids == expected
    position = len(prompt)
    for block in blocks:
        assert block.drafted[0] <= max(0, 33 - position)
        position += len(block.ids[0])
    assert blocks[0].drafted == (5,)


def test_a_prompt_longer_than_the_drafts_context_is_decoded_without_it():
    target, draft = tiny("gpt2", context=64), tiny("gpt2", context=32)
    prompts = [torch.arange(6, 46), torch.tensor([7, 9])]
    outputs = checks.complete(
        target, draft, prompts, gamma=3, max_new_tokens=10, sampling=GREEDY, stop=()
    )
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.ids == checks.plain_greedy(target, prompt, 10)
    assert [output.counts.drafted > 0 for output in outputs] == [False, True]
