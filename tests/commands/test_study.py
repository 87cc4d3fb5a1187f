"""`study` and `new-model`: cells made once, gone on with, reported when they fail."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from distillspec.commands.plan import plan
from distillspec.files import alone
from distillspec.models import load
from distillspec.studies.store import Run
from verbs import WORDS, refused, run, write_rows

FILE = """
data:
  train: train.jsonl
  held: held.jsonl
steps:
  fresh:
    verb: new-model
    family: gpt2
    prompts: $train
    vocabulary: 300
    heads: 2
    context: 64
    grid:
      size: {big: {width: 16, depth: 2}, small: {width: 8, depth: 1}}
  taught:
    verb: sft
    draft: $fresh
    prompts: $train
    steps: 2
    batch_size: 4
    optimizer: adamw
  distilled:
    verb: distill
    target: $taught(size=big)
    draft: $taught(size=small)
    prompts: $train
    held_out: $held
    batch_size: 4
    max_new_tokens: 6
    steps: 2
    grid:
      recipe: [gkd, RECIPE]
  measured:
    verb: measure
    target: $taught(size=big)
    draft:
    - $taught(size=small)
    - $distilled(*)
    prompts: $held
    gamma: 3
    clock_prompts: 0
    max_new_tokens: 6
    batch_sizes: 1
  predicted:
    verb: perplexity
    models: $taught(*)
    prompts: $train
