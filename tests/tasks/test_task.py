"""Tasks: what their files say, and the rows they read."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from distillspec.errors import UserError
from distillspec.tasks import (
    Row,
    load_task,
    read_prompts,
    shortened,
    stdlib,
    task_names,
    with_shots,
)
from distillspec.tasks import hub as hub_module
from distillspec.tasks.metrics import metric_of

MINE = """
description = "Name the capital."
source = "My own."
prompt = "Capital of {input}?"
metric = "none"

[local]
input = "country"
target = "answer.city"
domain = "meta.continent"
"""


def write(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def numbered(folder: Path, count: int) -> Path:
    records = [
        {"id": f"r{n}", "input": f"{n} + 1?", "target": f"#### {n + 1}"} for n in range(count)
    ]
    return write(folder / "d.jsonl", records)


PAPER = {
    "xsum": (1024, 64, "rouge", "validation"),
    "cnn_dm": (2048, 128, "rouge", "validation"),
    "wmt14_en_de": (80, 80, "bleu", "test"),
    "gsm8k": (256, 320, "gsm8k", "test"),
    "lm1b": (128, 128, "none", "test"),
}


@pytest.mark.parametrize("name", PAPER)
def test_lengths_metrics_and_splits_are_the_papers(name: str) -> None:
    task = load_task(name)
    assert task.hub is not None
    found = (task.max_input_tokens, task.max_output_tokens, task.metric, task.hub.split)
    assert found == PAPER[name]


@pytest.mark.parametrize("name", task_names())
def test_every_shipped_task_loads_and_has_its_metric(name: str) -> None:
    task = load_task(name)
    assert task.description.endswith(".")
    assert (metric_of(task) is None) == (task.metric == "none")
    assert task.hub is None or len(task.hub.revision or "") == 40


def test_bbh_has_23_tasks_in_27_subsets() -> None:
    task = load_task("bbh")
    subsets = [subset for domain in task.domains for subset in domain.subsets]
    assert len(task.domains) == 23
    assert len(set(subsets)) == len(subsets) == 27


def test_a_domain_is_asked_for_after_a_colon(tmp_path: Path) -> None:
    names = ["snarks", "logical_deduction_three_objects", "logical_deduction_five_objects"]
    data = write(
        tmp_path / "d.jsonl",
        [{"input": n, "target": "(A)", "meta": {"task": n}} for n in names],
    )
    assert [row.domain for row in load_task("bbh").read(data)] == [
        "snarks",
        "logical_deduction",
        "logical_deduction",
    ]
    assert len(load_task("bbh:logical_deduction").read(data)) == 2
    assert len(load_task("bbh:logical_deduction_five_objects").read(data)) == 1
    with pytest.raises(UserError, match=r"bbh:snark: .*did you mean 'snarks'"):
        load_task("bbh:snark")
    with pytest.raises(UserError, match="gsm8k has no domains"):
        load_task("gsm8k:algebra")
    with pytest.raises(UserError, match="no rows of the task bbh:navigate"):
        load_task("bbh:navigate").read(data)


def test_a_row_of_an_unknown_domain_is_named(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", [{"input": "a", "target": "b", "meta": {"task": "snark"}}])
    with pytest.raises(UserError, match=r"d\.jsonl:1: the domain 'snark' is unknown.*'snarks'"):
        load_task("bbh").read(data)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"input": "a"}', "no column 'target'"),
        ('{"messages": []}', "no column 'input' (a chat: keep rows with messages"),
        ('{"input": null, "target": "b"}', "'input' must be a string, not null"),
        ('{"input": 5, "target": "b"}', "'input' must be a string, not int"),
        ('{"input": " ", "target": "b"}', "'input' is empty"),
        ('{"input": "a", "target": ""}', "'target' is empty"),
        ('{"input": "a", "target": "b", "id": "first"}', "the id 'first' was given to an earlier"),
        ("[1]", "expected a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_an_invalid_line_is_named_with_its_reason(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(f'{{"input": "a", "target": "b", "id": "first"}}\n{line}\n')
    with pytest.raises(UserError, match=r"d\.jsonl:2: ") as caught:
        load_task("gsm8k").read(path)
    assert reason in str(caught.value)


def test_a_task_that_judges_nothing_needs_no_targets(tmp_path: Path) -> None:
    """Prompts of one's own could be evaluated only with an answer made up for each."""
    own = tmp_path / "own.toml"
    own.write_text(MINE)
    where = {"meta": {"continent": "Europe"}}
    data = write(tmp_path / "d.jsonl", [{"country": "Italy", **where}])
    (row,) = load_task(str(own)).read(data)
    assert (row.prompt, row.target) == ("Capital of Italy?", None)
    own.write_text(MINE.replace('"none"', '"rouge"'))
    with pytest.raises(UserError, match=r"d\.jsonl:1: no column 'answer\.city'"):
        load_task(str(own)).read(data)


