"""The README keeps its word: its Python runs, its tables are complete."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from distillspec import cli
from distillspec.commands.measure import tell
from distillspec.models import wrap
from distillspec.studies.answer import CostRow, GammaRow, Measurement, verdict
from support import module, perturbed, word_tokenizer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
FIELDS = (ROOT / "docs" / "measure.md").read_text(encoding="utf-8")


def test_every_verb_is_in_the_table():
    table = re.findall(r"^\| `([a-z-]+)` \|", README, flags=re.MULTILINE)
    assert table == list(dict.fromkeys(table))
    assert set(table) == set(cli.VERBS)


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^    make ([a-z]+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_folder_of_the_tree_exists():
    for folder in re.findall(r"^      ([a-z]+/) ", README, flags=re.MULTILINE):
        assert (ROOT / "src" / "distillspec" / folder).is_dir()
    own = r"^    (tests/|experiments/|examples/|configs/|benchmarks/|docs/) "
    folders = re.findall(own, README, flags=re.MULTILINE)
    assert len(folders) == 6
    for folder in folders:
        assert (ROOT / folder).is_dir()


def test_the_sample_of_measure_is_what_it_prints():
    """It was of a run at batch 1, and the command above it asked for batch 8 too."""
    command, block = re.findall(
        r"^    (distillspec measure .*)\n\nThe answer.*:\n\n((?:    .*\n|\n)+)",
        README,
        flags=re.MULTILINE,
    )[0]
    said = textwrap.dedent(block).strip()
    first, second, _, *rows, _, sentence = said.splitlines()

    def estimate(text):
        return dict(
            zip(("value", "low", "high"), map(float, re.findall(r"[\d.]+", text)), strict=True)
        )

    kind, rule, temperature, prompts, tokens = re.search(
        r"\((\w+); rule: (.+), T = (\S+), (\d+) prompts, (\d+) tokens\)", first
    ).groups()
    costs = [float(one) for one in re.findall(r"[\d]+\.\d+", second)]
    columns = ("tau_forecast", "tau_counted", "speedup_forecast", "speedup_measured")
    gammas = [
        {"gamma": int(row[:3])}
        | {
            name: estimate(row[5 + 21 * i : 25 + 21 * i])
            for i, name in enumerate(columns)
            if row[5 + 21 * i : 25 + 21 * i].strip()
        }
        for row in rows
    ]
    alpha = estimate(first.split("(")[0])
    result = {
        "alpha": alpha,
        "alpha_estimator": kind,
        "rule": rule,
        "temperature": float(temperature),
        "prompts": int(prompts),
        "tokens": int(tokens),
        "cost": dict(zip(("target_ms", "draft_ms", "overhead_ms", "c"), costs, strict=False)),
        "headroom": costs[-1],
        "gammas": gammas,
        "verdict": verdict(
            gammas,
            max(gammas, key=lambda row: row["speedup_forecast"]["value"])["gamma"],
            alpha["value"],
            float(re.search(r"break-even α is ([\d.]+)", sentence)[1]),
            prompts=8,
        ),
        "unmet": [],
    }
    assert tell(result) == said
    assert command.endswith("--gamma 1..8 --batch-sizes 1")


def test_the_python_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    tokenizer = word_tokenizer()
    hf_target = module("llama")
    hf_draft = perturbed(wrap(hf_target, tokenizer), 0.05).module
    exec(code, {"hf_target": hf_target, "hf_draft": hf_draft, "tokenizer": tokenizer})
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_python_of_the_api_page_runs(capsys):
    """Its parts build on one another, as a reader runs them."""
    blocks = re.findall(r"```python\n(.*?)```", API, flags=re.DOTALL)
    tokenizer = word_tokenizer()
    hf_target = module("llama")
    hf_draft = perturbed(wrap(hf_target, tokenizer), 0.05).module
    names = {"hf_target": hf_target, "hf_draft": hf_draft, "tokenizer": tokenizer}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_the_python_of_the_decode_page_runs(capsys):
    page = (ROOT / "docs" / "decode.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    target = wrap(module("llama"), word_tokenizer())
    exec(code, {"target": target, "draft": perturbed(target, 0.05)})
    assert capsys.readouterr().out.strip()


def test_every_field_of_measure_is_documented():
    names = {*Measurement.__annotations__, *GammaRow.__annotations__}
    names |= {f"cost.{name}" for name in CostRow.__annotations__}
    for name in names - {"cost"}:
        assert f"`{name}`" in FIELDS, name
