"""`evaluate`, `tradeoff` and `transfer` from the command line, on tiny and on scripted models."""

from __future__ import annotations

import json

import pytest

from distillspec import cli
from distillspec.decoding import speculative
from distillspec.math.verification import Verdict
from distillspec.models import loading, wrap
from distillspec.studies.clock import Timer
from scripted import save_scripted
from support import module, perturbed, word_tokenizer

WORDS = ["ask1", "ask2", "ask3", "2", "3", "4", "#", "a", "b", "c", "d", "e", "f", "g", "h"]
SCRIPT = {
    "ask1": "2",  # right
    "ask2": "3",  # right
    "ask3": "4",  # wrong
    "a": "b", "b": "c", "c": "d", "d": "e",
    "f": "g", "g": "h", "h": "c",
}  # fmt: skip
TASK = """
description = "Say it."
source = "Nobody."
prompt = "{{input}}"
metric = "{metric}"
max_output_tokens = 6
"""


def saved(folder, *, seed=0, noise=None, rows=48):
    model = wrap(module("llama", seed=seed, rows=rows), word_tokenizer(rows))
    if noise is not None:
        model = perturbed(model, noise)
    model.save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny random target, two drafts of it, and one of another vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": saved(folder / "target"),
        "near": saved(folder / "near", noise=0.02),
        "far": saved(folder / "far", noise=0.3),
        "other": saved(folder / "other", rows=40),
    }


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted")
    wrong = {**SCRIPT, "ask1": "4", "b": "h"}
    return (
        save_scripted(folder / "target", SCRIPT, WORDS),
        save_scripted(folder / "draft", wrong, WORDS),
    )


def write(tmp_path, metric, rows):
    task, data = tmp_path / f"{metric}.toml", tmp_path / f"{metric}.jsonl"
    task.write_text(TASK.format(metric=metric))
    data.write_text(
        "".join(
            json.dumps({"id": f"p{i}", "input": asked, "target": wanted}) + "\n"
            for i, (asked, wanted) in enumerate(rows)
        )
    )
    return str(task), str(data)


@pytest.fixture
def words(tmp_path):
    """A task of random words for the tiny models, with its rows."""
    return write(tmp_path, "bleu", [(f"w{i} w{i + 3}", f"w{i + 1} w{i + 2}") for i in range(7, 12)])


def run(capsys, *argv):
    code = cli.main([*map(str, argv), "--json"])
    captured = capsys.readouterr()
    lines = captured.out.strip().splitlines()
    return code, json.loads(lines[-1]) if lines and code in (0, 3) else None, captured.err


