"""`generate`: resumed where it was killed, from a server as from here, and cached beside it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from distillspec.commands import generate
from distillspec.commands.unfinished import Unfinished
from distillspec.errors import UserError
from distillspec.math.partial import known_of
from distillspec.models import load
from distillspec.models.files_digest import files_digest
from distillspec.models.protocol import Batch
from distillspec.training.offline import OfflineTarget, open_cache
from fake_server import serving
from verbs import WORDS, refused, run, saved, write_rows

COUNT = 6


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("models") / "served")


@pytest.fixture
def prompts(tmp_path):
    rows = [{"id": f"p{i}", "prompt": " ".join(WORDS[i : i + 4 - i % 3])} for i in range(COUNT)]
    return write_rows(tmp_path / "prompts.jsonl", rows)


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def asked(target, prompts, out, *more):
    return ["generate", "--target", target, "--prompts", prompts, "--out", out,
            "--max-new-tokens", 7, "--batch-size", 2, *more]  # fmt: skip


def known(target, row):
    model = load(target)
    batch = Batch((model.tokenizer.prompt(row["prompt"]),), (torch.tensor(row["target_ids"]),))
    return batch, known_of(model.head(model.hidden(batch).detach()), 5)


def test_a_served_target_writes_what_the_loaded_one_writes(capsys, tmp_path, target, prompts):
    """Same prompts, seeds and law: the files are equal, log-probabilities to rounding."""
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    run(capsys, *asked(target, prompts, here, "--logprobs"))
    with serving(load(target)) as server:
        code, found, _ = run(
            capsys,
            *asked(target, prompts, there, "--logprobs", "--server", server.url),
            "--concurrency", 3,
        )  # fmt: skip
    assert code == 0
    assert found["ids"] == "sampled"
    for own, served in zip(lines(here), lines(there), strict=True):
        assert served.pop("target_logprobs") == pytest.approx(own.pop("target_logprobs"), abs=1e-5)
        assert served == own
    assert not list(tmp_path.glob("*.part"))


def test_a_served_log_is_one_that_measure_reads(capsys, tmp_path, target, prompts):
    draft, log = saved(tmp_path / "draft", noise=0.05), tmp_path / "log.jsonl"
    with serving(load(target)) as server:
        run(capsys, *asked(target, prompts, log, "--logprobs", "--server", server.url))
    code, found, _ = run(
        capsys, "measure", "--outputs", log, "--draft", draft,
        "--cost", "target=20,draft=2,overhead=1", "--gamma", "1..3",
    )  # fmt: skip
    assert code == 0
    assert 0 < found["alpha"]["value"] <= 1


@pytest.mark.parametrize("served", [False, True])
def test_the_domains_of_the_prompts_reach_what_is_measured_of_the_answers(
    capsys, tmp_path, target, served
):
    names = ["sums", "sums", None, "poems", "poems", "poems"]
    rows = [
        {"prompt": " ".join(WORDS[i : i + 3])} | ({"domain": name} if name else {})
        for i, name in enumerate(names)
    ]
    prompts, log = write_rows(tmp_path / "prompts.jsonl", rows), tmp_path / "log.jsonl"
    with serving(load(target)) as server:
        more = ["--server", server.url] if served else []
        run(capsys, *asked(target, prompts, log, "--logprobs", *more))
    assert [row.get("domain") for row in lines(log)] == names
    assert "domain" not in lines(log)[2]
    draft = saved(tmp_path / "draft", noise=0.05)
    _, found, _ = run(
        capsys, "measure", "--outputs", log, "--draft", draft, "--cost",
        "target=20,draft=2,overhead=1", "--gamma", 2,
    )  # fmt: skip
    counts = {one["domain"]: one["prompts"] for one in found["by_domain"]}
    assert (counts["sums"], counts["poems"]) == (2, 3)


@pytest.mark.parametrize("served", [False, True])
def test_the_cache_holds_what_the_target_says(capsys, tmp_path, target, prompts, served):
    out, folder = tmp_path / "a.jsonl", tmp_path / "cache"
    extra = ["--cache", folder, "--cache-k", 5, "--cache-dtype", "float32"]
    with serving(load(target)) as server:
        extra += ["--server", server.url] if served else []
        code, found, _ = run(capsys, *asked(target, prompts, out, *extra))
    assert code == 0
    assert found["cache"]["examples"] == COUNT
    assert found["cache"]["positions"] == found["tokens"]
    cache = open_cache(folder)
    assert cache.origin.weights == ("served:served" if served else files_digest(target))
    for row in lines(out):
        assert set(row) == {"id", "prompt", "target", "target_ids", "finish_reason"}
        batch, expected = known(target, row)
        kept = cache.known(batch)
        assert torch.equal(kept.ids, expected.ids)
        torch.testing.assert_close(kept.logprobs, expected.logprobs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(kept.tail, expected.tail, atol=1e-4, rtol=1e-4)


def test_the_cache_of_an_encoder_decoder(capsys, tmp_path, prompts):
    target, out, folder = saved(tmp_path / "t5", "t5"), tmp_path / "a.jsonl", tmp_path / "cache"
    extra = ["--cache", folder, "--cache-k", 5, "--cache-dtype", "float32"]
    assert run(capsys, *asked(target, prompts, out, *extra))[0] == 0
    for row in lines(out):
        batch, expected = known(target, row)
        kept = open_cache(folder).known(batch)
        torch.testing.assert_close(kept.logprobs, expected.logprobs, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("served", [False, True])
def test_a_killed_run_goes_on_where_it_was(capsys, tmp_path, target, prompts, served, monkeypatch):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "a.jsonl"
    monkeypatch.setattr("distillspec.commands.answers.GROUP", 1)
    add = Unfinished.add

    def killed(self, rows):
        add(self, rows)
        if len(self.rows) >= 4:
            raise KeyboardInterrupt

    with serving(load(target)) as server:
        more = ["--server", server.url, "--concurrency", 1] if served else []
        run(capsys, *asked(target, prompts, whole, *more))
        with monkeypatch.context() as patch:
            patch.setattr(Unfinished, "add", killed)
            assert run(capsys, *asked(target, prompts, out, *more))[0] == 130
        part = tmp_path / "a.jsonl.part"
        assert not out.exists()
        assert len(part.read_text().splitlines()) == 1 + 4
        with part.open("a") as file:
            file.write('{"number": 5, "row": {"id"')  # a line that the kill cut off
        before = len(server.asked)
        code, found, err = run(capsys, *asked(target, prompts, out, *more))
        assert code == 0
        assert found["resumed"] == 4
        assert "4 of 6 are there" in " ".join(err.split())
        # The question that was under way at the kill may reach the server late.
        assert len(server.asked) - before in ((2, 3) if served else (0,))
    assert out.read_text() == whole.read_text()
    assert not part.exists()


def test_the_unfinished_rows_of_another_run_are_refused_and_kept(
    capsys, tmp_path, target, prompts, monkeypatch
):
    out, part = tmp_path / "a.jsonl", tmp_path / "a.jsonl.part"
    with monkeypatch.context() as patch:
        patch.setattr(Unfinished, "finish", lambda self, rows: exec("raise KeyboardInterrupt"))
        run(capsys, *asked(target, prompts, out))
    kept = part.read_text()
    for flag, told in [
        (["--temperature", 0.5], "temperature was 1.0 and is 0.5"),
        (["--seed", 1], "seed was 0 and is 1"),
        (["--dtype", "bfloat16"], "dtype was 'float32' and is 'bfloat16'"),
        (["--limit", 3], "prompts was"),
        (["--logprobs"], "logprobs was False and is True"),
    ]:
        line = refused(capsys, *asked(target, prompts, out, *flag))
        assert told in line
        assert f"{COUNT} rows of another run" in line
    other = saved(tmp_path / "other", seed=3)
    assert "weights was" in refused(capsys, *asked(other, prompts, out))
    assert part.read_text() == kept
    part.write_text("what?")
    assert "not what an interrupted run leaves" in refused(capsys, *asked(target, prompts, out))


def test_a_cache_of_another_target_or_sampler_is_refused(capsys, tmp_path, target, prompts):
    def told(made_by, *flags):
        return refused(capsys, *asked(made_by, prompts, tmp_path / "b.jsonl", *flags))

    cache = ["--cache", tmp_path / "cache", "--cache-k", 5]
    run(capsys, *asked(target, prompts, tmp_path / "a.jsonl", *cache))
    other = saved(tmp_path / "other", seed=3)
    assert "weights was" in told(other, *cache)
    assert not (tmp_path / "b.jsonl.part").exists()
    assert "temperature was 1.0 and is 0.5" in told(target, *cache, "--temperature", 0.5)
    assert "dtype was 'float32' and is 'bfloat16'" in told(target, *cache, "--dtype", "bfloat16")
    assert "k was 5 and is 6" in told(target, "--cache", tmp_path / "cache", "--cache-k", 6)


def test_a_cache_that_was_removed_between_two_runs_is_missed(
    capsys, tmp_path, target, prompts, monkeypatch
):
    out, cache = tmp_path / "a.jsonl", tmp_path / "cache"
    flags = ["--cache", cache, "--cache-k", 5]
    with monkeypatch.context() as patch:
        patch.setattr(Unfinished, "finish", lambda self, rows: exec("raise KeyboardInterrupt"))
        run(capsys, *asked(target, prompts, out, *flags))
    for path in cache.glob("shard-*"):
        path.unlink()
    assert f"lacks {COUNT} of {COUNT}" in refused(capsys, *asked(target, prompts, out, *flags))


def cached_lengths(cache):
    """Lengths of all examples in all shards, those that are there twice twice."""
    shards = [load_file(path) for path in sorted(cache.glob("shard-*"))]
    return [torch.diff(one["ends"], prepend=torch.zeros(1)).tolist() for one in shards]


def test_what_a_server_says_of_the_likeliest_goes_to_the_cache_by_shards(
    capsys, tmp_path, target, prompts, monkeypatch
):
    """All of it was in memory until the end, as lists: 7 GB for 10,000 answers of 256 tokens."""
    monkeypatch.setattr("distillspec.commands.answers.SHARD", 2)
    add, held = Unfinished.add, []

    def watched(self, rows):
        add(self, rows)
        held.extend(self.rows.values())

    monkeypatch.setattr(Unfinished, "add", watched)
    cache = tmp_path / "cache"
    with serving(load(target)) as server:
        flags = ["--server", server.url, "--cache", cache, "--cache-k", 5]
        assert run(capsys, *asked(target, prompts, tmp_path / "a.jsonl", *flags))[0] == 0
    assert held
    assert not any("top" in row for row in held)
    assert [len(one) for one in cached_lengths(cache)] == [2, 2, 2]


@pytest.mark.parametrize("write", ["Unfinished.add", "OfflineTarget.add"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_kill_loses_nothing_of_a_server_s_cache_and_doubles_nothing(
    capsys, tmp_path, target, prompts, monkeypatch, write, after, count
):
    monkeypatch.setattr("distillspec.commands.answers.SHARD", 2)
    out, cache = tmp_path / "a.jsonl", tmp_path / "cache"
    owner = {"Unfinished.add": Unfinished, "OfflineTarget.add": OfflineTarget}[write]
    real, calls = owner.add, []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) < count or after:
            real(*arguments)
        if len(calls) == count:
            raise KeyboardInterrupt

    with serving(load(target)) as server:
        flags = ["--server", server.url, "--concurrency", 1, "--cache", cache, "--cache-k", 5]
        with monkeypatch.context() as patch:
            patch.setattr(owner, "add", killed)
            assert run(capsys, *asked(target, prompts, out, *flags))[0] == 130
        there = len(lines(tmp_path / "a.jsonl.part")) - 1
        code, found, _ = run(capsys, *asked(target, prompts, out, *flags))
    assert (code, found["resumed"]) == (0, there)
    written = [length for one in cached_lengths(cache) for length in one]
    assert sorted(written) == sorted(len(row["target_ids"]) for row in lines(out))
    for row in lines(out):
        batch, expected = known(target, row)
        assert torch.equal(open_cache(cache).known(batch).ids, expected.ids)


def test_a_server_that_fails_for_good_keeps_what_it_gave(capsys, tmp_path, target, prompts):
    out = tmp_path / "a.jsonl"
    with serving(load(target)) as server:
        flags = ["--server", server.url, "--concurrency", 1, "--retries", 0]
        server.faults = [None, None, "status:500"]
        line = refused(capsys, *asked(target, prompts, out, *flags))
        assert "no answer in 1 try: 500" in line
        assert len((tmp_path / "a.jsonl.part").read_text().splitlines()) == 3
        code, found, _ = run(capsys, *asked(target, prompts, out, *flags))
    assert (code, found["resumed"], found["prompts"]) == (0, 2, COUNT)


def test_text_alone_is_tokenized_anew_and_a_cut_answer_gets_no_end(
    capsys, tmp_path, target, prompts
):
    out = tmp_path / "a.jsonl"
    with serving(load(target), ids=False) as server:
        flags = ["--server", server.url, "--temperature", 0]
        code, found, err = run(capsys, *asked(target, prompts, out, *flags))
        assert (code, found["ids"]) == (0, "from the text")
        line = refused(
            capsys,
            *asked(target, prompts, tmp_path / "b.jsonl", "--server", server.url, "--logprobs"),
        )
        assert "gave no log-probability" in line
        cache = ["--cache", tmp_path / "c", "--cache-k", 2]
        line = refused(
            capsys, *asked(target, prompts, tmp_path / "c.jsonl", "--server", server.url, *cache)
        )
        assert "gave fewer than 2" in line
    assert "tokenized anew" in err
    for row in lines(out):
        assert (row["target_ids"][-1] == 1) == (row["finish_reason"] == "stop")


def test_what_a_server_cannot_be_asked_for_is_refused_first(capsys, tmp_path, target, prompts):
    with serving(load(target)) as server:
        served = ["--server", server.url]

        def told(*flags):
            return refused(capsys, *asked(target, prompts, tmp_path / "a.jsonl", *flags))

        assert "use temperature 1, or 0" in told(*served, "--logprobs", "--temperature", 0.7)
        assert "use temperature 1, or 0" in told(*served, "--logprobs", "--top-k", 5)
        assert "serves served, not other" in told(*served, "--model", "other")
        assert "none is given" in told("--model", "served")
        assert "has 48 ids in all" in told(*served, "--cache", tmp_path / "c", "--cache-k", 49)
        assert "expected a URL" in told("--server", "here")
        assert server.asked == []
        server.top_limit = 3
        line = told(*served, "--cache", tmp_path / "d", "--cache-k", 9)
        assert "--max-logprobs" in line


def test_greedy_answers_of_a_server_have_probability_1(capsys, tmp_path, target, prompts):
    out = tmp_path / "a.jsonl"
    with serving(load(target)) as server:
        flags = ["--server", server.url, "--temperature", 0, "--logprobs"]
        run(capsys, *asked(target, prompts, out, *flags))
    for row in lines(out):
        assert row["target_logprobs"] == [0.0] * len(row["target_ids"])


def test_a_prompt_too_long_for_the_server_is_told_before_it_is_asked(capsys, tmp_path, target):
    rows = [{"id": "long", "prompt": " ".join(["w6"] * 130)}]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    with serving(load(target)) as server:
        line = refused(
            capsys, *asked(target, prompts, tmp_path / "a.jsonl", "--server", server.url)
        )
        assert server.asked == []
    assert "long: 130 tokens" in line


def test_the_unfinished_file_survives_a_full_disk(tmp_path, monkeypatch):
    unfinished = Unfinished(tmp_path / "a.jsonl", {"seed": 0})
    unfinished.add([(1, {"x": 1})])

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(UserError, match="No space left"):
            unfinished.finish([{"x": 1}])
    assert Unfinished(tmp_path / "a.jsonl", {"seed": 0}).rows == {1: {"x": 1}}
    assert not (tmp_path / "a.jsonl").exists()


def test_a_setting_of_then_that_is_none_now_is_another_run(tmp_path):
    """Rows of `--min-p 0.1` were gone on with where the flag was left out the second time."""
    Unfinished(tmp_path / "a.jsonl", {"seed": 0, "min_p": 0.1}).add([(0, {"x": 0})])
    with pytest.raises(UserError, match="min_p was 0.1 and is None"):
        Unfinished(tmp_path / "a.jsonl", {"seed": 0})


def test_tell_says_what_a_position_costs():
    result = {"out": "a", "prompts": 1, "tokens": 4, "stopped": 0, "ids": "sampled",
              "cache": {"folder": "c", "positions": 4, "k": 64, "bytes": 1040}}  # fmt: skip
    assert "c: 4 positions, k = 64, 260 bytes each" in generate.tell(result)
