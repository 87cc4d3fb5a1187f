"""Steps, labels and references: which cells a study has, and what its file may say."""

from __future__ import annotations

import pytest

from distillspec.errors import UserError
from distillspec.studies.grid import cells
from distillspec.studies.keys import keys_of
from distillspec.studies.results import Results, foreseen, states
from distillspec.studies.study_file import read_study

VERBS = ("make", "learn", "look")
FILE = """
data:
  texts: texts.jsonl
models:
  big: org/big
steps:
  base:
    verb: make
    target: $big
    grid:
      size: {small: {width: 8, depth: 1}, large: {width: 16, depth: 2}}
  tuned:
    verb: learn
    draft: $base
    prompts: task=$texts
    grid:
      recipe: [gkd, seqkd]
      seed: [0, 1]
  seen:
    verb: look
    target: $tuned(recipe=gkd)
    draft:
    - $base
    - $tuned(*)
  best:
    verb: look
    draft: $tuned(*, seed=0)
    note: at ${size} of $texts
"""


def study(tmp_path, text=FILE):
    file = tmp_path / "tiny.yaml"
    file.write_text(text)
    return read_study(file, VERBS)


def written(cell):
    return cell.written(str.upper, lambda one: f"<{one.title}>")


def test_a_step_has_a_cell_for_every_label_of_its_own_and_of_what_it_names(tmp_path):
    found = cells(study(tmp_path, FILE.replace("    note: at ${size} of $texts\n", "")))
    titles = [cell.title for cell in found]
    assert titles[:2] == ["base size=small", "base size=large"]
    assert sorted(titles[2:10]) == sorted(
        f"tuned recipe={recipe} seed={seed} size={size}"
        for recipe in ("gkd", "seqkd")
        for seed in (0, 1)
        for size in ("small", "large")
    )
    # A pinned axis is no axis of the step that pins it.
    assert sorted(titles[10:14]) == sorted(
        f"seen seed={seed} size={size}" for seed in (0, 1) for size in ("small", "large")
    )
    assert titles[14:] == ["best"]


def test_names_are_replaced_by_what_they_stand_for(tmp_path):
    found = {cell.title: cell for cell in cells(study(tmp_path, FILE[: FILE.index("  best:")]))}
    assert written(found["base size=large"]) == {"target": "BIG", "width": "16", "depth": "2"}
    assert written(found["tuned recipe=gkd seed=1 size=small"]) == {
        "draft": "<base size=small>",
        "prompts": "task=TEXTS",
        "recipe": "gkd",
        "seed": "1",
    }
    # (*) spreads over the axes that the cell does not have, and agrees on those that it has.
    assert written(found["seen seed=1 size=small"]) == {
        "target": "<tuned recipe=gkd seed=1 size=small>",
        "draft": [
            "<base size=small>",
            "<tuned recipe=gkd seed=1 size=small>",
            "<tuned recipe=seqkd seed=1 size=small>",
        ],
    }


