"""Run directories: whole or not there, read back as written, never another run's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.errors import UserError
from distillspec.studies import provenance, store
from distillspec.studies.store import Exists, Run, UnwritableError, read_run, write_text


def create(folder: Path, *, verb: str = "distill", exists: Exists = "refuse") -> Run:
    config = {"target": "m", "steps": 3}
    return Run.create(folder, verb=verb, config=config, seed=7, device="cpu", exists=exists)


def test_a_run_records_what_made_it(tmp_path: Path) -> None:
    run = create(tmp_path / "a" / "b")
    record = json.loads((run.folder / "run.json").read_text())
    assert record["verb"] == "distill"
    assert record["config"] == {"target": "m", "steps": 3}
    assert (record["seed"], record["device"]) == (7, "cpu")
    assert record["versions"]["python"].count(".") == 2
    assert set(record["versions"]) == {"distillspec", "python", "torch", "transformers"}
    assert record["command"] == sys.argv
    assert record["started"].endswith("+00:00")


def test_rows_and_results_come_back_as_written(tmp_path: Path) -> None:
    run = create(tmp_path / "r")
    rows: list[dict[str, Any]] = [
        {"step": 1, "loss": 0.5, "seconds_by_part": {"draft": 0.1}},
        {"step": 2, "loss": 0.25, "source": "on-policy ü"},
    ]
    for row in rows:
        run.log(row)
    run.write_json("result.json", {"steps": 2})
    found = read_run(run.folder)
    assert list(found.metrics) == rows
    assert found.result == {"steps": 2}
    assert found.record["verb"] == "distill"
    assert found.children == ()


def test_a_row_is_on_file_at_once(tmp_path: Path) -> None:
    run = create(tmp_path / "r")
    run.log({"step": 1})
    assert (run.folder / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_runs_within_a_run_are_read_with_it(tmp_path: Path) -> None:
    create(tmp_path / "demo", verb="demo")
    create(tmp_path / "demo" / "control", verb="sft").log({"step": 1})
    create(tmp_path / "demo" / "after", verb="distill")
    (tmp_path / "demo" / "draft").mkdir()
    children = read_run(tmp_path / "demo").children
    assert [child.folder.name for child in children] == ["control", "after"]
    assert children[0].metrics == ({"step": 1},)


def test_a_run_without_an_end_has_no_result(tmp_path: Path) -> None:
    found = read_run(create(tmp_path / "r").folder)
    assert found.result is None
    assert found.metrics == ()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_refused_by_its_key(number: float, tmp_path: Path) -> None:
    run = create(tmp_path / "r")
    with pytest.raises(ValueError, match=r"metrics\.jsonl: parts\.1\.loss is"):
        run.log({"step": 1, "parts": [{}, {"loss": number}]})
    assert not (run.folder / "metrics.jsonl").exists()
    with pytest.raises(ValueError, match=r"result\.json: alpha\.value is"):
        run.write_json("result.json", {"alpha": {"value": number}})
    assert not (run.folder / "result.json").exists()


def test_an_interrupted_last_line_passes_but_no_other(tmp_path: Path) -> None:
    run = create(tmp_path / "r")
    run.log({"step": 1})
    metrics = run.folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"step": 2, "sour')
    assert read_run(run.folder).metrics == ({"step": 1},)
    metrics.write_bytes(b'{"step": 1}\n{"step": 2, "sour\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: damaged"):
        read_run(run.folder)
    metrics.write_bytes(b"3\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: expected a JSON object"):
        read_run(run.folder)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(cut=st.integers(0, 200))
def test_wherever_a_log_was_cut_off_the_run_reads_and_goes_on(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut") / "r"
    run = create(folder)
    rows = [{"step": step, "note": "ü" * step} for step in range(4)]
    for row in rows:
        run.log(row)
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:cut])
    kept = list(read_run(folder).metrics)
    assert kept == rows[: len(kept)]
    create(folder, exists="continue").log({"step": 99})
    assert list(read_run(folder).metrics) == [*kept, {"step": 99}]


def test_an_earlier_run_is_refused_replaced_or_continued(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    run = create(folder)
    run.log({"step": 1})
    run.write_json("result.json", {})
    with pytest.raises(UserError, match="holds an earlier run"):
        create(folder)
    assert len(read_run(folder).metrics) == 1
    create(folder, exists="continue").log({"step": 2})
    assert len(read_run(folder).metrics) == 2
    create(folder, exists="replace")
    assert read_run(folder).metrics == ()
    assert read_run(folder).result is None


@pytest.mark.parametrize("exists", ["refuse", "replace", "continue"])
def test_what_is_no_run_of_the_verb_is_never_touched(exists: Exists, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.txt").write_text("years of work")
    with pytest.raises(UserError, match="is not a run directory"):
        create(thesis, exists=exists)
    assert (thesis / "chapter.txt").read_text() == "years of work"

    create(tmp_path / "other", verb="measure")
    with pytest.raises(UserError, match="holds a run of 'measure', not 'distill'"):
        create(tmp_path / "other", exists=exists)

    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is not a run directory"):
        create(tmp_path / "file", exists=exists)

    (thesis / "run.json").write_text("{}")
    with pytest.raises(UserError, match="something else"):
        create(thesis, exists=exists)
    assert (thesis / "chapter.txt").exists()


def test_an_empty_folder_is_free(tmp_path: Path) -> None:
    assert read_run(create(tmp_path).folder).record["verb"] == "distill"


def test_a_link_to_an_earlier_run_leads_to_the_new_one(tmp_path: Path) -> None:
    """Only the link's target can be removed as a folder: "cannot hold a run: None"."""
    run = create(tmp_path / "r")
    run.log({"step": 1})
    (tmp_path / "link").symlink_to(run.folder, target_is_directory=True)
    again = create(tmp_path / "link", exists="replace")
    assert [path.name for path in again.folder.iterdir()] == ["run.json"]
    assert read_run(run.folder).metrics == ()


