"""Asking a server: what is sent, what passes, what is told, how many at once."""

import threading
import time

import pytest

from distillspec.commands.served import Answer, Server, ask_completion
from distillspec.commands.served_model import (
    ServedModel,
    ask_all,
    check_answer,
    check_tokenizer,
    find_model,
)
from distillspec.errors import UserError
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.models.text import Tokenizer
from fake_server import serving
from support import byte_tokenizer, tiny


@pytest.fixture(scope="module")
def model():
    return tiny("llama")


def patient(server, **settings):
    return Server(server.url, **{"timeout": 30.0, "retries": 3, "first_wait": 0.001, **settings})


def ask(server, *, sleep=time.sleep, top=1, sampling=GREEDY, **settings):
    return ask_completion(
        patient(server, **settings),
        "served",
        [3, 10, 11],
        sampling=sampling,
        max_tokens=6,
        seed=5,
        stop=(1,),
        top=top,
        sleep=sleep,
    )


def told(server, **settings):
    with pytest.raises(UserError) as caught:
        ask(server, **settings)
    assert len(str(caught.value).splitlines()) == 1
    assert server.url in str(caught.value)
    return str(caught.value)


def test_every_setting_is_sent_the_neutral_ones_too(model):
    """The trap: vLLM fills what is left out from generation_config.json, Qwen's top_k = 20 among
    it, and the text follows another law than the one recorded."""
    with serving(model) as server:
        ask(server, sampling=Sampling(0.7, None, 0.9))
        ask(server, sampling=Sampling(0.7, 5, 0.9))
    first, second = server.asked
    assert first["prompt"] == [3, 10, 11]
    neutral = {"top_k": -1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0,
               "frequency_penalty": 0, "n": 1, "stream": False}  # fmt: skip
    assert {key: first[key] for key in neutral} == neutral
    assert (first["temperature"], first["top_p"], first["max_tokens"], first["seed"]) == (
        0.7, 0.9, 6, 5,
    )  # fmt: skip
    assert first["stop_token_ids"] == [1]
    assert second["top_k"] == 5


@pytest.mark.parametrize(
    "fault", ["status:500", "status:503", "status:429", "drop", "cut", "text:<html>", "text:"]
)
def test_what_passes_is_tried_again(model, fault):
    with serving(model, faults=[fault, fault]) as server:
        plain = ask(server)
        assert len(server.asked) == 3
        assert plain == ask(server)  # what came in the end is what comes without faults


@pytest.mark.parametrize("fault", ["slow:1.5", "drip"])
def test_an_answer_that_takes_too_long_is_tried_again(model, fault):
    with serving(model, faults=[fault]) as server:
        ask(server, timeout=0.6)
        assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("status:503", "no answer in 4 tries: 503 Service Unavailable: trouble 503"),
        ("drop", "no answer in 4 tries: "),
        ("text:<html>", "an answer that is not JSON: '<html>'"),
    ],
)
def test_what_does_not_pass_in_time_is_told_in_one_line(model, fault, expected):
    with serving(model, faults=[fault] * 9) as server:
        assert expected in told(server)
        assert len(server.asked) == 4


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("status:400", "answered 400 Bad Request: trouble 400"),
        ("status:401", "set DISTILLSPEC_SERVER_KEY"),
        ("status:404", "answered 404"),
        ("redirect:http://127.0.0.1:1/", "answered 307"),
        ("text:{}", "no completion: {}"),
        ("text:[1]", "no completion: [1]"),
        ('text:{"choices": []}', "no completion"),
        ('text:{"choices": [{"text": "x"}]}', "no completion"),
        ("change:finish_reason=abort", "ended by 'abort'"),
        ("change:model=other", "served was asked and other answered"),
    ],
)
def test_what_no_further_try_can_mend_is_told_at_once(model, fault, expected):
    with serving(model, faults=[fault]) as server:
        assert expected in told(server)
        assert len(server.asked) == 1


def test_a_server_that_is_not_there(model):
    with serving(model) as server:
        pass
    assert "no answer in 1 try" in told(server, retries=0)


def test_waits_grow_and_heed_the_server(model):
    waits = []
    with serving(model, faults=["status:500", "status:500", "wait:7", "wait:900"]) as server:
        ask(server, sleep=waits.append, first_wait=1.0, retries=4)
    assert 0.5 <= waits[0] <= 1.5
    assert 1 <= waits[1] <= 3
    assert waits[2] == 7
    assert waits[3] == 30  # but not for a quarter of an hour


def test_the_key_is_sent_where_it_is_set(model, monkeypatch):
    with serving(model) as server:
        patient(server).ask("/models")
        monkeypatch.setenv("DISTILLSPEC_SERVER_KEY", "s3")
        patient(server).ask("/models")
    assert "Authorization" not in server.headers[0]
    assert server.headers[1]["Authorization"] == "Bearer s3"