def test_all_cells_without_a_common_axis_are_all_cells(tmp_path):
    text = FILE.replace("    note: at ${size} of $texts\n", "")
    (best,) = (cell for cell in cells(study(tmp_path, text)) if cell.step == "best")
    assert len(written(best)["draft"]) == 4
    assert all("seed=0" in text for text in written(best)["draft"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("$base\n    prompts", "$bse\n    prompts"), "did you mean 'base'"),
        (("verb: learn", "verb: lern"), "did you mean 'learn'"),
        (("data:", "dota:"), "did you mean 'data'"),
        (("recipe=gkd", "recipe=gdk"), "did you mean 'recipe=gkd'"),
        (("(recipe=gkd)", "(gkd)"), "expected (axis=label"),
        (("      seed: [0, 1]", "      seed: [0, 0]"), "each once"),
        (("      seed: [0, 1]", "      base: [0, 1]"), "is the name of something else"),
        (("    prompts: task=$texts", "    seed: 3"), "seed is given twice"),
        (("  texts: texts", "  big: texts"), "two things are called 'big'"),
        (("  texts: texts", "  a b: texts"), "is no name"),
        (("texts.jsonl", "../texts.jsonl"), "../texts.jsonl leads out of the folder of --data"),
        (("texts.jsonl", "a/../../b.jsonl"), "leads out of the folder of --data"),
        (("texts.jsonl", "/etc/hosts"), "leads out of the folder of --data"),
        (("    verb: look\n    draft", "    draft"), "verb is missing"),
        (("${size} of", "x of"), None),
        (("", ""), "$size"),
    ],
)
def test_a_mistake_is_named(tmp_path, change, said):
    text = FILE.replace(*change, 1) if change[0] else FILE
    if said is None:
        assert cells(study(tmp_path, text))
        return
    with pytest.raises(UserError) as error:
        cells(study(tmp_path, text))
    if said == "$size":
        assert "${size}: no such name" in str(error.value)  # `best` has no size
    else:
        assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_steps_that_never_meet_are_refused(tmp_path):
    text = """
steps:
  one: {verb: make, grid: {seed: [0]}}
  two: {verb: make, grid: {seed: [1]}}
  both: {verb: look, target: $one, draft: $two}
"""
    with pytest.raises(UserError, match="no labels in common"):
        cells(study(tmp_path, text))


def test_a_label_of_ones_own_meets_the_same_label_of_a_source(tmp_path):
    text = """
steps:
  one: {verb: make, grid: {seed: [0, 1]}}
  two: {verb: look, target: $one, grid: {seed: [1, 2]}}
"""
    assert [cell.title for cell in cells(study(tmp_path, text))][2:] == ["two seed=1"]


def keys(found, contents):
    return {
        cell.title: key
        for cell, key in keys_of(found, contents.__getitem__, lambda cell, written: written).items()
    }


def test_a_key_changes_with_content_alone(tmp_path):
    text = FILE[: FILE.index("  seen:")]
    found = cells(study(tmp_path, text))
    first = keys(found, {"big": "b", "texts": "t"})
    assert len(set(first.values())) == len(found)
    assert keys(cells(study(tmp_path, text)), {"big": "b", "texts": "t"}) == first
    # Renaming a step or a label changes no key: the content is the same.
    renamed = text.replace("base", "start").replace("small:", "tiny:")
    assert list(keys(cells(study(tmp_path, renamed)), {"big": "b", "texts": "t"}).values()) == list(
        first.values()
    )
    # Other data change what is learnt from it and nothing before it.
    changed = keys(found, {"big": "b", "texts": "other"})
    assert {title for title in first if first[title] != changed[title]} == {
        title for title in first if title.startswith("tuned")
    }
    # Another model changes all that comes of it.
    assert not set(keys(found, {"big": "x", "texts": "t"}).values()) & set(first.values())


def test_states_and_the_time_that_cells_took(tmp_path):
    found = cells(study(tmp_path, FILE[: FILE.index("  best:")]))
    key = {cell: cell.title for cell in found}
    rows = [
        {"key": "base size=small", "step": "base", "verb": "make", "seconds": 4.0, "result": {}},
        {"key": "base size=large", "step": "base", "verb": "make", "seconds": 9.0, "failed": "no"},
    ]
    results = Results({row["key"]: row for row in rows})
    by_title = {cell.title: state for cell, state in states(found, key, results).items()}
    assert by_title["base size=small"] == "done"
    assert by_title["base size=large"] == "failed"
    assert by_title["tuned recipe=gkd seed=0 size=small"] == "left"
    assert by_title["tuned recipe=gkd seed=0 size=large"] == "blocked"
    assert by_title["seen seed=0 size=large"] == "blocked"  # by what is itself blocked
    assert by_title["seen seed=0 size=small"] == "left"
    assert foreseen(found[1], results) == 4.0  # a failed cell tells no time
    assert foreseen(found[2], results) is None
