"""Reading a study file: `data`, `models`, `steps` and `findings`; the settings stay text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from distillspec.convert import convert
from distillspec.errors import UserError, nearest
from distillspec.studies.grid import NAME, Step, Study, Written
from distillspec.yaml_keys import Entry, read_yaml

_KEYS = ("data", "models", "parameters", "steps", "findings")


def read_study(path: Path, verbs: Collection[str]) -> Study:
    """Read a study file.

    Args:
        path: A YAML file (docs/study.md).
        verbs: What a step may do.

    Raises:
        UserError: the file cannot be read, an unknown key or verb (the nearest is named), a name
            that two things bear.
    """
    found: dict[str, Entry] = {}
    for entry in read_yaml(path):
        if entry.name not in _KEYS:
            raise UserError(f"{entry.where}: unknown key; {nearest(entry.name, _KEYS)}")
        found[entry.name] = entry
    if "steps" not in found:
        raise UserError(f"{path}: steps is missing: a study needs at least one")
    data, models = (_texts(found.get(key), path) for key in ("data", "models"))
    for name, file in data.items():
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise UserError(f"{path}: data: {name}: {file} leads out of the folder of --data")
    entries = found["steps"].entries(path)
    taken = _names([*data, *models, *(entry.written for entry in entries)], path)
    steps = tuple(_step(entry, path, verbs, taken) for entry in entries)
    if not steps:
        raise UserError(f"{path}: steps is empty: a study needs at least one")
    findings = found["findings"].text() if "findings" in found else []
    return Study(
        name=path.stem,
        data=data,
        models=models,
        steps=steps,
        parameters=_numbers(found.get("parameters"), path, models),
        findings=(findings,) if isinstance(findings, str) else tuple(findings),
    )


def _numbers(entry: Entry | None, path: Path, models: Collection[str]) -> dict[str, float]:
    found = {}
    for name, text in _texts(entry, path).items():
        if name not in models:
            raise UserError(f"{path}: parameters: {name}: no such model; {nearest(name, models)}")
        found[name] = float(convert(text, float, f"{path}: parameters: {name}"))
    return found


def _texts(entry: Entry | None, path: Path) -> dict[str, str]:
    if entry is None:
        return {}
    found = {}
    for one in entry.entries(path):
        text = one.text()
        if not isinstance(text, str):
            raise UserError(f"{one.where}: a list; expected one value")
        found[one.written] = text
    return found


def _names(names: list[str], path: Path) -> set[str]:
    """Check that each name can be referred to, and means one thing."""
    for name in names:
        if NAME.fullmatch(name) is None:
            raise UserError(f"{path}: {name!r} is no name: letters, digits, - and _ are")
        if names.count(name) > 1:
            raise UserError(f"{path}: two things are called {name!r}; rename one")
    return set(names)


def _step(entry: Entry, path: Path, verbs: Collection[str], taken: Collection[str]) -> Step:
    verb: str | None = None
    grid: dict[str, Mapping[str, Mapping[str, Written]]] = {}
    settings: dict[str, Written] = {}
    for one in entry.entries(path):
        if one.name == "verb":
            verb = str(one.text())
            if verb not in verbs:
                raise UserError(f"{one.where}: unknown verb {verb!r}; {nearest(verb, verbs)}")
        elif one.name == "grid":
            for axis in one.entries(path):
                if axis.written in taken:
                    raise UserError(f"{axis.where}: {axis.written!r} is the name of something else")
                grid[axis.written] = _axis(axis, path)
        else:
            settings[one.name] = one.text()
    if verb is None:
        raise UserError(f"{entry.where}: verb is missing: one of {', '.join(verbs)}")
    return Step(entry.written, verb, settings, grid, entry.where)


def _axis(entry: Entry, path: Path) -> dict[str, Mapping[str, Written]]:
    """Read the labels of an axis: values of the setting of its name, or settings by label."""
    if entry.nested:
        return {
            label.written: {one.name: one.text() for one in label.entries(path)}
            for label in entry.entries(path)
        }
    text = entry.text()
    texts = [text] if isinstance(text, str) else text
    if len(set(texts)) < len(texts) or not texts:
        raise UserError(f"{entry.where}: expected at least one value, each once")
    return {text: {entry.name: text} for text in texts}
