"""The training loop: Algorithm A.2 of the paper as a generator of steps.

Logging, saving and stopping belong to the caller's `for`:

    state = State(draft, batches, recipe, seed=0)
    for step in islice(distill(target, draft, batches, recipe, state=state), 1000):
        print(step.loss, step.expected_acceptance)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from distillspec.errors import UserError
from distillspec.models.protocol import Batch, LanguageModel
from distillspec.models.vocabulary import check_same
from distillspec.training.cache import HiddenCache
from distillspec.training.checks import StepNotFiniteError, finite
from distillspec.training.data import Batches, parts_of, rollout
from distillspec.training.offline import OfflineTarget
from distillspec.training.offline_loss import check_offline
from distillspec.training.passes import Pass, Run, Witness, add_gradients
from distillspec.training.processes import ALONE, Processes
from distillspec.training.randomness import generator, uniform
from distillspec.training.recipes import Recipe, Source
from distillspec.training.state import State, check_run, only
from distillspec.training.timing import Laps, Seconds


@dataclass(frozen=True)
class Step:
    """What one update did."""

    step: int
    """Updates made, this one included."""
    source: Source
    """Where the completions came from."""
    loss: float
    """The reduced divergence before the update, in nats; 0 where every token is left out."""
    accepted: float | None
    """Σ over `tokens` positions of Σ_v min(p, q); None where no target was asked."""
    tokens: int
    """Completion tokens in the batch, of all processes."""
    left_out: int
    """Those of them that have no part in the loss: hard labels that a trimmed head lacks."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    """As applied."""
    seconds: Seconds
    """Where the time went, in this process."""

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
    rows_at_once: int | None = None,
    recompute: bool = False,
    processes: Processes = ALONE,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[Step, None, None]:
    """Train the draft toward the target, one update per step, without end.

    The draft trains in the mode it is in. Models load in eval mode, which is the paper's dropout
    of 0; call `draft.module.train()` to train with the dropout of its configuration.

    How a step is cut, into passes or over processes, changes no more of it than rounding (and the
    masks of dropout).

    Args:
        target: The model to agree with, left as it is; None if the recipe needs none.
        draft: The model to train, in place.
        batches: The prompts, with completions where the mixture uses fixed data.
        recipe: What a step does.
        state: Where to begin, moved along with every step; made for this draft and recipe.
        cache: Keeps the target's states of fixed data from epoch to epoch; None not to.
        reference: A draft distilled before, for a recipe that selects tokens; None for others.
        offline: What a target said of the fixed data, kept on disk; then `target` is None.
        rows_at_once: Sequences whose gradients are computed in one pass, at most; None for all
            that this process has.
        recompute: Whether activations are computed again in the backward pass instead of kept
            (gradient checkpointing).
        processes: Who trains; each calls this with the same arguments, on its own device.
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
    check_cut(recipe, rows_at_once, processes)
    witness = Witness.of(target, draft, recipe, cache, offline)
    state.optimizer.zero_grad(set_to_none=True)
    with only(draft.module, state.parameters):
        trained = processes.trained(draft, state)
        run = Run(
            target=target,
            draft=draft,
            trained=trained,
            batches=batches,
            state=state,
            witness=witness,
            loss=processes.wrapped(witness.loss(trained, recipe, reference), state),
            processes=processes,
            rows_at_once=rows_at_once,
            clock=clock,
        )
        with _recomputing(trained) if recompute else nullcontext():
            while True:
                yield _step(run)


