"""The command line on tiny models: the whole path, and every user's error in one line."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import distillspec
from distillspec import cli
from distillspec.commands import decode, running
from distillspec.commands import settings as verbs
from distillspec.convert import show
from distillspec.models import load, wrap
from distillspec.settings import _fields
from distillspec.training import checkpoint
from support import module, word_tokenizer
from verbs import WORDS, refused, run, saved


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return saved(folder / "target"), saved(folder / "draft", noise=0.05)


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [
        {
            "id": str(i),
            "prompt": " ".join(WORDS[i : i + 4]),
            "target": " ".join(WORDS[i + 4 : i + 9]),
        }
        for i in range(8)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_from_new_draft_to_measured_gain(capsys, tmp_path, prompts, family):
    target = saved(tmp_path / "target", family)
    raw, answers = tmp_path / "raw", tmp_path / "answers.jsonl"

    code, made, _ = run(capsys, "new-draft", "--target", target, "--layers", "0", "--out", raw)
    assert code == 0
    assert made["parameters"] < made["target_parameters"]

    code, written, _ = run(
        capsys, "generate", "--target", target, "--prompts", prompts, "--out", answers,
        "--max-new-tokens", 12,
    )  # fmt: skip
    assert code == 0
    assert written["prompts"] == 8

    common = ["--prompts", answers, "--batch-size", 4, "--optimizer", "adamw"]
    code, tuned, _ = run(
        capsys, "sft", "--draft", raw, "--out", tmp_path / "sft", "--steps", 3, *common
    )
    assert code == 0
    assert tuned["steps"] == 3
    assert set(tuned["seconds"]) == {"rollout", "target", "draft", "optimizer"}

    code, distilled, _ = run(
        capsys, "distill", "--target", target, "--draft", tuned["out"], "--out", tmp_path / "kd",
        "--steps", 40, "--learning-rate", "5e-3", "--recipe", "imitkd", "--max-new-tokens", 12,
        *common,
    )  # fmt: skip
    assert code == 0

    code, found, _ = run(
        capsys, "measure", "--target", target, "--draft", f"{tuned['out']},{distilled['out']}",
        "--prompts", prompts, "--gamma", "1..3", "--max-new-tokens", 12, "--clock-prompts", 2,
        "--repetitions", 1,
    )  # fmt: skip
    assert code == 0
    before, after = (one["alpha"]["value"] for one in found["drafts"])
    assert after > before + 0.05


def test_generated_ids_are_trained_on_as_they_were_sampled(capsys, tmp_path, pair, prompts):
    answers = tmp_path / "answers.jsonl"
    run(
        capsys, "generate", "--target", pair[0], "--prompts", prompts, "--out", answers,
        "--max-new-tokens", 5,
    )  # fmt: skip
    from distillspec.commands.pairs import examples
    from distillspec.tasks import read_prompts

    tokenizer = load(pair[0]).tokenizer
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    made = examples(tokenizer, read_prompts(answers))
    assert [example.completion.tolist() for example in made] == [
        line["target_ids"] for line in lines
    ]
    cut = [line for line in lines if line["finish_reason"] == "length"]
    assert cut, "no answer was cut by the length limit: the test shows nothing"
    assert all(line["target_ids"][-1] != tokenizer.eos_id for line in cut)


def test_decode_says_who_wrote_each_token(capsys, pair):
    code, found, shown = run(
        capsys, "decode", "--target", pair[0], "--draft", pair[1], "--prompt", "w6 w7",
        "--max-new-tokens", 16, "--gamma", 3,
    )  # fmt: skip
    assert code == 0
    assert len(found["origin"]) == len(found["tokens"]) == 16
    assert found["origin"].count("draft") == found["accepted"] > 0
    assert found["judged"] >= found["accepted"]
    plain = run(capsys, "decode", "--target", pair[0], "--prompt", "w6 w7", "--max-new-tokens", 16)
    assert plain[1]["tokens"] == found["tokens"]
    assert plain[1]["target_calls"] == 16
    assert found["text"].split()[0] in shown


def test_measure_stores_a_run_that_report_draws(capsys, tmp_path, pair, prompts):
    out = tmp_path / "run"
    code, found, _ = run(
        capsys, "measure", "--target", pair[0], "--draft", pair[1], "--prompts", prompts,
        "--gamma", "1..2", "--max-new-tokens", 8, "--clock-prompts", 1, "--out", out,
    )  # fmt: skip
    assert code == 0
    assert json.loads((out / "result.json").read_text()) == found
    code, drawn, _ = run(capsys, "report", "--run", out)
    assert code == 0
    assert any(file.endswith("index.html") for file in drawn["files"])


def test_an_interrupt_leaves_a_usable_run(capsys, tmp_path, pair, prompts, monkeypatch):
    """Ctrl-C ends training as the budget would: the draft is saved and the run can go on."""
    honest = running.metrics_row

    def interrupted(step, seconds):
        if step.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return honest(step, seconds)

    out = tmp_path / "run"
    arguments = [
        "sft", "--draft", pair[1], "--prompts", prompts, "--out", out, "--steps", 6,
        "--batch-size", 4,
    ]  # fmt: skip
    monkeypatch.setattr(running, "metrics_row", interrupted)
    code, found, _ = run(capsys, *arguments)
    assert code == 0
    assert found["interrupted"]
    load(found["out"])
    assert checkpoint.newest(out / "checkpoints").name == "step-3"
    monkeypatch.setattr(running, "metrics_row", honest)
    code, found, _ = run(capsys, *arguments, "--resume")
    assert code == 0
    assert found["steps"] == 6
    assert not found["interrupted"]


def test_distill_says_whether_it_changed_anything(capsys, tmp_path, pair, prompts):
    held = tmp_path / "held.jsonl"
    held.write_text(
        "".join(json.dumps({"prompt": f"w{i} w{i + 1} w{i + 2}"}) + "\n" for i in range(20, 32))
    )
    arguments = [
        "distill", "--target", pair[0], "--draft", saved(tmp_path / "stranger", seed=3),
        "--prompts", prompts,
        "--held-out", held, "--optimizer", "adamw", "--batch-size", 4, "--on-policy", 1,
        "--max-new-tokens", 12, "--evaluate-every", 0,
    ]  # fmt: skip
    code, idle, said = run(
        capsys, *arguments, "--steps", 1, "--learning-rate", "1e-12", "--out", tmp_path / "idle"
    )
    assert code == 0
    assert idle["alpha_change"]["value"] == pytest.approx(0, abs=1e-6)
    assert "no change" in said
    code, moved, said = run(
        capsys, *arguments, "--steps", 40, "--learning-rate", "5e-3", "--out", tmp_path / "moved"
    )
    assert code == 0
    assert moved["alpha_change"]["low"] > 0
    assert moved["tau_change"]["low"] > 0
    assert "no change" not in said
    rows = [
        json.loads(line) for line in (tmp_path / "moved" / "metrics.jsonl").read_text().splitlines()
    ]
    judged = [row["evaluation"] for row in rows if "evaluation" in row]
    assert len(judged) == 41  # before, and after every step
    assert judged[-1]["alpha_sum"] / judged[-1]["alpha_count"] == moved["alpha"]["value"]


def test_prompts_held_out_must_not_be_trained_on(capsys, tmp_path, pair, prompts):
    said = refused(
        capsys, "distill", "--target", pair[0], "--draft", pair[1], "--prompts", prompts,
        "--held-out", prompts, "--steps", 1, "--out", tmp_path / "r",
    )  # fmt: skip
    assert "8 of 8" in said


def test_invalid_lines_are_skipped_only_on_request_and_counted(capsys, tmp_path, pair):
    file = tmp_path / "mixed.jsonl"
    file.write_text(
        '{"prompt": "w6", "target": "w7"}\nnonsense\n{"prompt": "w8", "target": "w9"}\n'
    )
    arguments = ["sft", "--draft", pair[1], "--prompts", file, "--steps", 1]
    assert f"{file}:2" in refused(capsys, *arguments, "--out", tmp_path / "a")
    code, _, said = run(capsys, *arguments, "--out", tmp_path / "b", "--skip-invalid")
    assert code == 0
    assert "3 lines read, 2 kept, 1 skipped" in " ".join(said.split())


def test_errors_of_the_command_line(capsys, tmp_path, pair, prompts):
    target, draft = pair
    both = ["--target", target, "--draft", draft, "--prompts", prompts]
    assert "did you mean 'measure'" in refused(capsys, "mesure")
    assert "did you mean '--gamma'" in refused(capsys, "measure", *both, "--gama", "3")
    assert "--gamma" in refused(capsys, "measure", *both, "--gamma", "0..3")
    assert "temperature" in refused(capsys, "measure", *both, "--temperature", "-1")
    assert "--layers" in refused(capsys, "new-draft", "--target", target, "--out", tmp_path / "d")
    assert "--steps" in refused(
        capsys, "sft", "--draft", draft, "--prompts", prompts, "--out", tmp_path / "r"
    )
    assert "nowhere" in refused(
        capsys, "measure", "--target", "nowhere", "--draft", draft, "--prompts", prompts
    )
    assert "device" in refused(capsys, "measure", *both, "--device", "gpu7")


def test_a_launcher_that_counts_in_words_is_told_of(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "two")
    assert "WORLD_SIZE is 'two': expected a whole number" in refused(capsys, "perplexity")


def test_errors_in_prompt_files_name_file_and_line(capsys, tmp_path, pair):
    for line, reason in (
        ('{"prompt": "w6"', "not JSON"),
        ('{"question": "w6"}', "'prompt'"),
        ('{"prompt": null}', "null"),
        ('{"prompt": 7}', "int"),
        ('{"prompt": " "}', "empty"),
        ('{"prompt": "w6", "target": ""}', "empty"),
    ):
        file = tmp_path / "bad.jsonl"
        file.write_text('{"prompt": "w7"}\n' + line + "\n")
        said = refused(
            capsys, "measure", "--target", pair[0], "--draft", pair[1], "--prompts", file
        )
        assert f"{file}:2: " in said
        assert reason in said


def test_another_tokenizer_is_refused_before_weights_are_read(capsys, tmp_path, pair, prompts):
    other = tmp_path / "other"
    wrap(module("llama", rows=50), word_tokenizer(50)).save(other)
    (other / "model.safetensors").write_bytes(b"not weights")
    said = refused(capsys, "measure", "--target", pair[0], "--draft", other, "--prompts", prompts)
    assert str(other) in said
    assert "w48" in said


def test_ids_of_another_tokenizer_are_refused(capsys, tmp_path, pair):
    file = tmp_path / "answers.jsonl"
    file.write_text(
        json.dumps({"id": "a", "prompt": "w6", "target": "x", "target_ids": [400]}) + "\n"
    )
    said = refused(
        capsys, "sft", "--draft", pair[1], "--prompts", file, "--out", tmp_path / "r", "--steps", 1
    )
    assert "400" in said
    assert "another tokenizer" in said


def test_an_existing_folder_is_not_overwritten(capsys, tmp_path, pair, prompts):
    busy = tmp_path / "busy"
    busy.mkdir()
    (busy / "thesis.txt").write_text("irreplaceable")
    refused(capsys, "new-draft", "--target", pair[0], "--layers", "0", "--out", busy)
    refused(capsys, "sft", "--draft", pair[1], "--prompts", prompts, "--out", busy, "--steps", 1)
    assert [path.name for path in busy.iterdir()] == ["thesis.txt"]


def test_help_imports_nothing_heavy():
    """torch and transformers take seconds to import; `--help` must answer at once."""
    program = (
        "import sys; from distillspec.cli import main; main(['--help'])\n"
        "for verb in ('measure', 'distill', 'demo'):\n"
        "    assert main([verb, '--help']) == 0\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    for verb in cli.VERBS:
        assert verb in done.stdout


def test_the_package_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "distillspec", "--version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == distillspec.__version__


def test_every_field_has_a_help_text_and_shows_its_default(capsys):
    for name, verb in cli.VERBS.items():
        assert cli.main([name, "--help"]) == 0
        shown = "".join(capsys.readouterr().out.split())  # however the lines were broken
        for field in _fields(verb.settings).values():
            assert field.help, f"{verb.settings.__name__}.{field.name} has no docstring"
            default = "required" if field.required else f"default: {show(field.default)}"
            told = "".join(f"{field.help} ({default})".split())
            assert told in shown, f"{name} --help: {field.flag}"


def test_every_default_of_training_says_where_it_comes_from():
    """The paper's, by its appendix, table or figure, or ours. Switches that are off, settings that
    are left out, and where to compute have no value that needs one."""
    for settings in (verbs.Sft, verbs.Distill):
        for field in _fields(settings).values():
            if field.required or field.default in (None, False, (), "auto") or field.name == "seed":
                continue
            sourced = re.search(r"\((?:[^()]*the paper|ours)", field.help)
            assert sourced, f"{settings.__name__}.{field.name}: {field.help}"


def test_the_demo_refuses_what_it_cannot_do(capsys, tmp_path, prompts, pair, monkeypatch):
    assert "at least 2" in refused(capsys, "demo", "--minutes", 1, "--out", tmp_path / "d")
    assert "prompts to train on" in refused(
        capsys, "demo", "--target", pair[0], "--prompts", prompts, "--out", tmp_path / "d"
    )
    monkeypatch.setattr("distillspec.commands.demo.PACKAGE", "no_such_package")
    assert "--target" in refused(capsys, "demo", "--out", tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_numbers_that_mean_nothing_are_refused_by_their_flag(capsys, tmp_path, pair, prompts):
    """The bugs: tracebacks, after the run for --keep 0; --clock-prompts -1 raced all but one."""
    both = ["--target", pair[0], "--draft", pair[1], "--prompts", prompts]
    for flag, value in (
        ("--batch-size", 0),
        ("--repetitions", 0),
        ("--clock-prompts", -1),
        ("--max-new-tokens", 0),
    ):
        said = refused(capsys, "measure", *both, flag, value, "--out", tmp_path / "m")
        assert f"{flag} {value}: expected" in said
    assert "--keep 0" in refused(
        capsys, "sft", "--draft", pair[1], "--prompts", prompts, "--out", tmp_path / "r",
        "--steps", 1, "--keep", 0,
    )  # fmt: skip
    assert "--batch-size -1" in refused(
        capsys, "generate", "--target", pair[0], "--prompts", prompts, "--batch-size", -1,
        "--out", tmp_path / "g.jsonl",
    )  # fmt: skip
    assert "--epsilon 0.5 does nothing" in refused(
        capsys, "decode", "--target", pair[0], "--prompt", "w6", "--epsilon", 0.5
    )
    assert not list(tmp_path.glob("[mrg]*"))


def test_compiled_passes_change_no_token(capsys, pair, monkeypatch):
    """What is compiled is tested with the models; here, that the flag asks for it."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: asked.append(options) or f)
    models = ("--target", pair[0], "--draft", pair[1])
    words = ("decode", *models, "--prompt", "w6 w7", "--max-new-tokens", 12)
    assert run(capsys, *words, "--compiled") == run(capsys, *words)
    assert asked == [{"dynamic": False, "mode": None}] * 2


