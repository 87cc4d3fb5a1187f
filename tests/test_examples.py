"""Every example runs as it is, on tiny models, and on two folders; and each fits a screen.

Those of engines/ run in an engine's environment: here beside a stand-in for its package.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from distillspec.models import load
from distillspec.tasks import EngineCounts, read_prompts
from verbs import saved, write_rows

FOLDER = Path(__file__).parent.parent / "examples"
FAMILIES = {"t5": "t5", "decoder_only": "llama"}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("by_path", [False, True], ids=["tiny", "folders"])
def test_an_example_runs_and_leaves_a_draft(capsys, tmp_path, monkeypatch, name, by_path):
    family = FAMILIES[name]
    pair = [saved(tmp_path / "target", family), saved(tmp_path / "draft", family, noise=0.3)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *(pair if by_path else [])])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    losses = [float(re.search(r"loss (\d+\.\d+)", line)[1]) for line in lines]
    assert len(losses) == 10
    assert min(losses) > 0
    (draft,) = (tmp_path / "runs").iterdir()
    before = load(pair[1]).module.state_dict() if by_path else None
    after = load(draft).module.state_dict()
    assert before is None or any(not torch.equal(before[key], after[key]) for key in before)


def test_every_example_is_tested_and_fits_a_screen():
    files = sorted(FOLDER.glob("*.py"))
    assert {file.stem for file in files} == set(FAMILIES)
    for file in files:
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 20, file.name


def engine_example(monkeypatch, name, module, *argv):
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "argv", [name, *map(str, argv)])
    runpy.run_path(str(FOLDER / "engines" / name), run_name="__main__")


class Attributes:
    """Whatever is set on it, and objects like it where something is set on what it lacks."""

    def __getattr__(self, name):
        setattr(self, name, Attributes())
        return getattr(self, name)


def openvino_genai(asked, told):
    """Stand in for the package: 5 tokens in 3 runs, the first of which reads the prompt.

    What is to be tokenized is told.
    """

    def encode(text, add_special_tokens):
        told.append(text)
        ids = torch.tensor([[7, 8, 9]]).numpy()
        return SimpleNamespace(input_ids=SimpleNamespace(data=ids))

    class Pipeline:
        def __init__(self, *folders, **settings):
            asked.append((folders, settings))

        def get_generation_config(self):
            return Attributes()

        def get_tokenizer(self):
            return SimpleNamespace(
                apply_chat_template=lambda messages, add_generation_prompt: str(messages),
                encode=encode,
            )

        def generate(self, inputs, config):
            asked.append(config)
            runs = SimpleNamespace(raw_metrics=SimpleNamespace(m_durations=[1.0, 1.0, 1.0]))
            told = SimpleNamespace(
                main_model_metrics=runs,
                get_num_draft_tokens=lambda: 6,
                get_num_accepted_tokens=lambda: 2,
            )
            reason = SimpleNamespace(name="LENGTH")
            return SimpleNamespace(
                tokens=[[1, 2, 3, 4, 5]], finish_reasons=[reason], extended_perf_metrics=told
            )

    module = ModuleType("openvino_genai")
    module.LLMPipeline = Pipeline
    module.SchedulerConfig = Attributes
    module.GenerationConfig = Attributes
    module.draft_model = lambda folder, device, **settings: folder
    return module


@pytest.mark.parametrize("drafts", [True, False])
def test_what_openvino_did_is_written_as_check_export_reads_it(monkeypatch, tmp_path, drafts):
    prompts = write_rows(
        tmp_path / "prompts.jsonl", [{"id": str(i), "prompt": f"w{i}"} for i in (6, 7)]
    )
    out, asked = tmp_path / "out.jsonl", []
    flags = ("--draft", "draft-ov", "--gamma", 3) if drafts else ()
    engine_example(
        monkeypatch, "openvino_outputs.py", openvino_genai(asked, []), "target-ov", prompts,
        "--out", out, "--max-new-tokens", 5, *flags,
    )  # fmt: skip
    rows = read_prompts(str(out))
    assert [(row.id, row.prompt, row.prompt_ids) for row in rows] == [
        ("6", "w6", (7, 8, 9)),
        ("7", "w7", (7, 8, 9)),
    ]
    assert rows[0].target_ids == (1, 2, 3, 4, 5)
    assert rows[0].finish_reason == "length"
    seconds = rows[0].counts.seconds
    assert rows[0].counts == (
        EngineCounts(2, 6, 2, seconds, 1) if drafts else EngineCounts(4, 0, 0, seconds, 1)
    )
    assert asked[1].max_new_tokens == 5
    assert ("draft_model" in asked[0][1]) == drafts
    assert asked[1].do_sample is False  # its sampled text with a draft is not the target's
    assert not drafts or asked[1].num_assistant_tokens == 3


def test_openvino_is_asked_the_prompts_that_the_verbs_read(monkeypatch, tmp_path):
    """Lines without an id, or with messages, as the tutorial has them, ended it; and an id that
    somebody made up is none that check-export looks for."""
    user = {"role": "user", "content": "w6 w7"}
    lines = [
        {"prompt": "w6"},
        {"input": "w7"},
        {"messages": [user], "domain": "a"},
        {"messages": [user, {"role": "assistant", "content": "w8"}]},
        {"id": "own", "prompt": "w9\u2028"},
    ]
    prompts = tmp_path / "held_out.jsonl"
    text = "\n" + "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    prompts.write_text(text, encoding="utf-8")
    out = tmp_path / "out.jsonl"
    flags = ("target-ov", prompts, "--out", out)
    engine_example(monkeypatch, "openvino_outputs.py", openvino_genai([], told := []), *flags)
    wanted, found = read_prompts(str(prompts)), read_prompts(str(out))
    assert [(row.id, row.prompt) for row in found] == [(row.id, row.prompt) for row in wanted]
    assert wanted[0].id == "held_out.jsonl:2"
    assert told[-3:-1] == [str([user])] * 2


def test_llama_cpps_server_is_told_to_ask_the_draft(monkeypatch):
    """A draft that is loaded without its type of speculation is never asked."""
    served = []

    class Server:
        listening_address = "http://127.0.0.1:8080"

        def __init__(self, params):
            served.append(params)

    module = ModuleType("xllamacpp")
    module.CommonParams, module.Server = Attributes, Server
    simple = module.common_speculative_type = Attributes()
    monkeypatch.setattr("threading.Event", lambda: SimpleNamespace(wait=lambda: None))
    flags = ("t.gguf", "--name", "T", "--draft", "d.gguf", "--gamma", 3)
    engine_example(monkeypatch, "llama_cpp_server.py", module, *flags)
    (params,) = served
    draft = params.speculative.draft
    assert (params.model.path, draft.mparams.path, draft.n_max) == ("t.gguf", "d.gguf", 3)
    assert params.speculative.types == [simple.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    assert params.endpoint_metrics is True
    assert params.model_alias == {"T"}
    assert draft.probabilistic is True  # as the line of `export`, and as `check-export` takes it


def test_every_engine_example_is_tested_and_fits_a_screen_or_two():
    files = sorted((FOLDER / "engines").glob("*.py"))
    assert [file.stem for file in files] == ["llama_cpp_server", "openvino_outputs"]
    for file in files:
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 80, file.name
