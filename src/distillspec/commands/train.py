"""`sft` and `distill`: one run directory, checkpoints, and the trained draft in it."""

from __future__ import annotations

from typing import Any

from distillspec.commands import held_out
from distillspec.commands.cached import offline_target
from distillspec.commands.judging import held_out_rows, judge_of, served
from distillspec.commands.pairs import (
    at_least,
    check_fit,
    examples,
    load_both,
    load_model,
    own_device,
    training_rows,
)
from distillspec.commands.plans import distill_recipe, sft_recipe
from distillspec.commands.resuming import earlier_run
from distillspec.commands.running import Record, train
from distillspec.commands.settings import Distill, Sft, Train
from distillspec.commands.trackers import check_tracker
from distillspec.errors import UserError
from distillspec.models import load_tokenizer
from distillspec.models.adapter import TransformersModel
from distillspec.models.lora import add_lora, check_lora
from distillspec.models.widths import widen
from distillspec.settings import as_dict
from distillspec.studies.store import Exists, Run, check_place
from distillspec.training.cache import HiddenCache
from distillspec.training.data import Batches
from distillspec.training.distill import check_cut, check_reference, distill
from distillspec.training.offline import OfflineTarget
from distillspec.training.offline_loss import check_offline
from distillspec.training.processes import Main, Processes, launched
from distillspec.training.randomness import derived
from distillspec.training.recipes import Recipe
from distillspec.training.state import State, check_run


def run_sft(settings: Sft) -> dict[str, Any]:
    """Fine-tune a draft on hard labels."""
    with launched() as processes:
        with processes.together():
            _check("sft", settings)
            recipe = sft_recipe(settings)
        return _without_target("sft", recipe, settings, processes)


def run_distill(settings: Distill) -> dict[str, Any]:
    """Distil a draft toward its target; with --held-out, say whether it changed anything."""
    with launched() as processes:
        with processes.together():
            _check("distill", settings)
            at_least(1, settings, "gamma")
            if settings.state_memory < 0:
                raise UserError(
                    f"--state-memory {settings.state_memory:g}: expected GiB, or 0 to keep none"
                )
            if settings.patience is not None:
                at_least(1, settings, "patience")
                if settings.held_out is None:
                    raise UserError(
                        "--patience needs --held-out: prompts on which something could move"
                    )
            recipe = distill_recipe(settings)
            offline = None if settings.cache is None else offline_target(settings)
            if offline is None and settings.target is None:
                raise UserError("--target is missing: give a model, or --cache with what one said")
        if offline is None:
            return _with_target(recipe, settings, processes)
        return _without_target(
            "distill", recipe, settings, processes, offline=offline, writer=settings.target
        )


def _with_target(recipe: Recipe, settings: Distill, processes: Processes) -> dict[str, Any]:
    """Train a draft toward a target that is here."""
    with processes.together():
        serving = served(settings)
        rows = training_rows(settings)
        held_rows = held_out_rows(rows, settings.held_out)
        device = own_device(processes, settings.device)
        target, draft = load_both(str(settings.target), settings.draft, device=device)
        draft.tokenizer.render_like(target.tokenizer)  # draft/ says what it was trained on
        data = examples(target.tokenizer, rows)
        for model in (target, draft):
            check_fit(model, rows, data)
        _prepare(draft, settings)
        batches = Batches(data, recipe.batch_size)
        reference = None
        if settings.reference is not None:
            reference = load_model(settings.reference, device=device)
        state = State(
            draft, batches, recipe, seed=settings.seed, target=target, reference=reference
        )
        check_run(target, draft, batches, recipe, state)
        check_reference(recipe, draft, reference)
        check_cut(recipe, settings.rows_at_once, processes)
        earlier = earlier_run(state, settings)

    def begin() -> Record:
        run = _open("distill", draft, state, settings)
        judge = judge_of(target, draft, held_rows, serving, run, settings, earlier)
        return Record(run, judge)

    record = Main.of(processes, begin)
    steps = distill(
        target,
        draft,
        batches,
        recipe,
        state=state,
        cache=_cache(settings, batches),
        reference=reference,
        rows_at_once=settings.rows_at_once,
        recompute=settings.gradient_checkpointing,
        processes=processes,
    )
    return train(steps, draft, state, record, rows, settings, earlier)


