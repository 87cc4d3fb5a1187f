"""The chunked loss equals the plain one, and counts the positions it should."""

import pytest
import torch

from distillspec.math import divergences
from distillspec.models.protocol import Batch
from distillspec.models.toy import TableModel
from distillspec.training.losses import DistillationLoss, chunked, position_values, position_weights
from distillspec.training.recipes import Divergence
from support import random_table, tiny

SOFT = ["forward_kl", "reverse_kl", "jsd:0.5", "jsd:0.1", "total_variation"]
ALL = [*SOFT, "cross_entropy"]
KEPT = torch.tensor([0, 2, 3, 5])


def ids(*numbers):
    return torch.tensor(numbers)


def batch():
    return Batch((ids(1, 2), ids(4)), (ids(3, 2, 5, 0, 3), ids(2, 0, 5)))


def models(kept=None):
    target = random_table(6, seed=1, scale=2.0)
    return target, random_table(6, seed=2, scale=2.0, kept=kept)


def loss_of(target, draft, name, **settings):
    head = None if name == "cross_entropy" else target.head
    return DistillationLoss(draft, Divergence.parse(name), target_head=head, **settings)


def computed(target, draft, name, data, reduction="sequence_mean", **settings):
    weights = position_weights(data.lengths, reduction)
    hidden = None if name == "cross_entropy" else target.hidden(data).detach()
    return loss_of(target, draft, name, **settings)(data, weights, hidden)


def plain(target, draft, name, data, kept=None):
    """Eq. 2 as written: whole logits, a mean per sequence, a mean over sequences."""
    values = position_values(
        Divergence.parse(name),
        target.hidden(data).detach(),
        draft.narrow_head(draft.hidden(data)),
        torch.cat(data.completions),
        kept,
    )
    return torch.stack([part.mean() for part in values.split(data.lengths)]).mean()


@pytest.mark.parametrize("chunk", [1, 3, 8, None])
@pytest.mark.parametrize("kept", [None, KEPT])
@pytest.mark.parametrize("name", ALL)
def test_chunked_equals_plain_in_value_and_gradient(name, kept, chunk):
    target, draft = models(kept)
    expected = plain(target, draft, name, batch(), kept)
    (gradient,) = torch.autograd.grad(expected, [draft.logits])
    loss = computed(target, draft, name, batch(), chunk=chunk)
    loss.value.backward()
    torch.testing.assert_close(loss.value, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(draft.logits.grad, gradient, rtol=1e-9, atol=1e-12)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_chunked_equals_plain_through_a_transformer_with_tied_head(family, name):
    """The embedding is reached twice, through the body and through the head."""
    target, draft = tiny(family, seed=1), tiny(family, seed=2)
    data = Batch((ids(6, 7, 1), ids(9, 1)), (ids(8, 9, 10, 1), ids(11, 1)))
    p, q = target.head(target.hidden(data)).detach(), draft.head(draft.hidden(data))
    values = position_values(Divergence.parse(name), p, q, torch.cat(data.completions), None)
    expected = torch.stack([part.mean() for part in values.split(data.lengths)]).mean()
    parameters = list(draft.module.parameters())
    gradients = torch.autograd.grad(expected, parameters, allow_unused=True)
    loss = computed(target, draft, name, data, chunk=4)
    (2 * loss.value).backward()
    torch.testing.assert_close(loss.value, expected)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, None if gradient is None else 2 * gradient)


@pytest.mark.parametrize("kept", [None, KEPT])
@pytest.mark.parametrize("name", SOFT)
def test_the_expected_acceptance_comes_from_the_same_logits(name, kept):
    target, draft = models(kept)
    loss = computed(target, draft, name, batch(), chunk=3)
    p = target.head(target.hidden(batch())).softmax(-1)
    q = draft.head(draft.hidden(batch())).softmax(-1)
    torch.testing.assert_close(loss.accepted, torch.minimum(p, q).sum().detach())
    assert not loss.accepted.requires_grad


def test_hard_labels_measure_no_acceptance():
    target, draft = models()
    assert computed(target, draft, "cross_entropy", batch()).accepted is None


@pytest.mark.parametrize("name", SOFT)
def test_a_draft_that_is_the_target_has_no_gradient(name):
    target, _ = models()
    draft = TableModel(target.logits.detach())
    loss = computed(target, draft, name, batch())
    loss.value.backward()
    assert loss.value.abs() < 1e-12
    assert draft.logits.grad.abs().max() < 1e-12
    assert loss.accepted == pytest.approx(8, abs=1e-12)


