"""Drafts cut from a target."""

from __future__ import annotations

import pytest
import torch

from distillspec.errors import UserError
from distillspec.models import wrap
from distillspec.models.protocol import Batch
from distillspec.models.surgery import keep_layers, most_frequent_ids, narrow
from families import family_module
from support import FAMILIES, SIZE, tiny, word_tokenizer

BATCH = Batch((torch.tensor([7, 8, 1]), torch.tensor([9])), (torch.tensor([20, 21, 1]),) * 2)


def logits(model):
    return model.head(model.hidden(BATCH)).detach()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_keeping_every_layer_keeps_the_model(family):
    target = tiny(family, layers=3)
    before = logits(target)
    draft = keep_layers(target, [0, 1, 2])
    assert torch.equal(logits(draft), before)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.zero_()
    assert torch.equal(logits(target), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kept_layers_are_the_named_ones(family):
    """Dropping a layer by hand in the target gives the draft's logits."""
    target = tiny(family, layers=3)
    draft = keep_layers(target, [0, 2])
    module = target.module
    if "t5" in family:
        del module.decoder.block[1]
        module.decoder.block[1].layer[0].SelfAttention.layer_idx = 1
        module.decoder.block[1].layer[1].EncDecAttention.layer_idx = 1
        assert draft.module.config.num_decoder_layers == 2
        assert len(draft.module.encoder.block) == 3
    else:
        layers = module.model.layers if family == "llama" else module.transformer.h
        del layers[1]
        assert draft.module.config.num_hidden_layers == 2
    assert torch.equal(logits(draft), logits(target))


def test_t5_keeps_its_relative_bias_when_the_first_layer_goes():
    target = tiny("t5", layers=3)
    draft = keep_layers(target, [2], encoder_layers=[1, 2])
    for stack in ("encoder", "decoder"):
        old, new = (
            getattr(model.module, stack).block[0].layer[0].SelfAttention
            for model in (target, draft)
        )
        assert torch.equal(new.relative_attention_bias.weight, old.relative_attention_bias.weight)
        assert not torch.equal(new.q.weight, old.q.weight)
    assert (draft.module.config.num_layers, draft.module.config.num_decoder_layers) == (2, 1)


@pytest.mark.parametrize("parts", ["gemma3-vision", "t5gemma"])
def test_a_target_of_several_parts_is_cut_in_the_part_that_writes(parts):
    """The sizes stand in the configs of its parts, and its first layers may be those of vision."""
    target = wrap(family_module(parts), word_tokenizer())
    draft = keep_layers(target, [1])
    assert draft.module.config.get_text_config(decoder=True).layer_types == ["full_attention"]
    decoder = target.module.get_decoder()
    del decoder.layers[0]
    decoder.layers[0].self_attn.layer_idx = 0
    decoder.config.num_hidden_layers, decoder.config.layer_types = 1, ["full_attention"]
    assert torch.equal(logits(draft), logits(target))
    small = narrow(draft, width=16, layers=2, heads=2, generator=generator())
    assert logits(small).shape == logits(target).shape
    assert small.module.get_decoder().embed_tokens.weight.shape == (SIZE, 16)


def test_only_lists_of_layers_are_cut_with_them():
    """A config's two end tokens were taken for an entry of each of its two layers."""
    target = tiny("llama")
    config = target.module.config
    config.eos_token_id, config.layer_types = [1, 9], ["full_attention", "sliding_attention"]
    config.sliding_window = 4
    cut = keep_layers(target, [1])
    small = narrow(target, width=16, layers=3, heads=2, generator=generator())
    for draft, kinds in ((cut, [1]), (small, [0, 1, 0])):
        assert draft.module.config.eos_token_id == [1, 9]
        assert draft.module.config.layer_types == [config.layer_types[i] for i in kinds]


def test_impossible_layers_are_refused():
    target = tiny("llama")
    for layers in ([], [2], [-1], [1, 0], [0, 0]):
        with pytest.raises(UserError, match="has layers 0…1: expected some of them in ascending"):
            keep_layers(target, layers)
    with pytest.raises(UserError, match="has no encoder"):
        keep_layers(target, [0], encoder_layers=[0])
    with pytest.raises(UserError, match="trimmed head already"):
        keep_layers(keep_layers(target, [0], kept=torch.tensor([7])), [0])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trimmed_head_is_the_whole_one_at_its_ids(family):
    target = tiny(family)
    whole = logits(target)
    draft = keep_layers(target, [0, 1], kept=torch.tensor([20, 10, 30]))
    assert draft.kept.tolist() == [0, 1, 2, 3, 10, 20, 30]
    ours = logits(draft)
    assert torch.allclose(ours[:, draft.kept], whole[:, draft.kept], atol=1e-5)
    dropped = torch.ones(SIZE, dtype=torch.bool)
    dropped[draft.kept] = False
    assert bool((ours[:, dropped] == -torch.inf).all())
    assert torch.equal(draft.narrow_head(draft.hidden(BATCH)), ours[:, draft.kept])
    assert torch.equal(target.narrow_head(target.hidden(BATCH)), whole)
    trained = dict(draft.module.named_parameters())
    assert sum(len(p) == len(draft.kept) for p in trained.values()) == 1
    draft.head(draft.hidden(BATCH))[:, draft.kept].sum().backward()
    assert draft.module.get_input_embeddings().weight.shape[0] == SIZE


def test_kept_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(UserError, match="kept ids must lie in 0…47"):
        keep_layers(tiny("llama"), [0], kept=torch.tensor([48]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_narrow_draft_reads_and_writes_the_same_ids(family):
    target = tiny(family)
    before = torch.random.get_rng_state()
    one, same, other = (
        narrow(target, width=16, layers=1, heads=2, generator=generator(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert logits(one).shape == logits(target).shape
    assert torch.equal(logits(one), logits(same))
    assert not torch.equal(logits(one), logits(other))
    assert one.module.get_input_embeddings().weight.shape == (SIZE, 16)
    assert one.vocabulary == target.vocabulary


def test_projected_embeddings_keep_the_geometry_of_the_targets():
    """The truncated SVD is the best rank-16 picture of all inner products of the embeddings."""
    target = tiny("llama")
    draft = narrow(target, width=16, layers=1, heads=2, generator=generator())
    whole = target.module.get_input_embeddings().weight.detach()
    small = draft.module.get_input_embeddings().weight.detach()
    u, s, v = torch.linalg.svd(whole, full_matrices=False)
    best = (u[:, :16] * s[:16]) @ v[:16]
    expected, ours = best @ best.T, small @ small.T
    assert torch.allclose(ours / ours.norm(), expected / expected.norm(), atol=1e-5)


def test_impossible_sizes_are_refused():
    for sizes in ({"width": 15, "heads": 2}, {"width": 64, "heads": 2}, {"width": 16, "heads": 0}):
        with pytest.raises(UserError, match="at most 32"):
            narrow(tiny("llama"), layers=1, generator=generator(), **sizes)


def test_the_most_frequent_ids_are_chosen():
    counts = torch.tensor([0, 5, 2, 9, 2, 0])
    assert most_frequent_ids(counts, 2).tolist() == [1, 3]
    assert most_frequent_ids(counts, 3).tolist() == [1, 2, 3]
    assert most_frequent_ids(counts, 3, always=[5, 0]).tolist() == [0, 3, 5]
    assert most_frequent_ids(counts, 6).tolist() == [0, 1, 2, 3, 4, 5]
    for size in (0, 1, 7):
        with pytest.raises(ValueError, match="size must lie in 2…6"):
            most_frequent_ids(counts, size, always=[0, 1])
