"""`measure` on tiny models: with the target, from a log, several drafts, and with no draft."""

from __future__ import annotations

import json
import math

import pytest

from distillspec.commands.costs import cost_of
from distillspec.commands.measure import tell
from distillspec.errors import UserError
from distillspec.models import wrap
from support import module, word_tokenizer
from verbs import WORDS, refused, run, saved, write_rows

COST = "target=20:21:24,draft=2,overhead=1"
LIMITS = ("--limit", 8, "--max-new-tokens", 12, "--gamma", "1..4")
SHORT = (*LIMITS, "--clock-prompts", 2, "--repetitions", 1, "--batch-sizes", 1)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": saved(folder / "target"),
        "near": saved(folder / "near", noise=0.02),
        "far": saved(folder / "far", noise=0.1),
    }


@pytest.fixture
def prompts(tmp_path):
    rows = [
        {"id": str(i), "prompt": " ".join(WORDS[i : i + 4]), "domain": "odd" if i % 2 else "even"}
        for i in range(8)
    ]
    return write_rows(tmp_path / "prompts.jsonl", rows)


@pytest.mark.parametrize("rule", ["ratio", "argmax", "exact-match"])
def test_a_log_tells_what_the_targets_weights_tell(capsys, tmp_path, models, prompts, rule):
    """Same outputs, once scored beside the target and once from its log alone."""
    log = tmp_path / "log.jsonl"
    needed = ("--logprobs",) if rule == "ratio" else ()
    code, _, _ = run(
        capsys, "generate", "--target", models["target"], "--prompts", prompts, "--out", log,
        "--max-new-tokens", 12, "--batch-size", 16, *needed,
    )  # fmt: skip
    assert code == 0
    about = ("--draft", models["near"], "--rule", rule, "--cost", COST, *LIMITS)
    code, beside, _ = run(
        capsys, "measure", "--target", models["target"], "--prompts", prompts, *about
    )
    assert code == 0
    code, logged, _ = run(capsys, "measure", "--outputs", log, *about)
    assert code == 0
    assert logged["alpha_estimator"] == "ratio"
    assert logged["alpha"] == logged["alpha_ratio"]
    assert logged["alpha_ratio"]["value"] == pytest.approx(beside["alpha_ratio"]["value"], abs=1e-3)
    for one, other in zip(logged["gammas"], beside["gammas"], strict=True):
        for key in ("tau_forecast", "speedup_forecast"):
            assert one[key] == pytest.approx(other[key], abs=1e-3)
    assert logged["rule"] == beside["rule"]
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(row.pop("finish_reason") == "length" for row in rows)
    bare = write_rows(tmp_path / "bare.jsonl", rows)
    _, untold, _ = run(capsys, "measure", "--outputs", bare, *about)
    assert (
        untold["gammas"][-1]["speedup_forecast"]["value"]
        < logged["gammas"][-1]["speedup_forecast"]["value"]
    ), "blocks that are cut short are not known to be"
    assert 1 < logged["gammas"][0]["tau_forecast"]["value"] < 2


def test_the_ratio_rule_asks_a_log_for_probabilities(capsys, tmp_path, models):
    log = write_rows(tmp_path / "log.jsonl", [{"prompt": "w6 w7", "target_ids": [8, 9, 1]}])
    about = ("--draft", models["near"], "--cost", COST)
    said = refused(capsys, "measure", "--outputs", log, *about)
    assert "log.jsonl:1: --rule ratio needs target_ids and target_logprobs" in said
    code, found, _ = run(capsys, "measure", "--outputs", log, *about, "--rule", "exact-match")
    assert code == 0
    assert found["tokens"] == 3
    without = write_rows(tmp_path / "bare.jsonl", [{"prompt": "w6 w7"}])
    said = refused(capsys, "measure", "--outputs", without, *about, "--rule", "argmax")
    assert "a log needs the answer" in said
    assert "--outputs needs --cost" in refused(
        capsys, "measure", "--outputs", log, "--draft", models["near"]
    )
    assert "the log takes its place" in refused(
        capsys, "measure", "--outputs", log, *about, "--target", models["target"]
    )


