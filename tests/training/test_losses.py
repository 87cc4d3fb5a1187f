"""The loss equals the plain one in value and gradient, and counts the positions it should."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import training_checks as checks
from distillspec.errors import UserError
from distillspec.math import divergences
from distillspec.math.forecast import expected_calls
from distillspec.models import wrap
from distillspec.models.heads import Head
from distillspec.models.protocol import Batch
from distillspec.models.toy import TableModel
from distillspec.models.vocabulary import Vocabulary
from distillspec.training.chunks import Objective, Rows, chunked
from distillspec.training.losses import (
    DistillationLoss,
    position_weights,
    scored,
)
from distillspec.training.recipes import Divergence
from distillspec.training.worth import path_worth, select
from support import module, random_table, tiny, word_tokenizer

SOFT = ["forward_kl", "reverse_kl", "jsd:0.5", "jsd:0.1", "total_variation", "acceptance"]
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
    values, _ = scored(
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
    values, _ = scored(Divergence.parse(name), p, q, torch.cat(data.completions), None)
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
    """trl#5731: the fused loss was 6.0 there."""
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


# The head: every way from hidden states to logits, against the plain form.

N, H, V = 11, 6, 9


@dataclass
class Bare:
    """A draft that is nothing but its head."""

    layers: Head
    module: nn.Module
    device = torch.device("cpu")

    @property
    def projection(self):
        return self.layers.linear

    @property
    def kept(self):
        return self.layers.kept

    def narrow_head(self, hidden, projection=None):
        return self.layers.narrow(hidden, projection)


