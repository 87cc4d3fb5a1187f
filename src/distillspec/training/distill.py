"""The training loop: Algorithm A.2 of the paper as a generator of steps.

Logging, saving and stopping belong to the caller's `for`:

    state = State(draft, batches, recipe, seed=0)
    for step in islice(distill(target, draft, batches, recipe, state=state), 1000):
        print(step.loss, step.expected_acceptance)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from distillspec.errors import UserError
from distillspec.models.protocol import Batch, LanguageModel
from distillspec.models.vocabulary import check_same
from distillspec.training.cache import HiddenCache, states_of
from distillspec.training.checks import NotFiniteError, finite
from distillspec.training.data import Batches, rollout
from distillspec.training.losses import DistillationLoss, position_weights
from distillspec.training.offline import OfflineTarget
from distillspec.training.offline_loss import OfflineLoss, check_offline, packed
from distillspec.training.randomness import generator, seeded_dropout, uniform
from distillspec.training.recipes import Recipe, Source
from distillspec.training.state import State, check_run, only


@dataclass(frozen=True)
class Seconds:
    """Where a step's time went."""

    rollout: float
    """Sampling the completions; next to nothing for fixed data."""
    target: float
    """The target's pass over the completions, without its output layer."""
    draft: float
    """The draft's pass, both output layers, the divergence and the gradient."""
    optimizer: float
    """The update."""

    @property
    def total(self) -> float:
        """All parts together."""
        return self.rollout + self.target + self.draft + self.optimizer