def test_any_seed_decodes(capsys, pair):
    code, _, _ = run(
        capsys, "decode", "--target", pair[0], "--prompt", "w6", "--max-new-tokens", 2,
        "--seed", 10**30,
    )  # fmt: skip
    assert code == 0


def test_a_prompt_too_long_is_named_by_its_row_before_any_work(capsys, tmp_path, pair):
    """The bug: the number told was that of a batch sorted by length."""
    file = tmp_path / "long.jsonl"
    rows = [{"id": "short", "prompt": "w6"}, {"id": "essay", "prompt": "w6 " * 200}]
    file.write_text("".join(json.dumps({**row, "target": "w7"}) + "\n" for row in rows))
    both = ["--target", pair[0], "--draft", pair[1]]
    said = refused(capsys, "measure", *both, "--prompts", file)
    assert "essay: 200 tokens, more than the context of 128" in said
    wide = tmp_path / "wide.jsonl"
    wide.write_text(json.dumps({"id": "w", "prompt": "w6 " * 120, "target": "w7 " * 20}) + "\n")
    said = refused(
        capsys, "distill", *both, "--prompts", wide, "--steps", 1, "--out", tmp_path / "r"
    )
    assert "w: 140 tokens" in said  # 120 and 21 with the end, of which the last is not fed


