"""The scripts of experiments/ on rows made by hand, and every study file of it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import distillspec
from distillspec.commands.plan import plan
from distillspec.commands.study_cost import costs, line_of
from distillspec.errors import UserError
from distillspec.studies.results import Results
from verbs import run, saved, write_rows

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
SCRIPTS = sorted(EXPERIMENTS.glob("f*.py"))
PAPER = sorted((EXPERIMENTS / "paper").glob("*.yaml"))
PROMPTS = 12
AT = {"versions": {"distillspec": distillspec.__version__}, "seconds": 1.0}


def finding(name, rows):
    (script,) = (one for one in SCRIPTS if one.name.startswith(name))
    results = Results({row["key"]: row for row in rows})
    return runpy.run_path(str(script))["finding"](results)


def at(value, width=0.01):
    return {"value": value, "low": value - width, "high": value + width}


def row(step, *, verb="measure", key=None, result=None, **more):
    made = {"step": step, "verb": verb, "key": key or step, "axes": {}, "sources": {}}
    return {**made, **AT, "result": result or {}, **more}


def source(step, **axes):
    return {"step": step, "axes": axes}


def examples(key, calls):
    """A draft's counts on prompts of ten tokens each, all but equal."""
    return [
        {
            "draft": f"{key}/run/draft",
            "id": str(i),
            "tokens": 10,
            "alpha_sum": 10.0 - calls,
            "gamma": 3,
            "calls": calls + 0.01 * (i % 3),
        }
        for i in range(PROMPTS)
    ]


def measured(drafts, *, step="measured", before=5.0, name="distilled", **axes):
    """A row of `measure` with the draft before and others, by recipe: expected target calls."""
    sources = {"k0": source("draft")} | {
        f"k{i}": source(name, **labels) for i, (labels, _) in enumerate(drafts, start=1)
    }
    rows = examples("k0", before)
    for i, (_, calls) in enumerate(drafts, start=1):
        rows += examples(f"k{i}", calls)
    gamma = {
        "gamma": 3, "tau_forecast": at(2.0), "tau_iid": 2.0, "speedup_forecast": at(1.5),
    }  # fmt: skip
    found = [
        {"draft": f"{key}/run/draft", "gammas": [{**gamma, "tau_counted": at(2.0 + 0.1 * i)}]}
        for i, key in enumerate(sources)
    ]
    for i, one in enumerate(found):
        one["gammas"][0] |= {"tau_forecast": at(2.0 + 0.1 * i), "tau_iid": 1.9 + 0.1 * i}
        one["gammas"][0]["forecast_z"] = 1.5
    compared = [
        {"draft": one["draft"], "against": found[0]["draft"], "speedup_difference": at(0.1)}
        for one in found[1:]
    ]
    return row(step, key=f"{step}{axes}", axes=axes, sources=sources, examples=rows,
               result={"drafts": found, "comparison": compared})  # fmt: skip


def recipes(**calls):
    return [({"recipe": name}, value) for name, value in calls.items()]


GOOD = recipes(seqkd=4.8, supervised_kd=4.6, imitkd=4.3, fdistill=4.4, gkd=4.2)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_says_nothing_without_data(script):
    assert len(script.read_text("utf-8").splitlines()) <= 80
    found = runpy.run_path(str(script))["finding"](Results({}))
    assert found.outcome == "not run"
    assert found.figure is None
    assert found.rows == ()
    assert found.sentence.startswith("Not run")
    assert found.number == str(int(script.name[1:3]))
    files = [EXPERIMENTS / "small.yaml", EXPERIMENTS / "tune.yaml"]
    assert any(script.name in file.read_text("utf-8") for file in files)


def test_recipes_are_held_against_one_another():
    found = finding("f01", [measured(GOOD, temperature="1")])
    assert found.outcome == "holds"
    assert "over no distillation: above 0 in 5 of 5" in found.sentence
    assert "generated data over Supervised KD: above 0 in 3 of 3" in found.sentence
    assert "white-box over SeqKD: above 0 in 4 of 4" in found.sentence
    assert len(found.rows) == 5
    (axes,) = (one for one in found.figure.axes if one.get_visible())
    assert axes.get_title("left") == "T=1"
    worse = recipes(seqkd=4.8, supervised_kd=4.2, imitkd=4.3)
    assert finding("f01", [measured(worse)]).outcome == "does not hold"
    equal = recipes(seqkd=4.8, supervised_kd=4.3, imitkd=4.3)
    assert finding("f01", [measured(equal)]).outcome == "undecided"