def rows_of(folder, name="outputs.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]


def evaluated(capsys, task, pair, out, *more):
    return run(
        capsys, "evaluate", "--task", task[0], "--data", task[1], "--target", pair[0],
        "--draft", pair[1], "--out", out, "--batch-size", 2, "--clock-prompts", 2,
        "--repetitions", 1, *more,
    )  # fmt: skip


def test_the_accuracy_of_a_scripted_model_is_the_one_known_by_hand(capsys, tmp_path, scripted):
    task = write(tmp_path, "gsm8k", [("ask1", "#### 2"), ("ask2", "#### 3"), ("ask3", "#### 3")])
    out = tmp_path / "run"
    code, found, _ = evaluated(capsys, task, scripted, out)
    assert code == 0
    assert found["quality_target"]["accuracy"]["value"] == pytest.approx(200 / 3)
    assert found["quality"] == found["quality_target"]
    assert found["quality"]["accuracy_strict"]["value"] == 0
    # "2 </s>", "3 </s>", "4 </s>": two tokens each. The draft is wrong at the first of ask1 alone:
    # a block of one corrected token and one of the stop token there, one block elsewhere.
    assert found["tokens"] == 6
    assert found["tau"]["value"] == found["tau_forecast"]["value"] == pytest.approx(6 / 4)
    assert found["alpha"]["value"] == pytest.approx(5 / 6)
    rows = [row for row in rows_of(out) if row["setting"] == "draft · γ 3"]
    assert [(row["id"], row["text"], row["quality"]["accuracy"]) for row in rows] == [
        ("p0", "2", 100), ("p1", "3", 100), ("p2", "4", 0)
    ]  # fmt: skip
    # A last token is never drafted where only one may follow; a stop token needs no successor.
    assert [row["target_calls"] for row in rows] == [2, 1, 1]
    assert [row["roles"] for row in rows] == ["ca", "aa", "aa"]


def test_the_bleu_of_a_scripted_model_is_the_one_known_by_hand(capsys, tmp_path, scripted):
    task = write(tmp_path, "bleu", [("a", "b c d e"), ("f", "g h c e")])
    code, found, _ = evaluated(capsys, task, scripted, tmp_path / "run")
    # "b c d e" is right; "g h c d e" matches g, h, c, e; "g h", "h c"; "g h c"; nothing of four.
    by_hand = 100 * (8 / 9 * 5 / 7 * 3 / 5 * 1 / 3) ** 0.25
    assert code == 0
    assert found["quality"]["bleu"]["value"] == pytest.approx(by_hand)
    assert all(row["quality"] == {} for row in rows_of(tmp_path / "run"))


@pytest.mark.parametrize("gamma", [1, 4])
def test_greedy_outputs_are_identical_and_all_are_stored(capsys, tmp_path, models, words, gamma):
    out = tmp_path / "run"
    pair = models["target"], models["near"]
    code, found, _ = evaluated(capsys, words, pair, out, "--gamma", gamma)
    assert code == 0
    assert found["same_output"] == {
        "checked": 7, "identical": 7, "near_ties": 0, "different": 0
    }  # fmt: skip
    assert found == json.loads((out / "result.json").read_text("utf-8"))
    rows = rows_of(out)
    named = f"near · γ {gamma}"
    settings = [row["setting"] for row in rows]
    assert {name: settings.count(name) for name in settings} == {
        "target alone": 5, named: 5, "target alone, on the clock": 2, f"{named}, on the clock": 2
    }  # fmt: skip
    drafted = [row for row in rows if row["setting"] == named]
    assert sum(len(row["ids"]) for row in drafted) == found["tokens"]
    calls = sum(row["target_calls"] for row in drafted)
    assert found["tau"]["value"] == pytest.approx(found["tokens"] / calls)
    for row in rows:
        assert "".join(row["pieces"]) == row["text"]
        assert len(row["roles"]) == len(row["pieces"]) == len(row["ids"])
        assert row["roles"].count("a") == row["accepted"] <= row["judged"] <= row["drafted"]
        assert ("seconds" in row) == row["setting"].endswith("on the clock")
    by_id = {(row["setting"], row["id"]): row["ids"] for row in rows}
    assert all(by_id["target alone", f"p{i}"] == by_id[named, f"p{i}"] for i in range(5))


def test_a_broken_engine_is_told_by_exit_code_3(capsys, tmp_path, models, words, monkeypatch):
    honest = speculative.verify

    def credulous(p, q, drafted, *, lengths, uniforms, score=None):
        verdict = honest(p, q, drafted, lengths=lengths, uniforms=uniforms, score=score)
        return Verdict(lengths, verdict.token)

    monkeypatch.setattr(speculative, "verify", credulous)
    code, found, err = evaluated(capsys, words, (models["target"], models["far"]), tmp_path / "run")
    assert code == 3
    assert found["same_output"]["different"] > 0
    assert found["unmet"][0] in err


@pytest.mark.parametrize(("at", "kept"), [(5, 4), (13, 12)], ids=["batch", "clock"])
def test_what_was_decoded_outlives_an_interrupt(
    capsys, tmp_path, models, words, monkeypatch, at, kept
):
    """The bug: rows were written at the end alone, and hours of them were lost by a Ctrl-C.

    Of five prompts in batches of two: runs 1 and 2 warm up, 3 to 8 decode the batches both ways, 9
    and 10 warm up again, and two each decode a prompt on the clock.
    """
    pair, whole, cut = (models["target"], models["near"]), tmp_path / "whole", tmp_path / "cut"
    assert evaluated(capsys, words, pair, whole)[0] == 0
    runs, decode = [], Timer.run

    def interrupted(self, *arguments):
        runs.append(None)
        if len(runs) == at:
            raise KeyboardInterrupt
        return decode(self, *arguments)

    monkeypatch.setattr(Timer, "run", interrupted)
    code, _, err = evaluated(capsys, words, pair, cut)
    assert code == 130
    assert err.splitlines()[-1] == "distillspec: interrupted"
    assert not (cut / "result.json").exists()
    rows, all_rows = (
        [{key: row[key] for key in row if key != "seconds"} for row in rows_of(run)]
        for run in (cut, whole)
    )
    assert len(rows) == kept
    assert len(all_rows) == 14
    assert all(row in all_rows for row in rows)


def test_a_lenient_rule_is_evaluated_without_a_forecast(capsys, tmp_path, models, words):
    code, found, err = evaluated(
        capsys, words, (models["target"], models["far"]), tmp_path / "run", "--rule", "typical",
        "--epsilon", 0.3, "--temperature", 1,
    )  # fmt: skip
    assert code == 0
    assert (found["alpha"], found["tau_forecast"], found["same_output"]) == (None, None, None)
    assert "typical" in found["rule"]
    assert "forecast" not in err


def test_a_task_without_a_metric_has_no_quality(capsys, tmp_path, models):
    task = write(tmp_path, "none", [("w7 w8", "w9"), ("w9 w10", "w9")])
    pair = models["target"], models["near"]
    code, found, _ = evaluated(capsys, task, pair, tmp_path / "run", "--clock-prompts", 0)
    assert code == 0
    assert found["quality"] == found["quality_target"] == found["quality_difference"] == {}
    assert found["latency"] is None


def traded(capsys, task, models, out, *more):
    return run(
        capsys, "tradeoff", "--task", task[0], "--data", task[1], "--target", models["target"],
        "--draft", f"{models['far']},{models['near']}", "--out", out, *more,
    )  # fmt: skip


def test_prompts_that_were_raced_outlive_an_interrupt(capsys, tmp_path, models, words, monkeypatch):
    whole = Timer.race

    def interrupted(self, *arguments):
        yield next(whole(self, *arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(Timer, "race", interrupted)
    out = tmp_path / "run"
    code, _, _ = traded(
        capsys, words, models, out, "--leniences", "linear", "--epsilons", 0.2, "--limit", 2
    )
    assert code == 130
    assert len({row["id"] for row in rows_of(out)}) == 1
    assert len(rows_of(out)) == 5  # the target alone, and two settings of each draft


def test_every_setting_is_raced_and_stored(capsys, tmp_path, models, words):
    out = tmp_path / "run"
    code, found, err = traded(
        capsys, words, models, out, "--leniences", "linear,exponential", "--epsilons", "0.2,1",
        "--limit", 2,
    )  # fmt: skip
    assert code == 0
    names = [(one["draft"], one["lenience"], one["epsilon"]) for one in found["points"]]
    of_each = [("lossless", None), ("linear", 0.2), ("linear", 1.0), ("exponential", 0.2),
               ("exponential", 1.0)]  # fmt: skip
    assert names == [(draft, *one) for draft in ("far", "near") for one in of_each]
    lossless, _, linear, _, exponential = found["points"][:5]
    assert lossless["quality"] == linear["quality"] == exponential["quality"]
    assert lossless["tau"] == linear["tau"] == exponential["tau"]
    rows = rows_of(out)
    assert len(rows) == 11 * 2
    assert all(row["seconds"] > 0 for row in rows)
    settings = {row["setting"]: row for row in rows}
    assert settings["far · linear 0.2"]["lenience"] == "linear(eps=0.2)"
    assert settings["far · lossless"]["lenience"] is None
    assert found["verdict"] in err


def test_transfer_measures_every_draft_on_every_target_and_task(capsys, tmp_path, models, words):
    gsm = write(tmp_path, "gsm8k", [("w7 w8", "#### 2"), ("w9 w10", "#### 3")])
    out = tmp_path / "run"
    tasks = f"{words[0]}={words[1]},{gsm[0]}={gsm[1]}"
    code, found, err = run(
        capsys, "transfer", "--target", f"{models['target']},{models['near']}",
        "--draft", f"{models['far']},{models['near']}", "--tasks", tasks, "--out", out,
        "--gamma", "1,3", "--clock-prompts", 1, "--repetitions", 1,
    )  # fmt: skip
    assert code == 0
    places = [(cell["target"], cell["task"], cell["prompts"]) for cell in found["cells"]]
    assert places == [
        (target, task, count)
        for target in ("target", "near")
        for task, count in ((words[0], 5), (gsm[0], 2))
    ]
    for cell in found["cells"]:
        assert [one["draft"] for one in cell["measurements"]] == ["far", "near"]
        assert cell["comparison"][0]["against"] == "far"
    assert found["cells"][2]["measurements"][1]["alpha"]["value"] == pytest.approx(1, abs=1e-6)
    examples, outputs = rows_of(out, "examples.jsonl"), rows_of(out)
    assert len(examples) == 2 * 2 * (5 + 2)
    assert len(outputs) == 2 * 2 * 3  # a clocked prompt a cell: alone and with each draft
    assert {(row["target"], row["task"]) for row in outputs} == {place[:2] for place in places}
    tokens = sum(row["tokens"] for row in examples if row["target"] == "near")
    assert tokens == 2 * sum(cell["measurements"][0]["tokens"] for cell in found["cells"][2:])
    assert found["verdict"] in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "gsm9k"], "gsm9k: no such task; did you mean 'gsm8k'?"),
        (["--data", "missing.jsonl"], "missing.jsonl"),
        (["--draft", "OTHER"], "do not share a tokenizer"),
        (["--draft", "nowhere/at/all"], "nowhere/at/all does not exist"),
        (["--gamma", "0"], "--gamma 0: expected a whole number of at least 1"),
        (["--rule", "linear", "--epsilon", "1.5"], "1.5"),
        (["--rule", "linear", "--epsilon", "0"], "above 0"),
        (["--epsilon", "0.5"], "--epsilon 0.5 does nothing with --rule ratio"),
        (["--out", "TAKEN"], "exists and is not a run directory"),
        (["--repetitions", "0"], "--repetitions 0"),
        (["--limit", "0"], "limit 0: expected at least 1 row"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(
    capsys, tmp_path, models, words, monkeypatch, flags, said
):
    def never(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(loading, "_load", never)
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "a file").write_text("mine")
    flags = [{"OTHER": models["other"], "TAKEN": str(taken)}.get(flag, flag) for flag in flags]
    out = tmp_path / "run"
    code, _, err = evaluated(capsys, words, (models["target"], models["near"]), out, *flags)
    (line,) = [line for line in err.splitlines() if line.startswith("distillspec: error")]
    assert code == 2
    assert said in line
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "NONE"], "has no metric, so that there is no quality to compare"),
        (["--epsilons", "0.5,2"], "2"),
        (["--max-loss", "-1"], "--max-loss"),
        (["--draft", "a,a"], "each once"),
        (["--leniences", "cubed"], "cubed"),
    ],
)
def test_a_tradeoff_that_cannot_be_is_refused(capsys, tmp_path, models, words, flags, said):
    task, _ = write(tmp_path, "none", [("w7", "w8")])
    flags = [task if flag == "NONE" else flag for flag in flags]
    code, _, err = traded(capsys, words, models, tmp_path / "run", *flags)
    assert code == 2
    assert said in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gamma", "0,3"], "--gamma"),
        (["--tasks", "gsm9k"], "did you mean 'gsm8k'?"),
        (["--tasks", "gsm8k=FILE,gsm8k=FILE"], "the task gsm8k is given twice"),
        (["--target", "TARGET,OTHER"], "do not share a tokenizer"),
    ],
)
def test_a_transfer_that_cannot_be_is_refused(capsys, tmp_path, models, flags, said):
    _, data = write(tmp_path, "gsm8k", [("w7", "#### 8")])
    names = {"FILE": data, "TARGET": models["target"], "OTHER": models["other"]}
    for name, path in names.items():
        flags = [flag.replace(name, path) for flag in flags]
    code, _, err = run(
        capsys, "transfer", "--target", models["target"], "--draft", models["near"],
        "--tasks", f"gsm8k={data}", "--out", tmp_path / "run", *flags,
    )  # fmt: skip
    assert code == 2
    assert said in err
    assert not (tmp_path / "run").exists()
