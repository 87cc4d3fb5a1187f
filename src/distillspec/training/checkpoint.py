"""Checkpoints: a folder per step, there whole or not at all.

A checkpoint is written under a temporary name, flushed to the disk, renamed, and only then are
older ones removed. A process killed at any moment leaves the newest whole checkpoint in place.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model

from distillspec.errors import UserError
from distillspec.models.protocol import LanguageModel
from distillspec.training.state import State

WEIGHTS = "draft.safetensors"
STATE = "state.pt"

_UNREADABLE = (
    OSError,
    EOFError,
    LookupError,
    RuntimeError,
    ValueError,
    UnpicklingError,
    SafetensorError,
)
"""What torch and safetensors raise for files that are damaged or of another model."""

_NAME = re.compile(r"step-(\d+)")


def save(folder: Path, draft: LanguageModel, state: State, *, keep: int) -> Path:
    """Write the draft and the state of its run as `folder/step-N`.

    Args:
        folder: Made where it does not exist; one run's checkpoints and nothing else.
        draft: The model being trained.
        state: Its run.
        keep: How many checkpoints stay, the newest by number, at least 1.

    Returns:
        The checkpoint's own folder.

    Raises:
        UserError: if the step is already there: it may be another run's.
    """
    if keep < 1:
        raise ValueError(f"at least one checkpoint must stay, got keep={keep}")
    final = folder / f"step-{state.step}"
    if final.exists():
        raise UserError(f"{final} exists already; resume from it or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob("step-*.partial"):
        shutil.rmtree(leftover)
    partial = folder / f"{final.name}.partial"
    partial.mkdir()
    save_model(draft.module, str(partial / WEIGHTS))
    torch.save(state.state_dict(), partial / STATE)
    for path in (partial / WEIGHTS, partial / STATE, partial):
        _flush(path)
    partial.rename(final)
    _flush(folder)
    for _, old in _numbered(folder)[:-keep]:
        # Renamed first, so that a half-removed folder never looks like a checkpoint.
        shutil.rmtree(old.rename(old.with_name(f"{old.name}.partial")))
    return final


def newest(folder: Path) -> Path | None:
    """Return the checkpoint with the largest step number, None if there is none."""
    found = _numbered(folder)
    return found[-1][1] if found else None


def load(
    checkpoint: Path, draft: LanguageModel, state: State, *, allow: Collection[str] = ()
) -> None:
    """Put the draft's weights and the state of its run back, in place.

    Args:
        checkpoint: What `save` or `newest` returned.
        draft: A model of the same shape as the saved one.
        state: A state made for that draft, with the same recipe and data.
        allow: Keys of the recipe that may differ, or `data`.

    Raises:
        UserError: if the checkpoint cannot be read, or belongs to another run.
    """
    weights, saved = checkpoint / WEIGHTS, checkpoint / STATE
    for path in (weights, saved):
        if not path.is_file():
            raise UserError(f"{checkpoint} is no checkpoint: it lacks {path.name}")
    with _explained(saved):
        moving = torch.load(saved, map_location=draft.device, weights_only=True)
        parts = {"step", "seconds", "seed", "recipe", "data", "optimizer"}
        if not isinstance(moving, dict) or not parts <= set(moving):
            raise ValueError(f"expected {', '.join(sorted(parts))}")
    _check_weights(weights, draft)
    # The state goes first: it refuses another run's checkpoint before any weight has changed.
    state.load_state_dict(moving, allow=allow)
    with _explained(weights):
        load_model(draft.module, str(weights), device=str(draft.device))


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
    """Turn what torch and safetensors raise for a damaged file into one line."""
    try:
        yield
    except _UNREADABLE as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot read {path}: {type(error).__name__}: {first}") from error


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """List whole checkpoints by step number: as text, 10000 would come before 9900."""
    if not folder.is_dir():
        return []
    matches = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in matches if match)


def _flush(path: Path) -> None:
    """Have the operating system put a file or a folder's list of names on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