def test_the_logits_of_all_positions_never_exist_at_once(monkeypatch):
    target, draft = models()
    seen = []
    for model in (target, draft):
        heads = model.head
        monkeypatch.setattr(
            model, "head", lambda h, heads=heads: seen.append(len(h)) or heads(h), raising=False
        )
        narrow = model.narrow_head
        monkeypatch.setattr(
            model, "narrow_head", lambda h, narrow=narrow: seen.append(len(h)) or narrow(h)
        )
    computed(target, draft, "forward_kl", batch(), chunk=3).value.backward()
    assert seen == [3, 3, 3, 3, 2, 2], "each head once a chunk, none again in the backward pass"


def test_nothing_is_differentiated_where_no_gradient_is_wanted():
    target, draft = models()
    with torch.no_grad():
        loss = computed(target, draft, "forward_kl", batch(), chunk=3)
    torch.testing.assert_close(loss.value, plain(target, draft, "forward_kl", batch()).detach())
    assert not loss.value.requires_grad


def test_two_parameters_that_autograd_gives_one_gradient_tensor_stay_apart():
    """Adding chunks in place into a gradient that two parameters share would count it twice."""

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.zeros(2, 3))
            self.b = torch.nn.Parameter(torch.zeros(2, 3))

    module, hidden = Sum(), torch.ones(6, 3)
    scale = torch.arange(6.0)[:, None] * torch.ones(6, 3)
    chunked(
        lambda h, rows: (((module.a + module.b + h) * scale[rows]).sum(), None), hidden, module, 2
    ).value.backward()
    expected = scale.reshape(3, 2, 3).sum(0)
    assert torch.equal(module.a.grad, expected)
    assert torch.equal(module.b.grad, expected)


@pytest.mark.parametrize("name", ["forward_kl", "cross_entropy"])
def test_bfloat16_changes_the_draft_only_and_only_a_little(name):
    target, draft = tiny("llama", seed=1), tiny("llama", seed=2)
    data = Batch((ids(6, 7, 1),), (ids(8, 9, 10, 1),))
    full = computed(target, draft, name, data, chunk=2)
    half = computed(target, draft, name, data, chunk=2, precision="bfloat16")
    half.value.backward()
    assert half.value.dtype == torch.float32
    assert full.value != half.value
    torch.testing.assert_close(half.value, full.value, rtol=0.05, atol=0)
    grads = [p.grad for p in draft.module.parameters()]
    assert all(g is not None and g.dtype == torch.float32 and g.isfinite().all() for g in grads)
    assert draft.module.get_output_embeddings().weight.grad.abs().max() > 0


def test_the_target_keeps_its_precision_whatever_the_draft_trains_in(monkeypatch):
    target, draft = tiny("llama", seed=1), tiny("llama", seed=2)
    logits, head = [], target.head
    monkeypatch.setattr(target, "head", lambda hidden: logits.append(head(hidden)) or logits[-1])
    data = Batch((ids(6, 7, 1),), (ids(8, 9, 10, 1),))
    computed(target, draft, "forward_kl", data, precision="bfloat16")
    assert torch.equal(logits[0], head(target.hidden(data)))


def test_the_wrapped_module_has_the_drafts_parameters_once():
    target, draft = models()
    loss = loss_of(target, draft, "forward_kl")
    assert [name for name, _ in loss.named_parameters(remove_duplicate=False)] == ["module.logits"]


def test_a_target_head_goes_with_a_divergence_from_the_target():
    _, draft = models()
    for name, head in (("forward_kl", None), ("cross_entropy", draft.head)):
        with pytest.raises(ValueError, match="do not go together"):
            DistillationLoss(draft, Divergence.parse(name), target_head=head)
    with pytest.raises(ValueError, match="no target logits"):
        position_values(Divergence("jsd", 0.5), None, torch.zeros(1, 6), ids(0), None)


# Which positions count, by position and never by token id.


def bumped(model, token):
    """Copy a table with another row after `token`."""
    logits = model.logits.detach().clone()
    logits[token] += torch.linspace(0, 3, logits.shape[-1])
    return TableModel(logits)