def test_a_file_that_is_no_jsonl_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    path.write_text("a")
    with pytest.raises(UserError, match=r"d\.txt: expected a file ending in \.jsonl"):
        load_task("gsm8k").read(path)
    with pytest.raises(UserError, match=r"absent\.jsonl: cannot be read"):
        load_task("gsm8k").read(tmp_path / "absent.jsonl")


def test_a_limit_draws_a_seeded_sample_in_order(tmp_path: Path) -> None:
    data = numbered(tmp_path, 200)
    task = load_task("gsm8k")
    drawn = [int(row.id[1:]) for row in task.read(data, limit=20, seed=3)]
    assert drawn == sorted(drawn)
    assert drawn == [int(row.id[1:]) for row in task.read(data, limit=20, seed=3)]
    assert drawn != [int(row.id[1:]) for row in task.read(data, limit=20, seed=4)]
    # The chance that 20 rows of 200 drawn fairly all fall into the first half is 5e-7.
    assert max(drawn) >= 100
    assert len(task.read(data, limit=500)) == 200
    with pytest.raises(UserError, match="at least 1"):
        task.read(data, limit=0)


def test_the_template_is_filled_and_a_brace_in_the_input_stays(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", [{"input": "{input} {x}?", "target": "#### 1"}])
    (row,) = load_task("gsm8k").read(data)
    assert row.prompt == "Q: {input} {x}?\nA: Let's think step by step."
    assert row.id == "d.jsonl:1"


def test_a_continuation_splits_a_text_by_words(tmp_path: Path) -> None:
    long = " ".join(f"w{n}" for n in range(12))
    short = " ".join(f"w{n}" for n in range(10))
    data = write(tmp_path / "d.jsonl", [{"input": "", "target": t} for t in (long, short)])
    (row,) = load_task("lm1b").read(data)
    assert (row.prompt, row.target) == (short, "w10 w11")


def test_a_task_of_ones_own_works_wherever_a_name_does(tmp_path: Path) -> None:
    path = tmp_path / "capitals.toml"
    path.write_text(MINE + '[domains]\neurope = ["Europe"]\nasia = ["Asia"]\n')
    data = write(
        tmp_path / "d.jsonl",
        [
            {"country": "Peru", "answer": {"city": "Lima"}, "meta": {"continent": "Europe"}},
            {"country": "Laos", "answer": {"city": "Vientiane"}, "meta": {"continent": "Asia"}},
        ],
    )
    assert load_task(path).read(data)[0] == Row("d.jsonl:1", "Capital of Peru?", "Lima", "europe")
    (row,) = load_task(f"{path}:asia").read(data)
    assert row.target == "Vientiane"
    with pytest.raises(UserError, match=r"capitals: the task names no data set.*--data FILE"):
        read_prompts(path)
    with pytest.raises(UserError, match=r"gone\.toml: cannot be read"):
        load_task(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric", "metrik", r"unknown key 'metrik'; did you mean 'metric'"),
        ("source = ", "name = ", r"unknown key 'name'"),
        ("source = ", "chosen = ", r"unknown key 'chosen'"),
        ('prompt = "Capital of {input}?"', "", r"the key 'prompt' is missing"),
        ("{input}", "{inputs}", r"prompt: expected '\{input\}' in it once"),
        ('"none"', '"rogue"', r"unknown value 'rogue'; did you mean 'rouge'"),
        ('"none"', "1", r"metric: expected str, got 1"),
        ('"none"', '"none"\nmax_input_tokens = true', r"max_input_tokens: expected int, got True"),
        ('"none"', '"none"\nmax_output_tokens = 0', r"max_output_tokens: expected at least 1"),
        ('"none"', '"none"\nstop = "Q:"', r"stop: expected a list of str, got 'Q:'"),
        ('"none"', '"none"\nshot = "{target}{prompt}"', r"shot: expected '\{prompt\}' and then"),
        ('domain = "meta', 'domian = "meta', r"local: unknown key 'domian'; did you mean 'domain'"),
        ("[local]", "[local", r"not TOML"),
    ],
)
def test_a_wrong_task_file_is_named_with_the_key(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    """A stop given as a text would be taken letter by letter (lm-evaluation-harness#700)."""
    path = tmp_path / "mine.toml"
    assert MINE.count(old) >= 1
    path.write_text(MINE.replace(old, new, 1))
    with pytest.raises(UserError, match=rf"mine\.toml: .*{message}|mine\.toml: {message}"):
        load_task(path)


def parquet(folder: Path, split: str, rows: list[dict]) -> None:
    from datasets import Dataset

    (folder / split).mkdir(parents=True)
    Dataset.from_list(rows).to_parquet(str(folder / split / "0000.parquet"))


def test_a_data_set_of_the_hub_is_read_by_its_splits(tmp_path: Path) -> None:
    """A folder stands for the hub: the same library reads both. An empty article is left out."""
    folder = tmp_path / "news"
    parquet(folder, "validation", [{"a": "one", "b": "1"}, {"a": "", "b": "2"}])
    parquet(folder, "train", [{"a": "three", "b": "3"}])
    path = tmp_path / "t.toml"
    path.write_text(
        'description = "d."\nsource = "s"\nprompt = "{input}"\nmetric = "none"\n'
        f'[hub]\nname = "{folder}"\nsplit = "validation"\ntrain_split = "train"\n'
        '[hub.columns]\ninput = "a"\ntarget = "b"\n'
    )
    task = load_task(path)
    with pytest.warns(UserWarning, match=r"left out 1 rows of the hub.*:2: 'a' is empty"):
        assert task.read() == [Row("t-validation-1", "one", "1")]
    assert task.read_training() == [Row("t-train-1", "three", "3")]
    assert read_prompts(path, limit=1) == [Row("t-validation-1", "one", "1")]


def test_every_domain_may_be_a_configuration_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name, config, *, split, revision):
        asked.append((name, config, split, revision))
        return iter([{"input": f"is {config}?", "target": "(A)"}])

    monkeypatch.setattr(hub_module, "_load", load)
    rows = load_task("bbh").read()
    assert len(rows) == len({row.id for row in rows}) == 27
    assert len({row.domain for row in rows}) == 23
    assert asked[0][1:3] == ("boolean_expressions", "test")
    asked.clear()
    assert load_task("bbh:snarks").read()[0].domain == "snarks"
    assert [config for _, config, *_ in asked] == ["snarks"]
    with pytest.raises(UserError, match="bbh:snarks: .* has no training split"):
        load_task("bbh:snarks").read_training()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionError("no network\nat all"), r"did not give it: no network; .*--data FILE"),
        (ValueError(), r"did not give it: ValueError"),
    ],
)
def test_a_hub_that_cannot_be_had_is_one_clear_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(hub_module, "_load", missing)
    with pytest.raises(UserError, match=r"openai/gsm8k \(main\).*" + message) as caught:
        load_task("gsm8k").read()
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"install 'distillspec\[hub\]', or give .*--data FILE"):
        load_task("gsm8k").read()