@pytest.mark.parametrize(
    ("logged", "reason"),
    [
        ({"target_logprobs": [-1.0]}, "1 'target_logprobs', but 'target_ids' are missing"),
        ({"target_ids": [8, 9], "target_logprobs": [-1.0]}, "but 'target_ids' are 2"),
        ({"target_ids": [8], "target_logprobs": [0.5]}, "numbers, none above 0"),
        ({"target_ids": [8], "target_logprobs": "-1"}, "numbers, none above 0"),
        # Some servers write -9999 for what they cut off; it used to count as p = 1.
        ({"target_ids": [8], "target_logprobs": [-9999.0]}, "holds -9999.0, ln 0"),
        ({"target_ids": [8], "target_logprobs": [-math.inf]}, "holds -inf, ln 0"),
    ],
)
def test_a_damaged_log_is_named_by_its_line(capsys, tmp_path, models, logged, reason):
    log = write_rows(tmp_path / "log.jsonl", [{"prompt": "w6", **logged}])
    said = refused(capsys, "measure", "--outputs", log, "--draft", models["near"], "--cost", COST)
    assert "log.jsonl:1: " in said
    assert reason in said


def test_a_useless_draft_gets_its_sentence_and_its_exit_code(capsys, models, prompts):
    """A draft that costs as much as the target can never pay."""
    arguments = (
        "measure", "--target", models["target"], "--draft", models["far"], "--prompts", prompts,
        "--cost", "target=20:40:60:80:100,draft=20", *LIMITS,
    )  # fmt: skip
    code, found, _ = run(capsys, *arguments, "--min-speedup", 1)
    assert code == 3
    assert found["verdict"].startswith("Do not use this draft: 0.")
    assert "even a draft that is always right would be slower" in found["verdict"]
    assert found["break_even_alpha"] is None
    assert found["unmet"][0].startswith("--min-speedup 1 is not met: 0.")
    code, found, _ = run(capsys, *arguments, "--min-speedup", 0.1)
    assert (code, found["unmet"]) == (0, [])


def test_several_drafts_are_held_against_the_first(capsys, tmp_path, models, prompts):
    out = tmp_path / "run"
    code, found, _ = run(
        capsys, "measure", "--target", models["target"], "--draft",
        f"{models['far']},{models['near']}", "--prompts", prompts, *SHORT, "--out", out,
    )  # fmt: skip
    assert code == 0
    assert [one["draft"] for one in found["drafts"]] == ["far", "near"]
    assert found["alpha"] == found["drafts"][0]["alpha"]
    (against,) = found["comparison"]
    assert (against["draft"], against["against"]) == ("near", "far")
    # The first draft's table stood there without a name, and its verdict was the last word.
    lines = tell(found).splitlines()
    places = [
        lines.index(said) for one in found["drafts"] for said in (one["draft"], one["verdict"])
    ]
    assert places == sorted(places)
    assert lines[-1].startswith("near against far, paired: ")
    assert against["alpha_difference"]["low"] > 0
    gained = found["drafts"][1]["alpha"]["value"] - found["drafts"][0]["alpha"]["value"]
    assert against["alpha_difference"]["value"] == pytest.approx(gained)
    assert against["improved"] + against["equal"] + against["worsened"] == 8
    assert len(against["worse"]) == against["worsened"]
    assert [row["domain"] for row in against["by_domain"]] == ["even", "odd"]
    assert against["speedup_difference"]["low"] <= against["speedup_difference"]["high"]
    examples = [json.loads(line) for line in (out / "examples.jsonl").read_text().splitlines()]
    assert len(examples) == 16
    for one in found["drafts"]:
        own = [row for row in examples if row["draft"] == one["draft"]]
        alpha = sum(row["alpha_sum"] for row in own) / sum(row["tokens"] for row in own)
        assert alpha == pytest.approx(one["alpha"]["value"])
        assert all(1 <= row["tokens"] / row["calls"] <= row["gamma"] + 1 for row in own)
    outputs = [json.loads(line) for line in (out / "outputs.jsonl").read_text().splitlines()]
    assert len(outputs) == 2 * 3, "two prompts, by the target alone and with each draft"
    for row in outputs:
        assert "".join(row["pieces"]) == row["text"]
        assert len(row["roles"]) == len(row["ids"]) == len(row["pieces"])
        assert row["roles"].count("a") == row["accepted"]
        assert row["roles"].count("c") == row["judged"] - row["accepted"]
        assert set(row["roles"]) == {"t"} or row["draft"] is not None