def normal(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def linear(rows, *, seed=0, bias=False, kind=nn.Linear):
    layer = kind(H, rows, bias=bias, dtype=torch.float64)
    for i, parameter in enumerate(layer.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed + i)
    return layer


class Adapted(nn.Linear):
    """A layer with more to it than its product, as an adapter has."""

    def forward(self, inputs):
        return super().forward(inputs) + inputs.sum(-1, keepdim=True) * self.weight[:, 0]


WORDS = Vocabulary.plain(V)
HEADS = {
    "plain": lambda: Head(linear(V), WORDS),
    "bias": lambda: Head(linear(V, bias=True), WORDS),
    "scaled as T5": lambda: Head(linear(V), WORDS, before=H**-0.5),
    "factor": lambda: Head(linear(V), WORDS, after=0.3),
    "soft-capped": lambda: Head(linear(V), WORDS, cap=1.5),
    "fixed bias": lambda: Head(linear(V), WORDS, bias=normal(V, seed=9)),
    "padded rows": lambda: Head(linear(V + 3), WORDS),
    "missing rows": lambda: Head(linear(V - 2), WORDS),
    "holes": lambda: Head(linear(V), Vocabulary((*WORDS.pieces[:4], None, *WORDS.pieces[5:]))),
    "trimmed": lambda: Head(linear(4), WORDS, kept=KEPT),
    "trimmed, capped, scaled": lambda: Head(linear(4), WORDS, kept=KEPT, cap=2.0, before=0.5),
    "adapted": lambda: Head(linear(V, kind=Adapted), WORDS),
}


def objective(head, name, *, dtype=torch.float64, chunk=4, tile=3):
    """A loss of N positions with a target whose logits are −inf wherever the draft's are."""
    draft = Bare(head, head.linear)
    emitted = torch.zeros(V, dtype=torch.float64)
    if head.kept is None:
        emitted = head.whole(torch.zeros(H, dtype=head.linear.weight.dtype)).detach().double()
        emitted = emitted.masked_fill(emitted > -math.inf, 0.0)
    weights = normal(N, seed=5).abs()
    weights[3] = 0
    labels = torch.arange(N) % 3
    return Objective(
        draft=draft,
        score=lambda p, q, y, kept: scored(Divergence.parse(name), p, q, y, kept),
        target_head=lambda hidden: (hidden @ normal(V, H, seed=7).T * 0.7 + emitted).to(dtype),
        target_hidden=normal(N, H, seed=8),
        log_z=None,
        labels=KEPT[labels] if head.kept is not None else labels,
        weights=weights,
        rows=Rows(chunk, tile),
    )


def whole(loss, hidden):
    """The same loss with all logits at once and plain autograd."""
    logits = loss.draft.narrow_head(hidden)
    p = loss.target_logits(slice(0, len(hidden)))
    values, _ = loss.score(p, logits, loss.labels, loss.draft.kept)
    return (values.masked_fill(loss.weights == 0, 0.0) * loss.weights).sum()


@pytest.mark.parametrize("name", ALL)
def test_a_position_of_weight_0_is_as_good_as_absent_even_where_it_is_infinite(name):
    """There the two models have no id in common, whose slope is no number."""
    loss = objective(HEADS["holes"](), name)
    assert loss.weights.nonzero().flatten().tolist() == [i for i in range(N) if i != 3]
    never = torch.full((V,), -math.inf, dtype=torch.float64).index_fill(0, torch.tensor(4), 0.0)
    usual, states = loss.target_head, loss.target_hidden.clone()
    states[3] = 1e6
    loss = replace(
        loss,
        target_hidden=states,
        target_head=lambda hidden: torch.where(hidden[:, :1] == 1e6, never, usual(hidden)),
    )
    others = loss.weights.nonzero().flatten()

    def gradients(part, places):
        hidden = normal(N, H, seed=3).requires_grad_()
        value, _ = chunked(part, hidden[places])
        return value, *torch.autograd.grad(value, [hidden, *loss.draft.module.parameters()])

    found = gradients(loss, torch.arange(N))
    for one, expected in zip(found, gradients(loss.at(others), others), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", HEADS)
def test_every_head_and_divergence_equals_the_plain_form(kind, name):
    """trl#5731: the fused loss was another one than the plain loss."""
    loss = objective(HEADS[kind](), name)
    hidden = normal(N, H, seed=3).requires_grad_()
    parameters = list(loss.draft.module.parameters())
    expected = whole(loss, hidden)
    gradients = torch.autograd.grad(expected, [hidden, *parameters])
    value, _ = chunked(loss, hidden)
    (3 * value).backward()
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    for got, gradient in zip([hidden, *parameters], gradients, strict=True):
        torch.testing.assert_close(got.grad, 3 * gradient, rtol=1e-9, atol=1e-11)
        assert gradient.abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["bias", "adapted"])
def test_a_frozen_head_gets_no_gradient_and_passes_one_on(kind):
    loss = objective(HEADS[kind](), "forward_kl")
    loss.draft.module.requires_grad_(False)
    hidden = normal(N, H, seed=3).requires_grad_()
    (gradient,) = torch.autograd.grad(whole(loss, hidden), hidden)
    chunked(loss, hidden)[0].backward()
    torch.testing.assert_close(hidden.grad, gradient, rtol=1e-9, atol=1e-11)
    assert all(p.grad is None for p in loss.draft.module.parameters())


def test_only_the_bias_of_a_head_may_train():
    loss = objective(HEADS["bias"](), "jsd:0.5")
    loss.draft.module.weight.requires_grad_(False)
    hidden = normal(N, H, seed=3)
    (gradient,) = torch.autograd.grad(whole(loss, hidden), loss.draft.module.bias)
    chunked(loss, hidden)[0].backward()
    torch.testing.assert_close(loss.draft.module.bias.grad, gradient, rtol=1e-9, atol=1e-11)
    assert loss.draft.module.weight.grad is None


def test_a_hook_on_the_output_layer_is_not_passed_by():
    loss = objective(HEADS["plain"](), "forward_kl")
    seen = []
    loss.draft.module.register_forward_hook(lambda *_: seen.append(1))
    chunked(loss, normal(N, H, seed=3).requires_grad_())[0].backward()
    assert len(seen) == 3


def test_the_gradient_of_a_tied_matrix_adds_up_from_both_ends():
    head = HEADS["plain"]()
    loss = objective(head, "forward_kl")
    weight, tokens = head.linear.weight, torch.arange(N) % V

    def hidden():
        return weight[tokens].tanh()

    (gradient,) = torch.autograd.grad(whole(loss, hidden()), weight)
    chunked(loss, hidden())[0].backward()
    torch.testing.assert_close(weight.grad, gradient, rtol=1e-9, atol=1e-11)


def test_the_gradient_can_be_taken_once_and_is_given_away():
    loss = objective(HEADS["plain"](), "forward_kl")
    value, _ = chunked(loss, normal(N, H, seed=3).requires_grad_())
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can be taken once"):
        value.backward()


def test_hidden_states_that_are_the_logits_are_not_written_over():
    target, draft = models()
    states = draft.hidden(batch())
    before = states.detach().clone()
    loss = objective(HEADS["plain"](), "forward_kl")
    p = target.hidden(batch()).detach()
    loss = replace(
        loss,
        draft=draft,
        target_head=lambda hidden: hidden,
        target_hidden=p,
        labels=torch.cat(batch().completions),
        weights=torch.ones(8, dtype=torch.float64),
    )
    chunked(loss, states)[0].backward()
    assert torch.equal(states, before)


class Largest(TorchDispatchMode):
    """Remembers the most numbers any tensor had that an operation returned."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.numel())
        return out


@pytest.mark.parametrize("kept", [None, torch.arange(0, 200, 2)])
@pytest.mark.parametrize("name", [*ALL, "path:3", "select:0.5"])
def test_no_tensor_is_larger_than_a_chunk_of_logits(name, kept):
    """trl#6526, ms-swift#7295: whole [B, T, V] logits of both models. NeMo-RL#3495 and
    unsloth#11554 too."""
    size, chunk, lengths = 200, 5, (20, 20)
    data = Batch((ids(1), ids(2)), tuple(torch.arange(n) * 2 for n in lengths))
    words = Vocabulary.plain(size)
    draft, target, reference = (
        Bare(Head(linear(size if k is None else len(k), seed=seed), words, kept=k), None)
        for seed, k in ((1, kept), (2, None), (3, None))
    )
    for one, seed in ((draft, 1), (target, 2), (reference, 3)):
        one.module, one.vocabulary = one.layers.linear, words
        one.hidden = lambda _, seed=seed: normal(40, H, seed=seed).requires_grad_()
    divergence = Divergence.parse(name)
    loss = DistillationLoss(
        draft,
        divergence,
        target_head=None if name == "cross_entropy" else target.layers.whole,
        chunk=chunk,
        reference=reference if divergence.fraction else None,
    )
    hidden = None if name == "cross_entropy" else target.hidden(data).detach()
    with Largest() as seen:
        loss(data, position_weights(lengths, "sequence_mean"), hidden).value.backward()
    width = size if kept is None else len(kept)
    most = chunk * (width if name == "cross_entropy" else size)
    assert seen.numbers <= max(most, size * H) < 40 * width


@pytest.mark.parametrize("name", SOFT)
def test_in_bfloat16_the_gradients_stay_within_two_per_cent(name):
    """speculators, test_divergence_loss_gradient_accurate_in_bf16. Draft close to target: a 16-bit
    softmax would move the gradient by 8 to 23 %."""
    rows, wide, size = 6, 32, 4096
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(size, wide, generator=g)
    close = (weight + 1e-2 * torch.randn(size, wide, generator=g)).bfloat16()
    layer = nn.Linear(wide, size, bias=False, dtype=torch.bfloat16)
    layer.weight.data = close
    hidden = torch.randn(rows, wide, generator=g).bfloat16().requires_grad_()
    loss = Objective(
        draft=Bare(Head(layer, Vocabulary.plain(size)), layer),
        score=lambda p, q, y, kept: scored(Divergence.parse(name), p, q, y, kept),
        target_head=lambda states: states @ weight.bfloat16().T,
        target_hidden=hidden.detach(),
        log_z=None,
        labels=torch.zeros(rows, dtype=torch.int64),
        weights=torch.full((rows,), 1 / rows),
        rows=Rows(2, 1),
    )
    chunked(loss, hidden)[0].backward()
    p = loss.target_logits(slice(0, rows)).double()
    q = layer(hidden).detach().double().requires_grad_()
    values, _ = scored(Divergence.parse(name), p, q, loss.labels, None)
    (slope,) = torch.autograd.grad(values.mean(), q)
    exact = {"hidden": slope @ close.double(), "matrix": slope.T @ hidden.detach().double()}
    for got, gradient in ((hidden, exact["hidden"]), (layer.weight, exact["matrix"])):
        assert (got.grad.double() - gradient).norm() <= 0.02 * gradient.norm()


def test_the_gradient_of_a_16_bit_matrix_is_the_same_in_several_blocks():
    checks.check_blocks_of_a_product()


def test_two_parameters_that_autograd_gives_one_gradient_tensor_stay_apart():
    """Adding chunks in place into a gradient that two parameters share would count it twice."""

    class Sum(nn.Module):
        projection = kept = None

        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.zeros(2, 3))
            self.b = nn.Parameter(torch.zeros(2, 3))

        @property
        def module(self):
            return self

        def narrow_head(self, hidden):
            return self.a + self.b + hidden

    scale = torch.arange(6.0)
    loss = Objective(
        draft=Sum(),
        score=lambda p, q, y, kept: (q.sum(-1), None),
        target_head=None,
        target_hidden=None,
        log_z=None,
        labels=torch.zeros(6, dtype=torch.int64),
        weights=scale,
        rows=Rows(2, 1),
    )
    chunked(loss, torch.ones(6, 3))[0].backward()
    expected = scale.reshape(3, 2, 1).sum(0).expand(2, 3)
    assert torch.equal(loss.draft.a.grad, expected)
    assert torch.equal(loss.draft.b.grad, expected)


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
        scored(Divergence("jsd", 0.5), None, torch.zeros(1, 6), ids(0), None)


