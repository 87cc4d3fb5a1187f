"""`check-export`: transformers here, small servers that count as vLLM and llama.cpp do, files."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from distillspec.commands import check_export, engines
from distillspec.commands.check_export import tell
from distillspec.commands.served import Server
from distillspec.decoding import complete
from distillspec.errors import UserError
from distillspec.math.rules import MATCHED
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models import load, wrap
from distillspec.tasks import read_prompts
from fake_server import FakeServer, Handler
from support import module, word_tokenizer
from verbs import WORDS, refused, run, saved, write_rows


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return saved(folder / "target"), saved(folder / "raw", noise=0.05)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    rows = [{"id": str(i), "prompt": " ".join(WORDS[i : i + 4])} for i in range(6)]
    return write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", rows)


@pytest.fixture
def draft(capsys, tmp_path, pair):
    out = tmp_path / "draft"
    code, _, _ = run(capsys, "export", pair[1], "--target", pair[0], "--out", out, "--gamma", 2)
    assert code == 0
    return out


class Speculating(FakeServer):
    """Decodes with a draft, and counts as vLLM: the first token comes from reading the prompt."""

    prefix = "vllm"

    def __init__(self, model, draft, *, gamma, rule="ratio", faulty=False):
        super().__init__(model)
        self.draft, self.gamma, self.rule, self.faulty = draft, gamma, rule, faulty
        self.counts = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
        self.RequestHandlerClass = Counting

    def complete(self, body):
        sampling = Sampling(
            body["temperature"], None if body["top_k"] < 1 else body["top_k"], body["top_p"]
        )
        generator = torch.Generator().manual_seed(body["seed"])
        prompt = torch.tensor(body["prompt"])
        (first,) = complete(
            self.model, None, [prompt], gamma=0, max_new_tokens=1, sampling=sampling,
            generators=[generator],
        )  # fmt: skip
        ids, reason = list(first.ids), first.finish_reason
        if reason == "length" and body["max_tokens"] > 1:
            (rest,) = complete(
                self.model,
                self.draft,
                [torch.cat([prompt, torch.tensor(first.ids)])],
                gamma=self.gamma,
                max_new_tokens=body["max_tokens"] - 1,
                sampling=Sampling(0.3) if self.faulty else sampling,
                draft_sampling=GREEDY if self.rule == "argmax" else self.draft_sampling(sampling),
                generators=[generator],
                **({"proposal": MATCHED} if self.rule == "exact-match" else {}),
            )
            ids, reason = ids + list(rest.ids), rest.finish_reason
            self.counts["drafts"] += rest.counts.target_calls if self.draft else 0
            self.counts["draft_tokens"] += rest.counts.drafted
            self.counts["accepted_tokens"] += rest.counts.accepted
        text = self.tokenizer.decode(ids)
        choice = {"index": 0, "text": text, "finish_reason": reason, "token_ids": ids}
        return {"object": "text_completion", "model": body["model"], "choices": [choice]}

    def draft_sampling(self, sampling):
        return Sampling(sampling.temperature)


class Counting(Handler):
    def do_GET(self):
        if self.path != "/metrics":
            return super().do_GET()
        lines = ["# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts."]
        for name, count in self.server.counts.items():
            full = f"{self.server.prefix}:spec_decode_num_{name}"
            lines.append(f'{full}_total{{engine="0",model_name="served"}} {float(count)}')
            lines.append(f'{full}_created{{engine="0",model_name="served"}} 1.7e+09')
            lines.append(f'{full}_per_pos_total{{engine="0",position="0"}} 9.0')
        content = "\n".join(lines).encode()
        self.start(200, len(content))
        self.wfile.write(content)
        return None


class LlamaCpp(Speculating):
    """Speaks llama.cpp's own protocol; its sampling draft keeps ten tokens, and the last pass of
    an answer that the length limit cuts may judge nothing and is not counted."""

    prefix = "llamacpp"

    def __init__(self, *models, **settings):
        super().__init__(*models, **settings)
        self.RequestHandlerClass = LlamaCppHandler
        self.stop_type = None
        self.context = 128

    def draft_sampling(self, sampling):
        return Sampling(sampling.temperature, 10)

    def completion(self, body):
        self.asked.append(body)
        before = dict(self.counts)
        (choice,) = self.complete(
            {**body, "top_k": body["top_k"] or -1, "max_tokens": body["n_predict"], "model": ""}
        )["choices"]
        ids, gone = choice["token_ids"], self.counts["drafts"] - before["drafts"]
        # As if one token had been left, so that there was nothing to judge
        accepted = self.counts["accepted_tokens"] - before["accepted_tokens"]
        if len(ids) == body["n_predict"] and gone and accepted + gone == len(ids) - 1:
            self.counts["drafts"] -= 1
        why = {"stop": "eos", "length": "limit"}[choice["finish_reason"]]
        return {
            "content": choice["text"],
            "tokens": ids,
            "stop_type": self.stop_type or why,
            "truncated": False,
        }


class LlamaCppHandler(Counting):
    def do_GET(self):
        if self.path == "/v1/models":
            return self.give(
                200, {"data": [{"id": "served", "meta": {"n_ctx": self.server.context}}]}
            )
        return super().do_GET()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/completion":
            return self.give(200, self.server.completion(body))
        if self.path == "/apply-template":
            return self.give(200, {"prompt": body["messages"][0]["content"]})
        assert self.path == "/tokenize"
        return self.give(200, {"tokens": self.server.tokenizer.prompt(body["content"]).tolist()})


@contextmanager
def running(server):
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def checked(capsys, pair, draft, prompts, *flags, tokens=24):
    code, found, err = run(
        capsys, "check-export", draft, "--target", pair[0], "--prompts", prompts, "--gamma", 2,
        "--max-new-tokens", tokens, *flags,
    )  # fmt: skip
    assert code in (0, 3), err
    return code, found


def served(capsys, pair, draft, prompts, *flags, kind=Speculating, tokens=24, **settings):
    server = kind(load(pair[0]), load(str(draft)), **{"gamma": 2, **settings})
    with running(server):
        return checked(
            capsys, pair, draft, prompts, "--engine", "vllm" if kind is Speculating else
            "llama.cpp", "--url", server.url, "--model", "served", *flags, tokens=tokens,
        )  # fmt: skip


def refused_by_llama_cpp(capsys, pair, draft, prompts, server):
    return refused(
        capsys, "check-export", draft, "--target", pair[0], "--prompts", prompts, "--gamma", 2,
        "--max-new-tokens", 24, "--engine", "llama.cpp", "--url", server.url, "--model", "served",
    )  # fmt: skip


def outputs_of(file, pair, prompts, *, draft=None, gamma=2, draft_sampling=None, change=None):
    """Write what our own engine does as a file of an engine that runs elsewhere.

    The seeds are fixed, because one in twenty sets of outputs fails the audit by chance.
    """
    target = load(pair[0])
    rows = read_prompts(prompts)
    ids = [target.tokenizer.prompt(row.prompt) for row in rows]
    answers = complete(
        target, None if draft is None else load(str(draft)), ids, gamma=gamma if draft else 0,
        max_new_tokens=24, sampling=Sampling(), draft_sampling=draft_sampling,
        generators=[torch.Generator().manual_seed(100 + i) for i in range(len(ids))],
    )  # fmt: skip
    lines = []
    for row, prompt, one in zip(rows, ids, answers, strict=True):
        counts = {
            "calls": one.counts.target_calls, "drafted": one.counts.drafted,
            "accepted": one.counts.accepted, "seconds": 0.5, "alone": 0,
        }  # fmt: skip
        line = {
            "id": row.id, "prompt": row.text, "prompt_ids": prompt.tolist(),
            "target_ids": list(one.ids), "finish_reason": one.finish_reason, "counts": counts,
        }  # fmt: skip
        lines.append(change(line) if change and not lines else line)
    return write_rows(file, lines)


@pytest.mark.parametrize("temperature", [0, 1])
def test_transformers_does_what_is_promised(capsys, pair, draft, prompts, temperature):
    code, found = checked(capsys, pair, draft, prompts, "--temperature", temperature)
    assert code == 0, found["unmet"]
    assert found["rules"][0]["fits"]
    assert found["tau_served"]["value"] > 1.1
    assert found["drafted_per_call"] > 1.5
    assert found["speedup"]["value"] > 0
    assert not found["audit_plain"]["rejected"]
    assert found["same_greedy"] == (6 if temperature == 0 else None)
    if temperature == 0:
        assert found["tau_served"] == found["rules"][0]["tau_expected"]


def test_one_prompt_is_held_against_the_rule_alone(capsys, pair, draft, prompts):
    code, found = checked(capsys, pair, draft, prompts, "--limit", 1)
    assert (code, found["overlaps"], found["unmet"]) == (0, None, [])
    assert "one answer gives no interval" in found["verdict"]


def test_a_server_that_is_exact_passes(capsys, pair, draft, prompts):
    code, found = served(capsys, pair, draft, prompts)
    assert code == 0, found["unmet"]
    assert found["rules"][0]["fits"]
    assert found["drafted_per_call"] > 1.8


def test_a_server_that_cuts_the_target_alone_is_exact_too(capsys, pair, draft, prompts):
    """vLLM's draft takes the temperature alone: by the target's top-k it was found at fault."""
    flags = ("--temperature", 1.5, "--top-k", 2, "--top-p", 0.9, "--seed", 2)
    code, found = served(capsys, pair, draft, prompts, *flags)
    assert code == 0, found["unmet"]
    assert found["fits"]


def test_drafting_no_further_than_the_length_limit_is_no_fault(capsys, pair, draft, prompts):
    """Of answers of five tokens llama.cpp drafts 1.4 a block, and γ was named as a cause."""
    _, found = served(capsys, pair, draft, prompts, "--temperature", 0, kind=LlamaCpp, tokens=5)
    assert found["drafted_per_call"] < 1.6
    assert not found["causes"]


@pytest.mark.parametrize("kind", [Speculating, LlamaCpp])
def test_a_server_without_the_draft_gives_the_speed_up(capsys, pair, draft, prompts, kind):
    alone = kind(load(pair[0]), None, gamma=0)
    with running(alone):
        flags = ("--url-plain", alone.url, "--seed", 1)
        code, found = served(capsys, pair, draft, prompts, *flags, kind=kind)
    assert code == 0, found["unmet"]
    assert found["speedup"]["value"] > 0
    assert not found["audit_plain"]["rejected"]


def test_a_server_with_another_rule_is_told_by_its_counts(capsys, pair, draft, prompts):
    code, found = served(capsys, pair, draft, prompts, rule="argmax")
    assert code == 3
    assert not found["fits"]
    said = [cause for cause in found["causes"] if cause.startswith("rule")]
    assert said
    assert said[0].startswith("rule: the engine's counts are those of argmax")
    code, found = served(capsys, pair, draft, prompts, "--rule", "argmax", rule="argmax")
    assert code == 0, found["unmet"]


def test_a_server_that_drafts_otherwise_or_samples_otherwise_is_caught(
    capsys, pair, draft, prompts
):
    code, found = served(capsys, pair, draft, prompts, gamma=5)
    assert code == 3
    assert any(cause.startswith("γ: the engine drafts 4.") for cause in found["causes"])
    alone = Speculating(load(pair[0]), None, gamma=0)
    with running(alone):
        plain = ("--url-plain", alone.url, "--seed", 1)
        code, found = served(capsys, pair, draft, prompts, *plain, faulty=True)
    assert code == 3
    assert found["audit"]["rejected"]
    assert any(cause.startswith("output law") for cause in found["causes"])
    assert any("drawn at temperature 0." in cause for cause in found["causes"])
    verifies = "output law: without the draft the engine passes: it verifies wrongly"
    assert verifies in found["causes"]
    # Each cause once, and what to do about it
    (point, *_) = found["audit"]["points_to"]
    assert found["verdict"].count(point) == 1
    assert "is to be served without a draft, or at temperature 0" in found["verdict"]


@pytest.mark.parametrize("rule", ["argmax", "ratio"])
def test_llama_cpp_is_asked_in_its_own_protocol(capsys, pair, draft, prompts, rule):
    """Its draft samples from ten tokens alone where it samples: another forecast than vLLM's."""
    code, found = served(capsys, pair, draft, prompts, "--rule", rule, kind=LlamaCpp, rule=rule)
    assert code == 0, found["unmet"]
    assert found["fits"]
    assert found["engine"] == "llama.cpp"
    assert not found["causes"]
    code, found = served(capsys, pair, draft, prompts, "--temperature", 0, kind=LlamaCpp)
    assert code == 0, found["unmet"]
    assert found["tau_served"] == found["rules"][0]["tau_expected"]