def test_domains_and_positions_add_up_to_the_whole(capsys, models, prompts):
    code, found, _ = run(
        capsys, "measure", "--target", models["target"], "--draft", models["near"], "--prompts",
        prompts, "--cost", COST, *LIMITS,
    )  # fmt: skip
    assert code == 0
    assert sum(row["tokens"] for row in found["by_domain"]) == found["tokens"]
    assert sum(row["tokens"] for row in found["by_context"]) == found["tokens"]
    weighted = sum(row["tokens"] * row["alpha"]["value"] for row in found["by_context"])
    assert weighted / found["tokens"] == pytest.approx(found["alpha"]["value"])
    positions = found["by_position"]["positions"]
    assert [row["position"] for row in positions] == list(range(1, found["best_gamma"] + 1))
    for one, following in zip(positions, positions[1:], strict=False):
        most = one["judged"] * one["rate"]["value"]
        assert following["judged"] <= most + 1e-9, "only what was accepted goes on"


def test_a_cost_alone_tells_what_a_draft_would_need(capsys):
    code, found, _ = run(
        capsys, "measure", "--cost", "target=10,draft=1", "--gamma", "1..4", "--min-speedup", 9
    )
    assert code == 3
    assert [row["speedup"] for row in found["alpha_needed"]] == [1, 1.2, 1.5, 2]
    # c = 0.1: γ = 1 breaks even at (1 + α)/1.1 = 1.
    assert found["alpha_needed"][0]["alpha"] == pytest.approx(0.1, abs=1e-6)
    assert found["headroom"] == pytest.approx(5 / 1.4)
    assert "1.2× needs α ≥" in found["verdict"]
    assert "--draft is missing" in refused(capsys, "measure")


@pytest.mark.parametrize("flag", ["--target", "--prompts", "--outputs", "--out"])
def test_what_a_cost_alone_leaves_unused_is_refused(capsys, flag):
    """The bug: a log without a draft was passed over, and --out stored nothing."""
    said = refused(capsys, "measure", "--cost", COST, flag, "x.jsonl")
    assert f"{flag} without --draft" in said


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--clock-gamma", 2),
        ("--clock-prompts", 4),
        ("--repetitions", 5),
        ("--batch-sizes", "1,4"),
    ],
)
def test_a_cost_and_a_clock_are_refused(capsys, flag, value):
    said = refused(capsys, "measure", "--cost", COST, "--gamma", "1..4", flag, value)
    assert f"{flag} and --cost" in said


def test_the_ids_that_a_server_was_given_are_those_that_count(capsys, tmp_path, models):
    """The bug: a log's prompt_ids were passed over, and its text rendered anew."""
    row = {"prompt": "w6 w7", "target_ids": [8, 9]}
    about = ("--draft", models["near"], "--cost", COST, "--rule", "argmax", "--out")
    file = write_rows(tmp_path / "log.jsonl", [{**row, "prompt_ids": [6, 7, 8, 9, 10]}])
    code, _, _ = run(capsys, "measure", "--outputs", file, *about, tmp_path / "run")
    assert code == 0
    stored = json.loads((tmp_path / "run" / "examples.jsonl").read_text())
    assert stored["prompt_tokens"] == 5
    other = write_rows(tmp_path / "other.jsonl", [{**row, "prompt_ids": [6, 9999]}])
    said = refused(capsys, "measure", "--outputs", other, *about, tmp_path / "none")
    assert "prompt_ids has 9999" in said