def test_a_folder_that_cannot_be_made_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot hold a run"):
        create(tmp_path / "file" / "r")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"holds no run\.json"),
        ("{", r"run\.json: damaged"),
        ("[]", r"run\.json: expected a JSON object"),
        ('{"format": "distillspec run 0"}', r"not written by this version"),
    ],
)
def test_a_folder_that_is_no_run_is_named(
    content: str | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read_run(tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(UserError, match="no such folder"):
        read_run(tmp_path / "absent")


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_whole(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_text(tmp_path / "a.json", "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if broken == "fsync":
        monkeypatch.setattr("os.fsync", fail)
    else:
        monkeypatch.setattr(store.Path, "replace", fail)
    with pytest.raises(UnwritableError, match=r"a\.json: cannot be written: No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_row_that_finds_no_room_is_a_users_error(tmp_path: Path) -> None:
    """Hours of measuring ended in a traceback, which named no file."""
    run = create(tmp_path / "r")
    (run.folder / "outputs.jsonl").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"outputs\.jsonl: cannot be written: No space left"):
        run.append("outputs.jsonl", {"text": "w"})


def test_a_written_file_is_readable_by_others(tmp_path: Path) -> None:
    assert write_text(tmp_path / "a", "x").stat().st_mode & 0o044 == 0o044


def git(folder: Path, *arguments: str) -> None:
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org"}
    committer = {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}
    environment = {**os.environ, **identity, **committer}
    command = ["git", "-C", str(folder), *arguments]
    subprocess.run(command, check=True, env=environment, capture_output=True)


def test_the_commit_is_the_codes_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package installed inside another project's checkout must not take that one's commit."""
    source = tmp_path / "package.py"
    source.write_text("")
    monkeypatch.setattr(provenance.distillspec, "__file__", str(source))
    assert provenance.provenance()["code"] is None
    git(tmp_path, "init", "-q")
    (tmp_path / "other.py").write_text("")
    git(tmp_path, "add", "other.py")
    git(tmp_path, "commit", "-qm", "Other project")
    assert provenance.provenance()["code"] is None
    git(tmp_path, "add", "package.py")
    git(tmp_path, "commit", "-qm", "Ours")
    code = provenance.provenance()["code"]
    assert len(code["commit"]) == 40
    assert code["dirty"] is False
    source.write_text("changed")
    assert provenance.provenance()["code"] == {"commit": code["commit"], "dirty": True}


def test_a_missing_package_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance._version("no-such-package-anywhere") is None


def test_the_store_imports_nothing_heavy() -> None:
    code = (
        "import sys, distillspec.studies.store; "
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_that_holds_its_record_alone_makes_way(tmp_path: Path) -> None:
    """The bug: a run refused before its first step left a folder that refused the mended one."""
    run = create(tmp_path / "r")
    first = (run.folder / "run.json").read_text()
    create(run.folder)
    assert (run.folder / "run.json").read_text() != first
    run.log({"step": 1})
    with pytest.raises(UserError, match="holds an earlier run"):
        create(run.folder)


def test_what_a_killed_run_logged_past_its_checkpoint_is_dropped(tmp_path: Path) -> None:
    """The bug: resumed rows followed them, the seconds went backwards, and no report was drawn."""
    run = create(tmp_path / "r")
    run.rewind(0)  # there is nothing to drop
    for step in (1, 2, 3):
        run.log({"step": step, "note": "ü"})
    run.log({"step": 3, "evaluation": {}})
    run.rewind(2)
    assert [row["step"] for row in read_run(run.folder).metrics] == [1, 2]


def test_outputs_come_back_as_written(tmp_path: Path) -> None:
    run = create(tmp_path / "r", verb="evaluate")
    rows: list[dict[str, Any]] = [
        {"id": "1", "text": "a\nb\u2028ü", "pieces": ["a", "\nb"], "roles": "ac"},
        {"id": "2", "domain": None, "seconds": 0.25},
    ]
    assert read_run(run.folder).rows("outputs.jsonl") == ()
    run.append("outputs.jsonl", {"id": "0"})
    assert read_run(run.folder).rows("outputs.jsonl") == ({"id": "0"},)
    run.write_rows("outputs.jsonl", iter(rows))
    run.append("outputs.jsonl", {"id": "3"})
    assert list(read_run(run.folder).rows("outputs.jsonl")) == [*rows, {"id": "3"}]
    assert (run.folder / "outputs.jsonl").read_bytes().count(b"\n") == 3
    assert read_run(run.folder).metrics == ()


def test_a_row_without_a_number_leaves_the_rows_before_it(tmp_path: Path) -> None:
    run = create(tmp_path / "r", verb="evaluate")
    run.append("outputs.jsonl", {"id": "1"})
    bad = {"seconds": float("nan")}
    with pytest.raises(ValueError, match=r"outputs\.jsonl: seconds is nan"):
        run.append("outputs.jsonl", bad)
    with pytest.raises(ValueError, match=r"outputs\.jsonl: seconds is nan"):
        run.write_rows("outputs.jsonl", [{"id": "2"}, bad])
    assert read_run(run.folder).rows("outputs.jsonl") == ({"id": "1"},)


def test_a_damaged_row_is_named_by_its_line(tmp_path: Path) -> None:
    run = create(tmp_path / "r", verb="evaluate")
    (run.folder / "outputs.jsonl").write_bytes(b'{"id": 1}\n[]\n')
    with pytest.raises(UserError, match=r"outputs\.jsonl:2: expected a JSON object"):
        read_run(run.folder).rows("outputs.jsonl")


def test_a_torn_line_of_any_file_is_cut_before_it_goes_on(tmp_path: Path) -> None:
    run = create(tmp_path / "r")
    run.append("outputs.jsonl", {"id": "1"})
    file = run.folder / "outputs.jsonl"
    file.write_bytes(file.read_bytes() + b'{"id": "2", "te')
    create(run.folder, exists="continue").append("outputs.jsonl", {"id": "3"})
    assert read_run(run.folder).rows("outputs.jsonl") == ({"id": "1"}, {"id": "3"})


def test_a_record_that_lacks_what_a_page_shows_is_told(tmp_path):
    run = Run.create(tmp_path / "run", verb="measure", config={}, seed=0, device="cpu")
    record = json.loads((run.folder / "run.json").read_text())
    del record["machine"], record["command"]
    (run.folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"run.json: damaged: command, machine missing"):
        read_run(run.folder)