def test_a_server_that_never_asks_its_draft_is_told(capsys, pair, draft, prompts):
    """llama.cpp without --spec-type loads the draft and counts on, at 0."""
    server = LlamaCpp(load(pair[0]), None, gamma=0)
    with running(server):
        said = refused_by_llama_cpp(capsys, pair, draft, prompts, server)
    assert "drafts nothing: start it with the draft" in said


class Shared(Speculating):
    """Somebody else asks it at the same time."""

    def complete(self, body):
        for name, count in (("drafts", 9), ("draft_tokens", 18), ("accepted_tokens", 9)):
            self.counts[name] += count
        return super().complete(body)


def test_a_server_that_somebody_else_asks_is_refused(capsys, pair, draft, prompts):
    """The engine was blamed for what it counted of another's answers."""
    server = Shared(load(pair[0]), load(str(draft)), gamma=2)
    with running(server):
        said = refused(
            capsys, "check-export", draft, "--target", pair[0], "--prompts", prompts, "--gamma", 2,
            "--max-new-tokens", 24, "--engine", "vllm", "--url", server.url, "--model", "served",
        )  # fmt: skip
    assert "somebody else asks it too" in said


def test_llama_cpps_context_is_known(capsys, pair, draft, prompts):
    server = LlamaCpp(load(pair[0]), load(str(draft)), gamma=2)
    server.context = 20
    with running(server):
        said = refused_by_llama_cpp(capsys, pair, draft, prompts, server)
    assert "served as served has 20 tokens of context" in said


