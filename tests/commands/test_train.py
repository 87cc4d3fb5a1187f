"""`sft` and `distill`: killed, stopped, resumed, changed, and judged as the pair is served."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import killing
from distillspec import cli
from distillspec.commands import held_out, running, train
from distillspec.commands.held_out import Evaluation, Judge, Serving
from distillspec.commands.metrics import Totals
from distillspec.commands.train import tell
from distillspec.decoding import complete
from distillspec.errors import UserError
from distillspec.math.rules import argmax_draft, ratio_test
from distillspec.math.sampling import Sampling
from distillspec.models import load
from distillspec.studies.outputs import TargetOutputs, seeded
from distillspec.studies.store import Run, UnwritableError, read_run
from distillspec.training import checkpoint
from support import tiny
from verbs import WORDS, refused, run, saved, write_rows


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return saved(folder / "target"), saved(folder / "draft", noise=0.05)


def prompts_in(folder):
    return write_rows(
        folder / "prompts.jsonl",
        [
            {
                "id": f"row{i}",
                "prompt": " ".join(WORDS[i : i + 4]),
                "target": " ".join(WORDS[i + 4 : i + 7]),
            }
            for i in range(8)
        ],
    )


def held_in(folder):
    return write_rows(folder / "held.jsonl", [{"prompt": f"w{i} w9"} for i in range(20, 26)])


def flags_of(pair, prompts):
    """A distillation of three steps an epoch, half of it on-policy, that really moves."""
    return [
        "distill", "--target", pair[0], "--draft", pair[1], "--prompts", prompts, "--batch-size", 3,
        "--optimizer", "adamw", "--learning-rate", "1e-2", "--max-new-tokens", 6, "--keep", 9,
    ]  # fmt: skip


@pytest.fixture
def prompts(tmp_path):
    return prompts_in(tmp_path)


@pytest.fixture
def held(tmp_path):
    return held_in(tmp_path)


@pytest.fixture
def flags(pair, prompts):
    return flags_of(pair, prompts)


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def untimed(out):
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in rows_of(out)]


def weights(folder):
    return load_file(folder / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# Killed.

CASES = {"inside": (4, ()), "edge": (6, ()), "lora": (4, ("--lora", "4"))}
"""The step of the only checkpoint, and more flags. Two steps after it are logged."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory, pair):
    """The command lines of the cases, and a folder with each one's run, killed; one interpreter."""
    folder = tmp_path_factory.mktemp("killed")
    flags = [
        *flags_of(pair, prompts_in(folder)), "--steps", 10, "--held-out", held_in(folder),
        "--evaluate-every", 99,
    ]  # fmt: skip
    lines = {name: [*map(str, flags), *more] for name, (_, more) in CASES.items()}
    file = folder / "lines.json"
    ends = ["--save-every", "0", "--out"]
    deaths = [
        {
            "saved_at": at,
            "dies_at": at + 3,
            "threads": torch.get_num_threads(),
            "argv": [*lines[name], *ends, str(folder / name)],
        }
        for name, (at, _) in CASES.items()
    ]
    file.write_text(json.dumps(deaths))
    done = subprocess.run(
        [sys.executable, killing.__file__, "verbs", str(file)],
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [signal.SIGKILL] * len(CASES), done.stderr
    return folder, lines


@pytest.mark.parametrize("case", CASES)
def test_ten_steps_equal_some_a_sigkill_and_the_rest_bitwise(capsys, tmp_path, killed, case):
    """Inside an epoch and at its edge; two steps more than the checkpoint had been logged."""
    saved_at, _ = CASES[case]
    folder, lines = killed
    out, arguments = folder / case, lines[case]
    _, whole, _ = run(capsys, *arguments, "--out", tmp_path / "whole")
    assert rows_of(out)[-1]["step"] == saved_at + 2
    code, found, _ = run(capsys, *arguments, "--out", out, "--resume")
    assert code == 0
    assert equal(weights(out / "draft"), weights(tmp_path / "whole" / "draft"))
    assert untimed(out)[:-1] == untimed(tmp_path / "whole")[:-1]
    # The states of the held-out answers come from another pass, equal up to rounding.
    for key in ("alpha", "tau", "alpha_change", "tau_change"):
        assert found[key] == pytest.approx(whole[key], abs=1e-6)
    # What is said of the run is said of all of it.
    for key in ("steps", "loss", "tokens", "training_acceptance", "sources"):
        assert found[key] == whole[key]
    summed = sum(row["seconds_by_part"]["draft"] for row in rows_of(out) if "loss" in row)
    assert found["seconds"]["draft"] == pytest.approx(summed)
    assert sum(found["sources"].values()) == 10


def test_a_run_killed_after_its_last_step_is_finished_by_resuming(
    capsys, tmp_path, flags, monkeypatch
):
    """The bug: the budget was spent, so the resumed run refused to write the draft."""
    out = tmp_path / "run"

    def killed(*_):
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(running, "_write_draft", killed)
        with pytest.raises(MemoryError):
            cli.main([*map(str, flags), "--steps", "2", "--out", str(out)])
    assert not (out / "draft").exists()
    code, found, _ = run(capsys, *flags, "--steps", 2, "--out", out, "--resume")
    assert code == 0
    assert found["steps"] == 2
    assert equal(weights(out / "draft"), weights(out / "draft"))
    # What a kill between the two renames leaves is in nobody's way.
    (out / "draft").rename(out / "draft.new")
    assert run(capsys, *flags, "--steps", 2, "--out", out, "--resume")[0] == 0
    assert sorted(path.name for path in out.glob("draft*")) == ["draft"]


# Stored in 16 bits.


@pytest.mark.parametrize("optimizer", ["adafactor", "adamw"])
def test_a_draft_stored_in_16_bits_trains_like_its_twin_in_32(
    capsys, tmp_path, flags, pair, optimizer
):
    """At the default rate, at which 16-bit weights would hardly move."""
    made = load(pair[1], dtype=torch.bfloat16)
    made.save(tmp_path / "narrow")
    made.module.float()
    made.save(tmp_path / "wide")
    for name in ("narrow", "wide"):
        code, _, _ = run(
            capsys, *flags, "--draft", tmp_path / name, "--optimizer", optimizer,
            "--learning-rate", 3e-4, "--warmup", 0, "--steps", 3, "--out", tmp_path / f"{name}_run",
        )  # fmt: skip
        assert code == 0
    narrow, wide = tmp_path / "narrow_run", tmp_path / "wide_run"
    assert [row["loss"] for row in rows_of(narrow)] == [row["loss"] for row in rows_of(wide)]
    assert equal(weights(narrow / "draft"), weights(wide / "draft"))
    assert any(not torch.equal(w.bfloat16().float(), w) for w in weights(narrow / "draft").values())


# The target's states.


@pytest.mark.parametrize(
    ("more", "room"),
    [
        (("--minutes", 1), 4 << 30),
        (("--steps", 4), 4 << 30),
        (("--steps", 3), None),
        (("--minutes", 1, "--state-memory", 0), None),
        (("--minutes", 1, "--state-memory", 0.5), 1 << 29),
    ],
)
def test_states_are_kept_where_an_example_comes_twice(
    capsys, tmp_path, flags, monkeypatch, more, room
):
    """Three steps are an epoch."""
    seen = []

    def caught(*_, cache, **__):
        seen.append(cache)
        raise UserError("seen")

    monkeypatch.setattr(train, "distill", caught)
    assert "seen" in refused(capsys, *flags, *more, "--out", tmp_path / "run")
    assert [None if cache is None else cache._limit for cache in seen] == [room]


def test_less_memory_than_none_is_refused(capsys, tmp_path, flags):
    more = ("--steps", 4, "--state-memory", -1, "--out", tmp_path / "run")
    assert "--state-memory -1: expected GiB" in refused(capsys, *flags, *more)


# The prompts' template.


def test_the_targets_template_renders_the_prompts_and_draft_carries_it(capsys, tmp_path, prompts):
    """Two templates: the draft's own made ids that no serving sees."""
    target = saved(tmp_path / "target", chat=True)
    own = load(saved(tmp_path / "draft", noise=0.05, chat=True))
    own.tokenizer.hf.chat_template = "user {{ messages[0]['content'] }}"
    own.save(tmp_path / "other")
    for name in ("draft", "other"):
        code, _, _ = run(
            capsys, *flags_of((target, tmp_path / name), prompts), "--steps", 2,
            "--out", tmp_path / f"{name}_run",
        )  # fmt: skip
        assert code == 0
    expected, found = tmp_path / "draft_run", tmp_path / "other_run"
    assert [row["loss"] for row in rows_of(found)] == [row["loss"] for row in rows_of(expected)]
    template = load(found / "draft").tokenizer.hf.chat_template
    assert template == load(target).tokenizer.hf.chat_template
    # Without a target there is only the draft's own.
    code, _, _ = run(
        capsys, "sft", "--draft", tmp_path / "other", "--prompts", prompts, "--steps", 1,
        "--batch-size", 3, "--out", tmp_path / "sft",
    )  # fmt: skip
    assert code == 0
    assert load(tmp_path / "sft" / "draft").tokenizer.hf.chat_template.startswith("user {{")


# Stopped.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_the_run_after_its_step_and_nothing_is_missing(
    capsys, tmp_path, flags, monkeypatch, number
):
    """Ctrl-C, and what a scheduler sends before it kills; the next one ends at once."""
    honest = running.metrics_row

    def stopped(step, seconds):
        if step.step == 2:
            os.kill(os.getpid(), number)
        return honest(step, seconds)

    out = tmp_path / "run"
    monkeypatch.setattr(running, "metrics_row", stopped)
    code, found, said = run(capsys, *flags, "--steps", 4, "--out", out)
    assert code == 0
    assert (found["steps"], found["interrupted"], found["stopped"]) == (2, True, "interrupted")
    assert "ending after this step" in said
    assert [row["step"] for row in rows_of(out)] == [1, 2]
    assert checkpoint.newest(out / "checkpoints").name == "step-2"
    monkeypatch.setattr(running, "metrics_row", honest)
    code, found, _ = run(capsys, *flags, "--steps", 4, "--out", out, "--resume")
    assert (found["steps"], found["stopped"], sum(found["sources"].values())) == (4, "budget", 4)