def training(recipe, calls, **axes):
    def test(step, calls):
        by = {"lengths": [10] * 6, "alpha_sums": [5.0] * 6, "calls": [calls] * 5 + [calls + 0.1]}
        return {"step": step, "seconds": 10.0 * step, "evaluation": {"by_prompt": by}}

    return row("distilled", verb="distill", key=recipe, axes={"recipe": recipe, **axes},
               evaluations=[test(0, 5.0), test(6, calls)])  # fmt: skip


def test_training_is_compared_after_equal_time():
    rows = [training("gkd", 4.0, task="t"), training("supervised_kd", 4.5, task="t")]
    assert finding("f02", rows).outcome == "holds"
    longer = training("supervised_kd", 4.5, task="t")
    later = training("supervised_kd", 3.0, task="t")["evaluations"][1]
    longer["evaluations"].append({**later, "step": 12, "seconds": 120.0})
    assert finding("f02", [rows[0], longer]).outcome == "holds"  # it was ahead after no more time
    rows.append(training("seqkd", 3.9, task="t"))
    assert finding("f02", rows).outcome == "does not hold"  # every other recipe counts
    assert finding("f02", [rows[0]]).outcome == "not run"  # nothing to hold it against
    rows = [training("gkd", 4.5, task="t"), training("supervised_kd", 4.0, task="t")]
    assert finding("f02", rows).outcome == "does not hold"


def test_recipes_are_compared_after_equal_steps():
    def step(recipe, calls):
        return {**training(recipe, calls, task="t"), "step": "same-steps"}

    rows = [step("supervised_kd", 4.5), step("gkd", 4.0)]
    assert finding("f17", rows).outcome == "holds"
    assert finding("f17", [rows[0], step("gkd", 4.7)]).outcome == "does not hold"
    assert finding("f17", rows[1:]).outcome == "not run"  # nothing to hold it against


def test_examples_tables_and_grids_are_read_by_draft():
    rows = [measured(GOOD, temperature="0"), measured(GOOD, temperature="1", task="lm1b")]
    assert finding("f03", rows).outcome == "holds"
    assert finding("f03", [measured(recipes(gkd=5.5))]).outcome == "does not hold"
    table = finding("f13", rows)
    assert table.outcome == "holds"
    assert "measured speed-up above 0 in 2 of 2" in table.sentence
    assert [len(one) for one in table.rows] == [6, 6]
    assert "2.96→3.13" in table.paper  # the paper's own, as the task is one of its
    assert "3.22→3.30" not in table.paper
    drafts = [
        ({"divergence": d, "mixture": m}, 5.5 if m == "fixed" else 4.5)
        for d in ("forward_kl", "jsd:0.5")
        for m in ("fixed", "draft")
    ]
    found = finding("f05", [measured(drafts, step="grid-measured", name="grid")])
    assert found.outcome == "holds"  # of fixed data it claims nothing
    assert len(found.rows) == 4


@pytest.mark.parametrize(
    ("change", "outcome"),
    [(at(-0.1), "does not hold"), (at(0.0), "undecided"), (None, "undecided")],
)
def test_a_table_of_speed_ups_is_judged_by_them_too(change, outcome):
    """The claim is about τ and the speed-up; it once held by τ alone."""
    one = measured(recipes(gkd=4.2))
    one["result"]["comparison"][0]["speedup_difference"] = change
    found = finding("f13", [one])
    assert found.outcome == outcome
    assert ("not run" in found.sentence) == (change is None)


def test_drafts_at_different_gamma_are_not_held_against_one_another():
    one = measured(recipes(gkd=4.2))
    for i, example in enumerate(one["examples"]):
        example["gamma"] = 3 + (i < PROMPTS)
    with pytest.raises(UserError, match="measured: its drafts are at γ"):
        finding("f01", [one])


def test_drafts_whose_names_do_not_tell_their_cells_are_told():
    one = measured(recipes(gkd=4.2))
    for example in one["examples"]:
        example["draft"] = example["draft"].removeprefix("k1/")
    with pytest.raises(UserError, match="no draft's name tells that it is of distilled"):
        finding("f01", [one])


