"""Settings that depend on the text so far, inside a block: the law, right prefixes, edges."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch

import decoding_checks as checks
from distillspec.decoding import complete, speculate, speculative
from distillspec.errors import UserError
from distillspec.math.processors import processors_of
from distillspec.math.rules import MATCHED
from distillspec.math.sampling import GREEDY, Sampling
from support import random_table

PROMPT = torch.tensor([1, 2, 2])
PLAIN = Sampling()
LAWS = {
    "penalties": {"repetition_penalty": 1.8, "presence_penalty": 0.6, "frequency_penalty": 0.5},
    "bans": {"no_repeat_ngram_size": 2, "bad_words_ids": [[0], [3, 4]], "min_new_tokens": 2},
    "biases": {"sequence_bias": {(1,): 1.5, (2, 3): -3.0, (4, 4): 2.0}},
}


def settled(logits, ids, settings, emitted):
    """The processed [V] logits, by the definitions and in plain Python."""
    logits, new = logits.tolist(), ids[len(PROMPT) :]
    for word, bias in settings.get("sequence_bias", {}).items():
        if tuple(ids[len(ids) - len(word) + 1 :]) == word[:-1]:
            logits[word[-1]] += bias
    penalty = settings.get("repetition_penalty", 1.0)
    for i in set(ids):
        logits[i] = logits[i] * penalty if logits[i] < 0 else logits[i] / penalty
    for i in set(new):
        logits[i] -= settings.get("frequency_penalty", 0) * new.count(i)
        logits[i] -= settings.get("presence_penalty", 0)
    n = settings.get("no_repeat_ngram_size", 0)
    for start in range(len(ids) - n + 1 if n else 0):
        if ids[start : start + n - 1] == ids[len(ids) - n + 1 :]:
            logits[ids[start + n - 1]] = -torch.inf
    for word in settings.get("bad_words_ids", ()):
        if ids[len(ids) - len(word) + 1 :] == word[:-1]:
            logits[word[-1]] = -torch.inf
    if emitted < settings.get("min_new_tokens", 0):
        logits[1] = -torch.inf  # the stop id of these tests
    return torch.tensor(logits, dtype=torch.float64)


def law_of(target, settings, sampling, tokens):
    """The probability of every completion, one uncached position at a time."""
    law = Counter()
    open_ends = {(): 1.0}
    for emitted in range(tokens):
        longer = {}
        for said, probability in open_ends.items():
            ids = [*PROMPT.tolist(), *said]
            row = checks.next_logits(target, PROMPT, list(said))
            p = sampling.probabilities(settled(row, ids, settings, emitted))
            for i, one in enumerate(p.tolist()):
                if one and (i == 1 or emitted == tokens - 1):
                    law[(*said, i)] += probability * one
                elif one:
                    longer[(*said, i)] = probability * one
        open_ends = longer
    return law


@pytest.mark.parametrize(
    ("name", "gamma", "rule"),
    [
        ("penalties", 3, {}),
        ("bans", 2, {"proposal": MATCHED}),
        ("biases", 3, {"draft_sampling": GREEDY}),
    ],
)
def test_three_tokens_follow_the_enumerated_law_of_the_settings(name, gamma, rule):
    """Sampled, by exact match and by a greedy draft; and the law without settings is refused."""
    target, draft = random_table(seed=1, order=2), random_table(seed=2, order=2)
    sampling = Sampling(0.9, top_p=0.95, min_p=0.02)
    law = law_of(target, LAWS[name], sampling, 3)
    assert sum(law.values()) == pytest.approx(1)
    count = 300
    outputs = complete(
        target,
        draft,
        [PROMPT] * count,
        gamma=gamma,
        max_new_tokens=3,
        sampling=sampling,
        processors=processors_of(**LAWS[name], stop=(1,)),
        stop=(1,),
        generators=checks.seeded(count, seed=gamma),
        **rule,
    )
    seen = Counter(output.ids for output in outputs)
    assert checks.chi_square(seen, law, count) > checks.ALARM
    plain = law_of(target, {}, sampling, 3)
    assert not set(seen) <= set(plain) or checks.chi_square(seen, plain, count) < checks.ALARM


def test_a_draft_equal_to_the_target_is_accepted_whatever_the_settings():
    """vllm#9834, transformers#28166: settings that reach p and not q cost acceptance."""
    target = random_table(12, seed=3, order=2)
    chains = (
        processors_of(repetition_penalty=1.5, no_repeat_ngram_size=3, presence_penalty=0.5),
        # A cycle, in which the last token alone decides
        processors_of(sequence_bias={(i, (i + 1) % 12): 6.0 for i in range(12)}),
    )
    samplings = (GREEDY, Sampling(0.8, top_k=6, min_p=0.05))
    for chain, gamma, sampling in product(chains, (1, 4), samplings):
        (output,) = complete(
            target,
            target,
            [torch.tensor([1, 2])],
            gamma=gamma,
            max_new_tokens=20,
            sampling=sampling,
            processors=chain,
            stop=(),
            generators=checks.seeded(1),
        )
        assert output.counts.accepted == output.counts.judged
        assert output.counts.target_calls == -(-20 // (gamma + 1))


def test_rows_with_settings_are_what_they_are_alone():
    target = random_table(seed=10, order=2)
    draft = checks.perturbed(target, 0.7)
    prompts = [torch.tensor(ids) for ids in ([1, 2], [3], [0, 1, 4, 2, 2, 2], [4, 4, 4])]
    settings = {
        "gamma": 3,
        "max_new_tokens": 15,
        "sampling": Sampling(),
        "processors": processors_of(
            repetition_penalty=1.5, frequency_penalty=0.3, min_new_tokens=6, stop=(0,)
        ),
        "stop": (0,),
    }
    together = complete(target, draft, prompts, generators=checks.seeded(4), **settings)
    refilled = complete(
        target, draft, prompts, generators=checks.seeded(4), batch_size=2, **settings
    )
    assert refilled == together
    assert {output.finish_reason for output in together} == {"stop"}
    for row, generator in enumerate(checks.seeded(4)):
        (alone,) = complete(target, draft, [prompts[row]], generators=[generator], **settings)
        assert together[row] == alone
        assert len(alone.ids) > 6


def test_a_trimmed_draft_keeps_the_law_of_the_settings():
    """All that its head kept may be forbidden: then it drafts from what it would have said."""
    target = random_table(seed=1, order=2)
    draft = random_table(seed=2, order=2, kept=torch.tensor([0, 2]))
    settings = {"bad_words_ids": [[0], [2]]}
    law = law_of(target, settings, Sampling(), 3)
    outputs = complete(
        target,
        draft,
        [PROMPT] * 150,
        gamma=2,
        max_new_tokens=3,
        sampling=Sampling(),
        processors=processors_of(**settings),
        stop=(1,),
        generators=checks.seeded(150),
    )
    assert sum(output.counts.accepted for output in outputs) == 0
    assert checks.chi_square(Counter(o.ids for o in outputs), law, 150) > checks.ALARM


def test_settings_that_leave_nothing_to_say_are_an_error_only_where_something_is_said():
    """A block may draft behind the end of its row, where everything can be forbidden."""
    target = random_table(seed=4, order=1)
    settings = {"sampling": GREEDY, "processors": processors_of(no_repeat_ngram_size=1)}
    prompt = torch.tensor([1])
    for gamma in (0, 5):
        (output,) = complete(
            target, target, [prompt], gamma=gamma, max_new_tokens=4, stop=(), **settings
        )
        assert sorted(output.ids) == [0, 2, 3, 4]
        last = output.ids[-1]
        (ended,) = complete(
            target, target, [prompt], gamma=gamma, max_new_tokens=9, stop=(last,), **settings
        )
        assert ended.ids == output.ids
        with pytest.raises(UserError, match=r"prompt 0: .*forbid every token"):
            complete(target, target, [prompt], gamma=gamma, max_new_tokens=5, stop=(), **settings)


def test_ids_outside_the_vocabulary_are_refused_before_any_work():
    watched = checks.Watched(random_table())
    chain = processors_of(sequence_bias={(5,): 1.0})
    with pytest.raises(UserError, match="id 5"):
        speculate(
            watched,
            None,
            [PROMPT],
            gamma=0,
            max_new_tokens=3,
            sampling=GREEDY,
            processors=chain,
        )
    assert not watched.sessions


# --- several samples of one prompt ---


def test_vllm_4934_several_samples_of_a_prompt_are_their_own_runs_from_one_reading():
    """vllm#4934, #6137: n > 1 crashed. The prompt is read once; every sample is its own run."""
    target = checks.Watched(random_table(seed=5, order=2))
    draft = checks.Watched(checks.perturbed(target.inner, 0.7))
    prompts = [PROMPT, torch.tensor([3]), PROMPT, PROMPT]
    settings = {"gamma": 3, "max_new_tokens": 12, "sampling": Sampling(), "stop": (0,)}
    opened = []
    original = target.inner.open
    target.inner.open = lambda prompts: opened.append(len(prompts)) or original(prompts)
    together = complete(target, draft, prompts, generators=checks.seeded(4), **settings)
    assert opened == [2]
    for row, generator in enumerate(checks.seeded(4)):
        (alone,) = complete(
            target.inner, draft.inner, [prompts[row]], generators=[generator], **settings
        )
        assert together[row] == alone
    assert len({together[row].ids for row in (0, 2, 3)}) == 3


def test_vllm_6038_a_requests_seed_decides_its_sample_and_nothing_else():
    target = random_table(8, seed=6, order=2)
    before = torch.random.get_rng_state()

    def sample(seeds, sampling=PLAIN):
        outputs = complete(
            target,
            checks.perturbed(target, 0.5),
            [PROMPT] * len(seeds),
            gamma=2,
            max_new_tokens=20,
            sampling=sampling,
            stop=(),
            generators=[torch.Generator().manual_seed(seed) for seed in seeds],
        )
        return [output.ids for output in outputs]

    one, two, again = sample([1, 2, 1])
    assert one == again != two
    assert sample([2]) == [two]
    assert len(set(sample([1, 2], GREEDY))) == 1
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_first_of_two_endings_counts():
    def cut(stop, told):
        found = speculative._cut([7, 8, 9], 2, 20, frozenset(stop), told)
        return found.ids, found.accepted, found.judged, found.finished

    assert cut((9,), 2) == ((7, 8), 2, 2, "stop")
    assert cut((7,), 2) == ((7,), 1, 1, "stop")
    assert cut((), 3) == ((7, 8, 9), 2, 2, "stop")
    assert cut((), None) == ((7, 8, 9), 2, 2, None)
