"""`--tracker`: what metrics.jsonl holds, shown elsewhere too."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from accelerate import PartialState
from accelerate.logging import get_logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from distillspec.commands import trackers
from distillspec.commands.settings import Sft
from distillspec.commands.trackers import scalars, tracked
from distillspec.errors import UserError
from distillspec.studies.store import Run
from verbs import WORDS, refused, run, saved, write_rows


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return saved(folder / "target"), saved(folder / "draft", noise=0.05)


@pytest.fixture
def flags(pair, tmp_path):
    rows = [{"prompt": f"{a} {b}", "target": b} for a, b in zip(WORDS, WORDS[1:], strict=False)]
    held = write_rows(tmp_path / "held.jsonl", [{"prompt": f"w{i} w9"} for i in (30, 31, 32)])
    return [
        "distill", "--target", pair[0], "--draft", pair[1], "--batch-size", 3,
        "--prompts", write_rows(tmp_path / "prompts.jsonl", rows), "--held-out", held,
        "--evaluate-every", 99, "--max-new-tokens", 4,
    ]  # fmt: skip


def shown(out):
    """Every number on TensorBoard, by name: [(step, value)]."""
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


def test_tensorboard_shows_what_metrics_jsonl_holds(capsys, tmp_path, flags):
    """Before, during and after training, and past a resumption: every row once, none missing."""
    out = tmp_path / "run"
    flags = [*flags, "--tracker", "tensorboard", "--out", out]
    assert run(capsys, *flags, "--steps", 3)[0] == 0
    assert run(capsys, *flags, "--steps", 5, "--resume", "--allow-change", "schedule")[0] == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    expected = {}
    for row in rows:
        for name, value in scalars(row).items():
            expected.setdefault(name, []).append((row["step"], pytest.approx(value, rel=1e-6)))
    assert shown(out) == expected
    assert [step for step, _ in expected["training/loss"]] == [1, 2, 3, 4, 5]
    assert [step for step, _ in expected["held_out/alpha"]] == [0, 3, 5]


def test_without_a_tracker_nothing_of_one_is_there(capsys, tmp_path, flags):
    out = tmp_path / "run"
    assert run(capsys, *flags, "--steps", 1, "--out", out)[0] == 0
    assert not (out / "tensorboard").exists()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio", "mlflow"])
def test_a_tracker_that_is_not_installed_is_one_line_before_any_work(
    capsys, tmp_path, flags, name, monkeypatch
):
    monkeypatch.setattr(trackers, "find_spec", lambda one: None if one == name else find_spec(one))
    line = refused(capsys, *flags, "--steps", 1, "--tracker", name, "--out", tmp_path / "run")
    assert line.endswith(f"needs the package {name}: pip install 'distillspec[{name}]'")
    assert not (tmp_path / "run").exists()


def test_counts_are_shown_as_the_ratios_they_are_kept_for():
    row = {
        "step": 3, "seconds": 1.0, "loss": 0.5, "grad_norm": 2.0, "learning_rate": 1e-3,
        "tokens": 8, "source": "draft", "seconds_by_part": {"rollout": 0.25},
        "alpha_sum": 6.0, "alpha_count": 8,
    }  # fmt: skip
    assert scalars(row) == {
        "training/loss": 0.5,
        "training/grad_norm": 2.0,
        "training/learning_rate": 1e-3,
        "training/tokens": 8,
        "training/acceptance_on_draft": 0.75,
        "seconds/rollout": 0.25,
    }
    counts = {"alpha_sum": 3.0, "alpha_count": 4, "gamma": 5, "tokens": 4, "calls": 2.0}
    assert scalars({"step": 0, "seconds": 0.0, "evaluation": counts}) == {
        "held_out/alpha": 0.75,
        "held_out/tau_at_gamma_5": 2.0,
    }


class Failing:
    """A tracker whose disk is full, or whose server is gone."""

    def __init__(self, *names, **settings):
        self.finished = False

    def start(self):
        pass

    def store_init_configuration(self, values):
        assert all(isinstance(value, (bool, int, float, str)) for value in values.values())

    def log(self, values, step):
        raise RuntimeError("no route to host\nand more")

    def finish(self):
        self.finished = True


def test_a_tracker_that_fails_is_one_line_and_the_row_is_on_file(tmp_path, monkeypatch):
    monkeypatch.setattr("accelerate.tracking.LOGGER_TYPE_TO_CLASS", {"tensorboard": Failing})
    folder = tmp_path / "run"
    made = Run.create(folder, verb="sft", config={}, seed=0, device="cpu")
    settings = Sft(draft="d", prompts="p", out=folder, tracker="tensorboard")
    row = {"step": 1, "evaluation": {**dict.fromkeys(("alpha_sum", "alpha_count"), 1), "gamma": 1}}
    row["evaluation"] |= {"tokens": 1, "calls": 1}
    with (
        pytest.raises(UserError, match="--tracker tensorboard: RuntimeError: no route to host;"),
        tracked(made, settings, "id"),
    ):
        made.log(row)
    assert json.loads((folder / "metrics.jsonl").read_text())["step"] == 1
    assert made.followers == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tensorboard", (("tensorboard", "{folder}"), {})),
        (
            "wandb",
            (
                ("distillspec",),
                {"name": "run", "id": "id", "resume": "allow", "dir": "{folder}"},
            ),
        ),
        ("trackio", (("distillspec",), {"name": "run", "resume": "allow"})),
        ("mlflow", (("distillspec",), {"run_name": "run"})),
    ],
)
def test_every_tracker_is_told_project_run_and_place(tmp_path, monkeypatch, name, expected):
    """W&B goes on with the run of the same id; the others begin one more of the same name."""
    given = []

    class Seen(Failing):
        def __init__(self, *names, **settings):
            given.append((names, settings))

    monkeypatch.setattr("accelerate.tracking.LOGGER_TYPE_TO_CLASS", {name: Seen})
    folder = tmp_path / "run"
    made = Run.create(folder, verb="sft", config={}, seed=0, device="cpu")
    with tracked(made, Sft(draft="d", prompts="p", out=folder, tracker=name), "id"):
        pass
    names, settings = expected
    place = str(folder)
    assert given == [
        (
            tuple(part.format(folder=place) for part in names),
            {key: value.format(folder=place) for key, value in settings.items()},
        )
    ]


def test_trackers_find_the_state_of_accelerate_that_they_need(tmp_path, monkeypatch):
    """The bug: W&B and trackio ended with "You must initialize the accelerate state"."""

    class Logging(Failing):
        def start(self):
            get_logger(__name__).debug("started")

    PartialState._reset_state()
    monkeypatch.setattr("accelerate.tracking.LOGGER_TYPE_TO_CLASS", {"wandb": Logging})
    made = Run.create(tmp_path / "run", verb="sft", config={}, seed=0, device="cpu")
    with tracked(made, Sft(draft="d", prompts="p", out=tmp_path / "run", tracker="wandb"), "id"):
        assert len(made.followers) == 1


def test_the_main_process_alone_tells_its_tracker(tmp_path, monkeypatch):
    monkeypatch.setattr("accelerate.tracking.LOGGER_TYPE_TO_CLASS", {})
    monkeypatch.setattr(PartialState, "is_main_process", False)
    made = Run.create(tmp_path / "run", verb="sft", config={}, seed=0, device="cpu")
    with tracked(made, Sft(draft="d", prompts="p", out=tmp_path / "run", tracker="wandb"), "id"):
        assert made.followers == []
