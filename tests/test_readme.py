"""The README keeps its word: its Python runs, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

from distillspec import cli
from distillspec.models import wrap
from distillspec.studies.answer import CostRow, GammaRow, Measurement
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
    for folder in re.findall(
        r"^    (tests/|examples/|benchmarks/|docs/) ", README, flags=re.MULTILINE
    ):
        assert (ROOT / folder).is_dir()


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
