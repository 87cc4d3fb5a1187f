"""`generate` and `stream` on models that the caller holds: what comes back, and what stays."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList, NoRepeatNGramLogitsProcessor

import distillspec
from decoding_checks import plain_greedy
from distillspec import generate, stream
from distillspec.decoding import Counts, Optimal, Schedule
from distillspec.errors import UserError
from distillspec.math.processors import NoRepeatNGram, RepetitionPenalty
from distillspec.math.sampling import Sampling
from distillspec.models import wrap
from distillspec.models.text import Raw
from support import byte_tokenizer, module, perturbed, tiny, word_tokenizer

TOKENIZER = word_tokenizer()
TARGET = module("llama")
DRAFT = perturbed(wrap(TARGET, TOKENIZER), 0.05).module
TEXTS = ["w7 w9", "w11", "w8 w8 w20"]


def both(**options):
    return generate(TARGET, DRAFT, TEXTS, tokenizer=TOKENIZER, max_new_tokens=8, **options)


def test_texts_of_models_in_memory():
    model = wrap(TARGET, TOKENIZER)
    result = both(gamma=3)
    for one, text in zip(result.completions, TEXTS, strict=True):
        expected = plain_greedy(model, model.tokenizer.prompt(text), 8, stop=model.eos_ids)
        assert one.ids == expected
        assert one.text == model.tokenizer.decode(expected)
        assert one.finish_reason == ("stop" if expected[-1] in model.eos_ids else "length")
        assert len(one.roles) == len(one.origin) == len(one.ids)
        assert one.counts.accepted == one.origin.count("draft")
    assert result.texts == tuple(one.text for one in result.completions)
    assert [one.prompt for one in result.completions] == [0, 1, 2]


@pytest.mark.parametrize("budget", [1, 2, 7])
@pytest.mark.parametrize("gamma", [0, 5, Schedule(2)])
def test_usage_is_the_number_of_ids(budget, gamma):
    """ik_llama.cpp#2358, sglang#39826, #37450: usage counted what was never returned."""
    result = generate(
        TARGET, DRAFT, TEXTS, tokenizer=TOKENIZER, max_new_tokens=budget, gamma=gamma, stop=()
    )
    for one in result.completions:
        assert one.counts.tokens == len(one.ids) == budget
        assert one.counts.drafted >= one.counts.judged >= one.counts.accepted
    assert result.counts == sum((one.counts for one in result.completions), Counts())
    assert result.counts.tokens == 3 * budget


def test_one_prompt_in_any_form():
    ids = wrap(TARGET, TOKENIZER).tokenizer.prompt("w7 w9")
    options = {"tokenizer": TOKENIZER, "max_new_tokens": 4}
    first = generate(TARGET, DRAFT, "w7 w9", **options).text
    for prompt in (["w7 w9"], Raw("w7 w9"), ids, ids.tolist(), [ids]):
        assert generate(TARGET, DRAFT, prompt, **options).text == first
    assert generate(TARGET, None, "w7 w9", **options).text == first
    chat = word_tokenizer(chat=True)
    message = [{"role": "user", "content": "w7 w9"}]
    asked = [
        generate(TARGET, DRAFT, one, tokenizer=chat, max_new_tokens=4).completions
        for one in ("w7 w9", message, [message])
    ]
    assert asked[0] == asked[1] == asked[2]


def traces(model):
    """What a call could leave on a model, part by part: attributes, hooks, flags, gradients."""
    flags = [(p.requires_grad, p.grad is None, p.dtype, p.data_ptr()) for p in model.parameters()]
    parts = [
        (part.training, sorted(vars(part)), len(part._forward_hooks), len(part._forward_pre_hooks))
        for part in model.modules()
    ]
    return flags, parts, model.config.to_dict(), model.generation_config.to_dict()


def test_what_the_caller_holds_stays_as_it_is():
    """transformers#40739, #28759, #27833: settings of a call were kept on the model.

    Of calls that end, and of one that its caller leaves half-way.
    """
    models = TARGET, DRAFT
    DRAFT.lm_head.weight.requires_grad_(False)  # a flag that differs from the others
    held = [copy.deepcopy(traces(model)) for model in models]
    weights = [{key: value.clone() for key, value in m.state_dict().items()} for m in models]
    state = torch.get_rng_state()
    options = {"gamma": Schedule(2), "sampling": Sampling(), "seed": 3, "stop": ["w9", 1]}
    runs = [both(**options) for _ in range(2)]
    left = stream(TARGET, DRAFT, TEXTS, tokenizer=TOKENIZER, max_new_tokens=8, **options)
    next(left)
    left.close()
    assert runs[0] == runs[1] == both(**options)
    assert [traces(model) for model in models] == held
    for model, before in zip(models, weights, strict=True):
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    DRAFT.lm_head.weight.requires_grad_(True)


