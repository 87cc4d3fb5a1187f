"""A study as a list of cells: steps, the values they vary, and what they take from one another.

A step is a verb of the command line with its settings. A text in it may name data, a model, an
axis or an earlier step, as `$distilled` (`${distilled}` before a letter). A step has a cell for
every combination of its own labels with the cells of the steps it names, joined where they have an
axis in common. `$distilled(recipe=gkd)` names cells of one label, which then is no axis of the
step; `$distilled(*)`, alone in its place, is the list of all cells that agree with this one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from distillspec.errors import UserError, nearest

Written = str | list[str]
"""The text of a setting, or a list of texts."""
Labels = Mapping[str, str]
"""A label for every axis."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
"""What data, models, steps and axes may be called."""
_REFERENCE = re.compile(r"\$(?:(NAME)|\{(NAME)\})(?:\(([^)]*)\))?".replace("NAME", NAME.pattern))


@dataclass(frozen=True)
class Step:
    """One step of a study."""

    name: str
    """What others call it."""
    verb: str
    """The verb of the command line."""
    settings: Mapping[str, Written]
    """What all its cells have in common."""
    grid: Mapping[str, Mapping[str, Mapping[str, Written]]]
    """By axis and label: the settings that the label stands for."""
    where: str
    """File, line and key, for messages."""


@dataclass(frozen=True)
class Study:
    """A study file."""

    name: str
    """The file's name, without its ending."""
    data: Mapping[str, str]
    """Files by name, relative to the folder of data."""
    models: Mapping[str, str]
    """Folders, hub names or GGUF files by name; `package:NAME` is the GGUF file of a package."""
    steps: tuple[Step, ...]
    """In order: a step names earlier ones only."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """How many parameters the models have, by name, where a cost is to be foreseen."""
    findings: tuple[str, ...] = ()
    """Scripts that read the results, relative to the study file."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a step."""

    step: str
    """The step's name."""
    verb: str
    """Its verb."""
    axes: Labels
    """Its labels."""
    settings: Mapping[str, Written]
    """Its settings; the names of data, models and steps still stand."""
    needs: Mapping[str, tuple[Cell, ...]]
    """The cells behind every reference to a step, by the reference as it is written."""
    where: str
    """File, line and key, for messages."""

    @property
    def title(self) -> str:
        """What messages call it."""
        return " ".join([self.step, *(f"{axis}={label}" for axis, label in self.axes.items())])

    @property
    def sources(self) -> tuple[Cell, ...]:
        """The cells it needs, each once."""
        return tuple(dict.fromkeys(one for some in self.needs.values() for one in some))

    def written(
        self, thing: Callable[[str], str], product: Callable[[Cell], str]
    ) -> dict[str, Written]:
        """Return the settings with every name replaced.

        Args:
            thing: What to write for data or a model, by its name.
            product: What to write for an earlier cell.
        """

        def one(found: re.Match[str]) -> str:
            cells = self.needs.get(found[0])
            return thing(_name(found)) if cells is None else product(cells[0])

        def texts(text: str) -> list[str]:
            if _every(text):
                return [product(cell) for cell in self.needs[text]]
            return [_REFERENCE.sub(one, text)]

        found: dict[str, Written] = {}
        for key, value in self.settings.items():
            if isinstance(value, str) and not _every(value):
                (found[key],) = texts(value)
            else:
                items = [value] if isinstance(value, str) else value
                found[key] = [text for item in items for text in texts(item)]
        return found


def cells(study: Study) -> list[Cell]:
    """List the cells of all steps, in an order in which they can be run.

    Raises:
        UserError: a name that nothing bears, a label that no axis has, a setting given twice, or
            steps that no combination of labels brings together.
    """
    earlier: dict[str, list[Cell]] = {}
    things = [*study.data, *study.models]
    for step in study.steps:
        earlier[step.name] = list(_cells_of(step, earlier, things))
    return [cell for of_step in earlier.values() for cell in of_step]


def _cells_of(
    step: Step, earlier: Mapping[str, list[Cell]], things: Sequence[str]
) -> Iterator[Cell]:
    met = False
    for labels in itertools.product(*step.grid.values()):
        own = dict(zip(step.grid, labels, strict=True))
        settings = dict(step.settings)
        for axis, label in own.items():
            for key, value in step.grid[axis][label].items():
                if key in settings:
                    raise UserError(f"{step.where}: {key} is given twice, once by the axis {axis}")
                settings[key] = value
        for cell in _joined(step, own, settings, earlier, things):
            met = True
            yield cell
    if not met:
        raise UserError(f"{step.where}: the cells that it names have no labels in common")


