"""Everything people set when they sample, against transformers' own generation without a draft.

Greedy outputs are equal token by token in float32; for sampled ones the distributions are.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from unittest.mock import patch

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
)

import decoding_checks as checks
from distillspec.decoding import Counts, Schedule, collect, complete, speculate, speculative
from distillspec.errors import UserError
from distillspec.math.processors import process, processors_of
from distillspec.math.sampling import GREEDY, Sampling, draw
from distillspec.models.processors import as_processors
from distillspec.models.protocol import Batch
from support import perturbed

COUNT = 14
PROMPT = torch.tensor([7, 8, 9, 8, 3, 20])
SETTINGS = {
    "repetition_penalty": {"repetition_penalty": 1.6},
    "a penalty that rewards": {"repetition_penalty": 0.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "no id twice": {"no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": "half of the path"},
    "sequence_bias": {"sequence_bias": "some of the path"},
    "min_new_tokens": {"min_new_tokens": 10},
    "all of them": {
        "sequence_bias": "some of the path",
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": "half of the path",
        "min_new_tokens": 9,
    },
}


@cache
def pair(family):
    target = checks.lively(family)
    return target, perturbed(target, 0.25 if family == "t5" else 0.05)


@cache
def plain(family):
    """The greedy path without any setting, its first tokens among what settings act on."""
    return checks.plain_greedy(pair(family)[0], PROMPT, COUNT)


def shortened(ids):
    """Up to the models' own stop id."""
    return ids[: ids.index(1) + 1] if 1 in ids else ids


def resolved(family, settings):
    """Fill in what depends on the model: ids and pairs of ids that it would say."""
    path, found = plain(family), dict(settings)
    if "bad_words_ids" in found:
        found["bad_words_ids"] = [[path[2]], list(path[4:6]), list(path[7:10])]
    if "sequence_bias" in found:
        found["sequence_bias"] = {(path[1],): -4.0, path[3:5]: -30.0, (11,): 2.0}
    if "min_new_tokens" in found:
        found["eos"] = (path[3], path[6], 1)
    return found


def generation(*, eos=(1,), **settings):
    return GenerationConfig(
        max_new_tokens=COUNT,
        eos_token_id=list(eos),
        pad_token_id=0,
        decoder_start_token_id=0,
        **settings,
    )


def theirs(model, *, processor=None, **settings):
    """transformers' own greedy completion."""
    module = model.module
    ids = module.generate(
        PROMPT[None],
        attention_mask=torch.ones_like(PROMPT)[None],
        generation_config=generation(**settings),
        logits_processor=processor,
    )[0].tolist()
    return tuple(ids[1 if module.config.is_encoder_decoder else len(PROMPT) :])


def ours(model, draft, gamma, processors, eos=(1,)):
    (output,) = complete(
        model,
        draft if gamma else None,
        [PROMPT],
        gamma=gamma,
        max_new_tokens=COUNT,
        sampling=GREEDY,
        processors=processors,
        stop=eos,
    )
    return output


@pytest.mark.parametrize(
    ("family", "name"),
    [("llama", name) for name in SETTINGS]
    + [
        (family, name)
        for family in ("gpt2", "t5")
        for name in ("repetition_penalty", "bad_words_ids", "min_new_tokens", "all of them")
    ],
)
def test_greedy_with_a_setting_is_transformers_own(family, name):
    """transformers#28166, #40976: processors that did not reach the draft, or the right prefix."""
    target, draft = pair(family)
    settings = resolved(family, SETTINGS[name])
    eos = settings.pop("eos", (1,))
    expected = theirs(target, eos=eos, **settings)
    processors = processors_of(**settings, stop=eos)
    total = Counts()
    for gamma in (0, 1, 3):
        output = ours(target, draft, gamma, processors, eos)
        assert output.ids == expected, gamma
        total += output.counts
    assert expected != shortened(plain(family))  # the setting does something
    assert total.accepted > 0
    assert total.accepted < total.judged or name in ("a penalty that rewards", "sequence_bias")


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_transformers_own_processors_adapted_are_what_they_are_there(family):
    target, draft = pair(family)
    theirs_are = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(1.4), NoRepeatNGramLogitsProcessor(2)]
    )
    expected = theirs(target, processor=theirs_are)
    for gamma in (0, 3):
        assert ours(target, draft, gamma, as_processors(theirs_are)).ids == expected
    # as values of our own
    values = processors_of(repetition_penalty=1.4, no_repeat_ngram_size=2)
    assert ours(target, draft, 3, values).ids == expected