def test_samples_and_seeds():
    """vllm#4934, #6137: n > 1 crashed; #6038: a request's seed was ignored."""
    options = {"sampling": Sampling(2.0), "stop": ()}
    result = both(n=3, seed=1, **options)
    places = [(one.prompt, one.sample) for one in result.completions]
    assert places == [(i, j) for i in range(3) for j in range(3)]
    assert len({one.ids for one in result.completions}) == 9
    assert both(n=3, seed=1, batch_size=2, **options) == result
    assert both(n=3, seed=2, **options) != result
    assert both(**options) != both(**options)
    own = both(n=2, seed=[5, 6, 7], **options).completions
    (first, second) = generate(
        TARGET, DRAFT, TEXTS[1], tokenizer=TOKENIZER, max_new_tokens=8, n=2, seed=[6], **options
    ).completions
    assert (first.ids, second.ids) == (own[2].ids, own[3].ids)


def test_processors_are_ours_or_transformers_own():
    """transformers#28166: processors of a call did not reach the assistant."""
    ours, theirs = NoRepeatNGram(1), NoRepeatNGramLogitsProcessor(1)
    plain = both(stop=())
    for chosen in ([ours], theirs, [theirs], LogitsProcessorList([theirs])):
        found = both(stop=(), processors=chosen)
        assert found.texts != plain.texts
        assert found.completions == both(stop=(), processors=[ours]).completions
        assert all(len(set(one.ids)) == len(one.ids) for one in found.completions)


def test_strings_end_a_completion_beside_ids():
    (whole,) = generate(
        TARGET, DRAFT, "w7 w9", tokenizer=TOKENIZER, max_new_tokens=8, stop=()
    ).completions
    last = next(i for i in range(2, 8) if whole.ids[i] not in whole.ids[:i])
    word = TOKENIZER.decode([whole.ids[last]])
    for stop in ([word], [word, 1], [whole.ids[last]]):
        (found,) = generate(
            TARGET, DRAFT, "w7 w9", tokenizer=TOKENIZER, max_new_tokens=8, stop=stop
        ).completions
        assert found.ids == whole.ids[: last + 1]
        assert found.finish_reason == "stop"


# --- streaming ---


def test_a_stream_adds_up_to_what_generate_returns():
    options = {"gamma": 3, "sampling": Sampling(), "n": 2, "seed": 4, "batch_size": 2}
    whole = both(**options)
    parts = {}
    for piece in stream(TARGET, DRAFT, TEXTS, tokenizer=TOKENIZER, max_new_tokens=8, **options):
        text, ids, counts, ended = parts.get((piece.prompt, piece.sample), ("", (), Counts(), None))
        assert ended is None
        parts[piece.prompt, piece.sample] = (
            text + piece.text,
            ids + piece.ids,
            counts + piece.counts,
            piece.finish_reason,
        )
    for one in whole.completions:
        expected = (one.text, one.ids, one.counts, one.finish_reason)
        assert parts[one.prompt, one.sample] == expected


BYTES = byte_tokenizer()
BYTE_MODEL = wrap(module("llama", rows=257, layers=1), BYTES)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), gamma=st.integers(0, 5), budget=st.integers(1, 16))
def test_no_character_is_sent_broken_or_twice(seed, gamma, budget):
    """dynamo#12630, sglang#31598. Random bytes: most of them broken, some at the very end."""
    options = {"sampling": Sampling(3.0), "seed": seed, "gamma": gamma, "max_new_tokens": budget}
    whole = generate(BYTE_MODEL, BYTE_MODEL, "é€😀", **options)
    given = ""
    for piece in stream(BYTE_MODEL, BYTE_MODEL, "é€😀", **options):
        given += piece.text
        assert whole.text.startswith(given)
    assert given == whole.text == BYTE_MODEL.tokenizer.decode(whole.completions[0].ids)


def test_who_stops_iterating_stops_the_models():
    """vllm#32439, lmdeploy#548: generation ran on for a client that had left."""
    calls = []
    hook = TARGET.model.register_forward_hook(lambda *_: calls.append(1))
    try:
        pieces = stream(
            TARGET, None, "w7", tokenizer=TOKENIZER, max_new_tokens=50, stop=(), gamma=1
        )
        next(pieces), next(pieces)
        made = len(calls)
        pieces.close()
        assert list(pieces) == []
        assert len(calls) == made
    finally:
        hook.remove()