def _without_target(
    verb: str,
    recipe: Recipe,
    settings: Train,
    processes: Processes,
    *,
    offline: OfflineTarget | None = None,
    writer: str | None = None,
) -> dict[str, Any]:
    """Train a draft on fixed data, with no target but what one said.

    The `writer`, where it is known, is the model whose chat template the data was made with.
    """
    with processes.together():
        rows = training_rows(settings)
        draft = load_model(settings.draft, device=own_device(processes, settings.device))
        if writer is not None:
            draft.tokenizer.render_like(load_tokenizer(writer))
        data = examples(draft.tokenizer, rows)
        check_fit(draft, rows, data)
        _prepare(draft, settings)
        batches = Batches(data, recipe.batch_size)
        state = State(draft, batches, recipe, seed=settings.seed, target=offline)
        if offline is None:
            check_run(None, draft, batches, recipe, state)
        else:
            check_offline(offline, draft, batches, recipe)
        check_cut(recipe, settings.rows_at_once, processes)
        earlier = earlier_run(state, settings)
    record = Main.of(processes, lambda: Record(_open(verb, draft, state, settings), None))
    steps = distill(
        None,
        draft,
        batches,
        recipe,
        state=state,
        offline=offline,
        rows_at_once=settings.rows_at_once,
        recompute=settings.gradient_checkpointing,
        processes=processes,
    )
    return train(steps, draft, state, record, rows, settings, earlier)


def _check(verb: str, settings: Train) -> None:
    """Refuse what cannot work before anything is loaded."""
    if settings.allow_change and not settings.resume:
        raise UserError("--allow-change does nothing without --resume; leave it out")
    check_place(settings.out, verb, _exists(settings))
    at_least(1, settings, "keep")
    if settings.lora is not None:
        at_least(1, settings, "lora")
        check_lora()
    check_tracker(settings)


def _cache(settings: Distill, batches: Batches) -> HiddenCache | None:
    """Keep the target's states where an example can come twice, as far as there is room."""
    once = settings.steps is not None and settings.steps <= batches.per_epoch
    room = int(settings.state_memory * 2**30)
    return None if once or room == 0 else HiddenCache(room)


def _prepare(draft: TransformersModel, settings: Train) -> None:
    """Give the draft weights that can be trained, and the adapters of --lora."""
    widen(draft.module)
    if settings.lora is not None:
        add_lora(draft.module, settings.lora, seed=derived(settings.seed, "lora"))


def _open(verb: str, draft: TransformersModel, state: State, settings: Train) -> Run:
    """Make the run directory, or go on with the one that --resume names."""
    return Run.create(
        settings.out,
        verb=verb,
        config={
            **as_dict(settings),
            "resolved_recipe": state.recipe.to_dict(),
            "rollout_sampling": {"temperature": 1.0, "top_k": None, "top_p": 1.0},
        },
        seed=settings.seed,
        device=str(draft.device),
        exists=_exists(settings),
    )


def _exists(settings: Train) -> Exists:
    """Say what becomes of an earlier run in --out."""
    return "continue" if settings.resume else "refuse"


def tell(result: dict[str, Any]) -> str:
    """Say where the draft is and where the time went."""
    parts = ", ".join(f"{part} {spent:.0f} s" for part, spent in result["seconds"].items())
    ended = {
        "interrupted": "interrupted; ",
        "patience": "stopped early, nothing moved; ",
        "budget": "",
    }[result["stopped"]]
    loss = "" if result["loss"] is None else f"loss {result['loss']:.3f} "
    lines = [
        f"{ended}{result['out']}: {result['steps']} steps, {result['tokens']} tokens, "
        f"{loss}({parts})"
    ]
    if result["left_out"]:
        lines.append(
            f"{result['left_out']} of these tokens had no part in the loss: the trimmed head "
            "lacks these labels"
        )
    return "\n".join([*lines, *(held_out.tell(result) if "alpha" in result else ())])