def test_a_second_stop_ends_at_once_and_leaves_the_last_checkpoint(
    capsys, tmp_path, flags, monkeypatch
):
    honest = running.metrics_row

    def impatient(step, seconds):
        if step.step == 3:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        return honest(step, seconds)

    out = tmp_path / "run"
    monkeypatch.setattr(running, "metrics_row", impatient)
    before = signal.getsignal(signal.SIGINT)  # ignored, where a shell started us in the background
    assert (
        cli.main([*map(str, flags), "--steps", "4", "--out", str(out), "--save-every", "0"]) == 130
    )
    assert checkpoint.newest(out / "checkpoints").name == "step-2"
    assert signal.getsignal(signal.SIGINT) is before


# Full disks and losses that are no numbers.


def test_a_full_disk_is_one_line_and_keeps_the_last_good_checkpoint(
    capsys, tmp_path, flags, monkeypatch
):
    honest, out = checkpoint.save_file, tmp_path / "run"
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuses_the_second(tensors, file):
        if "step-2" in file:
            raise full
        honest(tensors, file)

    arguments = [*flags, "--steps", 4, "--out", out, "--save-every", 0]
    with monkeypatch.context() as broken:
        broken.setattr(checkpoint, "save_file", refuses_the_second)
        said = refused(capsys, *arguments)
    assert "No space left on device" in said
    assert "step-1 is whole and stays" in said
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-1"]
    append = Run.append

    def refuses_the_third(self, name, row):
        if row["step"] == 3:
            raise UnwritableError(f"{name}: cannot be written: No space left on device")
        append(self, name, row)

    with monkeypatch.context() as broken:
        broken.setattr(Run, "append", refuses_the_third)
        said = refused(capsys, *arguments, "--resume")
    assert "metrics.jsonl: cannot be written: No space left on device; --resume goes on" in said
    assert run(capsys, *arguments, "--resume")[0] == 0