def test_a_draft_with_a_shorter_context_is_measured(capsys, tmp_path, prompts):
    """The bug: IndexError for GPT-2, ValueError for Llama."""
    target = saved(tmp_path / "target", "gpt2")
    wrap(module("gpt2", context=8), word_tokenizer()).save(tmp_path / "short")
    code, found, _ = run(
        capsys, "measure", "--target", target, "--draft", tmp_path / "short", "--prompts", prompts,
        "--gamma", "1,9", "--max-new-tokens", 8, "--clock-prompts", 2, "--repetitions", 1,
        "--temperature", 0, "--limit", 3,
    )  # fmt: skip
    assert code == 0
    assert found["prompts"] == 3


def test_files_in_the_way_are_told_and_kept(capsys, tmp_path, pair, prompts):
    """The bugs: tracebacks, and a prompt file overwritten by answers to it."""
    target = ["--target", pair[0]]
    before = Path(prompts).read_text()
    for out in (prompts, tmp_path, f"{prompts}/x.jsonl", tmp_path / "answers.json"):
        refused(capsys, "generate", *target, "--prompts", prompts, "--out", out)
    for out in (prompts, f"{prompts}/x"):
        refused(capsys, "new-draft", *target, "--layers", 0, "--out", out)
    assert Path(prompts).read_text() == before


