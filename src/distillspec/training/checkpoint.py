"""Checkpoints: a folder per step, there whole or not at all.

A checkpoint is written under a temporary name, flushed to the disk, renamed, and only then are
older ones removed. A process killed at any moment leaves the newest whole checkpoint in place.

    checkpoints/
      step-12/
        state.json             run, step, seconds, seed, recipe, digests, the optimizer's settings
        draft.safetensors      the draft's weights
        optimizer.safetensors  the optimizer's moments, as NUMBER.NAME
      step-16.1f0c….partial/   one being written or removed by the run of that number
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor

from distillspec.errors import UserError, first_line
from distillspec.files import flush
from distillspec.models.protocol import LanguageModel
from distillspec.training.checks import NotFiniteError
from distillspec.training.processes import ALONE, Processes
from distillspec.training.state import State

WEIGHTS, MOMENTS, STATE = "draft.safetensors", "optimizer.safetensors", "state.json"
_FORMAT = "distillspec checkpoint 1"

_UNREADABLE = (OSError, LookupError, RuntimeError, TypeError, ValueError, SafetensorError)
"""What json, torch and safetensors raise for files that are damaged or of another model."""

_NAME = re.compile(r"step-(\d+)")
_RUN = re.compile(r"\w+")  # folders that are removed bear it: it may lead nowhere else


def save(
    folder: Path,
    draft: LanguageModel,
    state: State,
    *,
    keep: int,
    spare: Collection[int] = (),
    processes: Processes = ALONE,
) -> Path:
    """Write the draft and the state of its run as `folder/step-N`.

    Args:
        folder: Made where it does not exist; one run's checkpoints and nothing else.
        draft: The model being trained.
        state: Its run.
        keep: How many checkpoints stay, the newest by number, at least 1.
        spare: Steps whose checkpoints stay besides, such as the best.
        processes: Who trains it: all of them call this, and the main one writes.

    Returns:
        The checkpoint's own folder.

    Raises:
        UserError: if the step is already there, the folder holds another run's checkpoints, or
            the disk refuses; what was there stays as it was.
        NotFiniteError: if a weight or a moment is no number; likewise.
    """
    if keep < 1:
        raise ValueError(f"at least one checkpoint must stay, got keep={keep}")
    final = folder / f"step-{state.step}"
    tensors, plain = _parts(state, processes)
    processes.told(lambda: _write(final, draft, state, tensors, plain))
    processes.told(lambda: _rotate(folder, state, keep, spare))
    return final


def _write(
    final: Path,
    draft: LanguageModel,
    state: State,
    tensors: dict[str, Tensor],
    plain: Mapping[str, Any],
) -> None:
    if final.exists():
        raise UserError(f"{final} exists already; resume from it or choose another folder")
    _check_own(final.parent, state)
    weights = dict(draft.module.named_parameters())
    _check_finite(final, {**{name: weights[name] for name in state.names}, **tensors})
    with whole(final, state.run) as partial:
        save_model(draft.module, str(partial / WEIGHTS))
        save_file(tensors, str(partial / MOMENTS))
        (partial / STATE).write_text(json.dumps(plain, indent=2), encoding="utf-8")


def _rotate(folder: Path, state: State, keep: int, spare: Collection[int]) -> None:
    with _writing(folder):
        for step, old in _numbered(folder)[:-keep]:
            if step not in spare:
                remove(old, state.run)


def newest(folder: Path) -> Path | None:
    """Return the checkpoint with the largest step number, None if there is none."""
    found = _numbered(folder)
    return found[-1][1] if found else None


def load(
    checkpoint: Path, draft: LanguageModel, state: State, *, allow: Collection[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """Put the draft's weights and the state of its run back, in place.

    Args:
        checkpoint: What `save` or `newest` returned.
        draft: A model of the same shape as the saved one.
        state: A state made for that draft, with the same recipe and data.
        allow: What may differ: see `State.changes`.

    Returns:
        What differs, all of it allowed.

    Raises:
        UserError: if the checkpoint cannot be read, or belongs to another run.
    """
    files = weights, moments, plain = [checkpoint / name for name in (WEIGHTS, MOMENTS, STATE)]
    for path in files:
        if not path.is_file():
            raise UserError(f"{checkpoint} is no checkpoint: it lacks {path.name}{_else(path)}")
    saved = _read_plain(plain)
    with _explained(moments):
        tensors = load_file(moments, device=str(draft.device))
        saved["optimizer"] = {**saved["optimizer"], "state": _nested(tensors)}
    _check_weights(weights, draft)
    # The state goes first: it refuses another run's checkpoint before any weight has changed.
    changed = state.load_state_dict(saved, allow=allow)
    load_weights(checkpoint, draft)
    return changed


def changes(checkpoint: Path, state: State) -> dict[str, tuple[Any, Any]]:
    """Say what differs between a state and the run of a checkpoint; see `State.changes`.

    Raises:
        UserError: if the checkpoint cannot be read.
    """
    return state.changes(_read_plain(checkpoint / STATE))


def load_weights(checkpoint: Path, draft: LanguageModel) -> None:
    """Put the draft's weights alone back, in place.

    Raises:
        UserError: if they cannot be read, or are of another draft.
    """
    weights = checkpoint / WEIGHTS
    _check_weights(weights, draft)
    with _explained(weights):
        load_model(draft.module, str(weights), device=str(draft.device))


@contextmanager
def whole(final: Path, owner: str) -> Iterator[Path]:
    """Give a folder to fill; at the end of the block it is `final`, whole and on the disk.

    What an earlier try of the same owner left half done beside it is removed.

    Args:
        final: Where the folder shall be; not there yet.
        owner: Whose folder it is.

    Raises:
        UserError: the disk is full or does not let itself be written; nothing is there then.
    """
    folder = final.parent
    with _writing(folder):
        if not folder.is_dir():
            folder.mkdir(parents=True)
            flush(folder.parent)
        for leftover in folder.glob(f"*.{owner}.partial"):
            shutil.rmtree(leftover)
        partial = _aside(final, owner)
        partial.mkdir()
        try:
            yield partial
            for path in [*(path for path in partial.rglob("*")), partial]:
                flush(path)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)  # room on the disk, where it is full
            raise
        flush(folder)


def remove(folder: Path, owner: str) -> None:
    """Remove a folder that `whole` made, so that a half-removed one never looks like a whole."""
    shutil.rmtree(folder.rename(_aside(folder, owner)))


def _aside(final: Path, owner: str) -> Path:
    return final.with_name(f"{final.name}.{owner}.partial")


def _parts(state: State, processes: Processes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take a state apart into named tensors and what JSON holds."""
    plain = {"format": _FORMAT, **state.state_dict()}
    optimizer = plain["optimizer"]
    tensors = {
        f"{number}.{name}": processes.whole(tensor).contiguous()
        for number, moments in optimizer["state"].items()
        for name, tensor in moments.items()
    }
    plain["optimizer"] = {"param_groups": optimizer["param_groups"]}
    return tensors, plain