def test_forecasts_are_ranked_against_counts():
    rows = [measured(GOOD, temperature=one) for one in ("0", "1")]
    found = finding("f04", rows)
    assert found.outcome == "holds"
    assert "+1.00" in found.sentence
    assert "in 12 of 12" in found.sentence
    drafts = rows[1]["result"]["drafts"]
    drafts[2]["gammas"][0]["forecast_z"] = None
    assert finding("f04", rows).outcome == "undecided"
    drafts[3]["gammas"][0]["forecast_z"] = -4.5
    assert finding("f04", rows).outcome == "does not hold"  # no agreement, whatever the ranks
    assert finding("f04", rows[:1]).outcome == "not run"  # one cell has no interval
    rows = [measured(recipes(gkd=4.0), temperature=one) for one in ("0", "1")]
    assert finding("f04", rows).outcome == "not run"  # two drafts


def test_ranks_are_compared_within_a_cell():
    """What γ does to both sides once passed for a ranking of drafts that is kept."""
    rows = [measured(GOOD, gamma=str(gamma)) for gamma in (3, 5, 7)]
    for i, one in enumerate(rows):
        drafts = one["result"]["drafts"]
        for j, draft in enumerate(drafts):
            draft["gammas"][0] |= {
                "tau_forecast": at(2 + i + 0.01 * j), "tau_iid": 2 + i + 0.01 * j,
                "tau_counted": at(2 + i - 0.01 * j),
            }  # fmt: skip
    found = finding("f04", rows)
    assert found.outcome == "does not hold"
    assert "-1.00 [-1.00, -1.00]" in found.sentence


def test_temperatures_of_the_data_are_compared():
    drafts = [({"temperature": "0.3"}, 4.8), ({"temperature": "1.0"}, 4.2)]
    found = finding("f11", [measured(drafts, step="cooled-measured", name="cooled")])
    assert found.outcome == "holds"


def test_outcomes_of_other_verbs_are_read():
    points = [
        {"draft": d, "lenience": "linear", "epsilon": 0.5, "relative_latency": at(latency),
         "quality": at(20.0), "tau": at(2.0)}
        for d, latency in (("raw", 0.9), ("kd", 0.7))
    ]  # fmt: skip
    found = finding("f07", [row("traded", result={"points": points})])
    assert found.outcome == "holds"
    points[1]["relative_latency"] = at(0.89)
    assert finding("f07", [row("traded", result={"points": points})]).outcome == "undecided"
    comparison = [{"tau_difference": at(0.1), "alpha_difference": at(0.1), "gamma": 3}]
    cells = [{"target": "xl", "task": "bbh", "comparison": comparison}]
    moved = row("transferred", result={"cells": cells, "temperature": 0.0})
    found = finding("f09", [moved])
    assert found.outcome == "undecided"
    assert "targets: 1, so that no larger one was run." in found.sentence
    cells.append({**cells[0], "target": "xxl"})
    found = finding("f09", [moved])
    assert found.outcome == "holds"
    assert found.sentence.endswith("targets: 2.")


def way(name, quality, latency, **more):
    return {"way": name, "target": name, "quality": at(quality), "latency": at(latency),
            "quality_difference": at(quality - 30), "speedup": at(4.0 / latency), "front": True,
            "dominated_by": None, **more}  # fmt: skip