def test_a_mended_run_starts_in_the_same_folder(capsys, tmp_path, pair, prompts):
    out = tmp_path / "run"
    untold = tmp_path / "untold.jsonl"
    untold.write_text('{"prompt": "w6 w7"}\n')
    arguments = ["sft", "--draft", pair[1], "--steps", 2, "--batch-size", 4, "--out", out]
    assert "training on fixed data needs targets" in refused(
        capsys, *arguments, "--prompts", untold
    )
    assert "no checkpoint" in refused(capsys, *arguments, "--prompts", prompts, "--resume")
    assert not out.exists()
    assert run(capsys, *arguments, "--prompts", prompts)[0] == 0
    assert "earlier run" in refused(capsys, *arguments, "--prompts", prompts)


def test_resuming_goes_on_with_the_same_run_or_not_at_all(
    capsys, tmp_path, pair, prompts, monkeypatch
):
    """The bugs: another seed was dropped in silence, another draft a traceback; α's change was
    counted from the checkpoint; a kill after it left rows twice, and no report was drawn."""
    held = tmp_path / "held.jsonl"
    held.write_text("".join(json.dumps({"prompt": f"w{i} w9"}) + "\n" for i in range(20, 26)))
    out = tmp_path / "run"
    arguments = [
        "distill", "--target", pair[0], "--draft", pair[1], "--prompts", prompts,
        "--held-out", held, "--out", out, "--batch-size", 4, "--steps", 4, "--fixed", 1,
        "--optimizer", "adamw", "--learning-rate", "1e-2", "--max-new-tokens", 8,
    ]  # fmt: skip
    honest = running.metrics_row

    def killed(step, seconds):
        if step.step == 4:
            raise MemoryError
        return honest(step, seconds)

    def first_only(folder, draft, state, **settings):
        return save(folder, draft, state, **settings) if state.step == 2 else None

    save = checkpoint.save
    monkeypatch.setattr(running, "metrics_row", killed)
    monkeypatch.setattr(checkpoint, "save", first_only)
    with pytest.raises(MemoryError):
        cli.main([*map(str, arguments), "--save-every", "0"])
    monkeypatch.setattr(running, "metrics_row", honest)
    monkeypatch.setattr(checkpoint, "save", save)
    for flag, value in (("--seed", 5), ("--draft", pair[0])):
        said = refused(capsys, *arguments, "--resume", flag, value)
        assert f"{flag[2:]} was " in said
        assert f"--allow-change {flag[2:]}" in said
    code, found, _ = run(capsys, *arguments, "--resume")
    assert code == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 4]
    ends = [rows[0]["evaluation"], rows[-1]["evaluation"]]
    before, after = (end["alpha_sum"] / end["alpha_count"] for end in ends)
    assert found["alpha_change"]["value"] == pytest.approx(after - before, abs=1e-9)
    assert run(capsys, "report", "--run", out)[0] == 0


