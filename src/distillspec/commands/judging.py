"""From the flags of `distill` to the judge of its draft."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from distillspec.commands.held_out import ROWS, Judge, Serving
from distillspec.commands.pairs import answer_all, prompt_ids, rows_of
from distillspec.commands.resuming import Earlier, answers_on_file, judged_by
from distillspec.commands.rules import rule_of
from distillspec.commands.settings import Distill
from distillspec.errors import UserError
from distillspec.math.sampling import Sampling
from distillspec.models.adapter import TransformersModel
from distillspec.studies.outputs import TargetOutputs, teacher_forced
from distillspec.studies.store import Run
from distillspec.tasks import Row, overlap


def served(settings: Distill) -> Serving:
    """Read how the pair will be served.

    Raises:
        UserError: the flags contradict one another.
    """
    rule = rule_of(
        settings.rule,
        Sampling(settings.temperature, settings.top_k, settings.top_p),
        draft_temperature=settings.draft_temperature,
        epsilon=None,
    )
    return Serving(rule, settings.gamma)


def held_out_rows(rows: Sequence[Row], held_out: str | None) -> list[Row]:
    """Read the held-out prompts; none where there is no file of them.

    Raises:
        UserError: there is but one, or some are trained on.
    """
    if held_out is None:
        return []
    held = rows_of(held_out, None, skip_invalid=False)
    if len(held) < 2:
        raise UserError(
            f"--held-out {held_out} has one prompt, which gives no interval; give more of them"
        )
    shared = overlap(rows, held)
    if shared:
        raise UserError(
            f"{shared} of {len(held)} prompts of --held-out {held_out} are in --prompts too: "
            "what the draft was trained on cannot say what it learned; take them out of one"
        )
    return held


def judge_of(
    target: TransformersModel,
    draft: TransformersModel,
    rows: Sequence[Row],
    served: Serving,
    run: Run,
    settings: Distill,
    earlier: Earlier | None,
) -> Judge | None:
    """Make what evaluates the draft, and let it: a change is one since training began.

    Args:
        target: The model to agree with.
        draft: As training began with it: --resume puts the trained weights back afterwards.
        rows: The held-out prompts.
        served: How the pair will be served.
        run: Where the answers and the evaluations go.
        settings: The verb's.
        earlier: The run that is gone on with, whose answers serve again.

    Returns:
        None if there are no prompts.
    """
    if not rows:
        return None
    prompts = prompt_ids(target.tokenizer, rows, context=target.context)
    by = judged_by(target, settings)
    known = None if earlier is None else earlier.answers(prompts, by, settings)
    if known is None:
        held = _answers(target, prompts, served.rule.sampling, settings)
        answers_on_file(run, held.prompts, held.completions, by)
    else:
        states = teacher_forced(target, prompts, known, batch_size=ROWS)
        held = TargetOutputs(tuple(prompts), tuple(known), states, served.rule.sampling)
    judge = Judge(
        target,
        draft,
        held,
        served,
        run=run,
        every=60 * settings.evaluate_every,
        patience=settings.patience,
    )
    if earlier is None:
        judge.look(0, 0.0)
    elif known is None:  # the draft is still the one that training began with
        judge.recall(judge.measure(0, 0.0))
    return judge


def _answers(
    target: TransformersModel, prompts: Sequence[Tensor], sampling: Sampling, settings: Distill
) -> TargetOutputs:
    """Let the target answer the held-out prompts as it will be served."""
    outputs = answer_all(target, prompts, settings, sampling=sampling, what="held-out answers")
    return TargetOutputs.of(prompts, outputs, sampling)