def _nested(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Undo what `_parts` did to the moments."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = tensor
    return state


def _read_plain(path: Path) -> dict[str, Any]:
    with _explained(path):
        plain = json.loads(path.read_text(encoding="utf-8"))
        parts = {
            "format",
            "run",
            "step",
            "seconds",
            "seed",
            "recipe",
            "data",
            "target",
            "reference",
        }
        if not isinstance(plain, dict) or not parts | {"optimizer"} <= set(plain):
            raise ValueError(f"expected {', '.join(sorted(parts))}, optimizer")
        if plain["format"] != _FORMAT:
            raise ValueError(f"expected format {_FORMAT!r}, found {plain['format']!r}")
        if not (isinstance(plain["run"], str) and _RUN.fullmatch(plain["run"])):
            raise ValueError(f"{plain['run']!r} is not the name of a run")
    return plain


def _check_own(folder: Path, state: State) -> None:
    """Refuse a folder with another run's checkpoints: rotation would remove what is not ours."""
    for step, path in _numbered(folder):
        own = _read_plain(path / STATE)["run"] == state.run if (path / STATE).is_file() else False
        if not own:
            raise UserError(
                f"{path} is not of this run; choose another folder, so that neither run removes "
                "the other's checkpoints"
            )
        if step > state.step:
            raise UserError(
                f"{path} is later than step {state.step} of this run, and would be resumed from "
                "instead; remove it, or choose another folder"
            )


def _check_finite(final: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFiniteError(
                f"{final} is not written: {name} is no longer finite; the checkpoints before it "
                "stay; try a smaller learning_rate, a clip, or float32"
            )


def _check_weights(file: Path, draft: LanguageModel) -> None:
    """Compare a file of weights with the draft they are for; opening it finds one that was cut."""
    own = draft.module.state_dict()
    with _explained(file), safe_open(str(file), framework="pt") as saved:
        names = saved.keys()
        shapes = {name: tuple(saved.get_slice(name).get_shape()) for name in names}
    other = [name for name, shape in shapes.items() if name not in own or own[name].shape != shape]
    if other:
        raise UserError(
            f"{file} is of another draft than {draft.name}, which has no {other[0]} of shape "
            f"{list(shapes[other[0]])}: resume with the draft that the run began with"
        )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what is raised for a damaged file into one line that says how to go on."""
    try:
        yield
    except _UNREADABLE as error:
        raise UserError(
            f"cannot read {path}: {type(error).__name__}: {first_line(error)}{_else(path)}"
        ) from error


def _else(damaged: Path) -> str:
    """Name the whole checkpoint before a damaged one, where there is one."""
    checkpoints = [path for _, path in _numbered(damaged.parent.parent)]
    if damaged.parent not in checkpoints[1:]:
        return ""
    before = checkpoints[checkpoints.index(damaged.parent) - 1]
    return f"; remove {damaged.parent} to go on from {before}"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn what a full or closed disk raises into one line that says what is left."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        last = newest(folder)
        left = "" if last is None else f"; {last} is whole and stays"
        raise UserError(f"cannot write in {folder}: {reason or error}{left}") from error


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """List whole checkpoints by step number: as text, 10000 would come before 9900."""
    if not folder.is_dir():
        return []
    matches = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in matches if match)