def test_the_first_loss_that_is_not_finite_names_step_and_rows_and_keeps_the_last_checkpoint(
    capsys, tmp_path, flags
):
    out = tmp_path / "run"
    said = refused(
        capsys, *flags, "--steps", 9, "--out", out, "--save-every", 0, "--learning-rate", "1e30",
        "--warmup", 0, "--fixed", 1,
    )  # fmt: skip
    assert "step 2: the loss is" in said
    assert "in --prompts they are row" in said
    assert "--resume goes on from" in said
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-1"]


# Changed.


def test_resuming_with_other_settings_is_refused_unless_allowed_and_is_logged(
    capsys, tmp_path, flags, held, prompts
):
    """SpecForge test_checkpoint_resume: another objective, γ or other data, gone on with in
    silence. Evaluations that cannot be compared begin anew; the old ones are kept apart."""
    out = tmp_path / "run"
    arguments = [*flags, "--out", out, "--held-out", held, "--evaluate-every", 0]
    assert run(capsys, *arguments, "--steps", 2)[0] == 0
    resumed = [*arguments, "--resume"]
    said = refused(capsys, *resumed, "--steps", 3)
    assert "schedule.decay_to was 2.0 and is 3.0" in said
    assert "--allow-change schedule" in said
    said = refused(
        capsys, *resumed, "--steps", 3, "--divergence", "reverse_kl", "--gamma", 5,
        "--allow-change", "schedule",
    )  # fmt: skip
    assert "gamma was 3 and is 5, divergence.name was 'forward_kl' and is 'reverse_kl'" in said
    assert "--allow-change gamma,divergence" in said
    Path(prompts).write_text(Path(prompts).read_text().replace("w9", "w11"))
    assert "other data" in refused(capsys, *resumed, "--steps", 2)
    assert "no such setting; did you mean 'gamma'" in refused(
        capsys, *resumed, "--steps", 2, "--allow-change", "gama"
    )
    assert "without --resume" in refused(
        capsys, *arguments, "--steps", 2, "--allow-change", "gamma"
    )
    before = rows_of(out)
    code, found, _ = run(
        capsys, *resumed, "--steps", 3, "--gamma", 5, "--divergence", "reverse_kl",
        "--allow-change", "schedule,gamma,divergence,data",
    )  # fmt: skip
    assert code == 0
    assert (found["steps"], found["gamma"]) == (3, 5)
    (change,) = [json.loads(line) for line in (out / "changes.jsonl").read_text().splitlines()]
    assert set(change["changed"]) == {"schedule", "gamma", "divergence", "data"}
    assert change["changed"]["gamma"] == {"was": 3, "is": 5}
    assert change["step"] == 2
    assert change["evaluations"] == [row for row in before if "evaluation" in row]
    tests = [row for row in rows_of(out) if "evaluation" in row]
    assert [(row["step"], row["evaluation"]["gamma"]) for row in tests] == [(0, 5), (3, 5)]
    assert run(capsys, "report", "--run", out)[0] == 0
    # The new settings are the run's now.
    assert run(
        capsys, *resumed, "--steps", 3, "--gamma", 5, "--divergence", "reverse_kl"
    )[0] == 0  # fmt: skip
    assert len((out / "changes.jsonl").read_text().splitlines()) == 1