# Which positions count, by position and never by token id.


def bumped(model, token):
    """Copy a table with another row after `token`."""
    logits = model.logits.detach().clone()
    logits[token] += torch.linspace(0, 3, logits.shape[-1])
    return TableModel(logits)


def test_the_last_prompt_token_predicts_the_first_label_and_the_last_label_nothing():
    """trl#6006: labels included the prompt. SpecForge#885, #473: labels shifted by one."""
    data = Batch((ids(1, 2),), (ids(3, 4),))
    target, draft = models()
    before = computed(target, draft, "forward_kl", data).value
    after = {
        token: computed(bumped(target, token), draft, "forward_kl", data).value
        for token in range(5)
    }
    changed = [token for token in after if after[token] != before]
    assert changed == [2, 3], "1 is inside the prompt, 4 is the last label, 0 is nowhere"


def test_the_states_of_a_completion_are_those_that_predict_it():
    """SpecForge#885, #473, in the passes of a transformer."""
    checks.check_states_of_completions()


def test_a_row_counts_its_own_tokens():
    """trl#2058. Rows that end after 3 and 9 tokens have 12 labels, whatever a batch is
    padded to."""
    target, draft = models()
    data = Batch((ids(1), ids(1)), (ids(2, 3, 5), ids(2, 3, 4, 0, 2, 3, 4, 1, 5)))
    p = target.hidden(data).softmax(-1)
    q = draft.hidden(data).softmax(-1)
    assert len(position_weights(data.lengths, "sequence_mean")) == 12
    loss = computed(target, draft, "total_variation", data, "token_mean")
    torch.testing.assert_close(loss.value, (0.5 * (p - q).abs().sum(-1)).sum() / 12)


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_end_and_padding_ids_count_like_any_other(family):
    """Ids 0 and 1 (padding and end) inside prompt and completion: a batch of two ragged rows costs
    what the rows cost alone, so nothing is masked by value and padding has no effect. trl#6357,
    Megatron-Bridge#4660: masked by value, the end was never learned."""
    target, draft = tiny(family, seed=1), tiny(family, seed=2)
    rows = [
        Batch((ids(6, 0, 1, 7, 1),), (ids(8, 1, 0, 0, 9, 1),)),
        Batch((ids(9, 1),), (ids(1, 1),)),
    ]
    both = Batch(rows[0].prompts + rows[1].prompts, rows[0].completions + rows[1].completions)
    together = computed(target, draft, "forward_kl", both).value
    alone = [computed(target, draft, "forward_kl", row).value for row in rows]
    torch.testing.assert_close(together, (alone[0] + alone[1]) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_where_padding_is_the_end_token_the_draft_still_learns_to_end(family):
    """trl#6357, Megatron-Bridge#4660, mlabonne/llm-course#33: with pad = eos the end was masked by
    its value, and so were prompts that hold it."""
    tokenizer = word_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    draft = wrap(module(family, seed=2), tokenizer)
    end = tokenizer.pad_token_id
    data = Batch(
        (ids(6, end, 7), ids(8)),
        (draft.tokenizer.completion("w8 w9"), draft.tokenizer.completion("w9 w6 w7 w10")),
    )
    assert data.lengths == (3, 5)
    for row in data.completions:
        assert row.tolist().count(end) == 1
        assert row[-1] == end
    states = draft.hidden(data).detach().requires_grad_()
    values = -draft.head(states).log_softmax(-1)[range(8), torch.cat(data.completions)]
    weights = position_weights(data.lengths, "token_mean")
    torch.testing.assert_close(
        computed(None, draft, "cross_entropy", data, "token_mean").value.double(),
        (values.double() * weights).sum(),
        rtol=1e-5,
        atol=1e-6,
    )
    # The end is a label, and an id of that value in the prompt is attended to.
    assert (weights[[2, 7]] > 0).all()
    other = Batch((ids(6, 9, 7), ids(8)), data.completions)
    assert not torch.allclose(draft.hidden(other)[:3], draft.hidden(data)[:3])


@pytest.mark.parametrize("reduction", ["sequence_mean", "token_mean"])
def test_doubling_the_batch_keeps_the_mean(reduction):
    """trl#4105: the mean was divided by more than the batch."""
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


# The target's logits of the kept ids alone.


@pytest.mark.parametrize("kind", [k for k in HEADS if not k.startswith("trimmed")])
def test_the_head_of_some_ids_is_part_of_the_whole(kind):
    head, some = HEADS[kind](), torch.tensor([1, 4, 7, 8])
    hidden = normal(3, H, seed=3)
    part = head.at(some)(hidden)
    torch.testing.assert_close(part, head.whole(hidden)[:, some])
    assert not part.requires_grad or kind == "adapted"


@pytest.mark.parametrize("name", SOFT)
def test_known_normalisers_spare_the_targets_logits_outside_the_kept_ids(name):
    target, draft = models(KEPT)
    data, widths = batch(), []
    weights, hidden = position_weights(data.lengths, "sequence_mean"), target.hidden(data).detach()
    full = computed(target, draft, name, data, chunk=3)
    (expected,) = torch.autograd.grad(full.value, draft.logits)
    columns = target.head_at(KEPT)

    def kept_head(states):
        widths.append(columns(states).shape)
        return columns(states)

    def never(states):
        raise AssertionError("the whole head was asked for")

    divergence = Divergence.parse(name)
    assert DistillationLoss.takes_normalisers(draft, divergence)
    loss = DistillationLoss(draft, divergence, target_head=never, chunk=3, kept_head=kept_head)(
        data, weights, hidden, target.head(hidden).logsumexp(-1)
    )
    loss.value.backward()
    torch.testing.assert_close(loss.value, full.value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(draft.logits.grad, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(loss.accepted, full.accepted)
    assert widths == [(3, 4), (3, 4), (2, 4)]


@pytest.mark.parametrize("name", ["path:2", "select:0.4", "cross_entropy"])
def test_what_looks_beyond_the_kept_ids_takes_no_normalisers(name):
    _, draft = models(KEPT)
    assert not DistillationLoss.takes_normalisers(draft, Divergence.parse(name))
    assert not DistillationLoss.takes_normalisers(models()[1], Divergence("forward_kl"))


# Selected tokens.


def test_the_tokens_where_the_reference_is_furthest_ahead_are_kept():
    weights = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.4])
    ahead = torch.tensor([1.0, -1.0, 9.0, math.nan, 0.5])
    chosen = select(weights, ahead, 0.5)
    torch.testing.assert_close(chosen, torch.tensor([0.2, 0.0, 0.0, 0.0, 0.8]))
    assert select(weights, ahead, 0.01).nonzero().tolist() == [[0]]
    assert select(weights, ahead, 0.99).nonzero().flatten().tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("name", ["select:0.4", "select:0.4:total_variation"])
@pytest.mark.parametrize("kept", [None, KEPT])
def test_a_selective_loss_is_the_plain_one_of_the_tokens_chosen(name, kept):
    (target, draft), reference = models(kept), random_table(6, seed=3, scale=2.0)
    divergence, data = Divergence.parse(name), batch()
    base = replace(divergence, fraction=None)
    p, labels = target.hidden(data).detach(), torch.cat(data.completions)
    q = draft.narrow_head(draft.hidden(data))
    values, acceptance = scored(base, p, q, labels, kept)
    reached, _ = scored(base, p, reference.hidden(data), labels, None)
    places = (values - reached).topk(4).indices  # ⌈0.4 · 8⌉
    weights = position_weights(data.lengths, "sequence_mean")
    expected = (values[places] * weights[places]).sum() / weights[places].sum()
    (gradient,) = torch.autograd.grad(expected, draft.logits)
    loss = loss_of(target, draft, name, chunk=3, reference=reference)(data, weights, p)
    loss.value.backward()
    torch.testing.assert_close(loss.value, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(draft.logits.grad, gradient, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(loss.accepted, acceptance.detach().sum())
    assert reference.logits.grad is None


def test_a_selection_and_a_reference_go_together():
    target, draft = models()
    for name, reference in (("select:0.4", None), ("forward_kl", draft)):
        with pytest.raises(ValueError, match="reference draft"):
            loss_of(target, draft, name, reference=reference)


# The path.


def uneven():
    """Completions on which the draft is sometimes ahead of the target and sometimes behind."""
    return Batch((ids(1, 2), ids(4)), (ids(2, 3, 3, 0, 3), ids(2, 2, 5)))


@pytest.mark.parametrize("reduction", ["sequence_mean", "token_mean"])
def test_a_path_is_the_forecasts_calls_per_token(reduction):
    target, draft = models()
    data, gamma = uneven(), 2
    labels = torch.cat(data.completions)[:, None]
    p, q = (m.hidden(data).softmax(-1).gather(-1, labels)[:, 0].detach() for m in (target, draft))
    calls = [expected_calls(part, gamma).mean for part in (q / p).clamp(max=1).split(data.lengths)]
    loss = computed(target, draft, f"path:{gamma}", data, reduction, chunk=3)
    assert any(c < n for c, n in zip(calls, data.lengths, strict=True))
    each = [c / n for c, n in zip(calls, data.lengths, strict=True)]
    expected = sum(each) / 2 if reduction == "sequence_mean" else sum(calls) / sum(data.lengths)
    assert loss.value.item() == pytest.approx(expected, abs=1e-12)
    assert loss.accepted > 0


@pytest.mark.parametrize("kept", [None, KEPT])
@pytest.mark.parametrize("gamma", [1, 3])
def test_a_paths_gradient_is_that_of_finite_differences(gamma, kept):
    target, draft = models(kept)
    loss = computed(target, draft, f"path:{gamma}", uneven(), chunk=3)
    loss.value.backward()
    step, slopes = 1e-6, torch.zeros_like(draft.logits)
    for i in range(draft.logits.numel()):
        ends = []
        for sign in (1, -1):
            moved = TableModel(draft.logits.detach().clone(), kept=kept)
            moved.logits.data.view(-1)[i] += sign * step
            ends.append(computed(target, moved, f"path:{gamma}", uneven()).value.item())
        slopes.view(-1)[i] = (ends[0] - ends[1]) / (2 * step)
    torch.testing.assert_close(draft.logits.grad, slopes, rtol=1e-6, atol=1e-8)
    assert slopes.abs().max() > 1e-3


def test_a_draft_that_is_the_target_has_the_shortest_path_and_no_slope():
    target, _ = models()
    draft = TableModel(target.logits.detach().clone())
    loss = computed(target, draft, "path:1", batch())
    loss.value.backward()
    assert loss.value.item() == pytest.approx((3 / 5 + 2 / 3) / 2)
    assert not draft.logits.grad.any()


def test_what_a_token_is_worth_falls_with_its_ratio_and_ends_at_one():
    log_p = torch.tensor([0.5, 0.5, 0.5], dtype=torch.float64).log()
    log_q = torch.tensor([0.9, 0.25, 0.0], dtype=torch.float64).log()
    value, worth = path_worth(log_p, log_q, [3], torch.full((3,), 1 / 3), 2)
    # r = (1, ½, 0): one call if both are accepted, else two; the last token is never judged.
    assert value.item() == pytest.approx(1.5 / 3)
    assert worth.tolist() == pytest.approx([0, 0.5 / 3, 0])


def test_a_path_of_what_the_target_cannot_write_is_refused():
    target, draft = models()
    table = target.logits.detach().clone()
    table[2, 3] = -math.inf  # the first completion begins with 3 after 2
    with pytest.raises(UserError, match="train it on target data"):
        computed(TableModel(table), draft, "path:2", batch())