def test_a_processor_that_remembers_is_refused_by_name():
    made = SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3,
        keys=[1, 2],
        sampling_table_size=16,
        sampling_table_seed=0,
        context_history_size=8,
        device=torch.device("cpu"),
    )
    with pytest.raises(UserError, match="SynthIDTextWatermarkLogitsProcessor remembers"):
        as_processors([TemperatureLogitsWarper(0.5), made])


SAMPLED = {
    "temperature": {"temperature": 0.7},
    "top_k": {"temperature": 1.3, "top_k": 7},
    "top_p": {"temperature": 1.5, "top_p": 0.8},
    "min_p": {"temperature": 2.0, "min_p": 0.1},
    "all of them": {
        "temperature": 2.0,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[11], [12, 13]],
        "sequence_bias": {(14,): 3.0, (15,): -2.0},
    },
}


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
@pytest.mark.parametrize("name", SAMPLED)
def test_a_sampled_settings_distribution_is_transformers_own(family, name):
    """Position by position along a text that transformers sampled."""
    target, _ = pair(family)
    settings = {"top_k": 0, **SAMPLED[name]}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = target.module.generate(
            PROMPT[None],
            attention_mask=torch.ones_like(PROMPT)[None],
            generation_config=generation(
                do_sample=True,
                return_dict_in_generate=True,
                output_scores=True,
                output_logits=True,
                **settings,
            ),
        )
    expected = torch.cat(found.scores).softmax(-1)  # [L, V]
    ids = found.sequences[0][-len(expected) :]
    sampling = Sampling(
        settings.pop("temperature"),
        settings.pop("top_k") or None,
        settings.pop("top_p", 1.0),
        settings.pop("min_p", 0.0),
    )
    logits = torch.cat(found.logits)
    with torch.no_grad():
        own = target.head(target.hidden(Batch((PROMPT,), (ids,))))
    assert torch.allclose(own, logits, rtol=0, atol=1e-4 * float(logits.abs().max()))
    prefix = target.prefix(PROMPT)
    processed = process(
        processors_of(**settings), logits, torch.cat([prefix, ids[:-1]]), len(prefix)
    )
    p = sampling.probabilities(processed)
    assert torch.equal(p > 0, expected > 0)
    assert (p - expected).abs().max() < 1e-6
    assert (p - logits.softmax(-1)).abs().max() > 1e-3


# --- inside a block, in a batch whose rows end at different times ---

MIXED = {
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "bad_words_ids": [[11], [12, 13]],
    "sequence_bias": {(14,): 3.0, (15,): -2.0, (8, 20): 4.0},
    "min_new_tokens": 3,
}
PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.2}
"""transformers has none of these."""
WARPED = {"temperature": 1.7, "top_k": 30, "top_p": 0.97, "min_p": 0.01}
ENDS = tuple(range(1, 48, 5))
ROWS = [torch.tensor(ids) for ids in ([7, 8, 9, 8, 3, 20], [5], [30, 31, 30, 31, 30, 32, 9, 8, 20])]


class Counted(LogitsProcessor):
    """The two penalties of OpenAI's API, as it documents them."""

    def __init__(self, given):
        self.given = given

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for token, count in Counter(input_ids[0, self.given :].tolist()).items():
            scores[0, token] -= PENALTIES["presence_penalty"]
            scores[0, token] -= PENALTIES["frequency_penalty"] * count
        return scores