def answers_of(out):
    return [json.loads(line) for line in (out / "held_out.jsonl").read_text().splitlines()]


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "change", [("temperature", 0), ("top_k", 2), ("top_p", 0.5), ("gamma", 5), ("rule", "argmax")]
)
@pytest.mark.parametrize("at", ["distillspec.commands.running.go_back", "Run.append"])
def test_a_change_that_was_killed_half_way_leaves_no_answers_for_the_settings_of_before(
    capsys, tmp_path, flags, held, monkeypatch, change, at
):
    """The bug: held_out.jsonl had the greedy answers by then, changes.jsonl nothing of it, and the
    run at temperature 1 took them for its own."""
    name, value = change
    out = tmp_path / "run"
    arguments = [*flags, "--out", out, "--held-out", held, "--evaluate-every", 0, "--steps", 2]
    assert run(capsys, *arguments)[0] == 0
    before, tests = answers_of(out), [row for row in rows_of(out) if "evaluation" in row]
    with monkeypatch.context() as patch:
        patch.setattr(*((Run, "append", interrupt) if at == "Run.append" else (at, interrupt)))
        more = ["--resume", f"--{name.replace('_', '-')}", value, "--allow-change", name]
        assert run(capsys, *arguments, *more)[0] == 130
    assert answers_of(out) != before
    code, found, err = run(capsys, *arguments, "--resume")
    assert code == 0
    assert "evaluations begin anew" in " ".join(err.split())
    assert answers_of(out) == before
    anew = [row for row in rows_of(out) if "evaluation" in row]
    assert anew[0]["evaluation"] == tests[0]["evaluation"]
    assert {row["evaluation"]["gamma"] for row in anew} == {3}
    (logged,) = [json.loads(line) for line in (out / "changes.jsonl").read_text().splitlines()]
    assert set(logged["changed"]) == {"held_out"}
    assert logged["evaluations"]
    # And only once.
    assert "begin anew" not in run(capsys, *arguments, "--resume")[2]