def test_the_standard_library_is_split_for_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [stdlib.Function(f"m:f{n}", f"def f{n}(): ...", "Do it.") for n in range(300)]
    monkeypatch.setattr(stdlib, "functions", lambda *, characters: iter(every))
    task = load_task("stdlib")
    held_out = {row.id for row in task.read()}
    training = {row.id for row in task.read_training()}
    assert 10 < len(held_out) < 60  # 30 are expected, with a standard deviation of 5
    assert not held_out & training
    assert held_out | training == {row.id for row in task.rows()}


def test_examples_come_from_training_rows_alone(tmp_path: Path) -> None:
    task = load_task("gsm8k")
    rows = task.read(numbered(tmp_path, 3))
    training = [Row("a", "Q: A\nA:", "{prompt} 1"), Row("b", "Q: B\nA:", "2")]
    shown = with_shots(task, rows, training, count=2, seed=0)
    before = shown[0].prompt.removesuffix(rows[0].prompt)
    assert before in (
        "Q: A\nA: {prompt} 1\n\nQ: B\nA: 2\n\n",
        "Q: B\nA: 2\n\nQ: A\nA: {prompt} 1\n\n",
    )
    assert all(row.prompt.startswith(before) for row in shown)
    assert with_shots(task, rows, training, count=0, seed=0) == rows
    spoiled = [Row("c", rows[1].prompt.upper() + " ", "2")]
    with pytest.raises(UserError, match="the example c is also evaluated, as r1"):
        with_shots(task, rows, spoiled, count=1, seed=0)
    with pytest.raises(UserError, match="c has no target"):
        with_shots(task, rows, [Row("c", "new")], count=1, seed=0)
    with pytest.raises(UserError, match="3 examples: expected 0 to 2"):
        with_shots(task, rows, training, count=3, seed=0)


