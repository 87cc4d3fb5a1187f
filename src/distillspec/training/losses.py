"""The loss of a step, from hidden states: what is minimised, where, and with which weights.

`chunks.py` computes it without [N, V] logits ever existing whole. Two objectives look at all
positions first, without gradient, before they know what counts: the selective one (which tokens)
and the path (how much each token's acceptance is worth).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from distillspec.math import divergences, pairs
from distillspec.models.protocol import Batch, LanguageModel
from distillspec.training.cache import states_of
from distillspec.training.chunks import Head, Objective, Rows, chunked, survey, total
from distillspec.training.recipes import Divergence, Precision, Reduction
from distillspec.training.worth import path_worth, select

_HARD = Divergence("cross_entropy")


class Loss(NamedTuple):
    """What a batch cost."""

    value: Tensor
    """A scalar with gradient: nats or, for a path, target calls per token."""
    accepted: Tensor | None
    """A float64 scalar on the CPU without gradient, Σ over positions of Σ_v min(p, q); None
    without a target, where it is not measured."""


class DistillationLoss(nn.Module):
    """Draft body, draft head and divergence in one `forward`.

    This is the module to wrap for training on several devices: a wrapper only synchronises what
    runs inside the forward of what it wraps.
    """

    def __init__(
        self,
        draft: LanguageModel,
        divergence: Divergence,
        *,
        target_head: Head | None,
        precision: Precision = "float32",
        chunk: int | None = None,
        reference: LanguageModel | None = None,
        kept_head: Head | None = None,
    ) -> None:
        """Store what every step shares.

        Args:
            draft: The model to train.
            divergence: What is minimised at every position.
            target_head: From the target's hidden states to its logits; None exactly for
                cross_entropy.
            precision: The arithmetic of the draft's body and head.
            chunk: Positions whose logits exist at once; None for what fits `CHUNK_BYTES`.
            reference: A draft distilled before, which shows what can be learned; None exactly
                where the divergence selects no tokens.
            kept_head: From the target's hidden states to its logits of the draft's kept ids alone,
                used where the normalisers are known; see `takes_normalisers`.
        """
        super().__init__()
        if (target_head is None) != (divergence.name == "cross_entropy"):
            raise ValueError(f"{divergence} and target head {target_head} do not go together")
        if (reference is None) != (divergence.fraction is None):
            raise ValueError(f"{divergence} and reference draft {reference} do not go together")
        self.module = draft.module
        # In a tuple, because a model that is itself a module would be registered a second time.
        self._models = (draft, reference)
        self._divergence = divergence
        self._target_head = target_head
        self._kept_head = kept_head
        self._autocast = precision == "bfloat16"
        self._rows = Rows.fitting(draft.vocabulary.size, draft.device, chunk)

    @staticmethod
    def takes_normalisers(draft: LanguageModel, divergence: Divergence) -> bool:
        """Say whether the target's log Z spares its logits outside the draft's kept ids."""
        every = divergence.gamma is None and divergence.fraction is None
        return every and draft.kept is not None and divergence.name != "cross_entropy"

    def forward(
        self,
        batch: Batch,
        weights: Tensor,
        target_hidden: Tensor | None,
        log_z: Tensor | None = None,
    ) -> Loss:
        """Compute the loss of a batch.

        Args:
            batch: B prompts with their completions, N completion tokens in all.
            weights: [N] what each position counts, from `position_weights`.
            target_hidden: [N, H'] the target's states at the same positions; None exactly for
                cross_entropy.
            log_z: [N] the target's normalisers at these states, where they are known; only with a
                `kept_head`.

        Returns:
            The loss Σ weights · D, and the expected acceptance summed over the N positions.

        Raises:
            UserError: if a path is asked of a completion that the target cannot have written.
        """
        draft, reference = self._models
        known = log_z is not None
        objective = Objective(
            draft=draft,
            score=lambda p, q, labels, kept: scored(
                self._divergence, p, q, labels, kept, normalised=known
            ),
            target_head=self._kept_head if known else self._target_head,
            target_hidden=target_hidden,
            log_z=log_z,
            labels=torch.cat(batch.completions).to(draft.device),
            weights=weights.cpu(),
            rows=self._rows,
        )
        with torch.autocast(draft.device.type, torch.bfloat16, enabled=self._autocast):
            hidden = draft.hidden(batch)
            if self._divergence.gamma is not None:
                return _path(objective, hidden, batch.lengths, self._divergence.gamma)
            if self._divergence.fraction is None or reference is None:
                return Loss(*chunked(objective, hidden))
            reached = states_of(reference, batch)
            return _selected(objective, hidden, reference, reached, self._divergence.fraction)


def _selected(
    objective: Objective, hidden: Tensor, reference: LanguageModel, reached: Tensor, fraction: float
) -> Loss:
    """Train on the positions where the reference is furthest ahead, and on them alone."""
    ours, theirs = survey(objective, (objective.draft, hidden), (reference, reached))
    weights = select(objective.weights, (ours.values - theirs.values).cpu(), fraction)
    places = weights.nonzero().squeeze(-1)
    chosen = replace(objective, weights=weights).at(places)
    value, _ = chunked(chosen, hidden[places.to(hidden.device)])
    return Loss(value, total(ours.measures))


def _path(objective: Objective, hidden: Tensor, lengths: Sequence[int], gamma: int) -> Loss:
    """Give each −log q(y) the weight that its gradient has in the expected target calls."""

    def look(
        p: Tensor | None, q: Tensor, labels: Tensor, kept: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if p is None:
            raise ValueError("a path compares with a target, and there are no target logits")
        nats = [divergences.cross_entropy(p, labels)]
        nats += [divergences.cross_entropy(q, labels, kept=kept)]
        return torch.stack(nats, -1), pairs.acceptance_of(pairs.compare(p, q, kept))

    def hard(
        p: Tensor | None, q: Tensor, labels: Tensor, kept: Tensor | None
    ) -> tuple[Tensor, None]:
        return divergences.cross_entropy(q, labels, kept=kept), None

    (seen,) = survey(replace(objective, score=look), (objective.draft, hidden))
    log_p, log_q = (-seen.values.cpu().double()).unbind(-1)
    value, worth = path_worth(log_p, log_q, lengths, objective.weights, gamma)
    # Where nothing is left to gain any one position, of weight 0, keeps the graph.
    places = worth.nonzero().squeeze(-1) if bool(worth.any()) else worth.new_zeros(1).long()
    surrogate = replace(objective, score=hard, target_head=None, weights=worth).at(places)
    slope, _ = chunked(surrogate, hidden[places.to(hidden.device)])
    return Loss(value.to(slope) + (slope - slope.detach()), total(seen.measures))


def scored(
    divergence: Divergence,
    target_logits: Tensor | None,
    draft_logits: Tensor,
    labels: Tensor,
    kept: Tensor | None,
    *,
    normalised: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the divergence at every position, and the acceptance Σ_v min(p, q) beside it.

    Args:
        divergence: Which; a path has no value of a single position.
        target_logits: [..., V]; may be None for cross_entropy, which does not look at them.
        draft_logits: [..., V], or [..., K] for a trimmed head.
        labels: [...] int64 ids; only cross_entropy looks at them.
        kept: [K] ids of a trimmed head, None for a whole one.
        normalised: Whether the target's are log-probabilities [..., K] of the kept ids.

    Returns:
        [...] with gradient to the draft's logits, and [...] without; the latter None for
        cross_entropy.

    Raises:
        ValueError: if target logits are missing.
    """
    if divergence.name == "cross_entropy":
        return divergences.cross_entropy(draft_logits, labels, kept=kept), None
    if target_logits is None:
        raise ValueError(f"{divergence} compares with a target, and there are no target logits")
    if normalised and kept is not None:
        pair = pairs.compare_kept(target_logits, draft_logits, kept)
    else:
        pair = pairs.compare(target_logits, draft_logits, kept)
    with torch.no_grad():
        acceptance = pairs.acceptance_of(pair)
    return of_pair(divergence, pair), acceptance


def of_pair(divergence: Divergence, pair: pairs.Pair) -> Tensor:
    """Return the divergence of a pair at every position.

    Raises:
        ValueError: it has no value of a single position.
    """
    if divergence.name == "forward_kl":
        return pairs.forward_kl_of(pair)
    if divergence.name == "reverse_kl":
        return pairs.reverse_kl_of(pair)
    if divergence.name == "total_variation":
        return pairs.total_variation_of(pair)
    if divergence.name == "acceptance":
        return pairs.negative_log_acceptance_of(pair)
    if divergence.beta is None:
        raise ValueError(f"{divergence} has no value of a single position")
    return pairs.jsd_of(pair, divergence.beta)


def learnable(
    draft: LanguageModel, completions: Sequence[Tensor], divergence: Divergence
) -> Tensor | None:
    """Return [N] bool: the labels that hard labels can teach; None if that is all.

    −log q of a label that a trimmed head lacks is infinite whatever the draft does.
    """
    if draft.kept is None or divergence.name != "cross_entropy":
        return None
    return torch.isin(torch.cat(list(completions)), draft.kept.cpu())


def counting(lengths: Sequence[int], reduction: Reduction, counted: Tensor | None = None) -> int:
    """Return what the sum over positions is divided by, once for all parts of a step.

    Args:
        lengths: As in `position_weights`.
        reduction: Of `sequence_mean` the sequences with a position that counts, of `token_mean`
            the positions that count.
        counted: As in `position_weights`.
    """
    marks = [True] * sum(lengths) if counted is None else counted.tolist()
    if reduction == "token_mean":
        return sum(marks)
    ends = list(accumulate(lengths))
    return sum(any(marks[end - n : end]) for end, n in zip(ends, lengths, strict=True))


def position_weights(
    lengths: Sequence[int],
    reduction: Reduction,
    counted: Tensor | None = None,
    *,
    total: float | None = None,
) -> Tensor:
    """Return what each position counts, so that Σ weights · values is the reduced loss.

    Where the B sequences are a part of a step, the parts' sums add up to it: a mean of the parts'
    means would weigh a token more the shorter its part is (trl#4719).

    Args:
        lengths: Completion lengths of the B sequences, in tokens.
        reduction: `sequence_mean` (Eq. 2): 1 / (B · length); `token_mean`: 1 / N.
        counted: [N] bool, the positions that count; None for all. A sequence without any is
            left out of B.
        total: The whole step's B or N, the sum of its parts' `counting`; None for that of these
            sequences.

    Returns:
        [N] float64 that add up to 1, those of a part to less.

    Raises:
        ValueError: if no position counts.
    """
    total = counting(lengths, reduction, counted) if total is None else total
    if total == 0:
        raise ValueError("no position counts: the mean over none is not defined")
    owner = torch.repeat_interleave(torch.tensor(lengths))  # [N] the sequence of each position
    weights = torch.ones(len(owner), dtype=torch.float64)
    if counted is not None:
        weights = weights * counted.cpu()
    if reduction == "sequence_mean":
        sizes = torch.zeros(len(lengths), dtype=torch.float64).index_add(0, owner, weights)
        weights = weights / sizes.clamp(min=1)[owner]
    return weights / total