def test_gardens_are_read():
    def gardened(*ways):
        points = [way("large", 30.0, 4.0), *ways]
        result = {"points": points, "reference": "large", "verdict": "Done."}
        return finding("f08", [row("garden", result=result)]).outcome

    assert gardened(way("small DistillSpec", 28.5, 1.0)) == "holds"
    # A little faster, or much worse, is not what the claim says
    assert gardened(way("small DistillSpec", 28.5, 2.5)) == "does not hold"
    assert gardened(way("small DistillSpec", 25.0, 1.0)) == "does not hold"
    assert gardened(way("large DistillSpec", 30.0, 1.0, target="large")) == "not run"
    points = [way(str(minutes), 30.0 + minutes, 1.0) for minutes in (0, 2, 0.25)]
    points[2]["quality_difference"] = at(-1.0)
    over = row("quality-over-training", result={"points": points})
    assert finding("f10", [over]).outcome == "holds"  # the longest training counts
    drafts = [({"divergence": "d", "mixture": str(i)}, 4.0 + 0.1 * i) for i in range(8)]
    points = [way(f"k{i}/run", 30.0 - i, 1.0) for i in range(1, 9)]
    rows = [measured(drafts, step="grid-measured", name="grid"),
            row("draft-quality", result={"points": points})]  # fmt: skip
    found = finding("f06", rows)
    assert found.outcome == "does not hold"  # the two go together exactly
    again = measured(drafts, step="grid-measured", name="grid", temperature="0")
    assert "temperature 0, 8 drafts" in finding("f06", [again, rows[1]]).sentence
    both = [measured(drafts, step="grid-measured", name="grid", temperature=t) for t in ("0", "1")]
    each = [finding("f06", [one, rows[1]]).sentence.split(", ", 1)[1] for one in both]
    together = finding("f06", [*both, rows[1]])  # at two temperatures they are no more drafts
    assert together.sentence.count("8 drafts") == 2
    assert all(one.rstrip(".") in together.sentence for one in each)


def test_a_search_is_read():
    one = {"name": "a", "rungs": 1, "tau": at(2.0), "below_winner": at(0.1)}
    result = {"winner": "b", "against": "imitkd", "tau_difference": at(0.2), "candidates": [one]}
    found = finding("f15", [row("tuned", axes={"task": "t"}, result=result)])
    assert found.outcome == "holds"
    assert "t: b over imitkd +0.200" in found.sentence


def test_bounds_are_read():
    def draft(key, entropy, theorem=0.1):
        return {"draft": f"{key}/run", "alpha": at(0.8), "pinsker": at(0.6), "theorem": at(theorem),
                "kl": at(0.3), "cross_entropy": at(entropy)}  # fmt: skip

    sources = {f"k{i}": source("distilled", recipe=r) for i, r in enumerate(("gkd", "seqkd"))}
    result = {"drafts": [draft("k0", 2.0), draft("k1", 2.5)]}
    found = row("bounds", sources=sources, result=result)
    assert finding("f12", [found]).outcome == "holds"
    assert finding("f14", [found]).outcome == "holds"
    result["drafts"][0]["theorem"] = at(0.95)
    assert finding("f14", [found]).outcome == "does not hold"


def test_models_are_held_against_unigrams_and_targets_against_drafts():
    def model(key, nats):
        return {"model": f"{key}/run", "perplexity": at(20.0), "bits_per_byte": at(2.0),
                "nats_per_token": at(nats), "unigram_perplexity": 100.0}  # fmt: skip

    def predicted(target, draft):
        sources = {"k0": source("target"), "k1": source("draft")}
        result = {"models": [model("k0", target), model("k1", draft)]}
        return finding(
            "f16", [row("predicted", axes={"task": "t"}, sources=sources, result=result)]
        )

    assert predicted(3.0, 4.0).outcome == "holds"
    broken = predicted(3.0, 4.7)  # ln 100 = 4.6
    assert broken.outcome == "does not hold"
    assert "2 of 3; not: t: draft than unigrams." in broken.sentence
    worse = predicted(4.0, 3.0)
    assert worse.outcome == "does not hold"
    assert "not: t: target than draft." in worse.sentence


def test_the_search_takes_over_the_models_of_the_small_study(tmp_path):
    for name in ("small.yaml", "tune.yaml"):
        text = (EXPERIMENTS / name).read_text("utf-8")
        for data in re.findall(r"[\w/]+\.jsonl\.gz", text):
            (tmp_path / data).parent.mkdir(exist_ok=True)
            (tmp_path / data).write_text(data)
        (tmp_path / name).write_text(text.replace("package:", "org/"))  # it need not be installed
    small, search = (plan(tmp_path / name, tmp_path) for name in ("small.yaml", "tune.yaml"))
    shared = {key for cell, key in search.keys.items() if cell.step != "tuned"}
    assert len(shared) == 10
    assert shared <= set(small.keys.values())


def test_the_page_of_findings_says_what_the_committed_results_say():
    results = Results.read(EXPERIMENTS / "results" / "small" / "results.jsonl")
    text = (EXPERIMENTS.parent / "docs" / "findings.md").read_text("utf-8")
    written = dict(re.findall(r"^\| (\d+) \|[^|]*\| ([a-z ]+) \|", text, flags=re.MULTILINE))
    assert list(written) == [str(int(script.name[1:3])) for script in SCRIPTS]
    for script in SCRIPTS:
        found = runpy.run_path(str(script))["finding"](results)
        assert written[found.number] == found.outcome