def test_the_last_prompt_token_predicts_the_first_label_and_the_last_label_nothing():
    data = Batch((ids(1, 2),), (ids(3, 4),))
    target, draft = models()
    before = computed(target, draft, "forward_kl", data).value
    after = {
        token: computed(bumped(target, token), draft, "forward_kl", data).value
        for token in range(5)
    }
    changed = [token for token in after if after[token] != before]
    assert changed == [2, 3], "1 is inside the prompt, 4 is the last label, 0 is nowhere"


def test_a_row_counts_its_own_tokens():
    """Rows that end after 3 and 9 tokens have 12 labels, whatever a batch is padded to."""
    target, draft = models()
    data = Batch((ids(1), ids(1)), (ids(2, 3, 5), ids(2, 3, 4, 0, 2, 3, 4, 1, 5)))
    p = target.hidden(data).softmax(-1)
    q = draft.hidden(data).softmax(-1)
    assert len(position_weights(data.lengths, "sequence_mean")) == 12
    loss = computed(target, draft, "total_variation", data, "token_mean")
    torch.testing.assert_close(loss.value, (0.5 * (p - q).abs().sum(-1)).sum() / 12)


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_end_and_padding_ids_count_like_any_other(family):
    """Ids 0 and 1 (padding and end) inside prompt and completion: a batch of two ragged rows
    costs what the rows cost alone, so nothing is masked by value and padding has no effect."""
    target, draft = tiny(family, seed=1), tiny(family, seed=2)
    rows = [
        Batch((ids(6, 0, 1, 7, 1),), (ids(8, 1, 0, 0, 9, 1),)),
        Batch((ids(9, 1),), (ids(1, 1),)),
    ]
    both = Batch(rows[0].prompts + rows[1].prompts, rows[0].completions + rows[1].completions)
    together = computed(target, draft, "forward_kl", both).value
    alone = [computed(target, draft, "forward_kl", row).value for row in rows]
    torch.testing.assert_close(together, (alone[0] + alone[1]) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", ["sequence_mean", "token_mean"])
def test_doubling_the_batch_keeps_the_mean(reduction):
    target, draft = models()
    once, data = batch(), batch()
    twice = Batch(data.prompts * 2, data.completions * 2)
    a = computed(target, draft, "forward_kl", once, reduction).value
    b = computed(target, draft, "forward_kl", twice, reduction).value
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def test_both_reductions_on_one_token_of_1_and_three_of_3():
    """The mean of means is 2.0, the paper's Eq. 2 and our default; the token mean is 2.5."""
    values = torch.tensor([1.0, 3.0, 3.0, 3.0], dtype=torch.float64)
    assert (position_weights([1, 3], "sequence_mean") * values).sum() == pytest.approx(2.0)
    assert (position_weights([1, 3], "token_mean") * values).sum() == pytest.approx(2.5)


@pytest.mark.parametrize("masked", [False, True])
def test_the_weights_are_the_reductions_of_the_mathematics(masked):
    lengths, g = [1, 3, 7, 2], torch.Generator().manual_seed(0)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    values = torch.rand(4, 7, generator=g, dtype=torch.float64)
    counted = None
    if masked:
        keep = torch.rand(4, 7, generator=g) < 0.6
        keep[:, 0] = True
        counted = keep[mask]
        expected = mask & keep
    else:
        expected = mask
    for reduction in ("sequence_mean", "token_mean"):
        weights = position_weights(lengths, reduction, counted)
        reduce = getattr(divergences, reduction)
        torch.testing.assert_close((weights * values[mask]).sum(), reduce(values, expected))


def test_a_sequence_that_counts_nowhere_is_left_out_of_the_mean():
    counted = torch.tensor([False, True, True])
    assert position_weights([1, 2], "sequence_mean", counted).tolist() == [0, 0.5, 0.5]
    with pytest.raises(ValueError, match="no position counts"):
        position_weights([1, 2], "sequence_mean", torch.zeros(3, dtype=torch.bool))


def test_a_position_of_weight_zero_may_be_infinite():
    """Label 1 is not among the kept ids: −log q is infinite and its weight 0."""
    _, draft = models(KEPT)
    data = Batch((ids(2),), (ids(3, 1, 5),))
    weights = position_weights(data.lengths, "sequence_mean", torch.tensor([True, False, True]))
    loss = loss_of(None, draft, "cross_entropy")(data, weights, None)
    loss.value.backward()
    assert loss.value.isfinite()
    assert draft.logits.grad.isfinite().all()
    assert draft.logits.grad[3].abs().max() == 0
    assert draft.logits.grad[2].abs().max() > 0
