"""Going on with a run: what may differ from how it was started, and what is on file of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distillspec.commands.held_out import Evaluation, Judge
from distillspec.commands.progress import console
from distillspec.commands.settings import Distill, Train
from distillspec.errors import UserError, nearest
from distillspec.models.adapter import TransformersModel
from distillspec.settings import as_dict
from distillspec.studies.store import CHECKPOINTS, METRICS, Run, StoredRun, read_run
from distillspec.training import checkpoint
from distillspec.training.identity import fingerprint
from distillspec.training.state import State, bound, told

HELD_OUT = "held_out.jsonl"
"""The held-out prompts and the target's answers, as ids, and by what they judge: the same for the
whole run."""
CHANGES = "changes.jsonl"
"""One row a resumption with other settings: the step, what was and is, and the evaluations that
are no longer comparable."""

_SERVED = ("rule", "temperature", "top_k", "top_p", "draft_temperature", "gamma")
"""The settings that say how the pair is served."""
_JUDGED = ("held_out", *_SERVED)
"""The settings that an evaluation depends on."""
_OWN = ("draft", "lora", *_JUDGED)
"""The settings that no checkpoint knows."""


@dataclass(frozen=True)
class Earlier:
    """The run that is gone on with."""

    stored: StoredRun
    """As it is on file."""
    changed: dict[str, tuple[Any, Any]]
    """What differs from it, all of it allowed."""

    @property
    def comparable(self) -> bool:
        """Whether its evaluations can be compared with new ones."""
        return not {*_JUDGED, "target"} & set(self.changed)

    def answers(
        self, prompts: Sequence[Tensor], by: Mapping[str, Any], settings: Distill
    ) -> list[Tensor] | None:
        """Return the target's answers to the held-out prompts; None if they are to be made anew.

        They are, too, where the file has those of another target or serving than `by`, as a kill
        leaves it that came while a change was under way; or where it does not say (earlier
        versions). What was evaluated is then no longer comparable.

        Raises:
            UserError: the prompts are others than those that were answered, which is not allowed.
        """
        rows = self.stored.rows(HELD_OUT)
        if not self.comparable or not rows:
            return None
        if [row["prompt_ids"] for row in rows] != [ids.tolist() for ids in prompts]:
            if "held_out" not in settings.allow_change:
                raise UserError(
                    f"{settings.out}: the prompts of --held-out are no longer those that the run "
                    "is judged by; give the same, or --allow-change held_out"
                )
            self.changed["held_out"] = (settings.held_out, settings.held_out)
            return None
        if any(row.get("by") != by for row in rows):
            console().print(
                f"{settings.out / HELD_OUT} does not say that its answers are of this target, "
                "served as now: they are made anew, and evaluations begin anew"
            )
            self.changed["held_out"] = (settings.held_out, settings.held_out)
            return None
        return [torch.tensor(row["target_ids"]) for row in rows]


def earlier_run(state: State, settings: Train) -> Earlier | None:
    """Find what --resume goes on with and check that it may; None without --resume.

    Raises:
        UserError: there is nothing to go on with, or settings, data or models differ and the
            difference is not allowed.
    """
    allowed = {*state.recipe.to_dict(), "data", "target", "reference", "seed", *_OWN}
    allowed -= {"frozen", "lora"}
    for name in settings.allow_change:
        if name not in allowed:
            raise UserError(f"--allow-change {name}: no such setting; {nearest(name, allowed)}")
    if not settings.resume:
        return None
    newest = checkpoint.newest(settings.out / CHECKPOINTS)
    if newest is None:
        raise UserError(f"{settings.out}: no checkpoint to resume from; leave out --resume")
    stored = read_run(settings.out)
    changed = {**_own_changes(stored, settings), **checkpoint.changes(newest, state)}
    refused = {key: pair for key, pair in changed.items() if key not in settings.allow_change}
    if refused:
        raise UserError(
            f"{settings.out}: the run was started otherwise ({told(refused)}); give the same to "
            "--resume it, or --out a new folder"
            + ("" if bound(refused) else f", or --allow-change {','.join(refused)}")
        )
    return Earlier(stored, changed)


def _own_changes(stored: StoredRun, settings: Train) -> dict[str, tuple[Any, Any]]:
    recorded = dict(stored.record["config"])
    for row in stored.rows(CHANGES):
        recorded |= {key: pair["is"] for key, pair in row["changed"].items() if key in _OWN}
    now = as_dict(settings)
    return {
        key: (recorded.get(key), now[key])
        for key in _OWN
        if key in now and recorded.get(key) != now[key]
    }


def load_newest(draft: TransformersModel, state: State, settings: Train) -> None:
    """Go back to the newest checkpoint, in weights and state.

    Raises:
        UserError: the checkpoint cannot be used.
    """
    newest = checkpoint.newest(settings.out / CHECKPOINTS)
    if newest is None:
        raise UserError(f"{settings.out}: its checkpoints are gone")
    checkpoint.load(newest, draft, state, allow=settings.allow_change)


def go_back(run: Run, state: State, earlier: Earlier, judge: Judge | None) -> None:
    """Go back to a state that was loaded, in metrics and evaluations."""
    run.rewind(state.step)
    rows = read_run(run.folder).metrics
    tests = [row for row in rows if "evaluation" in row]
    if judge is not None and judge.evaluations:  # begun anew
        steps = [row for row in rows if "evaluation" not in row]
        run.write_rows(METRICS, [judge.first.row(), *steps])
    elif judge is not None:
        for row in tests:
            judge.recall(Evaluation.from_row(row))
    # Last: a kill before it finds the change unlogged, or, with the settings of before, answers on
    # file that are not judged by these; either begins the evaluations anew again.
    if earlier.changed:
        pairs = {key: {"was": was, "is": now} for key, (was, now) in earlier.changed.items()}
        dropped = [] if earlier.comparable else tests
        run.append(CHANGES, {"step": state.step, "changed": pairs, "evaluations": dropped})


def judged_by(target: TransformersModel, settings: Distill) -> dict[str, Any]:
    """Return what an evaluation depends on beside prompts and draft: target and serving."""
    now = as_dict(settings)
    return {"target": fingerprint(target.module), **{name: now[name] for name in _SERVED}}


def answers_on_file(
    run: Run, prompts: Iterable[Tensor], completions: Iterable[Tensor], by: Mapping[str, Any]
) -> None:
    """Keep held-out answers, and `by` what they judge, for the whole run and all resumptions."""
    run.write_rows(
        HELD_OUT,
        [
            {"prompt_ids": prompt.tolist(), "target_ids": completion.tolist(), "by": by}
            for prompt, completion in zip(prompts, completions, strict=True)
        ],
    )