def scripted(model, prompt, sample):
    """transformers' sampled completion, `sample` drawing every token; and what it drew from."""
    given = 1 if model.module.config.is_encoder_decoder else len(prompt)
    config = generation(
        eos=ENDS,
        do_sample=True,
        return_dict_in_generate=True,
        output_scores=True,
        **MIXED,
        **WARPED,
    )
    with patch.object(torch, "multinomial", sample):
        found = model.module.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            generation_config=config,
            logits_processor=LogitsProcessorList([Counted(given)]),
        )
    return tuple(found.sequences[0, given:].tolist()), torch.cat(found.scores).softmax(-1)


def distributions(model, prompt, ids):
    """[L, V] what transformers draws from at each of these ids, and never past a stop id."""
    script = iter(ids)

    def told(probabilities, num_samples):
        return torch.tensor([[next(script, ENDS[0])]])

    said, p = scripted(model, prompt, told)
    count = min(len(ids), len(said))
    assert said[:count] == tuple(ids[:count])
    return p[:count]


def mixed(target, draft, gamma, rows, **options):
    return speculate(
        target,
        draft,
        rows,
        gamma=gamma,
        max_new_tokens=COUNT,
        sampling=Sampling(**WARPED),
        processors=processors_of(**MIXED, **PENALTIES, stop=ENDS),
        stop=ENDS,
        **options,
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_with_the_same_uniforms_a_sampled_text_is_transformers_own_token_by_token(family):
    target, _ = pair(family)
    texts = []
    for prompt, own, again in zip(ROWS, checks.seeded(3), checks.seeded(3), strict=True):

        def drawn(probabilities, num_samples, source=own):
            u = torch.rand(1, generator=source, dtype=torch.float64)
            return draw(probabilities, u)[:, None]

        expected, _ = scripted(target, prompt, drawn)
        (output,) = collect(mixed(target, None, 0, [prompt], generators=[again]), 1)
        assert output.ids == expected
        texts.append(output.ids)
    together = collect(mixed(target, None, 0, ROWS, generators=checks.seeded(3)), 3)
    assert [output.ids for output in together] == texts
    assert len({len(ids) for ids in texts}) > 1


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_inside_a_block_p_and_q_are_those_of_transformers_at_their_own_prefixes(family):
    """transformers#28166. Of every token emitted p, and of every token drafted q, rejected or not:
    with rows that draft different numbers, wait for a place, and end at different times."""
    target, draft = pair(family)
    judged, honest = [], speculative.verify

    def spy(p, q, drafted, **settings):
        judged.append((p, q, drafted))
        return honest(p, q, drafted, **settings)

    told = {row: () for row in range(3)}
    drafts = 0
    with patch.object(speculative, "verify", spy):
        blocks = mixed(
            target, draft, Schedule(2, limit=5), ROWS, generators=checks.seeded(3), batch_size=2
        )
        for block in list(blocks):
            p, q, drafted = judged.pop(0)
            for i, row in enumerate(block.rows):
                before, ids = told[row], block.ids[i]
                told[row] = (*before, *ids)
                theirs_p = distributions(target, ROWS[row], told[row])[len(before) :]
                assert len(theirs_p) == len(ids)
                assert (p[i, : len(ids)] - theirs_p).abs().max() < 1e-4
                written = drafted[i, : block.drafted[i]].tolist()
                if written:
                    theirs_q = distributions(draft, ROWS[row], [*before, *written])[len(before) :]
                    # They end at a drafted stop id; what the draft writes behind it is not used
                    assert len(theirs_q) == len(written) or written[len(theirs_q) - 1] in ENDS
                    assert (q[i, : len(theirs_q)] - theirs_q).abs().max() < 1e-4
                    drafts += len(theirs_q)
    assert drafts > 10
    assert not judged
    assert len({len(ids) for ids in told.values()}) > 1