@pytest.mark.parametrize("blanks", ["\n", "\r\n", "\r", " "])
def test_blanks_around_the_key_are_not_sent(model, monkeypatch, blanks):
    """As of a file with a line's end; http.client's refusal of it quotes the key."""
    monkeypatch.setenv("DISTILLSPEC_SERVER_KEY", f"s3{blanks}")
    with serving(model) as server:
        patient(server).ask("/models")
    assert server.headers[0]["Authorization"] == "Bearer s3"


@pytest.mark.parametrize(
    "key", ["s3cret\ns3cret", "s3cret s3cret", "s3cret…", "s3crét", "s3cret\x7f"]
)
def test_a_key_that_cannot_be_sent_is_told_without_it(model, monkeypatch, key):
    monkeypatch.setenv("DISTILLSPEC_SERVER_KEY", key)
    with serving(model) as server, pytest.raises(UserError, match="DISTILLSPEC_SERVER_KEY") as e:
        patient(server).ask("/models")
    assert "s3cr" not in str(e.value)
    assert len(str(e.value).splitlines()) == 1
    assert not server.headers


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://x/v1", "http:///v1", "", "http://a:b/v1", "http://a:99999/v1",
     "http://[::1/v1", "http://x/é/v1", "http://ü.de/v1", "http://x/a b/v1", "http://x/v1\n"],
)  # fmt: skip
def test_what_is_no_url_is_refused(url):
    """By no flag's name, as it may be --server, --url or --url-plain; a port that is none or a
    blank was tried again and again, half a bracket or an accent ended in a traceback."""
    with pytest.raises(UserError, match="^server '.*': expected a URL"):
        Server(url)


def test_ids_logprobs_and_the_likeliest_are_read(model):
    with serving(model) as server:
        answer = ask(server, top=3, sampling=Sampling())
    assert len(answer.ids) == len(answer.logprobs) == len(answer.top)
    for i, own, top in zip(answer.ids, answer.logprobs, answer.top, strict=True):
        assert top[i] == own
        assert len(top) in (3, 4)


def test_a_server_without_ids_gives_text_alone(model):
    with serving(model, ids=False) as server:
        answer = ask(server)
    assert answer.text
    assert (answer.ids, answer.logprobs, answer.top) == (None, None, None)


def test_the_model_is_found_by_name_folder_or_flag(model):
    with serving(model, name="org/served-7b") as server:
        asked = patient(server)
        for wanted, target in [
            (None, "org/served-7b"), (None, "/models/served-7b"), ("org/served-7b", "/x/local"),
        ]:  # fmt: skip
            assert find_model(asked, wanted, target) == ServedModel("org/served-7b", 128)
        with pytest.raises(UserError, match=r"serves org/served-7b, not /x/local; .*--model"):
            find_model(asked, None, "/x/local")
        with pytest.raises(UserError, match="serves org/served-7b, not org/served-13b"):
            find_model(asked, "org/served-13b", "org/served-7b")
        with pytest.raises(UserError, match="usually ends in /v1"):
            find_model(Server(server.url.removesuffix("/v1")), None, "x")


def test_another_tokenizer_is_refused(model):
    other = Tokenizer(byte_tokenizer(), name="other")
    named = ServedModel("served", None)
    with serving(model) as server:
        check_tokenizer(patient(server), named, model.tokenizer)
    with serving(model, tokenizer=other) as server:
        with pytest.raises(UserError, match="another tokenizer"):
            check_tokenizer(patient(server), named, model.tokenizer)
        answer = ask(server)
    with pytest.raises(UserError, match="row 7: .*another model"):
        check_answer(answer, model.tokenizer, (1,), where="row 7")
    far = Answer("x", "stop", (10_000,), None, None)
    with pytest.raises(UserError, match="id 10000, and .* below 48"):
        check_answer(far, model.tokenizer, (1,), where="row 7")


def test_no_more_questions_at_once_than_asked_for(model):
    with serving(model, faults=["slow:0.05"] * 12) as server:
        jobs = list(range(12))
        found = dict(ask_all(lambda job, sleep: ask(server, sleep=sleep), jobs, 3))
    assert sorted(found) == jobs
    assert server.most_busy == 3


def test_answers_that_came_before_a_failure_are_given_out(model):
    def one(job, sleep):
        if job == 2:
            raise UserError("the third")
        return job

    came = []

    def gather():
        for job, _ in ask_all(one, range(5), 1):
            came.append(job)

    with pytest.raises(UserError, match="the third"):
        gather()
    assert came[:2] == [0, 1]
    assert 2 not in came


def test_stopping_early_wakes_those_who_wait():
    woken = threading.Event()

    def one(job, sleep):
        if job:
            sleep(60)
            woken.set()
        return job

    for _ in ask_all(one, range(2), 2):
        break
    assert woken.wait(10)