def test_what_an_engine_left_in_a_file_is_held_against_the_promise(
    capsys, tmp_path, pair, draft, prompts
):
    file = outputs_of(tmp_path / "with.jsonl", pair, prompts, draft=draft)
    plain = outputs_of(tmp_path / "plain.jsonl", pair, prompts)
    flags = ("--engine", "outputs", "--outputs", file)
    code, found = checked(capsys, pair, draft, prompts, *flags, "--outputs-plain", plain)
    assert code == 0, found["unmet"]
    assert found["fits"]
    assert found["speedup"]["value"] > 0
    assert not found["audit_plain"]["rejected"], found["audit_plain"]["verdict"]
    code, found = checked(capsys, pair, draft, prompts, *flags)
    assert code == 0, found["unmet"]
    assert found["speedup"] is None
    assert found["audit_plain"] is None
    argmax = outputs_of(tmp_path / "a.jsonl", pair, prompts, draft=draft, draft_sampling=GREEDY)
    code, found = checked(capsys, pair, draft, prompts, *flags[:2], "--outputs", argmax)
    assert code == 3
    assert any("the engine's counts are those of argmax" in cause for cause in found["causes"])


def test_a_file_with_other_prompt_ids_points_to_the_template(
    capsys, tmp_path, pair, draft, prompts
):
    def other(line):
        return {**line, "prompt_ids": line["prompt_ids"][1:]}

    file = outputs_of(tmp_path / "with.jsonl", pair, prompts, draft=draft, change=other)
    plain = outputs_of(tmp_path / "plain.jsonl", pair, prompts)
    flags = ("--engine", "outputs", "--outputs", file)
    _, found = checked(capsys, pair, draft, prompts, *flags)
    assert any(cause.startswith("chat template") for cause in found["causes"])
    common = ("check-export", draft, "--target", pair[0], "--prompts", prompts, "--gamma", 2)
    said = refused(capsys, *common, *flags, "--outputs-plain", plain)
    assert "other prompt_ids" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "another"}, "no line has the id '0'"),
        ({"counts": None}, "0 needs target_ids and counts"),
        ({"prompt": "w9 w9"}, "answers another prompt"),
        ({"target_ids": [7, 10_000]}, "has the id 10000"),
        ({"target_ids": [7] * 200}, "128 tokens of context"),
        (
            {"counts": {"calls": 0, "drafted": 0, "accepted": 0, "seconds": 1, "alone": 0}},
            "counts no calls",
        ),
    ],
)
def test_a_file_that_lacks_something_is_refused(
    capsys, tmp_path, pair, draft, prompts, change, said
):
    def changed(line):
        return {**line, **change}

    file = outputs_of(tmp_path / "with.jsonl", pair, prompts, draft=draft, change=changed)
    common = ("check-export", draft, "--target", pair[0], "--prompts", prompts, "--gamma", 2)
    assert said in refused(capsys, *common, "--engine", "outputs", "--outputs", file)