def test_one_held_out_prompt_is_refused(capsys, tmp_path, pair, prompts):
    """Its interval has no width: any change would read as certain."""
    held = tmp_path / "held.jsonl"
    held.write_text('{"prompt": "w20 w21"}\n')
    assert "one prompt" in refused(
        capsys, "distill", "--target", pair[0], "--draft", pair[1], "--prompts", prompts,
        "--held-out", held, "--steps", 1, "--out", tmp_path / "r",
    )  # fmt: skip


def test_a_stdout_without_greek_letters_still_gets_the_result(tmp_path, pair, monkeypatch):
    """The bug: UnicodeEncodeError after the work was done, as in a pipe on Windows."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    code = cli.main(["decode", "--target", pair[0], "--prompt", "α", "--max-new-tokens", "2"])
    sys.stdout.write("α\n")
    sys.stdout.flush()
    assert code == 0
    assert raw.getvalue().endswith(b"\\u03b1\n")


def test_decoded_text_cannot_command_the_terminal():
    assert decode._harmless("a\tb\n\x1b[2J\x07é") == "a\tb\n\ufffd[2J\ufffdé"


@pytest.mark.parametrize("asked", [["--help"], ["demo", "--help"], ["distill", "--help"]])
def test_a_reader_that_has_gone_is_no_error(asked):
    """`distillspec … | head` ended in a traceback, and the help of a verb in a BrokenPipeError."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "distillspec", *asked]
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=buffered
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
