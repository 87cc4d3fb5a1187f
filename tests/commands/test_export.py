"""`export`: the folder loads without this package and says only what was measured."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from distillspec.commands import serve_lines
from distillspec.commands.card import card
from distillspec.commands.export import owner_of, tell
from distillspec.models import exporting, load, wrap
from distillspec.models.exporting import Exported
from distillspec.training import checkpoint
from support import module, word_tokenizer
from verbs import WORDS, refused, run, saved, write_rows


def exported(capsys, draft, target, out, *flags):
    code, found, err = run(
        capsys, "export", draft, "--target", target, "--out", out, "--gamma", 3, *flags
    )
    assert code == 0, err
    return found


def test_two_exports_side_by_side_leave_one_another_alone(tmp_path):
    """The second removed what the first had written so far, as a leftover of its own."""
    first, second = tmp_path / "a", tmp_path / "b"
    with checkpoint.whole(first, owner_of(first)) as partial:
        (partial / "weights").write_text("half")
        with checkpoint.whole(second, owner_of(second)):
            pass
        assert (partial / "weights").exists()
    stale = tmp_path / f"a.{owner_of(first)}.partial"
    first.rename(stale)  # as a kill leaves it
    with checkpoint.whole(first, owner_of(first)):
        pass
    assert not stale.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_trimmed_head_is_told_of(capsys, tmp_path):
    target = saved(tmp_path / "target")
    rows = [{"prompt": " ".join(WORDS), "target": "w6 w7"}]
    prompts = write_rows(tmp_path / "texts.jsonl", rows)
    trimmed, out = tmp_path / "trimmed", tmp_path / "whole"
    run(
        capsys, "new-draft", "--target", target, "--layers", "0", "--out", trimmed, "--keep-ids",
        12, "--prompts", prompts,
    )  # fmt: skip
    found = exported(capsys, trimmed, target, out)
    assert found["kept"] >= 12
    assert not found["tied"]
    # The probabilities of a tiny random head are nearly alike
    assert found["dropped_mass"] == pytest.approx(1 - found["kept"] / 48, abs=0.1)
    assert any("trimming left out" in one for one in found["warnings"]) == (
        found["dropped_mass"] > 0.02
    )
    assert not (out / "kept_ids.json").exists()
    assert "trimmed to" in (out / "README.md").read_text()


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(64, 48), (48, 64)])
def test_the_draft_gets_as_many_rows_as_the_target(capsys, tmp_path, target_rows, draft_rows):
    for name, rows in (("target", target_rows), ("draft", draft_rows)):
        wrap(module("llama", rows=rows), word_tokenizer(chat=True)).save(tmp_path / name)
    out = tmp_path / "out"
    found = exported(capsys, tmp_path / "draft", tmp_path / "target", out)
    assert (found["rows"], found["rows_before"]) == (target_rows, draft_rows)
    assert (found["tied"], found["dtype"]) == (True, "float32")
    config = json.loads((out / "config.json").read_text())
    assert config["vocab_size"] == target_rows
    assert config["use_cache"] is True
    assert config["tie_word_embeddings"] is True
    assert (out / "chat_template.jinja").exists()
    settings = json.loads((out / "generation_config.json").read_text())
    assert settings["num_assistant_tokens"] == 3
    assert settings["assistant_confidence_threshold"] == 0
    ids = [torch.tensor([6, 9, 12]), torch.tensor([7])]
    ours, theirs = load(str(tmp_path / "draft")), load(str(out))
    states = [
        model.open(ids).extend(torch.tensor([[12], [7]]), torch.tensor([1, 1]))
        for model in (ours, theirs)
    ]
    assert torch.equal(ours.head(states[0]), theirs.head(states[1]))
    logits = AutoModelForCausalLM.from_pretrained(out)(torch.tensor([[6, 9, 12]])).logits
    assert logits.shape[-1] == target_rows
    assert not logits[..., draft_rows:].any()  # rows that stand for nothing are 0


def edited(file, **changes):
    """Change a JSON file of a model's folder as another writer would have written it."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_cache_is_as_the_target_has_it_and_the_schedule_constant(capsys, tmp_path, use_cache):
    """A draft trained with checkpointed activations comes with its cache off, and one that
    assisted before with a schedule that changes γ."""
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft")
    edited(tmp_path / "target" / "config.json", use_cache=use_cache)
    edited(tmp_path / "draft" / "config.json", use_cache=not use_cache)
    settings = {"num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.4}
    edited(tmp_path / "draft" / "generation_config.json", **settings)
    exported(capsys, draft, target, tmp_path / "out")
    out = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert out.config.use_cache is out.generation_config.use_cache is use_cache
    assert out.generation_config.num_assistant_tokens_schedule == "constant"
    assert out.generation_config.assistant_confidence_threshold == 0


@pytest.mark.parametrize(
    "own",
    [
        {"temperature": 0.9, "top_p": 0.6},
        {"do_sample": True, "min_p": 0.2, "suppress_tokens": [7]},
        {"pad_token_id": -1, "early_stopping": True},
    ],
)
def test_of_a_drafts_generation_settings_its_ids_alone_are_written(capsys, tmp_path, own):
    """transformers refused to write the first and the last, changed as they were; the others it
    would have drafted by, where the target leaves them unset."""
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft")
    edited(tmp_path / "draft" / "generation_config.json", **own)
    exported(capsys, draft, target, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert set(own) & set(written) <= {"pad_token_id"}
    assert (written["eos_token_id"], written["num_assistant_tokens"]) == (1, 3)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config.top_p is None


def test_the_targets_chat_template_is_written_and_another_is_told_of(capsys, tmp_path):
    target, draft = saved(tmp_path / "target", chat=True), saved(tmp_path / "draft", chat=True)
    said = [
        one
        for one in exported(capsys, draft, target, tmp_path / "same")["warnings"]
        if "chat template" in one
    ]
    assert not said
    (tmp_path / "draft" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    found = exported(capsys, draft, target, tmp_path / "out")
    assert any("chat template was not the target's" in one for one in found["warnings"])
    written, own = (tmp_path / name / "chat_template.jinja" for name in ("out", "target"))
    assert written.read_text() == own.read_text()


@pytest.mark.parametrize(("target_context", "draft_context"), [(128, 64), (64, 128)])
def test_a_pair_is_served_up_to_its_shorter_context(
    capsys, tmp_path, target_context, draft_context
):
    for name, context in (("target", target_context), ("draft", draft_context)):
        wrap(module("llama", context=context), word_tokenizer()).save(tmp_path / name)
    found = exported(capsys, tmp_path / "draft", tmp_path / "target", tmp_path / "out")
    assert "--max-model-len 64 " in found["serve"]["vllm"]["commands"][0]
    told = [one for one in found["warnings"] if "positions for 64 tokens" in one]
    assert len(told) == (draft_context < target_context)


def test_what_cannot_be_loaded_as_it_was_is_not_written(capsys, tmp_path, monkeypatch):
    """Once with other weights, once with the same ones no longer tied."""
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft")
    load_again = exporting._loaded

    def noisy(made):
        made.model.norm.weight.data += 0.5

    def untied(made):
        made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.detach().clone())

    for damage in (noisy, untied):

        def loaded(folder, dtype, damage=damage):
            made = load_again(folder, dtype)
            if folder.name.startswith("out"):
                damage(made)
            return made

        monkeypatch.setattr(exporting, "_loaded", loaded)
        assert "gives other logits when it is loaded again" in refused(
            capsys, "export", draft, "--target", target, "--out", tmp_path / "out", "--gamma", 3
        )
        assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "target"]


def test_a_trimmed_head_that_loads_tied_is_refused(capsys, tmp_path, monkeypatch):
    """Its embedding has rows for ids that the head must leave out."""
    target = saved(tmp_path / "target")
    rows = [{"prompt": " ".join(WORDS), "target": "w6 w7"}]
    prompts = write_rows(tmp_path / "texts.jsonl", rows)
    run(
        capsys, "new-draft", "--target", target, "--layers", "0", "--out", tmp_path / "trimmed",
        "--keep-ids", 20, "--prompts", prompts,
    )  # fmt: skip
    load_again = exporting._loaded

    def tied(folder, dtype):
        made = load_again(folder, dtype)
        made.lm_head.weight = made.model.embed_tokens.weight
        return made

    monkeypatch.setattr(exporting, "_loaded", tied)
    assert "its head is trimmed and loads tied" in refused(
        capsys, "export", tmp_path / "trimmed", "--target", target, "--out", tmp_path / "out",
        "--gamma", 3,
    )  # fmt: skip


def test_a_target_with_fewer_rows_than_ids_is_refused(capsys, tmp_path):
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft")
    edited(tmp_path / "target" / "config.json", vocab_size=40)
    assert "has 40 rows for 48 ids" in refused(
        capsys, "export", draft, "--target", target, "--out", tmp_path / "out", "--gamma", 3
    )


def test_the_card_says_what_was_measured_and_what_was_not(capsys, tmp_path):
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft", noise=0.05)
    exported(capsys, draft, target, tmp_path / "bare")
    said = (tmp_path / "bare" / "README.md").read_text()
    assert "no measurement" in said
    assert "no training run" in said
    prompts = write_rows(tmp_path / "p.jsonl", [{"prompt": f"w6 w{i}"} for i in range(7, 11)])
    code, measured, _ = run(
        capsys, "measure", "--target", target, "--draft", draft, "--prompts", prompts, "--gamma",
        "1..2", "--max-new-tokens", 8, "--clock-prompts", 0, "--out", tmp_path / "run",
        "--cost", "target=20,draft=2,overhead=1",
    )  # fmt: skip
    assert code == 0
    code, found, _ = run(
        capsys, "export", draft, "--target", target, "--out", tmp_path / "out", "--measured",
        tmp_path / "run", "--engine", "vllm",
    )  # fmt: skip
    assert code == 0
    assert found["gamma"] == measured["best_gamma"]
    said = (tmp_path / "out" / "README.md").read_text()
    assert f"α {measured['alpha']['value']:.3f}" in said
    assert "τ counted" in said
    assert "not measured" in said
    assert "command: `" in said
    assert not [one for one in found["warnings"] if "rule" in one]
    _, found, _ = run(
        capsys, "export", draft, "--target", target, "--out", tmp_path / "other", "--measured",
        tmp_path / "run", "--rule", "argmax",
    )  # fmt: skip
    assert any("of the rule ratio, and the pair is to be" in one for one in found["warnings"])
    assert set(json.loads((tmp_path / "out" / "serve.json").read_text())) == {"vllm"}


def test_the_card_is_of_the_draft_that_is_exported(capsys, tmp_path):
    """The bug: of two drafts' measurement the first one's figures and γ were taken in silence."""
    target = saved(tmp_path / "target")
    drafts = [saved(tmp_path / f"{n}" / "draft", noise=0.05 * n) for n in (1, 8)]
    prompts = write_rows(tmp_path / "p.jsonl", [{"prompt": f"w6 w{i}"} for i in range(7, 11)])
    cost = ("--cost", "target=20,draft=2,overhead=1")
    _, measured, _ = run(
        capsys, "measure", "--target", target, "--draft", ",".join(map(str, drafts)), "--prompts",
        prompts, "--gamma", "1..2", "--max-new-tokens", 8, *cost, "--out", tmp_path / "both",
    )  # fmt: skip
    alphas = [one["alpha"]["value"] for one in measured["drafts"]]
    assert abs(alphas[0] - alphas[1]) > 0.01
    for number, draft in enumerate(drafts):
        out = tmp_path / f"out{number}"
        _, found, _ = run(
            capsys, "export", draft, "--target", target, "--out", out, "--measured",
            tmp_path / "both",
        )  # fmt: skip
        assert not found["warnings"]
        assert f"α {alphas[number]:.3f}" in (out / "README.md").read_text()
    third = saved(tmp_path / "third")
    said = refused(
        capsys, "export", third, "--target", target, "--out", tmp_path / "out", "--measured",
        tmp_path / "both",
    )  # fmt: skip
    assert f"{third} is none of them" in said
    run(
        capsys, "measure", "--target", target, "--draft", drafts[0], "--prompts", prompts,
        "--gamma", "1..2", "--max-new-tokens", 8, *cost, "--out", tmp_path / "one",
    )  # fmt: skip
    _, found, _ = run(
        capsys, "export", third, "--target", target, "--out", tmp_path / "out", "--measured",
        tmp_path / "one",
    )  # fmt: skip
    (warning,) = found["warnings"]
    assert f"--measured is of the draft {drafts[0]}, and {third} is exported" in warning


def lines_of(target="T", *, rule="ratio", dtype="float32", target_dtype=None):
    """Return the launch lines of a pair, whose target need not be there."""
    pair = serve_lines.Pair(
        target=target, draft="drafts/kd", gamma=2, rule=rule, context=512, dtype=dtype,
        target_dtype=target_dtype, target_layers=30, encoder_decoder=False,
    )  # fmt: skip
    return serve_lines.serve_lines(pair)


@pytest.mark.parametrize(
    ("target_dtype", "dtype", "gguf", "openvino"),
    [
        ("bfloat16", "float32", ("bf16", "f32"), ("fp32", "fp32")),
        ("float32", "bfloat16", ("f32", "bf16"), ("fp32", "fp32")),
        ("float16", "float32", ("f16", "f32"), ("fp16", "fp32")),
        (None, "float16", ("f16", "f16"), ("fp16", "fp16")),
        ("float64", "float16", ("f32", "f16"), ("fp32", "fp16")),
        ("float32", "float64", ("f32", "f32"), ("fp32", "fp32")),
    ],
)
def test_each_model_is_converted_in_its_own_type(target_dtype, dtype, gguf, openvino):
    """The target was given the draft's, and the pair was another than the one that was measured.
    OpenVINO has no bfloat16, and float32 holds it; nothing holds a float64, which ended in a
    KeyError."""
    lines = lines_of(dtype=dtype, target_dtype=target_dtype)
    for name, flag, types in (
        ("llama.cpp", "--outtype", gguf),
        ("openvino", "--weight-format", openvino),
    ):
        commands = lines[name]["commands"]
        for line, model, one in zip(commands, ("T", "drafts/kd"), types, strict=False):
            assert f" {model} " in line
            assert f"{flag} {one} " in line
        told = [note for note in lines[name]["notes"] if "float64" in note]
        assert len(told) == ("float64" in (target_dtype, dtype))


def test_the_folder_of_a_gguf_file_is_converted_as_float32():
    """`new-draft` writes it so, whatever the draft's type."""
    lines = lines_of("models/T.gguf", dtype="float16")
    assert "--weight-format fp32 --model target " in lines["openvino"]["commands"][1]


@pytest.mark.parametrize("engine", ["transformers", "vllm", "sglang", "openvino"])
def test_a_target_in_a_gguf_file_becomes_a_folder_for_engines_that_take_folders(engine):
    lines = lines_of("models/T.gguf")
    unpack = "distillspec new-draft --target models/T.gguf --layers 0..29 --out target"
    one = lines[engine]
    told = one["notes"] if engine == "transformers" else one["commands"]
    assert unpack in told[0]
    others = [line for line in one["commands"] if line != unpack]
    name = "--served-model-name models/T.gguf"
    assert not any("T.gguf" in line.replace(name, "") for line in others)
    own = lines["llama.cpp"]["commands"]
    assert len(own) == 2  # the draft is converted, the target as it is
    assert "llama-server -m models/T.gguf --alias models/T.gguf -md draft.gguf" in own[1]


@pytest.mark.parametrize(
    ("engine", "target", "flag"),
    [
        ("llama.cpp", "models/T.gguf", "--alias"),
        ("llama.cpp", "models/T", "--alias"),
        ("vllm", "models/T.gguf", "--served-model-name"),
        ("sglang", "models/T.gguf", "--served-model-name"),
    ],
)
def test_a_server_has_the_name_that_check_export_asks_for(engine, target, flag):
    """It had that of the file or folder it was made of, and was refused as another model."""
    words = shlex.split(lines_of(target)[engine]["commands"][-1])
    assert words[words.index(flag) + 1] == target


@pytest.mark.parametrize("rule", ["ratio", "argmax", "exact-match"])
def test_llama_cpp_is_told_how_to_draft_only_where_it_is_not_its_default(rule):
    """Builds before b11368 do not know the flag, refuse to start with it, and draft greedily."""
    llama = lines_of("T", rule=rule)["llama.cpp"]
    told = "--spec-draft-sampling probabilistic" in llama["commands"][-1]
    noted = any("b11368" in note for note in llama["notes"])
    assert told == noted == (rule == "ratio")
    assert ("--spec-draft-sampling" in llama["commands"][-1]) == told


def test_llama_cpps_converter_reads_a_target_on_the_hub_there(tmp_path):
    """It was given the name as a folder, which it is not."""
    for target, there in (("owner/T", True), (str(tmp_path), False), ("T.gguf", False)):
        llama = lines_of(target)["llama.cpp"]
        assert ("--remote" in llama["commands"][0]) == there
        assert any("--remote" in note for note in llama["notes"]) == there
        assert "--remote" not in llama["commands"][-2]  # the draft is a folder


def test_the_cards_command_can_be_run_again():
    """Words with blanks stood unquoted."""
    interval = {"value": 0.5, "low": 0.4, "high": 0.6}
    measured = {
        "alpha": interval, "rule": "ratio", "temperature": 1.0, "prompts": 4, "tokens": 40,
        "gammas": [], "best_gamma": 2, "command": ["distillspec", "measure", "my file.jsonl"],
    }  # fmt: skip
    written = Exported(
        rows=8, rows_before=8, kept=None, dtype="float32", dropped_mass=None, tied=True,
        parameters=10,
    )  # fmt: skip
    text = card("target", "draft", 2, written, measured, None)
    assert "command: `distillspec measure 'my file.jsonl'`" in text
    assert "τ at γ = 2: not measured" in text


def test_the_lines_for_transformers_run_as_they_stand(capsys, tmp_path):
    """They took `inputs` that nothing had made."""
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft", noise=0.05)
    found = exported(capsys, draft, target, tmp_path / "out", "--engine", "transformers")
    names = {}
    exec(found["serve"]["transformers"]["commands"][0], names)
    assert names["out"].shape[1] > names["ids"].shape[1]
    assert tell(found).splitlines()[-1].startswith(f"{tmp_path / 'out'}/serve.md has these lines")


@pytest.mark.parametrize(
    "own",
    [{"num_beams": 3}, {"min_p": 0.9, "do_sample": True}, {"suppress_tokens": list(range(6, 40))}],
)
def test_the_lines_for_transformers_leave_the_targets_own_settings_out(capsys, tmp_path, own):
    """They were those of the target's generation_config.json where the lines set none: of a
    summariser, beams, and no draft."""
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft", noise=0.05)
    found = exported(capsys, draft, target, tmp_path / "out", "--engine", "transformers")
    (code,) = found["serve"]["transformers"]["commands"]

    def written():
        names = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            exec(code, names)
        return names["out"].tolist()

    plain = written()
    edited(tmp_path / "target" / "generation_config.json", **own)
    assert written() == plain


def test_the_launch_lines_have_the_pair_the_rule_and_gamma(capsys, tmp_path):
    target, draft = saved(tmp_path / "a target"), saved(tmp_path / "draft", noise=0.05)
    found = exported(capsys, draft, target, tmp_path / "out", "--rule", "argmax")
    serve = found["serve"]
    assert set(serve) == {"transformers", "vllm", "sglang", "llama.cpp", "openvino"}
    (line,) = serve["transformers"]["commands"]
    for neutral in ("temperature=1.0", "top_k=0", "top_p=1.0", "repetition_penalty=1.0"):
        assert neutral in line  # a target's generation_config.json may have another
    (line,) = serve["vllm"]["commands"]
    assert f"vllm serve '{target}'" in line
    config = json.loads(line.split("--speculative-config ")[1].strip("'"))
    assert config == serve["vllm"]["config"]
    assert config["method"] == "draft_model"
    assert config["num_speculative_tokens"] == 3
    assert config["draft_sample_method"] == "greedy"
    assert "--speculative-num-draft-tokens 4" in serve["sglang"]["commands"][0]
    llama = serve["llama.cpp"]["commands"][-1]
    # Without the type the draft is loaded and never asked
    assert "--spec-type draft-simple --spec-draft-n-max 3" in llama
    assert serve["llama.cpp"]["rule"] == "argmax"
    assert serve["openvino"]["rule"] == "greedy"
    page = (tmp_path / "out" / "serve.md").read_text()
    assert "a relative path holds where that ran" in page
    assert all(f"## {name}" in page for name in serve)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_float32_pair_is_served_in_float32(capsys, tmp_path, dtype):
    """vLLM and SGLang run float32 weights in 16 bits where they are not told otherwise."""
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft", noise=0.05)
    load(target, dtype=getattr(torch, dtype)).save(target)
    serve = exported(capsys, draft, target, tmp_path / "out")["serve"]
    for engine in ("vllm", "sglang"):
        told = [serve[engine]["commands"][0], *serve[engine]["notes"]]
        assert [("--dtype float32" in one) for one in told[:2]] == [dtype == "float32"] * 2, engine


def test_an_encoder_decoder_pair_is_launched_as_one(capsys, tmp_path):
    """Other engines serve no such pair, and a draft of the other kind drafts for nobody."""
    target, draft = saved(tmp_path / "target", "t5"), saved(tmp_path / "draft", "t5", noise=0.05)
    found = exported(capsys, draft, target, tmp_path / "out")
    assert set(found["serve"]) == {"transformers"}
    (code,) = found["serve"]["transformers"]["commands"]
    assert code.count("AutoModelForSeq2SeqLM") == 3
    assert "CausalLM" not in code
    other = ("--out", tmp_path / "new", "--gamma", 3)
    message = refused(capsys, "export", draft, "--target", target, *other, "--engine", "vllm")
    assert "encoder-decoder" in message
    causal = saved(tmp_path / "causal")
    assert "both must be of the same kind" in refused(
        capsys, "export", draft, "--target", causal, *other
    )
    assert not (tmp_path / "new").exists()


def test_users_errors_leave_nothing_behind(capsys, tmp_path):
    target, draft = saved(tmp_path / "target"), saved(tmp_path / "draft", noise=0.05)
    full = tmp_path / "full"
    full.mkdir()
    assert exported(capsys, draft, target, full)["out"] == str(full)  # an empty one makes way
    shutil.rmtree(full)
    full.mkdir()
    (full / "mine").write_text("x")
    common = ("export", draft, "--target", target)
    assert "not an empty folder" in refused(capsys, *common, "--out", full, "--gamma", 3)
    assert [path.name for path in full.iterdir()] == ["mine"]
    out = tmp_path / "out"
    assert "--gamma is missing" in refused(capsys, *common, "--out", out)
    assert "--gamma 0" in refused(capsys, *common, "--out", out, "--gamma", 0)
    assert "vllm" in refused(capsys, *common, "--out", out, "--gamma", 3, "--engine", "vlm")
    stray = tmp_path / "stray.json"
    stray.write_text('{"alpha": 1}')
    assert "no measurement" in refused(
        capsys, *common, "--out", out, "--gamma", 3, "--measured", stray
    )
    wrap(module("llama", rows=60), word_tokenizer(60)).save(tmp_path / "other")
    assert "do not share a tokenizer" in refused(
        capsys, "export", tmp_path / "other", "--target", target, "--out", out, "--gamma", 3
    )
    assert not out.exists()
    assert not list(tmp_path.glob("*.partial"))
