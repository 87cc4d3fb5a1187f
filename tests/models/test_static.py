"""Passes of fixed shapes: compiled once for each, whole, and equal to the others.

That sessions on them hold what they should is tested in `test_session.py`, with all the others.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from transformers import BloomConfig, BloomForCausalLM

from distillspec.decoding import Schedule, complete
from distillspec.errors import UserError
from distillspec.math.processors import processors_of
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models import static, wrap
from support import SIZE, perturbed, seeded, tiny, word_tokenizer

PROMPTS = [torch.tensor(ids) for ids in ([7], [8, 9, 10, 11, 12, 13, 14], [30, 31, 32, 33])]


def decoded(target, draft, *, gamma, sampling, tokens=24):
    return complete(
        target,
        draft,
        PROMPTS,
        gamma=gamma,
        max_new_tokens=tokens,
        sampling=sampling,
        generators=[torch.Generator().manual_seed(i) for i in range(len(PROMPTS))],
    )


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
def test_outputs_are_those_of_growing_caches(family, sampling):
    target = tiny(family)
    draft = perturbed(target, 0.05)
    plain = decoded(target, draft, gamma=3, sampling=sampling)
    fixed = [model.static(lambda forward: forward) for model in (target, draft)]
    assert [o.ids for o in decoded(*fixed, gamma=3, sampling=sampling)] == [o.ids for o in plain]
    assert any(0 < o.counts.accepted < o.counts.judged for o in plain)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_refilled_batch_under_settings_is_the_same_too(family):
    """Rows that draft different numbers, wait, end at different times, outgrow their buffers."""
    target = tiny(family)
    draft = perturbed(target, 0.05)
    prompts = [*PROMPTS, torch.arange(6, 36), torch.tensor([9, 9])]
    fixed = [model.static(lambda forward: forward) for model in (target, draft)]
    chain = processors_of(repetition_penalty=1.3, no_repeat_ngram_size=2, presence_penalty=0.5)
    for sampling in (GREEDY, Sampling(0.9, top_p=0.95)):
        found = [
            complete(
                *models,
                prompts,
                gamma=Schedule(2, limit=6),
                max_new_tokens=18,
                sampling=sampling,
                processors=chain,
                stop=tuple(range(1, 48, 9)),
                batch_size=2,
                generators=[torch.Generator().manual_seed(i) for i in range(len(prompts))],
            )
            for models in ((target, draft), fixed)
        ]
        assert [o.ids for o in found[0]] == [o.ids for o in found[1]]
        assert len({len(o.ids) for o in found[0]}) > 1


def test_a_pass_is_compiled_once_for_each_shape(monkeypatch):
    """Rows finish, accept different numbers and outgrow their buffers; shapes stay few."""
    monkeypatch.setattr(static, "COLUMNS", 32)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiler = partial(torch.compile, backend=counter, dynamic=False, fullgraph=True)
    target = tiny("llama")
    draft = perturbed(target, 0.05)
    plain = decoded(target, draft, gamma=2, sampling=GREEDY, tokens=40)
    found = decoded(target.static(compiler), draft, gamma=2, sampling=GREEDY, tokens=40)
    assert [o.ids for o in found] == [o.ids for o in plain]
    blocks = max(o.counts.target_calls for o in found)
    # 32 and 64 columns, 1 to 3 tokens near the end, batches of 4, 2 and 1: far fewer than blocks
    assert 1 <= counter.frame_count <= 6 < blocks


def test_buffers_shrink_when_rows_are_gone():
    target = tiny("llama").static(lambda forward: forward)
    session = target.open([torch.arange(4, 9)] * 5)
    assert session.cache.size == 8
    session.keep(torch.tensor([4, 1]))
    assert session.cache.size == 2
    assert session.cache.cache.layers[0].keys.shape[0] == 2


def test_a_row_that_is_kept_twice_has_two_caches():
    target = tiny("llama").static(lambda forward: forward)
    session = target.open([torch.arange(4, 9)])
    session.keep(torch.tensor([0, 0]))
    states = session.extend(torch.tensor([[5, 6], [7, 8]]), torch.tensor([2, 2]))
    for row, ids in enumerate(([5, 6], [7, 8])):
        alone = target.open([torch.arange(4, 9)])
        wanted = alone.extend(torch.tensor([ids]), torch.tensor([2]))
        torch.testing.assert_close(states[row], wanted[0], rtol=1e-5, atol=1e-5)


def test_a_model_that_has_no_such_passes_is_refused_by_name():
    """Bloom counts its positions in a mask of two dimensions: its first pass used to fail."""
    config = BloomConfig(vocab_size=SIZE, hidden_size=32, n_layer=2, n_head=4)
    model, compiled = wrap(seeded(lambda: BloomForCausalLM(config), 0), word_tokenizer()), []
    with pytest.raises(UserError, match="BloomForCausalLM.*in passes of fixed shapes: "):
        model.static(compiled.append)
    assert not compiled


def test_windows_and_encoders_are_refused_by_name():
    t5 = tiny("t5")
    with pytest.raises(UserError, match="decoder-only"):
        t5.static()
    target = tiny("llama")
    target.module.config.sliding_window = 4
    with pytest.raises(UserError, match="window"):
        target.static()