# --- the cost of the pair at hand ---


def test_the_cost_of_a_loaded_pair_serves_the_optimum():
    target, draft = tiny("llama"), tiny("llama", layers=1)
    prompt = torch.arange(6, 20)
    cost = distillspec.measure_cost(target, draft, [prompt], limit=3)
    assert len(cost.target) == 4
    result = generate(target, draft, prompt, gamma=Optimal(cost), max_new_tokens=10, stop=())
    assert result.completions[0].ids == plain_greedy(target, prompt, 10)


# --- what is refused, and what is light ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokenizer": None}, "the target is a transformers model: give its tokenizer too"),
        ({"target": "name"}, "the target is a str; expected a transformers model"),
        ({"n": 0}, "n is 0; expected a whole number of at least 1"),
        ({"seed": [1]}, "1 seeds for 3 prompts; give one, or one per prompt"),
        ({"prompts": []}, "there are no prompts"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"stop": "END"}, "stop is 'END'; expected a list of ids and strings"),
        ({"stop": 9}, "stop is 9; expected a list of ids and strings"),
        ({"stop": [1.5]}, "stop has 1.5; expected ids and strings"),
        ({"prompts": TOKENIZER("w7 w8")}, "the prompts are a BatchEncoding; expected"),
        ({"prompts": None}, "the prompts are a NoneType; expected"),
        ({"seed": 1.5}, "a seed is 1.5; expected a whole number"),
        ({"seed": ["a"]}, "a seed is 'a'; expected a whole number"),
        ({"sampling": 0.7}, r"sampling is 0.7; expected a Sampling"),
        ({"gamma": Schedule}, "gamma is <class .*Schedule'>; expected a whole number"),
        ({"processors": [3]}, "processors has 3; expected functions"),
        ({"draft_tokenizer": word_tokenizer(40)}, "w40"),
    ],
)
def test_a_users_error_is_one_line(arguments, message):
    given = {"target": TARGET, "draft": DRAFT, "prompts": TEXTS, "tokenizer": TOKENIZER} | arguments
    for verb in (generate, stream):
        with pytest.raises(UserError, match=message) as error:
            verb(given["target"], given["draft"], given["prompts"], **rest(given))
        assert "\n" not in str(error.value)


def rest(given):
    return {key: given[key] for key in given if key not in ("target", "draft", "prompts")}


def test_numbers_and_functions_are_taken_as_they_come():
    """numpy's whole numbers are ids and seeds; one processor is a list of one."""
    said = generate(TARGET, DRAFT, [7, 8], tokenizer=TOKENIZER, max_new_tokens=5)
    ids = np.array([7, 8])
    assert generate(TARGET, DRAFT, ids, tokenizer=TOKENIZER, max_new_tokens=5) == said
    assert generate(TARGET, DRAFT, list(ids), tokenizer=TOKENIZER, max_new_tokens=5) == said
    settings = {"tokenizer": TOKENIZER, "max_new_tokens": 5, "sampling": Sampling(1.0)}
    seeded = [generate(TARGET, DRAFT, [7], seed=seed, **settings) for seed in (3, np.int64(3))]
    assert seeded[0] == seeded[1]
    one = RepetitionPenalty(1.5)
    both = [generate(TARGET, DRAFT, [7], processors=p, **settings, seed=1) for p in (one, [one])]
    assert both[0] == both[1]


def test_a_model_in_training_mode_is_refused():
    """Whole or in part: the mode of the module itself says nothing of the dropout inside it."""
    whole, part = copy.deepcopy(TARGET).train(), copy.deepcopy(TARGET)
    part.model.layers[1].train()
    for model in (whole, part):
        modes = [one.training for one in model.modules()]
        with pytest.raises(UserError, match="the target is in training mode"):
            generate(model, DRAFT, "w7", tokenizer=TOKENIZER)
        with pytest.raises(UserError, match="the draft is in training mode"):
            generate(TARGET, model, "w7", tokenizer=TOKENIZER)
        assert [one.training for one in model.modules()] == modes


def test_several_completions_have_no_single_text():
    with pytest.raises(UserError, match="there are 3 completions"):
        _ = both().text


def test_importing_the_package_imports_no_torch():
    code = "import sys, distillspec; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = distillspec.nothing