"""


@pytest.fixture
def place(tmp_path):
    rows = [
        {"prompt": f"{WORDS[i % 20]} {WORDS[(3 * i) % 20]} {i}", "target": " ".join(WORDS[:5])}
        for i in range(16)
    ]
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "train.jsonl", rows[:10])
    write_rows(tmp_path / "data" / "held.jsonl", [{"prompt": row["prompt"]} for row in rows[10:]])
    return tmp_path


def arguments(place, action, text=FILE):
    file = place / "tiny.yaml"
    file.write_text(text)
    return ("study", action, file, "--data", place / "data", "--out", place / "out")


def stored(place):
    return [json.loads(line) for line in (place / "out" / "results.jsonl").read_text().splitlines()]


def test_a_study_fails_in_one_cell_is_mended_and_goes_on(place, capsys, monkeypatch):
    """One run with a cell that fails, one that mends it, one that finds nothing left to do."""
    from distillspec.commands import new_draft, train

    text = FILE.replace("RECIPE", "imitkd")
    code, found, _ = run(capsys, *arguments(place, "status", text))
    assert (code, found["done"], found["left"], found["failed"]) == (0, 0, 8, 0)
    assert found["time_left"] == "8 cells left"

    whole = train.run_distill

    def broken(settings):
        if settings.recipe == "imitkd":
            raise ZeroDivisionError("by chance")
        return whole(settings)

    monkeypatch.setattr(train, "run_distill", broken)
    code, found, err = run(capsys, *arguments(place, "run", text))
    assert code == 3
    assert (found["done"], found["failed"], found["blocked"]) == (6, 1, 1)
    assert found["failures"] == {"distilled recipe=imitkd": "ZeroDivisionError: by chance"}
    assert "measured: left out, as distilled recipe=imitkd failed" in " ".join(err.split())
    (cut,) = [row for row in stored(place) if "failed" in row]
    assert "Traceback" in cut["failed"]  # none of the user's: the trace is kept

    def told(settings):
        return {**whole(settings), "said": f"The draft is in {settings.out}."}

    monkeypatch.setattr(train, "run_distill", told)
    before = stored(place)
    code, found, _ = run(capsys, *arguments(place, "run", text))
    assert (code, found["done"], found["failed"]) == (0, 8, 0)
    rows = stored(place)
    assert rows[: len(before)] == before  # only ever added to
    assert [row["step"] for row in rows[len(before) :]] == ["distilled", "measured"]

    monkeypatch.setattr(new_draft, "make_way", None)  # whatever runs now would fail
    code, found, _ = run(capsys, *arguments(place, "run", text))
    assert (code, found["done"], found["time_left"]) == (0, 8, "0 cells left")
    assert stored(place) == rows

    last = rows[-1]
    assert {source["step"] for source in last["sources"].values()} == {"taught", "distilled"}
    assert last["result"]["drafts"][1]["alpha"]["low"] <= last["result"]["alpha"]["high"]
    assert len(last["examples"]) == 3 * 6
    assert set(last["versions"]) >= {"distillspec", "torch"}
    assert str(place) not in json.dumps(rows)
    (predicted,) = [row for row in rows if row["step"] == "predicted"]
    assert predicted["result"]["prompts"] == "train.jsonl"  # as the file names it, on any machine
    evaluations = next(row for row in rows if row["step"] == "distilled")["evaluations"]
    assert evaluations[0]["step"] == 0


def test_a_run_that_was_interrupted_goes_on_from_its_checkpoint(place, capsys, monkeypatch):
    from distillspec.commands import running

    text = FILE.replace("RECIPE", "imitkd")[: FILE.index("  distilled:")]
    loop = running._loop
    seen = []

    def cut(steps, draft, state, record, settings):
        if not settings.resume and len(seen) == 1:
            seen.append("cut")
            next(steps)
            return "interrupted"
        seen.append(state.step)
        return loop(steps, draft, state, record, settings)

    monkeypatch.setattr(running, "_loop", cut)
    code, _, err = run(capsys, *arguments(place, "run", text))
    assert code == 130
    assert err.strip().endswith("distillspec: interrupted")
    code, found, _ = run(capsys, *arguments(place, "run", text))
    assert (code, found["done"]) == (0, 4)
    assert seen == [0, "cut", 1]  # the second began at the step that the first had saved


def test_a_run_killed_in_its_first_checkpoint_begins_anew(place, capsys, monkeypatch):
    """What it had half written was taken for a checkpoint to resume from, and the cell failed."""
    from distillspec.commands import running

    text = FILE.replace("RECIPE", "imitkd")[: FILE.index("  distilled:")]

    def killed(draft, state, record, settings):
        (settings.out / "checkpoints" / "step-2.1f0c.partial").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr(running, "_save", killed)
        code, _, _ = run(capsys, *arguments(place, "run", text))
        assert code == 130
    code, found, _ = run(capsys, *arguments(place, "run", text))
    assert (code, found["done"], found["failures"]) == (0, 4, {})


def test_two_runs_in_one_folder_are_refused(place, capsys):
    text = FILE.replace("RECIPE", "imitkd")
    Run.create(place / "out", verb="study", config={}, seed=0, device="cpu")
    with alone(place / "out" / "lock"):
        assert "at work" in refused(capsys, *arguments(place, "run", text))
    with alone(place / "out" / "lock") as free:
        assert free


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("    vocabulary: 300\n", "    vocabulry: 300\n"), "did you mean 'vocabulary'"),
        (("    steps: 2\n", "    steps: two\n"), "steps: 'two' is not a whole number"),
        (("    steps: 2\n", "    steps: 2\n    out: here\n"), "the study sets it"),
        (("draft: $fresh", "draft: $train"), "there is no such cell; expected one of: no axis"),
        (("target: $taught(size=big)\n    draft:\n", "target: $m\n    draft:\n"), "no such name"),
        (("held: held.jsonl", "held: hold.jsonl"), "give the folder it lies in as --data"),
        (("verb: measure", "verb: demo"), "unknown verb 'demo'"),
    ],
)
def test_a_study_file_is_checked_before_anything_runs(place, capsys, change, said):
    text = FILE.replace("RECIPE", "imitkd").replace(*change, 1)
    assert said in refused(capsys, *arguments(place, "run", text))
    assert not (place / "out").exists()


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_a_new_model_has_the_sizes_asked_for(place, capsys, family):
    code, found, _ = run(
        capsys, "new-model", "--family", family, "--out", place / "m", "--width", 16, "--depth", 2,
        "--heads", 2, "--ff", 24, "--prompts", place / "data" / "train.jsonl", "--vocabulary", 270,
    )  # fmt: skip
    assert code == 0
    model = load(found["out"])
    assert found["vocabulary"] == model.vocabulary.size == 270
    config = model.module.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (16, 2, 2)
    assert sum(p.numel() for p in model.parameters()) == found["parameters"]
    text = "w6 w7, übel 中"
    ids = model.tokenizer.prompt(text)
    assert model.tokenizer.decode(ids.tolist()) == text
    assert (ids[-1].item() in model.eos_ids) == (family == "t5")
    again = place / "again"
    run(
        capsys, "new-model", "--family", family, "--out", again, "--width", 16, "--depth", 2,
        "--heads", 2, "--ff", 24, "--tokenizer", found["out"],
    )  # fmt: skip
    same = load(again)
    assert all((a == b).all() for a, b in zip(same.parameters(), model.parameters(), strict=True))


def test_a_new_model_refuses_sizes_that_mean_nothing(place, capsys):
    fixed = ("new-model", "--family", "gpt2", "--out", place / "m", "--depth", 1)
    prompts = ("--prompts", place / "data" / "train.jsonl")
    assert "multiple" in refused(capsys, *fixed, "--width", 10, "--heads", 3, *prompts)
    assert "either --tokenizer" in refused(capsys, *fixed, "--width", 8, "--heads", 2)
    small = (*fixed, "--width", 8, "--heads", 2, *prompts)
    assert "a context of 0" in refused(capsys, *small, "--context", 0)
    odd = ("--family", "llama", "--width", 6, "--heads", 2, "--depth", 1, "--out", place / "m")
    assert "rotary" in refused(capsys, "new-model", *odd, *prompts)
    short = (*fixed, "--width", 8, "--heads", 2, *prompts, "--vocabulary", 100)
    assert "at least 258" in refused(capsys, *short)


def test_a_cost_counts_no_ids_that_are_not_known(place, capsys):
    """A tokenizer taken from a cell is followed to its size; one of a named model is not read."""
    head = "data: {train: train.jsonl}\nmodels: {known: somewhere}\nsteps:\n"
    fixed = "verb: new-model, family: gpt2, width: 8, depth: 1, heads: 2, context: 8"
    steps = [
        f"  fresh: {{{fixed}, prompts: $train, vocabulary: 300}}",
        "  tuned: {verb: sft, draft: $fresh, prompts: $train, steps: 2}",
        f"  lent: {{{fixed}, tokenizer: $tuned}}",
        "  more: {verb: sft, draft: $lent, prompts: $train, steps: 2}",
        f"  named: {{{fixed}, tokenizer: $known}}",
        "  last: {verb: sft, draft: $named, prompts: $train, steps: 2}",
    ]
    code, found, _ = run(capsys, *arguments(place, "cost", head + "\n".join(steps)))
    assert code == 0
    sizes = {one["cell"]: one["parameters"] for one in found["cost"]}
    assert sizes["tuned"] == sizes["more"]
    assert sizes["tuned"] > 300 * 8
    assert sizes["last"] is None


def test_a_status_needs_no_torch(place):
    words = [str(word) for word in arguments(place, "status", FILE.replace("RECIPE", "imitkd"))]
    program = (
        "import sys; from distillspec.cli import main; code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "0 of 8 cells done" in done.stdout


SCRIPT = """
from distillspec.report.findings import Curve, Finding, curves, not_run
from distillspec.report.reading import Interval


