"""The engine: speculative decoding as a generator of blocks.

It deals in ids and knows models only by their protocol. With γ = 0 the same code is
autoregressive decoding; greedy decoding is sampling from one-hot distributions. Each row draws
its random numbers from a generator of its own, so its output does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from distillspec.decoding.arguments import (
    check_counts,
    check_ids,
    check_pair,
    check_sayable,
    own_generators,
)
from distillspec.decoding.blocks import Block, Finish, Output, collect
from distillspec.decoding.gammas import Chooser, Gammas, as_gammas
from distillspec.decoding.history import process_block
from distillspec.decoding.queue import Queue
from distillspec.decoding.state import State, advance, draw_uniforms, left_aligned
from distillspec.decoding.stopping import Stop
from distillspec.math.processors import Processor, check_processors
from distillspec.math.rules import AS_SAMPLED, Proposal, Rule
from distillspec.math.sampling import Sampling, draw
from distillspec.math.verification import Lenience, Verdict, lenient_score, lossless, verify
from distillspec.models.protocol import LanguageModel, Session


def speculate(
    target: LanguageModel,
    draft: LanguageModel | None,
    prompts: Sequence[Tensor],
    *,
    gamma: int | Gammas,
    max_new_tokens: int,
    sampling: Sampling,
    draft_sampling: Sampling | None = None,
    proposal: Proposal = AS_SAMPLED,
    lenience: Lenience = lossless,
    processors: Sequence[Processor] = (),
    stop: Sequence[int] | None = None,
    stop_when: Stop | None = None,
    generators: Sequence[Generator] | None = None,
    batch_size: int | None = None,
) -> Iterator[Block]:
    """Decode every prompt and yield one block per target call for the whole batch.

    The call itself checks its arguments and runs both models over the first `batch_size` prompts;
    every `next` is one target call, after a pass over the prompts that it admits. Rows finish at
    different times and leave the batch; others take their places. Whatever rows are beside it, a
    row's output is the one it has alone.

    With a `lenience` other than `lossless` the output no longer follows the target's law.

    Args:
        target: The large model p.
        draft: The small model q; None only with γ = 0.
        prompts: One 1-D int64 tensor of ids per row, none empty.
        gamma: Tokens to draft per block, at most, or a rule of `gammas.py` that chooses them. A
            block drafts fewer where fewer can be used: never more than the row may still emit
            minus one, and none past the draft's context.
        max_new_tokens: Tokens to emit per row, at most; fewer where the target's context ends.
        sampling: The distribution to sample from, given the target's logits.
        draft_sampling: The same for the draft; None for the target's.
        proposal: What verification takes for q: as it was sampled from, or all of it on the
            drafted token (exact match). The output's law is the target's either way.
        lenience: f in the acceptance test u ≤ f(p)/q.
        processors: Applied one after another to the logits of both models, each position's at its
            own prefix, before the sampling settings.
        stop: Ids that end a row; None for the target's own. The draft's mean nothing here.
        stop_when: A condition on a row's ids that ends it too, at the first token that meets it.
        generators: One per prompt, the only source of that row's randomness; None for fresh seeds.
        batch_size: Rows decoded at once, at most: the other prompts wait in their order and are
            admitted as rows finish. None for all at once.

    Returns:
        An iterator of blocks, to be summed or assembled by `collect`.

    Raises:
        UserError: naming the argument that cannot be used.

    Source:
        Algorithm A.1 of the paper.
    """
    stop = target.eos_ids if stop is None else stop
    gammas = as_gammas(gamma)
    check_counts(max_new_tokens, 1 if batch_size is None else batch_size)
    check_pair(target, draft, gammas.limit)
    check_ids(target, prompts, stop)
    check_processors(processors, target.vocabulary.size)
    run = _Run(
        target=target,
        draft=draft if gammas.limit else None,
        limit=gammas.limit,
        rule=Rule(
            sampling, sampling if draft_sampling is None else draft_sampling, proposal, lenience
        ),
        processors=tuple(processors),
        stop=frozenset(stop),
        stop_when=stop_when,
    )
    queue = Queue(
        run.target,
        run.draft,
        prompts,
        generators=own_generators(generators, len(prompts)),
        max_new_tokens=max_new_tokens,
        size=len(prompts) if batch_size is None else batch_size,
    )
    return _blocks(run, queue, queue.open(), gammas.chooser())


def complete(
    target: LanguageModel,
    draft: LanguageModel | None,
    prompts: Sequence[Tensor],
    *,
    gamma: int | Gammas,
    max_new_tokens: int,
    sampling: Sampling,
    draft_sampling: Sampling | None = None,
    proposal: Proposal = AS_SAMPLED,
    lenience: Lenience = lossless,
    processors: Sequence[Processor] = (),
    stop: Sequence[int] | None = None,
    stop_when: Stop | None = None,
    generators: Sequence[Generator] | None = None,
    batch_size: int | None = None,
) -> list[Output]:
    """Decode every prompt to its end: `collect` of `speculate`, with the same arguments."""
    blocks = speculate(
        target,
        draft,
        prompts,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        draft_sampling=draft_sampling,
        proposal=proposal,
        lenience=lenience,
        processors=processors,
        stop=stop,
        stop_when=stop_when,
        generators=generators,
        batch_size=batch_size,
    )
    return collect(blocks, len(prompts))


@dataclass(frozen=True)
class _Run:
    """What stays the same from block to block."""

    target: LanguageModel
    draft: LanguageModel | None
    limit: int
    rule: Rule
    processors: tuple[Processor, ...]
    stop: frozenset[int]
    stop_when: Stop | None


def _blocks(run: _Run, queue: Queue, state: State, chooser: Chooser) -> Iterator[Block]:
    # Gradients are off inside `_block` only: that must not leak to the caller at a yield.
    while state.rows:
        chosen = chooser.choose(
            [row.prompt for row in state.rows], [len(row.unseen) for row in state.rows]
        )
        block = _block(run, state, chosen)
        chooser.observe(block)
        yield block
        if state.rows:
            queue.admit(state)
        elif queue.waiting:
            del state  # and with it both caches, before the next ones are made
            state = queue.open()


@torch.no_grad()  # not inference mode: a caller may use the states in a loss
def _block(run: _Run, state: State, chosen: Sequence[int]) -> Block:
    """Decode one block of every row: Algorithm A.1, its steps in the paper's order.

    Whatever γ is `chosen` for a row, it draws as many uniforms, so that the blocks to come do not
    depend on it.
    """
    pending = state.target.pending  # [B]
    gammas = [
        max(0, min(gamma, row.left - 1, row.draft_left))
        for gamma, row in zip(chosen, state.rows, strict=True)
    ]
    uniforms = draw_uniforms(state.rows, 2 * run.limit + 1).to(pending.device)

    # 1. Draft w ≤ γ tokens y_i ~ q_i; rows that may draft fewer carry meaningless ones behind.
    drafted, q_rows = _draft(run, state, gammas, uniforms)  # w times [B] and [B, V]
    width = len(drafted)

    # 2. One target pass over the block gives p_0 … p_w.
    tokens = torch.stack([pending, *drafted], dim=1)  # [B, w+1]
    states = _states(state.target, tokens, [g + 1 for g in gammas])  # [B, w+1, H]
    logits = run.target.head(states)  # [B, w+1, V]
    empty: Tensor | None = None
    if run.processors:
        real = [g + 1 for g in gammas]
        logits, empty = process_block(run.processors, state.rows, logits, tokens[:, 1:], real)
    p = run.rule.sampling.probabilities(logits)
    q = torch.stack(q_rows, dim=1) if q_rows else p[:, :0]  # [B, w, V]
    q = run.rule.proposal.distribution(q, tokens[:, 1:])

    # 3. and 4. Accept the leading y_i with u_i ≤ f(p_i)/q_i; draw the target's own token.
    # That token always has the last uniform, so a row does not feel how wide its batch drafts.
    verdict = verify(
        p,
        q,
        tokens[:, 1:],
        lengths=torch.tensor(gammas),
        uniforms=torch.cat([uniforms[:, run.limit : run.limit + width], uniforms[:, -1:]], dim=1),
        score=None
        if run.rule.lossless
        else lenient_score(logits, run.rule.sampling, run.rule.lenience),
    )

    # 5. Emit the accepted tokens and the target's own, up to a stop token. Repeat.
    block = _emit(run, state, gammas, tokens[:, 1:], verdict, states)
    if empty is not None:
        check_sayable(empty, block)
    advance(state, block)
    return block


def _draft(
    run: _Run, state: State, gammas: list[int], uniforms: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Draft up to `gammas[row]` tokens per row.

    Returns:
        w = max(gammas) tensors [B] of tokens, and the w tensors [B, V] they were drawn from.
    """
    drafted: list[Tensor] = []
    q_rows: list[Tensor] = []
    if run.draft is None or state.draft is None or not any(gammas):
        return drafted, q_rows
    unseen = [row.unseen if g else [] for row, g in zip(state.rows, gammas, strict=True)]
    fed = [len(ids) for ids in unseen]
    tokens = left_aligned(unseen, uniforms.device)  # [B, k]
    for i in range(max(gammas)):
        states = _states(state.draft, tokens, fed)  # [B, k, H]
        logits = run.draft.head(_last(states, fed))  # [B, V]
        if run.processors:
            before = torch.stack(drafted, dim=1) if drafted else tokens[:, :0]  # [B, i]
            real = [int(g > i) for g in gammas]
            logits = process_block(
                run.processors, state.rows, logits[:, None], before, real
            ).logits[:, 0]
        q_rows.append(run.rule.draft_sampling.probabilities(logits))
        drafted.append(draw(q_rows[-1], uniforms[:, i]))
        tokens, fed = drafted[-1][:, None], [int(g > i + 1) for g in gammas]
    return drafted, q_rows