def test_answers_that_do_not_say_what_they_judge_by_are_made_anew(capsys, tmp_path, flags, held):
    """As earlier versions wrote them."""
    out = tmp_path / "run"
    arguments = [*flags, "--out", out, "--held-out", held, "--steps", 1]
    assert run(capsys, *arguments)[0] == 0
    before = answers_of(out)
    old = [{key: row[key] for key in ("prompt_ids", "target_ids")} for row in before]
    write_rows(out / "held_out.jsonl", old)
    assert "begin anew" in " ".join(run(capsys, *arguments, "--resume")[2].split())
    assert answers_of(out) == before


def test_another_target_or_other_held_out_prompts_under_the_same_name_are_noticed(
    capsys, tmp_path, flags, held
):
    out, target = tmp_path / "run", saved(tmp_path / "target")
    arguments = [*flags, "--target", target, "--out", out, "--held-out", held, "--steps", 1]
    assert run(capsys, *arguments)[0] == 0
    honest = Path(held).read_text()
    Path(held).write_text(honest.replace("w9", "w10"))
    assert "are no longer those" in refused(capsys, *arguments, "--resume")
    Path(held).write_text(honest)
    assert run(capsys, *arguments, "--resume")[0] == 0
    saved(Path(target), seed=5)
    assert "other target" in refused(capsys, *arguments, "--resume")


def test_another_reference_draft_under_the_same_name_is_noticed(capsys, tmp_path, flags, pair):
    """It decides which tokens are trained on."""
    reference, out = saved(tmp_path / "reference", noise=0.02), tmp_path / "run"
    arguments = [
        *flags, "--out", out, "--steps", 1, "--divergence", "select:0.5", "--reference", reference,
    ]  # fmt: skip
    assert run(capsys, *arguments)[0] == 0
    assert run(capsys, *arguments, "--resume")[0] == 0
    saved(Path(reference), seed=5)
    said = refused(capsys, *arguments, "--resume")
    assert "other reference" in said
    assert "--allow-change reference" in said


# Judged.


def evaluation(step, taus, *, seconds=None):
    lengths = np.full(len(taus), 60.0)
    return Evaluation(
        step=step,
        seconds=float(step if seconds is None else seconds),
        gamma=3,
        lengths=lengths,
        alpha_sums=lengths * 0.5,
        calls=lengths / np.array(taus),
    )


def judge(tmp_path=None, patience=None, every=1.0):
    return Judge(None, None, None, None, run=tmp_path, every=every, patience=patience)


BASE = np.linspace(1.2, 2.2, 12)
NOISE = np.array([0.03, -0.03] * 6)


def test_the_best_changes_only_beyond_chance_and_many_small_gains_count_together():
    one = judge()
    gain = np.full(12, 0.004) + NOISE
    assert not one.recall(evaluation(0, BASE))
    assert not one.recall(evaluation(1, BASE + gain))
    assert one.best.step == 0
    assert not one.recall(evaluation(2, BASE + 0.01 - NOISE))
    assert one.recall(evaluation(3, BASE + 0.2 + NOISE))
    assert one.best.step == 3


def test_nothing_moving_ends_patience_and_a_gain_renews_it():
    one = judge(patience=2)
    for step, shift, tired in [
        (0, 0, False), (1, 0.0, False), (2, 0.3, False), (3, 0.3, False), (4, 0.2, True),
    ]:  # fmt: skip
        one.recall(evaluation(step, BASE + shift + NOISE * (step % 2)))
        assert one.tired == tired, step
    endless = judge()
    for step in range(9):
        endless.recall(evaluation(step, BASE))
    assert not endless.tired


def test_the_draft_that_is_kept_is_the_last_unless_it_fell_beyond_chance():
    one = judge()
    for step, shift in ((0, 0), (1, 0.3)):
        one.recall(evaluation(step, BASE + shift))
    one.recall(evaluation(2, BASE + 0.3 + NOISE))
    assert one.kept.step == 2
    one.recall(evaluation(3, BASE + 0.1))
    assert one.kept.step == 1
    fallen = judge()
    for step, shift in ((0, 0), (1, -0.3)):
        fallen.recall(evaluation(step, BASE + shift))
    assert fallen.kept.step == 1  # there is no trained draft that is better