def test_a_long_input_is_cut_and_the_template_kept(tmp_path: Path) -> None:
    data = write(
        tmp_path / "d.jsonl",
        [{"input": "word " * 5000 + "end", "target": "t"}, {"input": "short", "target": "t"}],
    )
    task = load_task("xsum")
    long, short = task.read(data)

    def tokens(text: str) -> int:
        return len(text.split())

    cut = shortened(task, long, tokens)
    assert tokens(cut.prompt) == task.max_input_tokens
    assert cut.prompt.endswith("word\n\nSummary:")
    assert cut.target == "t"
    assert shortened(task, short, tokens) == short
    with pytest.raises(UserError, match=r"d\.jsonl:1: no input fits into 1024 tokens"):
        shortened(task, long, lambda text: 2000)


def test_a_domain_is_a_prompt_source_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        hub_module, "_load", lambda *_, **__: iter([{"input": "a", "target": "(A)"}] * 3)
    )
    assert len(read_prompts("bbh:snarks", limit=2)) == 2
    with pytest.raises(UserError, match="no such file or task"):
        read_prompts("bhh:snarks")


def test_a_compressed_file_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"input": "a", "target": "#### 1"}\r\n\r\n'))
    assert len(load_task("gsm8k").read(path)) == 1


def test_the_example_of_the_documentation_is_a_task(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "tasks.md"
    path = tmp_path / "capitals.toml"
    path.write_text(page.read_text("utf-8").split("```toml\n")[1].split("```")[0])
    task = load_task(f"{path}:asia")
    assert task.chosen == ("Asia", "Middle East")
    assert task.hub is not None
    assert task.hub.columns.target == "city"
    for name in task_names():
        assert f"| `{name}` |" in page.read_text("utf-8")
