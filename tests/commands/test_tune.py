"""`tune` from the command line, on tiny models."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from itertools import count, islice

import pytest
import torch
import yaml

from distillspec.commands import tune, turns
from distillspec.commands.candidates import baseline, candidates, distill_settings
from distillspec.commands.plans import distill_recipe
from distillspec.commands.settings import Distill
from distillspec.commands.study_settings import Tune
from distillspec.models import load
from distillspec.settings import parse
from distillspec.training import checkpoint
from distillspec.training.cache import HiddenCache
from distillspec.training.distill import distill
from distillspec.training.recipes import Divergence, Mixture
from distillspec.training.recipes import named as named_recipe
from verbs import WORDS, refused, run, saved, write_rows


@pytest.fixture
def arguments(tmp_path):
    rows = [
        {"prompt": f"{WORDS[i]} {WORDS[(3 * i) % 24]}", "target": f"{WORDS[5]} {WORDS[6]} {i}"}
        for i in range(24)
    ]
    return (
        "tune", "--target", saved(tmp_path / "target"), "--draft",
        saved(tmp_path / "draft", noise=0.2), "--prompts",
        write_rows(tmp_path / "train.jsonl", rows[:16]), "--held-out",
        write_rows(tmp_path / "held.jsonl", rows[16:]), "--out", tmp_path / "run",
        "--max-new-tokens", 6, "--batch-size", 4,
    )  # fmt: skip


def test_a_search_ends_with_a_config_that_distill_takes(capsys, tmp_path, arguments, monkeypatch):
    seen = []
    monkeypatch.setattr(tune, "moved", lambda rises: seen.append(list(rises)) or True)
    code, found, _ = run(
        capsys, *arguments, "--minutes", 0.02, "--divergences", "forward_kl,path:3",
        "--mixtures", "draft,fixed", "--learning-rates", "1e-9,3e-3",
    )  # fmt: skip
    assert code == 0
    # A path cannot train on what is not the target's own; the rest are four, so three rungs.
    assert len(found["left_out"]) == 4
    assert all(name.startswith("path:3") for name in found["left_out"])
    by = {one["name"]: one for one in found["candidates"]}
    assert sorted(one["rungs"] for one in by.values()) == [1, 1, 2, 3, 3]
    assert by["against"]["rungs"] == 3
    assert [len(left) for left in seen] == [2, 1]
    assert "0.003" in found["winner"]  # at 1e-9 nothing is learnt
    assert found["prompts_choosing"] == found["prompts_judging"] == 4
    seconds = {
        rungs: [o["seconds"] for o in by.values() if o["rungs"] == rungs] for rungs in (1, 3)
    }
    assert min(seconds[3]) >= found["seconds_each"] == pytest.approx(4 * min(seconds[1]), rel=0.9)

    config = tmp_path / "run" / "winner.yaml"
    settings = parse(Distill, ["--config", str(config)], prog="distillspec distill").settings
    assert settings.learning_rate == 3e-3
    assert settings.divergence == "forward_kl"
    assert settings.fixed + settings.on_policy == 1
    assert yaml.safe_load(config.read_text("utf-8")) == found["config"]
    assert json.loads((tmp_path / "run" / "result.json").read_text("utf-8")) == found
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 5 + 3 + 2


@pytest.mark.parametrize("extra", ["optimizer=adamw", "optimizer=adafactor", "freeze=*embed*"])
def test_a_candidate_that_waited_goes_on_as_if_it_had_not(arguments, monkeypatch, extra):
    """Bit for bit, with other candidates between its turns. Every step takes four seconds."""
    ticks = count()
    monkeypatch.setattr(turns, "distill", partial(distill, clock=lambda: next(ticks)))
    argv = [*map(str, arguments[1:]), "--minutes", "1", "--extras", f"none,{extra}"]
    argv += ["--divergences", "jsd:0.5", "--mixtures", "fixed+draft", "--learning-rates", "1e-2"]
    settings = parse(Tune, argv, prog="tune").settings
    named, _ = candidates(settings)
    lab = tune._lab(settings, {tune.AGAINST: baseline(settings)})
    one, other = (turns.prepared(lab, texts, settings, 20.0) for texts in named.values())
    checkpoint.save(lab.start.parent, lab.draft, one.state, keep=1)
    start = {name: value.clone() for name, value in lab.draft.module.state_dict().items()}

    found = []
    for until in (20.0, 30.0, 30.0, 60.0):
        turns.turn(lab, one, until)
        found.append(turns.turn(lab, other, until))
        assert not one.state.optimizer.state
        assert not other.state.optimizer.state
    reached = {name: value.clone() for name, value in lab.draft.module.state_dict().items()}
    assert [test.step for test in found] == [5, 8, 8, 15]
    assert found[1].row() == found[2].row()  # its last step had gone beyond the turn

    lab.draft.module.load_state_dict(start)
    plain = turns.prepared(lab, list(named.values())[1], settings, 20.0)
    steps = distill(
        lab.target, lab.draft, plain.batches, plain.recipe, state=plain.state,
        cache=HiddenCache(), clock=lambda: next(ticks),
    )  # fmt: skip
    list(islice(steps, 15))
    assert all(torch.equal(reached[name], w) for name, w in lab.draft.module.state_dict().items())
    assert any(not torch.equal(reached[name], start[name]) for name in start)
    (waiting,) = other.folder.iterdir()
    assert waiting.name == "step-15"


def test_a_candidate_that_leaves_the_numbers_is_out_and_the_others_go_on(
    capsys, tmp_path, arguments, monkeypatch
):
    """One whose weights no checkpoint takes, too: at first such a search ended."""
    honest = turns.checkpoint.save

    def refusing(folder, draft, state, **more):
        if state.recipe.divergence.name == "jsd":
            with torch.no_grad():
                next(draft.module.parameters()).fill_(float("inf"))
        return honest(folder, draft, state, **more)

    monkeypatch.setattr(turns.checkpoint, "save", refusing)
    code, found, _ = run(
        capsys, *arguments, "--minutes", 0.002, "--divergences", "forward_kl,jsd:0.5",
        "--mixtures", "draft", "--learning-rates", "1e-3",
    )  # fmt: skip
    assert code == 0
    assert found["winner"].startswith("forward_kl")
    assert list(found["failed"]) == ["jsd:0.5 · draft · 0.001"]
    assert "no longer finite" in found["failed"]["jsd:0.5 · draft · 0.001"]
    assert not (tmp_path / "run" / turns.WAITING).exists()


def test_a_search_in_which_nothing_moves_stops(capsys, arguments):
    # 1e-30 changes no float32 weight. At 1e-9 all four prompts may rise by a little, and once did.
    code, found, _ = run(
        capsys, *arguments, "--minutes", 0.01, "--divergences", "forward_kl", "--mixtures",
        "draft,fixed", "--learning-rates", "1e-30",
    )  # fmt: skip
    assert code == 0
    assert found["stopped"] == "nothing moved"
    # After the second rung two candidates are still there: it is the first that could move.
    assert [one["rungs"] for one in found["candidates"]].count(2) == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--minutes", 0), "expected more than 0"),
        (("--minutes", 1, "--mixtures", "draft+drift"), "did you mean 'draft'"),
        (("--minutes", 1, "--mixtures", "draft+draft"), "draft"),
        (("--minutes", 1, "--divergences", "jsd"), "no candidate is left"),
        (("--minutes", 1, "--extras", "clip"), "expected NAME=VALUE"),
        (("--minutes", 1, "--extras", "clap=1"), "did you mean 'clip'"),
        (("--minutes", 1, "--extras", "resume=true"), "no flag that an extra can try"),
        (("--minutes", 1, "--against", "imitkt"), "did you mean 'imitkd'"),
        (("--minutes", 1, "--against", "adaspec"), "--against adaspec: select:0.4"),
        (("--minutes", 1, "--divergences", "select:0.4"), "no candidate is left: select:0.4"),
        (("--minutes", 1, "--learning-rates", "0.001,0"), "nothing is trained"),
    ],
)
def test_a_search_that_cannot_be_is_refused(capsys, arguments, flags, said):
    assert said in refused(capsys, *arguments, *flags)


IGNORED = (
    "lora=8", "gamma=7", "warmup=0.3", "limit=5", "seed=9", "reference=x", "cache=c",
    "decay_from=0.1", "divergence=jsd:0.5", "learning_rate=1", "fixed=1", "tracker=wandb",
)  # fmt: skip


@pytest.mark.parametrize("extra", IGNORED)
def test_an_extra_that_no_candidate_would_train_with_is_refused(
    capsys, arguments, monkeypatch, extra
):
    """They were taken, did nothing, and stood in winner.yaml."""
    monkeypatch.setattr(tune, "load_both", lambda *_, **__: pytest.fail("loaded"))
    said = refused(capsys, *arguments, "--minutes", 1, "--extras", f"none,clip=1+{extra}")
    assert f"{extra.partition('=')[0]}: no flag that an extra can try" in said


def test_an_extra_reaches_the_recipe_and_what_needs_another_draft_is_left_out(tmp_path):
    settings = Tune(
        target="t", draft="d", prompts="p", held_out="h", out=tmp_path, minutes=1.0, limit=7,
        divergences=("forward_kl", "select:0.4"), mixtures=("fixed",), learning_rates=(1e-3,),
        extras=(
            "batch-size=16+clip=1+dtype=bfloat16+freeze=*embed*+max_new_tokens=5"
            "+optimizer=adafactor+recipe=path+target_gamma=2",
        ),
    )  # fmt: skip
    named, left_out = candidates(settings)
    (texts,) = named.values()
    recipe = distill_recipe(distill_settings(texts, settings))
    assert recipe.to_dict() == {
        **named_recipe("path").to_dict(), "batch_size": 16, "clip": 1, "precision": "bfloat16",
        "frozen": ["*embed*"], "max_new_tokens": 5, "target_gamma": 2, "learning_rate": 1e-3,
        "divergence": asdict(Divergence("forward_kl")), "mixture": asdict(Mixture(fixed=1)),
        "schedule": recipe.to_dict()["schedule"],
    }  # fmt: skip
    assert texts["limit"] == baseline(settings)["limit"] == "7"
    assert [why for why in left_out.values()] == [
        "select:0.4:forward_kl needs a draft distilled before, and tune has none: train it by "
        "distill --reference"
    ]


def test_prompts_are_rendered_by_the_targets_template(capsys, tmp_path, arguments, monkeypatch):
    """The draft here has none, and is stored in 16 bits, in which it could not train."""
    load(tmp_path / "draft", dtype=torch.bfloat16).save(tmp_path / "narrow")
    honest, seen = tune.examples, []
    monkeypatch.setattr(
        tune, "examples", lambda tokenizer, rows: seen.append(tokenizer) or honest(tokenizer, rows)
    )
    code, _, _ = run(
        capsys, *arguments, "--target", saved(tmp_path / "chat", chat=True), "--draft",
        tmp_path / "narrow", "--minutes", 0.002,
        "--divergences", "forward_kl", "--mixtures", "draft", "--learning-rates", "1e-3",
    )  # fmt: skip
    assert code == 0
    assert [tokenizer.chat for tokenizer in seen] == [True]