def _step(run: Run) -> Step:
    """Make one update: where its completions come from, their gradients, the new weights."""
    state, recipe = run.state, run.state.recipe
    laps = Laps(run.clock, run.draft.device)
    indices = run.batches.at(state.step, state.seed)
    source = recipe.mixture.source(uniform(state.seed, "source", state.step))
    passes = _complete(run, indices, source)
    laps.end("rollout")

    sums = add_gradients(run, passes, source, laps)
    norm = run.processes.clip(state.parameters, recipe.clip or math.inf)
    _check_finite(state, indices, source, sums.loss, norm)
    laps.end("draft")

    rate = state.update(run.processes.told(partial(_so_far, state, laps)))
    run.processes.bring_home(run.trained, run.draft)
    laps.end("optimizer")
    state.seconds = _so_far(state, laps)
    return Step(
        step=state.step,
        source=source,
        loss=sums.loss,
        accepted=None if run.witness.silent else sums.accepted,
        tokens=sums.tokens,
        left_out=sums.left_out,
        gradient_norm=norm,
        learning_rate=rate,
        seconds=laps.seconds,
    )


def check_cut(recipe: Recipe, rows_at_once: int | None, processes: Processes = ALONE) -> None:
    """Refuse to cut a step that can only be made whole.

    Raises:
        UserError: that, or a pass without a row.
    """
    if rows_at_once is not None and rows_at_once < 1:
        raise UserError(f"rows_at_once {rows_at_once}: expected a whole number of at least 1")
    whole = rows_at_once is None or rows_at_once >= recipe.batch_size
    if recipe.divergence.fraction is not None and not (whole and processes.count == 1):
        raise UserError(
            f"{recipe.divergence} picks among all tokens of a step, which one process must see in "
            "one pass: leave out rows_at_once, and train in one process"
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


def _complete(run: Run, indices: tuple[int, ...], source: Source) -> list[Pass]:
    """Put completions from `source` to the prompts of one process's rows, all at once."""
    target, draft, state, processes = run.target, run.draft, run.state, run.processes
    parts = parts_of(len(indices), processes.count, processes.index, rows_at_once=run.rows_at_once)
    start, stop = parts[0].rows.start, parts[0].rows.stop
    for part in parts:
        start, stop = min(start, part.rows.start), max(stop, part.rows.stop)
    examples = [run.batches.examples[i] for i in indices[start:stop]]
    prompts = tuple(example.prompt for example in examples)
    decoded: list[Tensor] | None = None
    if source == "fixed":
        completions = tuple(e.completion for e in examples if e.completion is not None)
    else:
        by_target = source == "target"
        writer = target if by_target else draft
        if writer is None:
            raise ValueError("target data without a target")
        gamma = state.recipe.target_gamma if by_target else 0
        outputs = rollout(
            writer,
            prompts,
            ahead=draft if gamma else None,
            gamma=gamma,
            max_new_tokens=state.recipe.max_new_tokens,
            stop=(draft if target is None else target).eos_ids,
            # By a row's place in the whole batch: who else is in the share changes nothing.
            generators=[
                generator(state.seed, "rollout", state.step, row) for row in range(start, stop)
            ],
        )
        completions = tuple(torch.tensor(output.ids, dtype=torch.int64) for output in outputs)
        if by_target:
            decoded = [output.states for output in outputs]
    batch = Batch(prompts, completions)
    return [
        Pass(
            batch.part([row - start for row in part.rows]),
            tuple(indices[row] for row in part.rows),
            part.rows.start,
            part.counts,
            None if decoded is None else torch.cat([decoded[row - start] for row in part.rows]),
        )
        for part in parts
    ]


def _recomputing(draft: LanguageModel) -> AbstractContextManager[None]:
    # Imported where it is asked for: transformers takes seconds, and a table needs none of it.
    from distillspec.models.recompute import recomputing

    return recomputing(draft.module, draft.name)


def _so_far(state: State, laps: Laps) -> float:
    """Return the seconds trained, the step at hand included."""
    return state.seconds + laps.seconds.total


def _check_finite(
    state: State, indices: tuple[int, ...], source: Source, loss: float, norm: float
) -> None:
    try:
        finite(state.step + 1, indices, source, loss=loss, gradient_norm=norm)
    except StepNotFiniteError:
        state.optimizer.zero_grad(set_to_none=True)
        raise