def test_evaluations_come_back_from_their_rows_exactly():
    """So that a resumed run pairs with what an earlier process measured."""
    one = evaluation(3, BASE + np.pi / 10, seconds=1 / 3)
    back = Evaluation.from_row(json.loads(json.dumps(one.row())))
    assert (back.step, back.seconds, back.gamma) == (one.step, one.seconds, one.gamma)
    for name in ("lengths", "alpha_sums", "calls"):
        assert np.array_equal(getattr(back, name), getattr(one, name))


def answered(target, sampling):
    prompts = [torch.tensor([6 + i, 9]) for i in range(4)]
    outputs = complete(
        target, None, prompts, gamma=0, max_new_tokens=8, sampling=sampling,
        generators=seeded(0, 4),
    )  # fmt: skip
    return TargetOutputs.of(prompts, outputs, sampling)


def test_the_evaluation_is_that_of_the_rule_and_sampler_served():
    """Acceptance good in training and bad in serving: one number at T = 1 was shown for both."""
    target, draft = tiny("llama"), tiny("llama", seed=4)
    cold = Sampling(0.5, top_k=5)
    found = {}
    for name, rule in (
        ("ratio", ratio_test(Sampling())),
        ("cold", ratio_test(cold)),
        ("argmax", argmax_draft(cold)),
    ):
        held = answered(target, rule.sampling)
        one = held_out.evaluate(target, draft, held, Serving(rule, 4), step=0, seconds=0.0)
        same = held_out.evaluate(target, target, held, Serving(rule, 4), step=0, seconds=0.0)
        found[name] = one.alpha["value"]
        if name != "argmax":  # a greedy draft differs even from its own model's samples
            assert same.alpha["value"] == pytest.approx(1)
            assert same.tau["value"] == pytest.approx(
                same.lengths.sum() / np.ceil(same.lengths / 5).sum(), rel=1e-4
            )
    assert len({round(value, 6) for value in found.values()}) == 3


@pytest.mark.parametrize("training", [True, False])
def test_an_evaluation_leaves_mode_and_random_states_as_they_were(training):
    """trl#5862, SpecForge#563: the draft stayed in eval mode after the first evaluation."""
    target, draft = tiny("llama"), tiny("llama", seed=4)
    held = answered(target, Sampling())
    draft.module.train(training)
    state = torch.random.get_rng_state()
    held_out.evaluate(target, draft, held, Serving(ratio_test(Sampling())), step=0, seconds=0.0)
    assert draft.module.training == training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in draft.module.parameters())


def test_the_temperature_served_changes_no_step_of_training(capsys, tmp_path, flags, held):
    """trl#6847: one `temperature` meant sampling in one trainer, sampling and loss in another."""
    told = []
    for temperature in (1, 0):
        out = tmp_path / str(temperature)
        _, found, said = run(
            capsys, *flags, "--steps", 3, "--held-out", held, "--out", out,
            "--temperature", temperature,
        )  # fmt: skip
        assert found["temperature"] == temperature
        assert f"T = {temperature}" in said
        told.append((weights(out / "draft"), [r for r in untimed(out) if "loss" in r], found))
        recorded = json.loads((out / "run.json").read_text())["config"]
        assert recorded["rollout_sampling"] == {"temperature": 1.0, "top_k": None, "top_p": 1.0}
    assert equal(told[0][0], told[1][0])
    assert told[0][1] == told[1][1]
    assert told[0][2]["alpha"] != told[1][2]["alpha"]


def scripted(monkeypatch, shifts):
    """Let evaluations say what is scripted for their step."""
    monkeypatch.setattr(
        held_out,
        "evaluate",
        lambda *_, step, seconds: evaluation(step, BASE + shifts(step), seconds=seconds),
    )


def test_a_run_on_which_nothing_moves_stops_early_and_says_so(
    capsys, tmp_path, flags, held, monkeypatch
):
    scripted(monkeypatch, lambda step: NOISE * (step % 2))
    arguments = [*flags, "--steps", 9, "--held-out", held, "--evaluate-every", 0, "--patience", 3]
    code, found, said = run(capsys, *arguments, "--out", tmp_path / "run")
    assert code == 0
    assert (found["steps"], found["stopped"], found["evaluations"]) == (3, "patience", 4)
    assert "stopped early, nothing moved" in said
    assert "no change that these prompts can show" in said
    # Its patience is still at an end when it is resumed, and more patience goes on.
    resumed = [*arguments, "--out", tmp_path / "run", "--resume"]
    assert run(capsys, *resumed)[1]["steps"] == 3
    assert run(capsys, *resumed, "--patience", 5)[1]["steps"] == 5