def _states(session: Session, tokens: Tensor, fed: list[int]) -> Tensor:
    """Feed `fed[row]` of the [B, k] tokens and return their [B, k, H] states, zero past those.

    What a model returns there may be nan; zeros keep the head and the sampling on firm ground.
    """
    lengths = torch.tensor(fed)  # not on the device, which would have to be waited for
    states = session.extend(tokens, lengths)
    k = tokens.shape[1]
    if min(fed) == k:
        return states
    past = torch.arange(k) >= lengths[:, None]  # [B, k]
    return states.masked_fill(past.to(states.device)[..., None], 0)


def _last(states: Tensor, fed: list[int]) -> Tensor:
    """Return the [B, H] of [B, k, H] states at each row's last token, any for a row without one."""
    k = states.shape[1]
    if k == 1 or min(fed) == k:
        return states[:, -1]
    places = torch.tensor([max(0, n - 1) for n in fed])
    return states[torch.arange(len(fed)), places]


def _emit(
    run: _Run,
    state: State,
    gammas: list[int],
    drafted: Tensor,
    verdict: Verdict,
    states: Tensor,
) -> Block:
    """Bring the verdict of a block home and cut what must be cut."""
    columns = [drafted, verdict.token[:, None], verdict.accepted[:, None]]
    cuts = []
    for (*ids, token, accepted), gamma, row in zip(
        torch.cat(columns, dim=1).tolist(), gammas, state.rows, strict=True
    ):
        said = [*ids[:accepted], token]
        told = None if run.stop_when is None else run.stop_when.end(row.ids, said)
        cuts.append(_cut(said, gamma, row.left, run.stop, told))
    return Block(
        rows=tuple(row.prompt for row in state.rows),
        ids=tuple(cut.ids for cut in cuts),
        accepted=tuple(cut.accepted for cut in cuts),
        drafted=tuple(gammas),
        judged=tuple(cut.judged for cut in cuts),
        finished=tuple(cut.finished for cut in cuts),
        # Cloned, so that what is kept is not held by the whole block's states.
        states=tuple(states[i, : len(cut.ids)].clone() for i, cut in enumerate(cuts)),
    )


class _Cut(NamedTuple):
    """One row's part of a block."""

    ids: tuple[int, ...]
    accepted: int
    judged: int
    finished: Finish | None


def _cut(
    ids: list[int], gamma: int, left: int, stop: frozenset[int], told: int | None = None
) -> _Cut:
    """End a row's block after the first token that ends the row and count what is emitted.

    Args:
        ids: The accepted tokens and the target's own, at most `left`.
        gamma: How many tokens were drafted.
        left: How many tokens the row may still emit.
        stop: The ids that end the row.
        told: How many of `ids` to keep if the row ends for another reason.
    """
    accepted = len(ids) - 1
    judged = min(accepted + 1, gamma)  # the accepted ones and, if there is one, the rejected
    end = next((i + 1 for i, token in enumerate(ids) if token in stop), None)
    if told is not None:
        end = told if end is None else min(end, told)
    if end is not None:
        return _Cut(tuple(ids[:end]), min(accepted, end), min(judged, end), "stop")
    return _Cut(tuple(ids), accepted, judged, "length" if len(ids) >= left else None)