def test_what_can_be_seen_before_is_named(capsys, tmp_path, pair, draft, prompts):
    config = json.loads((draft / "config.json").read_text())
    config["max_position_embeddings"] = 16
    (draft / "config.json").write_text(json.dumps(config))
    (draft / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    _, found = checked(capsys, pair, draft, prompts, "--temperature", 0)
    said = " ".join(found["causes"])
    assert "context length" in said
    assert "chat template" in said
    shown = tell({**found, "unmet": [], "verdict": "Well."})
    assert shown.count("note: ") == len(found["causes"])
    assert "note: " not in tell({**found, "unmet": ["It is not."]})


def test_a_draft_that_was_not_exported_is_told_of(capsys, tmp_path, pair, prompts):
    """Servers refuse other rows, or load a trimmed head whole."""
    texts = write_rows(tmp_path / "texts.jsonl", [{"prompt": " ".join(WORDS), "target": "w6 w7"}])
    trimmed, wide = tmp_path / "trimmed", tmp_path / "wide"
    code, made, err = run(
        capsys, "new-draft", "--target", pair[0], "--layers", "0", "--out", trimmed, "--keep-ids",
        40, "--prompts", texts,
    )  # fmt: skip
    assert code == 0, err
    wrap(module("llama", rows=64), word_tokenizer()).save(wide)
    for folder, said in (
        (trimmed, f"vocabulary: the draft's head is trimmed to {made['kept_ids']} ids"),
        (wide, "vocabulary: the target has 48 rows and the draft 64"),
    ):
        flags = ("--temperature", 0, "--limit", 2)
        _, found = served(capsys, pair, folder, prompts, *flags, tokens=6)
        assert any(cause.startswith(said) for cause in found["causes"]), found["causes"]


def test_every_demand_is_made_by_itself():
    tau = {"value": 2.0, "low": 1.9, "high": 2.1}
    well = {
        "rule": "ratio", "fits": True, "overlaps": True, "tau_served": tau, "tau_promised": tau,
        "rules": [{"rule": "ratio", "fits": True, "tau_expected": tau, "z": 0.1}],
    }  # fmt: skip
    law = {"rejected": False, "verdict": "Not the target's outputs: x.", "points_to": []}

    def unmet(least=None, causes=(), law=law, **changes):
        result = {"speedup": {"value": 1.4, "low": 1.3, "high": 1.5}}
        settings = SimpleNamespace(min_speedup=least)
        return check_export._unmet(settings, result, {**well, **changes}, law, causes)

    assert unmet() == unmet(1.4) == []
    (slow,) = unmet(1.41)
    assert slow.startswith("--min-speedup 1.41 is not met: 1.4")
    assert slow.endswith("No cause that is tested explains it.")
    (less,) = unmet(overlaps=False, causes=["γ: more", "sampler: other"])
    assert less.startswith("Acceptance is not what was promised")
    assert less.endswith("Likely: γ: more; sampler: other.")
    (other,) = unmet(fits=False, overlaps=False)
    assert other.startswith("Acceptance is not what the rule ratio gives on these outputs")
    assert len(unmet(2.0, law={**law, "rejected": True}, fits=False)) == 3


def test_gamma_is_the_folders_unless_it_is_given(capsys, pair, draft, prompts):
    """Who followed the tutorial had γ in the folder, and had to copy it from serve.md."""
    common = ("--target", pair[0], "--prompts", prompts, "--limit", 2, "--max-new-tokens", 4)
    code, found, _ = run(capsys, "check-export", draft, *common, "--temperature", 0)
    assert (code, found["gamma"]) == (0, 2)
    said = refused(capsys, "check-export", pair[1], *common)
    assert "--gamma is missing" in said
    assert pair[1] in said


def test_users_errors(capsys, pair, draft, prompts):
    common = ("check-export", draft, "--target", pair[0], "--prompts", prompts)
    assert "--url" in refused(capsys, *common, "--gamma", 2, "--engine", "vllm")
    assert "--url" in refused(capsys, *common, "--gamma", 2, "--url", "http://127.0.0.1:9/v1")
    assert "--url-plain" in refused(capsys, *common, "--gamma", 2, "--url-plain", "http://a/v1")
    assert "--outputs" in refused(capsys, *common, "--gamma", 2, "--engine", "outputs")
    assert "--outputs" in refused(capsys, *common, "--gamma", 2, "--outputs", prompts)
    assert "--outputs-plain" in refused(capsys, *common, "--gamma", 2, "--outputs-plain", prompts)
    other = refused(capsys, *common, "--gamma", 3)
    assert "give --gamma 2, or export it with --gamma 3" in other
    plain = (*common, "--gamma", 2, "--min-speedup", 1.1)  # told before anything runs
    url = ("--url", "http://127.0.0.1:9/v1")
    assert "give --url-plain" in refused(capsys, *plain, "--engine", "vllm", *url)
    asked = ("--engine", "outputs", "--outputs", prompts)
    assert "give --outputs-plain" in refused(capsys, *plain, *asked)
    for flag, value in (("timeout", 0), ("min-speedup", -1), ("tolerance", -1)):
        assert f"--{flag} {value}" in refused(capsys, *common, "--gamma", 2, f"--{flag}", value)
    long = refused(capsys, *common, "--gamma", 2, "--max-new-tokens", 500)
    assert "lower --max-new-tokens" in long


def test_a_server_without_counters_is_refused(pair):
    server = FakeServer(load(pair[0]))
    with running(server), pytest.raises(UserError, match="vLLM server with its metrics"):
        engines.counters(Server(server.url, retries=0))