def test_the_committed_results_name_no_place_of_the_machine():
    for file in sorted((EXPERIMENTS / "results").glob("*/results.jsonl")):
        assert Results.read(file).rows
        assert not re.search(r"/(tmp|home|root|work|Users)/", file.read_text("utf-8")), file


def shrunk(file, tmp_path, models):
    """A study of the paper's scale for tiny models: two steps, one recipe, rows from a file."""
    text = file.read_text("utf-8")
    text = re.sub(r"\bsteps: \d+", "steps: 2", text)
    text = re.sub(r"batch_size: 32", "batch_size: 2", text)
    text = re.sub(r"max_new_tokens: \d+", "max_new_tokens: 4", text)
    text = re.sub(r"recipe: \[.*\]", "recipe: [gkd]", text)
    text = re.sub(r"^( +prompts: \w+)$", r"\1=$rows", text, flags=re.MULTILINE)
    for name in re.findall(r"^  ([\w-]+): google/", text, flags=re.MULTILINE):
        text = re.sub(rf"^  {name}: google/.*$", f"  {name}: {models}", text, flags=re.MULTILINE)
    text = re.sub(r"(width: )\d+", r"\g<1>8", text).replace("vocabulary: 32000", "vocabulary: 300")
    text = re.sub(r"(depth|heads): \d+", r"\1: 1", text)
    small = tmp_path / file.name
    small.write_text(text.replace("steps:\n", "data:\n  rows: rows.jsonl\n\nsteps:\n", 1))
    return small


@pytest.mark.parametrize("file", PAPER, ids=lambda path: path.stem)
def test_a_study_of_the_papers_scale_trains_two_steps(capsys, tmp_path, file):
    text = "one two three four five six seven eight nine ten eleven twelve"
    write_rows(tmp_path / "rows.jsonl",
               [{"input": f"{text} {i}", "target": f"{text} {i}"} for i in range(4)])  # fmt: skip
    small = shrunk(file, tmp_path, saved(tmp_path / "t5", "t5-untied"))
    code, found, _ = run(
        capsys, "study", "run", small, "--data", tmp_path, "--out", tmp_path / "out",
        "--steps", "distilled",
    )  # fmt: skip
    assert (code, found["failures"]) == (0, {})
    assert found["done"] == found["cells"] >= 3


@pytest.mark.parametrize("file", PAPER, ids=lambda path: path.stem)
def test_a_study_of_the_papers_scale_resolves_and_says_its_cost(file):
    planned = plan(file, Path("data"))
    assert len(planned.keys) >= 13
    for name in planned.study.findings:
        assert (file.parent / name).is_file()
    distilled = [s for c, s in planned.settings.items() if c.step == "distilled"]
    # Appendix B.
    assert {(s["steps"], s["batch_size"], s["learning_rate"]) for s in distilled} == {
        (300_000, 32, 3e-4)
    }
    assert {s["optimizer"] for s in distilled} == {"adafactor"}
    assert all(s["warmup"] * 300_000 == pytest.approx(5000, rel=1e-6) for s in distilled)
    found = costs(planned)
    assert all(one["memory_gib"] > 0 and one["hours"] > 0 for one in found)
    assert all("GiB" in line_of(one) for one in found)
    # A draft that writes its own data costs more than one on fixed data, and less than the target.
    by = {one["cell"]: one["operations"] for one in found}
    hours = [by[f"distilled recipe={r}"] for r in ("supervised_kd", "gkd", "seqkd")]
    assert hours == sorted(hours)


def test_the_memory_foreseen_is_what_weights_and_moments_take():
    planned = plan(EXPERIMENTS / "paper" / "cnn_dm.yaml", Path("data"))
    one = next(c for c in costs(planned) if c["cell"] == "distilled recipe=gkd")
    assert one["parameters"] == 7.7e7
    assert one["memory_gib"] * 2**30 == pytest.approx(4 * (2 * 7.7e7 + 2.85e9))
    tokens = 2048 + 128
    assert one["operations"] == pytest.approx(3e5 * 32 * tokens * (8 * 7.7e7 + 2 * 2.85e9))