def test_the_best_draft_is_kept_where_the_last_is_worse_beyond_chance(
    capsys, tmp_path, flags, held, monkeypatch
):
    scripted(monkeypatch, lambda step: {0: 0, 1: 0.5}.get(step, 0.1))
    out = tmp_path / "run"
    code, found, said = run(
        capsys, *flags, "--keep", 1, "--steps", 4, "--held-out", held, "--evaluate-every", 0,
        "--out", out,
    )  # fmt: skip
    assert code == 0
    assert (found["steps"], found["draft_step"]) == (4, 1)
    assert found["tau_change"]["value"] > 0.4
    assert "the draft is that of step 1: the last was worse beyond chance" in said
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert names == ["step-1", "step-4"]
    best, last = (load_file(out / "checkpoints" / name / checkpoint.WEIGHTS) for name in names)
    shipped = weights(out / "draft")
    both = shipped.keys() & best.keys()  # two files may keep tied weights by different names
    assert len(both) > 10
    assert all(torch.equal(shipped[name], best[name]) for name in both)
    assert not any(torch.equal(shipped[name], last[name]) for name in both)


def test_patience_needs_something_that_could_move(capsys, tmp_path, flags, held):
    arguments = [*flags, "--steps", 1, "--out", tmp_path / "run", "--patience"]
    assert "needs --held-out" in refused(capsys, *arguments, 2)
    assert "--patience 0" in refused(capsys, *arguments, 0, "--held-out", held)
    assert "--gamma 0" in refused(capsys, *arguments, 1, "--held-out", held, "--gamma", 0)


def test_labels_that_a_trimmed_head_lacks_are_counted_and_told(capsys, tmp_path, pair):
    prompts = write_rows(
        tmp_path / "p.jsonl",
        [{"id": f"{i}", "prompt": "w6", "target": "w40" if i else "w8 w6"} for i in range(4)],
    )
    kept = write_rows(tmp_path / "kept.jsonl", [{"prompt": "w6 w7", "target": "w8"}])
    trimmed = tmp_path / "trimmed"
    code, _, err = run(
        capsys, "new-draft", "--target", pair[0], "--layers", "0", "--out", trimmed, "--keep-ids",
        8, "--prompts", kept,
    )  # fmt: skip
    assert code == 0, err
    code, found, err = run(
        capsys, "sft", "--draft", trimmed, "--prompts", prompts, "--batch-size", 1, "--steps", 4,
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0, err
    steps = read_run(tmp_path / "run").metrics
    assert [row.get("left_out", 0) for row in steps] == [
        0 if row["tokens"] > 2 else 1 for row in steps
    ]
    assert found["left_out"] == 3
    assert "3 of these tokens had no part in the loss" in tell(found)


def test_a_step_that_taught_nothing_enters_no_mean_of_losses():
    totals = Totals()
    row = {"source": "fixed", "seconds_by_part": {}, "tokens": 2}
    totals.add({**row, "loss": 0.0, "left_out": 2})
    assert totals.loss is None
    totals.take([{**row, "loss": 3.0, "left_out": 1}, {**row, "loss": 0.0, "left_out": 2}])
    assert (totals.loss, totals.left_out, totals.tokens) == (3.0, 5, 6)


@pytest.mark.parametrize("verb", ["sft", "distill", "measure"])
def test_an_out_that_is_taken_is_refused_before_anything_is_loaded(capsys, tmp_path, verb):
    out = tmp_path / "out"
    Run.create(out, verb="tune", config={}, seed=0, device="cpu")
    prompts = write_rows(tmp_path / "p.jsonl", [{"prompt": "w6", "target": "w7"}])
    said = refused(
        capsys, verb, "--draft", tmp_path / "none", "--prompts", prompts, "--out", out,
        *(() if verb == "sft" else ("--target", tmp_path / "none")),
    )  # fmt: skip
    assert f"holds a run of 'tune', not '{verb}'" in said
