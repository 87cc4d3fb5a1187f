"""Wrong versions of our own code, each with the checks that must notice.

A mutant replaces a piece of one function's source and swaps the code object in place, so every
module that imported the function runs the mutant; `applied` puts the original back. A mutant whose
text is no longer found fails loudly: change it together with the code.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType

import decoding_checks as checks
import training_checks as training
from distillspec.decoding import blocks, gammas, queue, speculative, state
from distillspec.math import forecast, rules, sampling, verification
from distillspec.models import causal
from distillspec.training import losses, passes, product


@dataclass(frozen=True)
class Mutant:
    """One wrong version of a function."""

    name: str
    """What is wrong."""
    function: Callable[..., object]
    """The function to change."""
    old: str
    """A piece of its source that occurs once."""
    new: str
    """What takes its place."""
    caught_by: tuple[Callable[[], None], ...]
    """The checks of which every one must fail."""


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run the body with the mutant in place of the function."""
    function = inspect.unwrap(mutant.function)
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{mutant.name}: {mutant.old!r} must occur once"
    changed = source[source.index("def ") :].replace(mutant.old, mutant.new)
    flags = __future__.annotations.compiler_flag
    namespace = dict(function.__globals__)
    exec(compile(changed, f"<mutant: {mutant.name}>", "exec", flags), namespace)
    original = function.__code__
    function.__code__ = namespace[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = original


MUTANTS = (
    # --- the verification step ---
    Mutant(
        "everything is accepted",
        verification.verify,
        "accepted = (passed & judged)",
        "accepted = judged",
        (checks.check_law, checks.check_greedy_tables, checks.check_hostile_draft),
    ),
    Mutant(
        "no residual: resample from p",
        verification.residual,
        "excess = (p - q).clamp_(min=0)",
        "excess = p",
        (checks.check_law,),
    ),
    Mutant(
        "residual of |p − q|",
        verification.residual,
        "(p - q).clamp_(min=0)",
        "(p - q).abs()",
        (checks.check_law, checks.check_law_greedy_draft),
    ),
    Mutant(
        "p and q swapped in the ratio",
        verification.verify,
        "acceptance_probability(score_of_drafted, q_of_drafted)",
        "acceptance_probability(q_of_drafted, score_of_drafted)",
        (checks.check_law, checks.check_law_greedy_draft),
    ),
    Mutant(
        "p and q swapped in the residual",
        verification.residual,
        "(p - q)",
        "(q - p)",
        (checks.check_law,),
    ),
    Mutant(
        "accepted only where p exceeds q",
        verification.acceptance_probability,
        "return torch.where(score >= q, (score > 0).to(score.dtype), score / q)",
        "return ((score >= q) & (score > 0)).to(score.dtype)",
        (checks.check_law, checks.check_unrelated_draft),
    ),
    Mutant(
        "rejected always, whatever q",
        verification.verify,
        "accepted = (passed & judged)",
        "accepted = (passed & ~judged)",
        (checks.check_draft_is_target, checks.check_unrelated_draft),
    ),
    Mutant(
        "acceptances after a rejection count",
        verification.verify,
        ".cumprod(-1)",
        "",
        (checks.check_law, checks.check_greedy_tables),
    ),
    Mutant(
        "target row off by one in the acceptance",
        verification.verify,
        "score[:, :gamma]",
        "score[:, 1:]",
        (checks.check_law, checks.check_greedy_tables),
    ),
    Mutant(
        "target row off by one in the residual",
        verification.verify,
        "residual(final,",
        "residual(p[rows, (accepted + refused[:, 0].long()).clamp(max=gamma)],",
        (checks.check_law, checks.check_greedy_tables),
    ),
    Mutant(
        "draft row off by one in the residual",
        verification.verify,
        "accepted.clamp(max=gamma - 1)",
        "(accepted - 1).clamp(max=gamma - 1)",
        (checks.check_law, checks.check_law_greedy_draft),
    ),
    Mutant(
        "bonus token from the draft",
        speculative._block,
        "q = torch.stack(q_rows, dim=1) if q_rows else p[:, :0]  # [B, w, V]",
        "q = torch.stack(q_rows, dim=1) if q_rows else p[:, :0]\n"
        "    p = torch.cat([p[:, :-1], q[:, -1:]], 1) if q_rows else p",
        (checks.check_law, checks.check_greedy_tables),
    ),
    Mutant(
        "one uniform judges all positions and draws the token",
        verification.verify,
        "passed = uniforms[:, :gamma] <",
        "passed = uniforms[:, gamma:] <",
        (checks.check_law,),
    ),
    Mutant(
        "nan where p equals q",
        verification.residual,
        "return torch.where(total > 0, excess / total, p)",
        "return excess / total",
        (checks.check_residual_of_equals,),
    ),
    Mutant(
        "verify writes into p",
        verification.verify,
        "final = p[rows, accepted]  # [B, V]",
        "final = p[:, 0].mul_(1) if gamma == 0 else p[:, 0].zero_().add_(p[rows, accepted])",
        (checks.check_q_tables,),
    ),
    # --- which distribution is meant ---
    Mutant(
        "greedy draft, soft q",
        speculative._draft,
        "q_rows.append(run.rule.draft_sampling.probabilities(logits))\n"
        "        drafted.append(draw(q_rows[-1], uniforms[:, i]))",
        "q_rows.append(Sampling().probabilities(logits))\n"
        "        drafted.append(logits.argmax(-1))",
        (checks.check_law_greedy_draft, checks.check_law),
    ),
    Mutant(
        "exact match accepts by the soft q and replaces by the one-hot",
        rules.Matched.distribution,
        "torch.zeros_like(q).scatter_(-1, drafted.unsqueeze(-1), 1.0)",
        "q.scatter(-1, drafted.unsqueeze(-1), 2.0)",
        (checks.check_law_exact_match,),
    ),
    Mutant(
        "exact match takes its neighbour for the drafted token",
        rules.Matched.distribution,
        "drafted.unsqueeze(-1), 1.0",
        "(drafted.unsqueeze(-1) + 1) % q.shape[-1], 1.0",
        (checks.check_law_exact_match,),
    ),
    Mutant(
        "the draft ignores its settings",
        speculative._draft,
        "run.rule.draft_sampling.probabilities(logits)",
        "Sampling().probabilities(logits)",
        (checks.check_draft_is_target,),
    ),
    Mutant(
        "the target ignores its settings",
        speculative._block,
        "p = run.rule.sampling.probabilities(logits)",
        "p = Sampling().probabilities(logits)",
        (checks.check_law_truncated, checks.check_greedy_tables, checks.check_draft_is_target),
    ),
    Mutant(
        "token drawn from a bf16 copy of q",
        speculative._draft,
        "draw(q_rows[-1], uniforms[:, i])",
        "draw(q_rows[-1].bfloat16(), uniforms[:, i])",
        (checks.check_q_tables,),
    ),
    Mutant(
        "q rounded to bf16 after the draw",
        speculative._block,
        "torch.stack(q_rows, dim=1)",
        "torch.stack(q_rows, dim=1).bfloat16().to(p.dtype)",
        (checks.check_q_tables,),
    ),
    Mutant(
        "an id of probability 0 can be drawn",
        sampling._first_above,
        "sums > height",
        "sums >= height",
        (checks.check_draw_at_the_edges,),
    ),
    Mutant(
        "top-p never looks further than at first",
        sampling.Sampling._truncated,
        "bool((mass[..., -1] >= self.top_p).all())",
        "True",
        (checks.check_wide_nucleus,),
    ),
    Mutant(
        "ties at the last place are all kept",
        sampling.Sampling._truncated,
        "if not bool((following == last).any()):",
        "if True:",
        (checks.check_tied_nucleus,),
    ),
    Mutant(
        "a block's share is measured from its end",
        sampling.draw,
        "(height - end) / own + 1",
        "(end - height) / own",
        (checks.check_draw_by_blocks,),
    ),
    Mutant(
        "the block after the one that was drawn",
        sampling.draw,
        "blocks.gather(-2, index)",
        "blocks.roll(-1, -2).gather(-2, index)",
        (checks.check_draw_by_blocks,),
    ),
    Mutant(
        "the whole row's share within a block",
        sampling.draw,
        "torch.minimum(share * total,",
        "torch.minimum(uniforms[..., None] * total,",
        (checks.check_draw_by_blocks,),
    ),
    Mutant(
        "something is taken off where nothing was refused",
        verification.verify,
        " * refused)",
        ")",
        (checks.check_law,),
    ),
    # --- uniforms ---
    Mutant(
        "the same uniforms draft and judge",
        speculative._block,
        "uniforms[:, run.limit : run.limit + width]",
        "uniforms[:, :width]",
        (checks.check_law,),
    ),
    Mutant(
        "the final draw shares a uniform with the first judgement",
        speculative._block,
        "uniforms[:, -1:]",
        "uniforms[:, run.limit : run.limit + 1]",
        (checks.check_law,),
    ),
    Mutant(
        "a row's uniforms depend on its batch",
        speculative._block,
        "draw_uniforms(state.rows, 2 * run.limit + 1)",
        "draw_uniforms(state.rows[:1] * len(state.rows), 2 * run.limit + 1)",
        (checks.check_rows_alone,),
    ),
    Mutant(
        "the global random state is used",
        state.draw_uniforms,
        "generator=g, ",
        "",
        (checks.check_seeds, checks.check_rows_alone),
    ),
    # --- caches ---
    Mutant(
        "the draft is not refilled after a full block",
        state.advance,
        "row.unseen = ids[kept:] if g else",
        "row.unseen = ids[-1:] if g else",
        (checks.check_draft_is_target, checks.check_caches_tables),
    ),
    Mutant(
        "the draft is rolled back by the target's surplus",
        state.advance,
        "draft_surplus.append(max(g - 1, 0) - kept)",
        "draft_surplus.append(g - n)",
        (checks.check_caches_tables, checks.check_forced_rejection_tables),
    ),
    Mutant(
        "the draft is not rolled back",
        state.advance,
        "draft_surplus.append(max(g - 1, 0) - kept)",
        "draft_surplus.append(0)",
        (checks.check_caches_tables, checks.check_forced_rejection_tables),
    ),
    Mutant(
        "the target keeps one rejected token",
        state.advance,
        "target_surplus.append(g - n)",
        "target_surplus.append(max(0, g - n - 1))",
        (checks.check_caches_tables, checks.check_law, checks.check_greedy_tables),
    ),
    Mutant(
        "the target forgets one token too many",
        state.advance,
        "target_surplus.append(g - n)",
        "target_surplus.append(g - n + (g > n))",
        (checks.check_caches_tables, checks.check_law),
    ),
    Mutant(
        "rows are kept in the wrong order",
        state._settle,
        "session.keep(torch.tensor(rows))",
        "session.keep(torch.tensor(rows[::-1]))",
        (checks.check_caches_ragged, checks.check_rows_alone),
    ),
    Mutant(
        "the draft's state is read one token early",
        speculative._last,
        "states[:, -1]",
        "states[:, 0]",
        (checks.check_draft_is_target,),
    ),
    Mutant(
        "the draft's state is read one token early in a ragged batch",
        speculative._last,
        "max(0, n - 1)",
        "max(0, n - 2)",
        (checks.check_rows_alone,),
    ),
    Mutant(
        "states past a row's length are used",
        speculative._states,
        "if min(fed) == k:",
        "if True:",
        (checks.check_caches_ragged,),
    ),
    # --- endings ---
    Mutant(
        "a stop id inside a block does not end the row",
        speculative._cut,
        "if token in stop), None)",
        "if token in stop and i + 1 == len(ids)), None)",
        (checks.check_stop_offsets, checks.check_counts),
    ),
    Mutant(
        "only the first stop id counts",
        speculative.speculate,
        "stop=frozenset(stop)",
        "stop=frozenset(stop[-1:])",
        (checks.check_stop_offsets,),
    ),
    Mutant(
        "the stop id is not emitted",
        speculative._cut,
        "tuple(ids[:end])",
        "tuple(ids[: end - 1])",
        (checks.check_stop_offsets,),
    ),
    Mutant(
        "accepted tokens past the stop id are counted",
        speculative._cut,
        "min(accepted, end), min(judged, end)",
        "accepted, judged",
        (checks.check_stop_offsets, checks.check_counts),
    ),
    Mutant(
        "the draft's stop ids end a row",
        speculative.speculate,
        "stop = target.eos_ids if stop is None else stop",
        "stop = draft.eos_ids if stop is None else stop",
        (checks.check_default_stop,),
    ),
    Mutant(
        "drafting past the budget",
        speculative._block,
        "row.left - 1",
        "row.left",
        (checks.check_budget, checks.check_counts),
    ),
    Mutant(
        "one token short of the budget",
        speculative._cut,
        "len(ids) >= left",
        "len(ids) >= left - 1",
        (checks.check_budget, checks.check_counts),
    ),
    Mutant(
        "drafting past the draft's context",
        state.advance,
        "row.draft_left -= len(ids)",
        "row.draft_left -= block.accepted[i]",
        (checks.check_context,),
    ),
    Mutant(
        "a prompt too long for the draft is not charged",
        state.open_state,
        " - (len(prompts[i]) - len(heads[i]))",
        "",
        (checks.check_caches_ragged,),
    ),
    Mutant(
        "the target's context is not seen",
        state.open_state,
        "left=min(max_new_tokens, room)",
        "left=max_new_tokens",
        (checks.check_context,),
    ),
    Mutant(
        "states handed on are those after the tokens",
        speculative._emit,
        "states[i, : len(cut.ids)]",
        "states.roll(-1, 1)[i, : len(cut.ids)]",
        (checks.check_states,),
    ),
    # --- the queue, and γ that changes ---
    Mutant(
        "an admitted row is taken for another prompt's",
        queue.Queue._open,
        "first=self.first,",
        "first=0,",
        (checks.check_queue,),
    ),
    Mutant(
        "an admitted row draws from another's generator",
        queue.Queue._open,
        "self.generators[chosen]",
        "self.generators[:count]",
        (checks.check_queue,),
    ),
    Mutant(
        "admitted rows stand in another order than their caches",
        queue.Queue.admit,
        "state.rows + new.rows",
        "new.rows + state.rows",
        (checks.check_queue,),
    ),
    Mutant(
        "the draft does not read what blocks without drafting emit",
        state.advance,
        "else row.unseen + ids",
        "else ids",
        (checks.check_blocks_without_drafting,),
    ),
    Mutant(
        "a row draws as many uniforms as its batch drafts",
        speculative._block,
        "2 * run.limit + 1)",
        "run.limit + max(gammas) + 1)",
        (checks.check_rows_of_a_schedule,),
    ),
    Mutant(
        "the schedule is the batch's, not the row's",
        gammas._Scheduled.choose,
        "self.gammas.get(row, self.rule.start)",
        "max([self.rule.start, *self.gammas.values()])",
        (checks.check_rows_of_a_schedule,),
    ),
    # --- counting ---
    Mutant(
        "judged counts every drafted token",
        speculative._cut,
        "judged = min(accepted + 1, gamma)",
        "judged = gamma",
        (checks.check_counts,),
    ),
    Mutant(
        "the rejected token is not judged",
        speculative._cut,
        "judged = min(accepted + 1, gamma)",
        "judged = accepted",
        (checks.check_counts, checks.check_hostile_draft),
    ),
    Mutant(
        "the target's token counts as the draft's",
        blocks.Block.roles,
        "position < accepted",
        "position <= accepted",
        (checks.check_stop_offsets, checks.check_hostile_draft),
    ),
    Mutant(
        "the forecast is off by one token",
        forecast._from_the_end,
        "x[s + 1 : s + 1 + width]",
        "x[s : s + width]",
        (checks.check_forecast_tables,),
    ),
    Mutant(
        "the forecast takes γ − 1 for γ",
        forecast._outcomes,
        "[:L, :gamma]",
        "[:L, :gamma] * (np.arange(gamma) < gamma - 1)",
        (checks.check_forecast_tables,),
    ),
    Mutant(
        "the forecast's ratio upside down",
        forecast.acceptance_ratios,
        "q_of_y.double() / p_of_y.double()",
        "p_of_y.double() / q_of_y.double()",
        (checks.check_forecast_tables,),
    ),
    # --- lenience ---
    Mutant(
        "lenience is ignored",
        speculative._block,
        "if run.rule.lossless",
        "if True",
        (checks.check_lenience, checks.check_lenient_greedy),
    ),
    Mutant(
        "greedy lenience of the one-hot p",
        verification.lenient_score,
        "if sampling.temperature > 0:",
        "if True:",
        (checks.check_lenient_greedy,),
    ),
    Mutant(
        "the residual of a lenient rule is taken of f(p)",
        verification.verify,
        "residual(final,",
        "residual(score[rows, accepted],",
        (checks.check_lenient_law,),
    ),
    Mutant(
        "lenience divides the wrong way",
        verification.linear.__call__,
        "p / self.eps",
        "p * self.eps",
        (checks.check_lenience, checks.check_lenient_law),
    ),
    # --- the training step ---
    Mutant(
        "a part of a step is divided by its own count",
        losses.position_weights,
        "counting(lengths, reduction, counted) if total is None else total",
        "counting(lengths, reduction, counted)",
        (training.check_row_by_row, training.check_sequences),
    ),
    Mutant(
        "a step is divided by its first pass's count",
        passes.add_gradients,
        "processes.sums(sum(own))",
        "processes.sums(own[0])",
        (training.check_row_by_row, training.check_sequences),
    ),
    Mutant(
        "only the last pass's tokens are counted",
        passes.add_gradients,
        "tokens += sum(one.batch.lengths)",
        "tokens = sum(one.batch.lengths)",
        (training.check_row_by_row,),
    ),
    Mutant(
        "dropout is the same at every step",
        passes.add_gradients,
        '"dropout", state.step, one.first',
        '"dropout", one.first',
        (training.check_dropout,),
    ),
    Mutant(
        "dropout is the same in every pass",
        passes.add_gradients,
        '"dropout", state.step, one.first',
        '"dropout", state.step',
        (training.check_dropout,),
    ),
    Mutant(
        "completions are shifted by one",
        causal.CausalBody.hidden,
        "states[i, len(prompt) - 1 : len(prompt) - 1 + n]",
        "states[i, len(prompt) : len(prompt) + n]",
        (training.check_states_of_completions,),
    ),
    Mutant(
        "blocks of a 16-bit gradient are all the first",
        product.Product.add,
        "slope[:, i : i + block].T",
        "slope[:, : len(self.d_weight[i : i + block])].T",
        (training.check_blocks_of_a_product,),
    ),
    Mutant(
        "a block of a 16-bit gradient is replaced, not added to",
        product.Product.add,
        "self.d_weight[i : i + block] += slope[:, i : i + block].T @ inputs",
        "self.d_weight[i : i + block] = slope[:, i : i + block].T @ inputs",
        (training.check_blocks_of_a_product,),
    ),
)
