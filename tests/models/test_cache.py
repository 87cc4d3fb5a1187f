"""The growing layer against transformers' own, and the memory and modes it must not mind."""

from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicLayer

from distillspec.models.cache import GrowingLayer, RaggedCache
from support import FAMILIES, tiny


def columns(count, generator, rows=2):
    """Keys and values of `count` new columns; their sizes differ, as in some families."""
    return tuple(torch.randn(rows, 3, count, size, generator=generator) for size in (4, 5))


def assert_same(layer, plain):
    assert layer.get_seq_length() == plain.get_seq_length()
    for name in ("keys", "values"):
        assert torch.equal(getattr(layer, name), getattr(plain, name))


@pytest.mark.parametrize("seed", range(5))
def test_a_growing_layer_holds_what_a_plain_one_holds(seed):
    """Through growth past the room, crops (to nothing too), replaced rows and columns."""
    generator = torch.Generator().manual_seed(seed)
    layer, plain = GrowingLayer(), DynamicLayer()
    rows = 2
    for step in range(40):
        new = columns(int(torch.randint(1, 30, (), generator=generator)), generator, rows)
        for returned, held in zip(layer.update(*new), plain.update(*new), strict=True):
            assert torch.equal(returned, held)
        assert_same(layer, plain)
        removed, held = int(torch.randint(0, 20, (), generator=generator)), plain.get_seq_length()
        for one in (layer, plain):
            one.crop(-held if step % 10 == 9 else -min(removed, held))
        if step % 7 == 3:
            order = torch.tensor([1, 0, 1, 0])[: 2 + step % 3]
            rows = len(order)
            for one in (layer, plain):
                one.keys, one.values = one.keys[order], one.values[order]
        assert_same(layer, plain)


def test_a_column_is_added_in_place_and_room_is_a_fraction():
    """Adding a column copies no other, and at most a quarter (or 64 columns) is spare."""
    layer, generator = GrowingLayer(), torch.Generator().manual_seed(0)
    layer.update(*columns(400, generator))
    place, spare = layer.keys.data_ptr(), layer.keys.untyped_storage().nbytes()
    layer.update(*columns(1, generator))
    assert layer.keys.data_ptr() == place
    assert spare == 2 * 3 * 4 * 4 * 500


def test_what_was_taken_out_before_a_crop_does_not_come_back():
    layer, generator = GrowingLayer(), torch.Generator().manual_seed(0)
    first, second, third = (columns(n, generator) for n in (3, 2, 4))
    for new in (first, second):
        layer.update(*new)
    layer.crop(-2)
    layer.update(*third)
    assert torch.equal(layer.keys, torch.cat([first[0], third[0]], dim=2))


def filled(rows, count, lengths):
    """A cache of one layer that has stored `count` columns, of which rows keep `lengths`."""
    cache = RaggedCache(rows)
    cache.own.update(*columns(count, torch.Generator().manual_seed(0), rows), 0)
    cache.settle(count, lengths)
    return cache


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.keep([1]),
        lambda cache: cache.rollback([0, 1]),
        lambda cache: cache.join(filled(1, 5, [5])),
    ],
    ids=["keep", "ragged rollback", "join"],
)
def test_the_old_buffers_do_not_outlive_a_change(change):
    """Else a cache would take its memory twice until its next update."""
    cache = filled(2, 200, [200, 200])
    (layer,) = cache.own.layers
    old = layer.keys.untyped_storage().data_ptr()
    change(cache)
    assert layer._buffers is None
    assert layer.keys.untyped_storage().data_ptr() != old


@pytest.mark.parametrize("seed", range(5))
def test_every_row_holds_its_own_columns_and_all_end_together(seed):
    """Whatever rows keep, forget, leave and join: each row's last columns are its tokens'."""
    generator = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    def fed(cache, held, k):
        """Store k columns of which rows keep 1…k, and say what each row then holds."""
        new = columns(k, generator, len(held))
        kept = [number(1, k) for _ in held]
        cache.own.update(*new, 0)
        cache.settle(k, kept)
        return [
            torch.cat([old, row[:, :n]], 1) for old, row, n in zip(held, new[0], kept, strict=True)
        ]

    cache = RaggedCache(3)
    held = fed(cache, [torch.zeros(3, 0, 4)] * 3, 4)
    for _ in range(8):
        held = fed(cache, held, number(1, 4))
        surplus = [number(0, row.shape[1] - 1) for row in held]
        cache.rollback(surplus)
        held = [row[:, : row.shape[1] - n] for row, n in zip(held, surplus, strict=True)]
        order = torch.randperm(len(held), generator=generator)[: number(1, len(held))].tolist()
        cache.keep(order)
        held = [held[i] for i in order]
        other = RaggedCache(2)
        more = fed(other, [torch.zeros(3, 0, 4)] * 2, number(1, 6))
        cache.join(other)
        held += more
        (layer,) = cache.own.layers
        assert cache.lengths == [row.shape[1] for row in held]
        assert layer.keys.shape[2] == cache.width
        for keys, row in zip(layer.keys, held, strict=True):
            assert torch.equal(keys[:, cache.width - row.shape[1] :], row)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_session_outlives_the_inference_mode_it_was_used_in(family):
    """In-place updates of tensors made in inference mode are an error outside it."""
    model = tiny(family)
    prompts = [torch.tensor([7, 8, 9]), torch.tensor([10, 11])]
    session, plain = model.open(prompts), model.open(prompts)
    both, token = torch.tensor([1, 1]), torch.tensor([[20], [21]])
    with torch.inference_mode():
        session.extend(token, both)
    plain.extend(token, both)
    assert torch.equal(session.extend(token, both), plain.extend(token, both))