def finding(results):
    rows = results.of("fresh", size="small")
    if not rows:
        return not_run("2", "Small <b> is small.", "fresh")
    x = tuple(float(row["result"]["width"]) for row in rows)
    y = tuple(Interval(one, one - 1, one + 1) for one in x)
    drawn = curves([Curve("a", x, y), Curve("b", x, y)], "width", "height")
    head, rows = ("w",), (("8",),)
    said = f"{x} < 16."
    return Finding("1", "Small is small.", "holds", said, head, rows, drawn, "Theirs: 9.")
"""


def write_results(place, text):
    """One row of the study's results, and a later one of a cell it does not have; return the one.

    The bug: what an earlier state of the file had asked for was in the findings.
    """
    (place / "out").mkdir()
    _, _, file, *_ = arguments(place, "report", text)
    cells = plan(file, place / "data").keys
    (key,) = [
        key for cell, key in cells.items() if (cell.step, cell.axes) == ("fresh", {"size": "small"})
    ]
    row = {"key": key, "step": "fresh", "axes": {"size": "small"}, "result": {"width": 8}}
    about = {"verb": "new-model", "versions": {"torch": "2"}, "code": None, "seconds": 3}
    stale = row | about | {"key": "a", "result": {"width": 80}}
    write_rows(place / "out" / "results.jsonl", [row | about, stale])
    return row | about


def test_a_script_that_dies_is_told_in_one_line_and_the_others_go_on(place, capsys):
    """The bug: a traceback, and no page."""
    text = FILE.replace("RECIPE", "imitkd") + "findings: [two.py, one.py, three.py, four.py]\n"
    (place / "one.py").write_text(SCRIPT)
    (place / "two.py").write_text('def finding(results):\n    return {}["<alpha>"]\n')
    (place / "three.py").write_text("import no_such_module\n")
    (place / "four.py").write_text("x = 1\n")
    write_results(place, text)
    code, found, err = run(capsys, *arguments(place, "report", text))
    assert code == 3
    assert [one["number"] for one in found["findings"]] == ["1"]
    assert found["scripts_failed"] == {
        "two.py": "line 2: KeyError: '<alpha>'",
        "three.py": "line 1: ModuleNotFoundError: No module named 'no_such_module'",
        "four.py": "has no function finding(results) (docs/study.md)",
    }
    assert found["unmet"] == ["3 scripts of findings failed"]
    assert "failed: two.py: line 2: KeyError: '<alpha>'" in err
    assert "Traceback" not in err
    page = (place / "out" / "report" / "index.html").read_text("utf-8")
    for part in ("(8.0,) &lt; 16.", "two.py: line 2: KeyError: &#39;&lt;alpha&gt;&#39;"):
        assert part in page


def test_a_report_shows_what_the_scripts_say(place, capsys):
    text = FILE.replace("RECIPE", "imitkd") + "findings: [one.py, two.py]\n"
    (place / "one.py").write_text(SCRIPT)
    (place / "two.py").write_text(SCRIPT.replace("small", "huge"))
    assert "no results yet" in refused(capsys, *arguments(place, "report", text))
    row = write_results(place, text)
    code, found, _ = run(capsys, *arguments(place, "report", text))
    assert code == 0
    assert found["scripts_failed"] == {}
    assert [one["outcome"] for one in found["findings"]] == ["holds", "not run"]
    assert [one["said"] for one in found["findings"]][0] == "(8.0,) < 16."
    page = (place / "out" / "report" / "index.html").read_text("utf-8")
    assert found["report"].endswith("index.html")
    for part in ("(8.0,) &lt; 16.", "Theirs: 9.", "Small &lt;b&gt; is huge.", "not run", "torch 2"):
        assert part in page
    assert page.count("<svg ") == 1  # of what was not run there is no figure
    assert "src=" not in page  # self-contained
    assert 'href="http' not in page
    names = {path.name for path in (place / "out" / "report").iterdir()}
    assert names == {"index.html", "finding-1.svg", "finding-1.png"}
    write_rows(place / "out" / "results.jsonl", [{"other": 1}])
    assert "no results of a study" in refused(capsys, *arguments(place, "status", text))
    write_rows(place / "out" / "results.jsonl", [row])
    (place / "two.py").unlink()
    assert "no such script" in refused(capsys, *arguments(place, "report", text))