@dataclass(frozen=True)
class Step:
    """What one update did."""

    step: int
    """Updates made, this one included."""
    source: Source
    """Where the completions came from."""
    loss: float
    """The reduced divergence before the update, in nats."""
    accepted: float | None
    """Σ over `tokens` positions of Σ_v min(p, q); None where no target was asked."""
    tokens: int
    """Completion tokens in the batch."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    """As applied."""
    seconds: Seconds
    """Where the time went."""

    @property
    def expected_acceptance(self) -> float | None:
        """The draft's acceptance rate on this step's completions; None if not measured.

        It is the paper's α (Eq. 1) where the completions are the target's.
        """
        return None if self.accepted is None else self.accepted / self.tokens


def distill(
    target: LanguageModel | None,
    draft: LanguageModel,
    batches: Batches,
    recipe: Recipe,
    *,
    state: State,
    cache: HiddenCache | None = None,
    reference: LanguageModel | None = None,
    offline: OfflineTarget | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Step]:
    """Train the draft toward the target, one update per step, without end.

    The draft trains in the mode it is in. Models load in eval mode, which is the paper's dropout
    of 0; call `draft.module.train()` to train with the dropout of its configuration.

    Args:
        target: The model to agree with, left as it is; None if the recipe needs none.
        draft: The model to train, in place.
        batches: The prompts, with completions where the mixture uses fixed data.
        recipe: What a step does.
        state: Where to begin, moved along with every step; made for this draft and recipe.
        cache: Keeps the target's states of fixed data from epoch to epoch; None not to.
        reference: A draft distilled before, for a recipe that selects tokens; None for others.
        offline: What a target said of the fixed data, kept on disk; then `target` is None.
        clock: Reads seconds.

    Yields:
        A `Step` after each update.

    Raises:
        UserError: if the recipe asks for what is not there, or if the loss or its gradient is
            not finite; the draft then still has the weights from before that step.

    Source:
        Algorithm A.2.
    """
    if offline is None:
        check_run(target, draft, batches, recipe, state)
    else:
        check_offline(offline, draft, batches, recipe)
    check_reference(recipe, draft, reference)
    hard = recipe.divergence.name == "cross_entropy"
    judge = None if hard else target
    # With the target's normalisers at hand its logits outside the draft's head are not needed.
    narrow = cache is not None and DistillationLoss.takes_normalisers(draft, recipe.divergence)
    kept = draft.kept if narrow else None
    loss_of: DistillationLoss | OfflineLoss
    if offline is not None:
        loss_of = OfflineLoss(draft, recipe.divergence, precision=recipe.precision)
    else:
        loss_of = DistillationLoss(
            draft,
            recipe.divergence,
            target_head=None if judge is None else judge.head,
            precision=recipe.precision,
            reference=reference,
            kept_head=None if kept is None or judge is None else judge.head_at(kept),
        )
    state.optimizer.zero_grad(set_to_none=True)
    with only(draft.module, state.parameters):
        while True:
            laps = _Laps(clock, draft.device)
            indices = batches.at(state.step, state.seed)
            source = recipe.mixture.source(uniform(state.seed, "source", state.step))
            batch = _complete(target, draft, batches, indices, source, state)
            laps.end("rollout")

            hidden = log_z = None
            if offline is not None:
                hidden = packed(offline.known(batch))
            elif judge is not None and source == "fixed" and cache is not None:
                hidden = cache.states(judge, indices, batch)
                log_z = None if kept is None else cache.normalisers(judge, indices)
            elif judge is not None:
                hidden = states_of(judge, batch)
            laps.end("target")

            weights = position_weights(
                batch.lengths, recipe.reduction, _emittable(draft, batch) if hard else None
            )
            with seeded_dropout(draft.device, state.seed, "dropout", state.step):
                value, accepted = loss_of(batch, weights, hidden, log_z)
            value.backward()
            loss = float(value.detach())
            norm = torch.nn.utils.clip_grad_norm_(state.parameters, recipe.clip or math.inf)
            _check_finite(state, indices, source, loss, float(norm))
            laps.end("draft")

            rate = state.update(state.seconds + laps.total)
            laps.end("optimizer")
            state.seconds += laps.total
            yield Step(
                step=state.step,
                source=source,
                loss=loss,
                accepted=None if accepted is None else float(accepted),
                tokens=sum(batch.lengths),
                gradient_norm=float(norm),
                learning_rate=rate,
                seconds=Seconds(**laps.parts),
            )


def check_reference(recipe: Recipe, draft: LanguageModel, reference: LanguageModel | None) -> None:
    """Refuse a selection of tokens without a reference draft, and a reference without a selection.

    Raises:
        UserError: that, or a reference of another vocabulary.
    """
    if recipe.divergence.fraction is not None and reference is None:
        raise UserError(
            f"{recipe.divergence} picks the tokens on which a draft distilled before is ahead: "
            "give that draft as the reference"
        )
    if recipe.divergence.fraction is None and reference is not None:
        raise UserError(
            f"{recipe.divergence} looks at no reference draft: leave it out, or select:FRACTION"
        )
    if reference is not None:
        check_same(reference.vocabulary, draft.vocabulary, names=(reference.name, draft.name))


def sft(draft: LanguageModel, batches: Batches, recipe: Recipe, *, state: State) -> Iterator[Step]:
    """Fine-tune the draft on hard labels, without a target: the same loop.

    Raises:
        UserError: as `distill` does, for a recipe other than cross_entropy on fixed data too.
    """
    return distill(None, draft, batches, recipe, state=state)


def _complete(
    target: LanguageModel | None,
    draft: LanguageModel,
    batches: Batches,
    indices: tuple[int, ...],
    source: Source,
    state: State,
) -> Batch:
    """Put completions from `source` to the examples' prompts."""
    examples = [batches.examples[i] for i in indices]
    prompts = tuple(example.prompt for example in examples)
    if source == "fixed":
        return Batch(prompts, tuple(e.completion for e in examples if e.completion is not None))
    writer = target if source == "target" else draft
    if writer is None:
        raise ValueError("target data without a target")
    completions = rollout(
        writer,
        prompts,
        max_new_tokens=state.recipe.max_new_tokens,
        stop=(draft if target is None else target).eos_ids,
        generators=[
            generator(state.seed, "rollout", state.step, row) for row in range(len(prompts))
        ],
    )
    return Batch(prompts, completions)


def _emittable(draft: LanguageModel, batch: Batch) -> Tensor | None:
    """Return [N] bool: the labels that the draft's trimmed head has; None if it has all.

    −log q of any other label is infinite whatever the draft does: it cannot be learned.
    """
    if draft.kept is None:
        return None
    return torch.isin(torch.cat(batch.completions), draft.kept.cpu())


def _check_finite(
    state: State, indices: tuple[int, ...], source: Source, loss: float, norm: float
) -> None:
    try:
        finite(state.step + 1, indices, source, loss=loss, gradient_norm=norm)
    except NotFiniteError:
        state.optimizer.zero_grad(set_to_none=True)
        raise


class _Laps:
    """Splits a step's time into parts."""

    def __init__(self, clock: Callable[[], float], device: torch.device) -> None:
        self.parts: dict[str, float] = {}
        self._clock = clock
        self._device = device
        self._last = clock()

    def end(self, part: str) -> None:
        """Give the time since the last end to `part`."""
        if self._device.type == "cuda":
            # Kernels run after the call that launches them has returned.
            torch.cuda.synchronize(self._device)
        now = self._clock()
        self.parts[part] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        return sum(self.parts.values())
