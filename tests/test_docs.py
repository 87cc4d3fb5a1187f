"""The documentation keeps its word: its commands parse, its links lead somewhere, it builds."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from distillspec import cli
from distillspec.commands.candidates import candidates
from distillspec.commands.plan import STEPS, plan
from distillspec.commands.plans import distill_recipe, sft_recipe
from distillspec.commands.settings import Distill, Sft
from distillspec.commands.study_settings import Tune
from distillspec.math.forecast import Cost, needed_alpha
from distillspec.settings import parse
from distillspec.studies import garden, lossless, tradeoff
from distillspec.studies.evaluation import Evaluation, LatencyRow, ThroughputRow
from distillspec.studies.perplexity import Perplexity
from distillspec.studies.sameness import SameOutput
from distillspec.studies.serving import RuleFit, Served
from distillspec.studies.study_file import read_study
from distillspec.studies.theory import Bounds
from distillspec.studies.transfer import Cell
from distillspec.tasks import load_task
from verbs import run, saved, write_rows

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIELDS = {
    "evaluate.md": (Evaluation, LatencyRow, ThroughputRow, SameOutput),
    "tradeoff.md": (tradeoff.Tradeoff, tradeoff.Baseline, tradeoff.Pick, tradeoff.Point),
    "transfer.md": (Cell,),
    "garden.md": (garden.Garden, garden.Pick, garden.Point),
    "bounds.md": (Bounds, Perplexity),
    "audit.md": (lossless.Audit, lossless.Test),
    "export.md": (Served, RuleFit),
}
"""What a page explains field by field; `measure` is with the README, whose sample it is."""


def commands(page: Path) -> list[list[str]]:
    """Return the commands of a page, but for those that leave something out, or to a file."""
    lines = page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = [line.strip() for line in lines if line.startswith("    distillspec ")]
    whole = [line for line in found if "..." not in line and "--config" not in line]
    return [shlex.split(line, comments=True)[1:] for line in whole]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_parses(page):
    for name, *flags in commands(page):
        if name != "VERB":
            parse(cli.VERBS[name].settings, flags, prog=f"distillspec {name}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_training_command_is_a_whole_recipe(page):
    """One with a cache in place of the target left the recipe at its default, half of it on-policy:
    it was refused."""
    for name, *flags in commands(page):
        if name == "VERB":
            continue
        settings = parse(cli.VERBS[name].settings, flags, prog=name).settings
        if isinstance(settings, Sft):
            sft_recipe(settings)
        if isinstance(settings, Distill):
            recipe = distill_recipe(settings)
            assert settings.target is not None or recipe.mixture.fixed == 1, flags
        if isinstance(settings, Tune):
            candidates(settings)


def test_the_study_of_the_page_about_studies_can_be_run(tmp_path):
    page = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    file = tmp_path / "study.yaml"
    file.write_text(text, encoding="utf-8")
    for path in read_study(file, tuple(STEPS)).data.values():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"")
    steps = [cell.step for cell in plan(file, tmp_path).keys]
    assert {step: steps.count(step) for step in steps} == {"draft0": 4, "draft": 4, "measured": 2}


def test_the_task_of_the_tutorial_reads_the_prompts_of_the_tutorial(tmp_path):
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    (line,) = re.findall(r'^    (\{"prompt".*)$', page, flags=re.MULTILINE)
    (tmp_path / "held_out.jsonl").write_text(line, encoding="utf-8")
    (row,) = load_task(str(tmp_path / "own.toml")).read(tmp_path / "held_out.jsonl")
    assert row.prompt == "Explain what a cache is."


def test_the_rules_of_thumb_are_what_the_cost_model_says():
    """Each of them stood a hundredth too high."""
    page = ROOT / "docs" / "questions" / "will-a-draft-help.md"
    cheap, dear = (
        [f"{needed_alpha(Cost((1.0,) * 17, c, 0.0, 0.0), range(1, 17), x):.2f}" for x in (1, 2)]
        for c in (0.05, 0.3)
    )
    said = (
        f"breaks even at an i.i.d. α of {cheap[0]} and reaches 2× at {cheap[1]}; at c = 0.3 it "
        f"needs {dear[0]} to break even and {dear[1]} for 2×"
    )
    assert said in page.read_text(encoding="utf-8")


def test_there_are_commands_to_parse():
    assert sum(len(commands(page)) for page in PAGES) >= 20


def test_every_page_is_on_the_site_once():
    """A merge had left the part about the paper in it twice, with other pages listed again."""
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert listed.count(f": {page.relative_to(ROOT / 'docs').as_posix()}\n") == 1, page


@pytest.mark.parametrize(("page", "kinds"), FIELDS.items(), ids=FIELDS)
def test_every_field_is_documented(page, kinds):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in {name for kind in kinds for name in kind.__annotations__}:
        assert f"`{name}`" in text, name


def test_what_a_verb_adds_to_its_figures_is_documented(capsys, tmp_path):
    """`cost_given`, and the settings that an audit repeats, were on no page."""
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft", noise=0.05)
    rows = [{"prompt": "w6 w7", "target_ids": [6, 7, 8]}]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    cost = ("--cost", "target=20,draft=2,overhead=1", "--max-new-tokens", 4, "--gamma", "1..2")
    argv = {
        "measure.md": ("measure", "--target", target, "--draft", draft, "--prompts", file, *cost),
        "audit.md": ("audit", target, file),
    }
    for page, flags in argv.items():
        _, found, _ = run(capsys, *flags)
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for name in found:
            assert f"`{name}`" in text or f"`{name}." in text, (page, name)


def test_the_site_builds_with_every_link_whole(tmp_path):
    """`strict` in mkdocs.yml makes a warning, such as a dead link, an error."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    verbs = (tmp_path / "reference" / "cli" / "index.html").read_text(encoding="utf-8")
    for verb in cli.VERBS:
        assert f"distillspec {verb}" in verbs