def _joined(
    step: Step,
    own: Labels,
    settings: Mapping[str, Written],
    earlier: Mapping[str, list[Cell]],
    things: Sequence[str],
) -> Iterator[Cell]:
    """Yield the cells of one combination of the step's own labels."""
    references = {one[0]: one for value in settings.values() for one in _references(value)}
    names = {written: _name(one) for written, one in references.items()}
    pinned = {written: _pinned(one, step.where) for written, one in references.items()}
    matching = {
        written: _matching(earlier[name], pinned[written], f"{step.where}: {written}")
        for written, name in names.items()
        if name in earlier
    }
    single = {written: found for written, found in matching.items() if not _every(written)}
    for choice in itertools.product(*single.values()):
        inherited = [_without(one.axes, pinned[w]) for w, one in zip(single, choice, strict=True)]
        axes = _join([own, *inherited])
        if axes is None:
            continue
        for written, name in names.items():
            if written not in matching and name not in things and name not in axes:
                known = [*things, *earlier, *axes]
                raise UserError(f"{step.where}: {written}: no such name; {nearest(name, known)}")
        needs: dict[str, tuple[Cell, ...]] = {
            written: (one,) for written, one in zip(single, choice, strict=True)
        }
        for written, found in matching.items():
            if _every(written):
                free = _without(axes, pinned[written])
                needs[written] = tuple(one for one in found if _join([free, one.axes]) is not None)
                if not needs[written]:
                    raise UserError(f"{step.where}: {written}: no cell of it agrees with {axes}")
        yield Cell(
            step.name,
            step.verb,
            axes,
            {key: _with_labels(value, axes) for key, value in settings.items()},
            needs,
            step.where,
        )


def _references(value: Written) -> Iterator[re.Match[str]]:
    for text in [value] if isinstance(value, str) else value:
        yield from _REFERENCE.finditer(text)


def _name(reference: re.Match[str]) -> str:
    return reference[1] or reference[2]


def _every(text: str) -> bool:
    """Tell whether a text is a reference to all cells of a step, and nothing else."""
    found = _REFERENCE.fullmatch(text)
    return found is not None and "*" in (found[3] or "")


def _pinned(reference: re.Match[str], where: str) -> dict[str, str]:
    """Read `(axis=label, …)`, where a `*` may stand among them.

    Raises:
        UserError: it is neither.
    """
    found = {}
    for part in (reference[3] or "").split(",") if reference[3] is not None else ():
        axis, equals, label = (piece.strip() for piece in part.partition("="))
        if axis and equals and label:
            found[axis] = label
        elif part.strip() != "*":
            raise UserError(f"{where}: {reference[0]}: expected (axis=label, …), with * for all")
    return found


def _matching(of_step: Sequence[Cell], pinned: Labels, where: str) -> list[Cell]:
    """Keep the cells with some labels.

    Raises:
        UserError: there is none.
    """
    found = [one for one in of_step if all(one.axes.get(a) == label for a, label in pinned.items())]
    if not found:
        labels = sorted({f"{a}={label}" for one in of_step for a, label in one.axes.items()})
        asked = ", ".join(f"{axis}={label}" for axis, label in pinned.items())
        raise UserError(f"{where}: there is no such cell; {nearest(asked, labels or ['no axis'])}")
    return found


def _without(labels: Labels, axes: Labels) -> Labels:
    return {axis: label for axis, label in labels.items() if axis not in axes}


def _join(parts: Sequence[Labels]) -> dict[str, str] | None:
    """Put labels together; None where two of one axis differ."""
    joined: dict[str, str] = {}
    for part in parts:
        for axis, label in part.items():
            if joined.setdefault(axis, label) != label:
                return None
    return joined


def _with_labels(value: Written, axes: Labels) -> Written:
    def one(found: re.Match[str]) -> str:
        return axes.get(_name(found), found[0])

    if isinstance(value, str):
        return _REFERENCE.sub(one, value)
    return [_REFERENCE.sub(one, text) for text in value]
