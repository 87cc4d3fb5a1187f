"""The table model: exact look-ups and strict bookkeeping."""

from __future__ import annotations

import pytest
import torch

from distillspec.models.protocol import Batch
from distillspec.models.toy import TableModel


def table(order: int, size: int = 5, **settings) -> TableModel:
    generator = torch.Generator().manual_seed(order)
    logits = torch.randn((size,) * (order + 1), generator=generator, dtype=torch.float64)
    return TableModel(logits, **settings)


def by_hand(model: TableModel, tokens: list[int]) -> torch.Tensor:
    """The row after `tokens`, read from the table one index at a time."""
    row = model.logits
    for token in ([0] * model.order + tokens)[len(tokens) :] if model.order else []:
        row = row[token]
    return row.detach()


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_sessions_and_teacher_forcing_read_the_same_rows(order):
    model = table(order)
    prompts = [torch.tensor([1, 4, 2]), torch.tensor([3])]
    completions = [[0, 2, 2], [4, 1]]
    session = model.open(prompts)
    assert session.pending.tolist() == [2, 3]
    assert session.lengths.tolist() == [2, 0]
    fed = torch.tensor([[2, 0, 2], [3, 4, 0]])
    states = model.head(session.extend(fed, torch.tensor([3, 2])))
    batch = Batch(tuple(prompts), tuple(torch.tensor(c) for c in completions))
    forced = model.hidden(batch)
    expected = [
        by_hand(model, [1, 4, 2]),
        by_hand(model, [1, 4, 2, 0]),
        by_hand(model, [1, 4, 2, 0, 2]),
        by_hand(model, [3]),
        by_hand(model, [3, 4]),
    ]
    assert torch.equal(forced, torch.stack(expected))
    assert torch.equal(torch.cat([states[0], states[1, :2]]), torch.stack(expected))
    forced.sum().backward()
    assert model.logits.grad is not None
    assert float(model.logits.grad.sum()) == 5 * 5


def test_rollback_then_other_tokens_equals_a_fresh_pass():
    model = table(2)
    session = model.open([torch.tensor([1, 2]), torch.tensor([3, 0, 1])])
    session.extend(torch.tensor([[2, 2, 2], [1, 3, 3]]), torch.tensor([3, 2]))
    session.rollback(torch.tensor([2, 1]))
    assert session.lengths.tolist() == [2, 3]
    states = session.extend(torch.tensor([[4, 1], [0, 0]]), torch.tensor([2, 1]))
    assert torch.equal(states[0, 1], by_hand(model, [1, 2, 4, 1]))
    assert torch.equal(states[1, 0], by_hand(model, [3, 0, 1, 0]))


def test_keep_and_join_move_whole_rows():
    model = table(1)
    session = model.open([torch.tensor([1, 2]), torch.tensor([3])])
    session.join(model.open([torch.tensor([0, 4, 4, 1])]))
    session.keep(torch.tensor([2, 0]))
    assert session.pending.tolist() == [1, 2]
    assert session.lengths.tolist() == [3, 1]
    states = session.extend(session.pending[:, None], torch.tensor([1, 1]))
    assert torch.equal(states[:, 0], model.logits.detach()[[1, 2]])


def test_wrong_bookkeeping_is_an_error():
    model = table(1, context=4)
    session = model.open([torch.tensor([1, 2, 3]), torch.tensor([3])])
    assert session.room.tolist() == [2, 4]
    with pytest.raises(ValueError, match="cannot forget"):
        session.rollback(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="cannot take"):
        session.extend(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([3, 3]))
    with pytest.raises(ValueError, match="lengths must lie"):
        session.extend(torch.zeros(2, 1, dtype=torch.int64), torch.tensor([2, 1]))
    with pytest.raises(ValueError, match="at least one token"):
        model.open([torch.tensor([], dtype=torch.int64)])
    with pytest.raises(ValueError, match="ids must lie"):
        model.open([torch.tensor([5])])


def test_a_trimmed_head_emits_only_kept_ids():
    model = table(1, kept=torch.tensor([1, 3]))
    hidden = model.hidden(Batch((torch.tensor([2]),), (torch.tensor([3]),)))
    logits = model.head(hidden)
    assert torch.equal(logits[0].isfinite(), torch.tensor([False, True, False, True, False]))
    assert torch.equal(model.narrow_head(hidden), logits[:, [1, 3]])