def test_drafts_on_a_log_share_its_tokens(capsys, tmp_path, models):
    """The bug: a text of other lengths for each draft was compared as if it had one."""
    other = tmp_path / "other"
    wrap(module("llama", rows=24), word_tokenizer(24)).save(other)
    log = write_rows(tmp_path / "log.jsonl", [{"prompt": "w6 w7", "target_ids": [8, 9]}])
    both = f"{models['near']},{other}"
    said = refused(
        capsys, "measure", "--outputs", log, "--draft", both, "--cost", COST, "--rule", "argmax"
    )
    assert "do not share a tokenizer" in said


def test_batches_are_forecast_each_at_its_own_cost(capsys, models, prompts):
    code, found, _ = run(
        capsys, "measure", "--target", models["target"], "--draft", models["near"], "--prompts",
        prompts, *LIMITS, "--clock-prompts", 0, "--batch-sizes", "3",
    )  # fmt: skip
    assert code == 0
    assert [row["batch_size"] for row in found["batches"]] == [1, 3]
    assert found["batches"][0]["cost"] == found["cost"]
    assert "At batch 3 it" in found["verdict"]
    assert found["prefill"]["target_ms"] > 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("target=20", "draft is missing"),
        ("draft=20", "target is missing"),
        ("target=20,draft=1,drat=3", "did you mean 'draft'"),
        ("target=20,draft", "'draft' is no key=value"),
        ("target=20,draft=fast", "draft='fast' is no number"),
        ("target=0,draft=1", "target=0 must be above 0"),
        ("target=20,draft=-1", "draft=-1 must be 0 or more"),
        ("target=nan,draft=1", "target=nan must be above 0"),
        # The bug: 1e-322 ms are 0 seconds, and c was infinite, which JSON has no word for.
        ("target=1e-322,draft=1", "target=1e-322 is no time of a pass"),
        ("target=1,draft=1e308", "draft=1e308 is no time of a pass"),
        ("target=20,draft=1:2", "draft takes one number"),
        ("target=20,draft=1,target=3", "target is given twice"),
    ],
)
def test_a_wrong_cost_is_named(text, reason):
    with pytest.raises(UserError, match=reason):
        cost_of(text, widest=4)


def test_a_cost_is_read_in_milliseconds():
    cost = cost_of("target=20:22, draft=2, overhead=0.5", widest=4)
    assert cost.target == pytest.approx((0.020, 0.022, 0.022, 0.022))
    assert cost.block(0) == pytest.approx(0.020)
    assert cost.block(3) == pytest.approx(0.022 + 0.006 + 0.0005)


def test_what_contradicts_is_refused(capsys, models, prompts):
    pair = ("--target", models["target"], "--draft", models["near"], "--prompts", prompts)
    argmax = ("--rule", "argmax", "--draft-temperature", 0.5)
    assert "contradicts --rule argmax" in refused(capsys, "measure", *pair, *argmax)
    twice = f"{models['near']},{models['near']}"
    assert "each once" in refused(
        capsys, "measure", "--target", models["target"], "--draft", twice, "--prompts", prompts
    )
    assert "must be among --gamma" in refused(
        capsys, "measure", *pair, "--gamma", "1..3", "--clock-gamma", "5"
    )
    assert "--batch-sizes" in refused(capsys, "measure", *pair, "--batch-sizes", "0")
    assert "--target is missing" in refused(
        capsys, "measure", "--draft", models["near"], "--prompts", prompts
    )


def test_rendered_prompts_of_a_log_are_taken_as_they_stand(capsys, tmp_path):
    """A chat template must not be put around a prompt that has been through it already."""
    draft = saved(tmp_path / "chat", chat=True)
    log = write_rows(tmp_path / "log.jsonl", [{"prompt": "w6 w7", "target_ids": [8, 9]}])
    about = ("measure", "--outputs", log, "--draft", draft, "--cost", COST, "--rule", "argmax")
    lengths = []
    for name, raw in (("chat-run", ()), ("raw-run", ("--raw",))):
        code, _, _ = run(capsys, *about, "--out", tmp_path / name, *raw)
        assert code == 0
        lengths.append(json.loads((tmp_path / name / "examples.jsonl").read_text()))
    assert lengths[1]["prompt_tokens"] == 2 < lengths[0]["prompt_tokens"]
