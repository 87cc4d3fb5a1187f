"""The gradient of a step, pass after pass: what the target says, the loss, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from distillspec.models.protocol import Batch, LanguageModel
from distillspec.training.cache import HiddenCache, states_of
from distillspec.training.data import Batches
from distillspec.training.losses import (
    DistillationLoss,
    counting,
    learnable,
    position_weights,
)
from distillspec.training.offline import OfflineTarget
from distillspec.training.offline_loss import OfflineLoss, packed
from distillspec.training.processes import Processes
from distillspec.training.randomness import seeded_dropout
from distillspec.training.recipes import Recipe, Source
from distillspec.training.state import State
from distillspec.training.timing import Laps


@dataclass(frozen=True)
class Pass:
    """What goes through the models at once: a part of a step's batch."""

    batch: Batch
    """Prompts with their completions."""
    indices: tuple[int, ...]
    """The examples' numbers in the data."""
    first: int
    """The place of its first row in the step's batch."""
    counts: bool
    """False for rows that another pass counts; see `data.Part`."""
    decoded: Tensor | None = None
    """[N, H] the target's states at the completion positions, if the target wrote them: decoding
    has computed them, so that target data costs no second pass."""


@dataclass(frozen=True)
class Witness:
    """Where it comes from what the target says of completions."""

    target: LanguageModel | None
    """Asked at every step; None for hard labels, or where `offline` says it."""
    cache: HiddenCache | None = None
    """Keeps its states of fixed data."""
    offline: OfflineTarget | None = None
    """What a target said earlier."""
    kept: Tensor | None = None
    """[K] the draft's kept ids where the target's other logits are not needed, with a cache."""

    @staticmethod
    def of(
        target: LanguageModel | None,
        draft: LanguageModel,
        recipe: Recipe,
        cache: HiddenCache | None,
        offline: OfflineTarget | None,
    ) -> Witness:
        """Ask no more than the divergence needs."""
        judge = None if recipe.divergence.name == "cross_entropy" else target
        # With the target's normalisers at hand its logits outside the draft's head are not needed.
        narrow = cache is not None and DistillationLoss.takes_normalisers(draft, recipe.divergence)
        return Witness(judge, cache, offline, draft.kept if narrow else None)

    def loss(
        self, draft: LanguageModel, recipe: Recipe, reference: LanguageModel | None
    ) -> DistillationLoss | OfflineLoss:
        """Return the loss that takes what `states` returns."""
        if self.offline is not None:
            return OfflineLoss(draft, recipe.divergence, precision=recipe.precision)
        target, kept = self.target, self.kept
        return DistillationLoss(
            draft,
            recipe.divergence,
            target_head=None if target is None else target.head,
            precision=recipe.precision,
            reference=reference,
            kept_head=None if kept is None or target is None else target.head_at(kept),
        )

    @property
    def silent(self) -> bool:
        """Whether no target says anything, so that nothing can be measured against it."""
        return self.target is None and self.offline is None

    def states(self, one: Pass, source: Source) -> tuple[Tensor | None, Tensor | None]:
        """Return [N, …] of the completion positions, and [N] normalisers where they are known."""
        if self.offline is not None:
            return packed(self.offline.known(one.batch)), None
        if self.target is None:
            return None, None
        if one.decoded is not None:
            return one.decoded, None
        if source != "fixed" or self.cache is None:
            return states_of(self.target, one.batch), None
        hidden = self.cache.states(self.target, one.indices, one.batch)
        if self.kept is None:
            return hidden, None
        lengths = one.batch.lengths
        return hidden, self.cache.normalisers(self.target, one.indices, lengths, hidden)


@dataclass(frozen=True)
class Run:
    """What stays the same from step to step."""

    target: LanguageModel | None
    draft: LanguageModel
    trained: LanguageModel
    """The draft, or where its weights are sharded the copy whose gradients are computed."""
    batches: Batches
    state: State
    """Moved along with every step; it has the recipe."""
    witness: Witness
    loss: nn.Module
    """What `Witness.loss` returned, wrapped for the processes."""
    processes: Processes
    rows_at_once: int | None
    clock: Callable[[], float]


class Sums(NamedTuple):
    """What a step adds up, over its passes and over the processes."""

    loss: float
    """Σ weights · divergence."""
    accepted: float
    """Σ over positions of Σ_v min(p, q); 0 where no target is asked."""
    tokens: int
    """Completion tokens."""
    left_out: int
    """Those of them that no update can teach, which have no part in the loss."""


def add_gradients(run: Run, passes: Sequence[Pass], source: Source, laps: Laps) -> Sums:
    """Add up the gradients of a step's loss, which is divided once, by the whole step's count.

    Args:
        run: Which.
        passes: This process's; all processes have as many.
        source: Where the completions came from.
        laps: Told when the target and, but for the last pass, the draft are done.

    Returns:
        The sums over all passes of all processes.
    """
    state, draft, reduction = run.state, run.trained, run.state.recipe.reduction
    marks = [learnable(draft, one.batch.completions, state.recipe.divergence) for one in passes]
    own = [
        counting(one.batch.lengths, reduction, counted)
        for one, counted in zip(passes, marks, strict=True)
        if one.counts
    ]
    (total,) = run.processes.sums(sum(own))
    total = max(1, total)  # where nothing counts all weights are 0, and the loss is
    value = accepted = tokens = left_out = 0.0
    for number, (one, counted) in enumerate(zip(passes, marks, strict=True), 1):
        hidden, log_z = run.witness.states(one, source)
        laps.end("target")
        weights = position_weights(one.batch.lengths, reduction, counted, total=total) * one.counts
        last = number == len(passes)
        dropout = seeded_dropout(draft.device, state.seed, "dropout", state.step, one.first)
        with run.processes.accumulating(run.loss, last=last), dropout:
            found = run.loss(one.batch, weights, hidden, log_z)
            run.processes.backward(found.value)
        value += float(found.value.detach())
        if one.counts:
            accepted += 0.0 if found.accepted is None else float(found.accepted)
            tokens += sum(one.batch.lengths)
            left_out += 0 if counted is None else int((~counted).sum())
        if not last:
            laps.end("draft")
    value, accepted, tokens, left_out = run.processes.sums(value, accepted, tokens, left_out)
    return Sums(value, accepted, round(tokens), round(left_out))
