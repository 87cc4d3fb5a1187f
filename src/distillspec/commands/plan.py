"""From a study file to cells with keys and checked settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from distillspec.commands.verbs import VERBS, Verb
from distillspec.errors import UserError
from distillspec.settings import as_dict, build
from distillspec.studies.grid import Cell, Study, Written, cells
from distillspec.studies.keys import keys_of
from distillspec.studies.study_file import read_study

STEPS = {name: verb for name, verb in VERBS.items() if verb.out is not None}
"""The verbs that can be a step."""
OWN = ("out", "resume", "allow_change")
"""Settings that the study itself makes."""
_BESIDE = (*OWN, "keep", "save_every", "tracker")
"""Settings that leave the result as it is."""
PACKAGE = "package:"
"""What a model in a Python package begins with."""


@dataclass(frozen=True)
class Planned:
    """A study, ready to run."""

    study: Study
    """The file."""
    things: Mapping[str, str]
    """Where data and models are, by name."""
    keys: Mapping[Cell, str]
    """Every cell's key, in order."""
    settings: Mapping[Cell, dict[str, Any]]
    """What every cell's key is made of: all settings, contents in place of names."""

    def expected(self, cell: Cell) -> float | None:
        """Return the seconds that a cell is given by its own settings, if it is."""
        minutes = self.settings[cell].get("minutes")
        return None if minutes is None else 60.0 * minutes


@dataclass
class _Contents:
    """Hashes of data and models, each made once."""

    study: Study
    things: Mapping[str, str]
    known: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str) -> str:
        if name not in self.known:
            self.known[name] = (
                _of_file(Path(self.things[name]), name)
                if name in self.study.data
                else _of_model(self.things[name])
            )
        return self.known[name]


def plan(file: Path, data: Path) -> Planned:
    """Read a study file, check the settings of every cell, and make the keys.

    Raises:
        UserError: as `read_study` and `cells`; a setting that a verb does not have, or cannot
            read; data that is not there.
    """
    study = read_study(file, tuple(STEPS))
    things = {name: str(data / path) for name, path in study.data.items()}
    things |= {name: _place(path) for name, path in study.models.items()}
    order = cells(study)
    settings: dict[Cell, dict[str, Any]] = {}

    def resolve(cell: Cell, written: Mapping[str, Written]) -> Mapping[str, Any]:
        _check_products(cell)
        found = as_dict(settings_of(cell, written, Path("out")))
        settings[cell] = {key: found[key] for key in found if key not in _BESIDE}
        return settings[cell]

    keys = keys_of(order, _Contents(study, things), resolve)
    return Planned(study, things, keys, settings)


def settings_of(cell: Cell, written: Mapping[str, Written], out: Path, **own: str) -> Any:
    """Make the settings of a cell's verb from its texts.

    Raises:
        UserError: naming the step and the setting.
    """
    for name in OWN:
        if name in cell.settings:
            raise UserError(f"{cell.where}: {name}: the study sets it; leave it out")
    verb = STEPS[cell.verb]
    return build(verb.settings, {**written, **own, "out": str(out)}, cell.where)


def product_of(verb: Verb, folder: Path) -> Path:
    """Return what a later step takes of a cell that was made in a folder."""
    return folder / str(verb.out) / str(verb.product)


def _check_products(cell: Cell) -> None:
    for written, sources in cell.needs.items():
        for one in sources:
            if STEPS[one.verb].product is None:
                raise UserError(
                    f"{cell.where}: {written}: {one.verb} makes no model and no file to take"
                )


def _place(path: str) -> str:
    if not path.startswith(PACKAGE):
        return path
    from distillspec.commands.demo import packaged  # imports torch

    return packaged(path.removeprefix(PACKAGE))


def _of_file(path: Path, name: str) -> str:
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"data {name}: {path}: {error.strerror}; give the folder it lies in as --data"
        ) from error


def _of_model(path: str) -> str:
    """Return a model's fingerprint; of a name on the hub that is not here yet, the name."""
    if not Path(path).exists():
        return path
    from distillspec.models.files_digest import files_digest  # imports transformers

    return files_digest(path)
