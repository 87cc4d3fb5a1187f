"""The engine's law, its equality with greedy decoding, its endings and its counts.

Chi-square checks fail with probability 1e-6 although all is well; their seeds are fixed.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

import decoding_checks as checks
from distillspec.decoding import Counts, complete, speculate
from distillspec.math.sampling import GREEDY, Sampling
from distillspec.math.verification import linear
from distillspec.models import wrap
from distillspec.models.toy import TableModel
from support import FAMILIES, module, perturbed, random_table, tiny, word_tokenizer

PROMPTS = [torch.tensor(ids) for ids in ([7, 9], [5], [8, 8, 3, 20, 41, 6], list(range(20, 37)))]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """A tiny model, and two drafts that are right some of the time."""
    target = checks.lively(request.param)
    return target, perturbed(target, 0.02), perturbed(target, 0.05)


# --- the law ---


@pytest.mark.parametrize("gamma", [1, 3])
@pytest.mark.parametrize("case", checks.LAW_CASES)
def test_three_tokens_follow_the_enumerated_law(case, gamma):
    """transformers#32867: a greedy draft judged by its softmax. vllm#9834: settings on one side
    alone. transformers#28166: rows of the wrong position. mlx-lm#1709: exact match is lossless."""
    checks.check_law(case, gamma, count=4_000)


def test_a_draft_with_a_trimmed_head_keeps_the_law():
    target = random_table(seed=1, order=2)
    draft = random_table(seed=2, order=2, kept=torch.tensor([0, 2, 3]))
    settings = {"gamma": 2, "sampling": Sampling(), "count": 4_000}
    assert checks.law_p_value(target, draft, **settings) > checks.ALARM


def test_the_chi_square_sees_a_draft_that_is_always_accepted():
    target, draft = random_table(seed=1, order=2), random_table(seed=2, order=2)
    accept_all = linear(1e-30)
    settings = {"gamma": 3, "sampling": Sampling(), "count": 2_000}
    assert checks.law_p_value(target, draft, lenience=accept_all, **settings) < checks.ALARM
    assert checks.law_p_value(draft, draft, **settings) > checks.ALARM


def test_a_tiny_llama_follows_its_enumerated_law():
    target = wrap(module("llama", rows=6, layers=1), word_tokenizer(6))
    draft = wrap(module("llama", rows=6, layers=1, seed=1), word_tokenizer(6))
    settings = {"gamma": 2, "sampling": Sampling(2.0), "count": 1_500}
    assert checks.law_p_value(target, draft, **settings) > checks.ALARM


# --- greedy ---


def test_greedy_tables():
    checks.check_greedy_tables()


def test_greedy_speculative_is_greedy(family):
    """transformers#30042, #30413 (positions moved by a round), #39421, #25921: in float32."""
    target, near, far = family
    for draft, gammas in ((near, (1, 4, 8)), (far, (3, 6))):
        checks.check_greedy(target, draft, PROMPTS, gammas=gammas, count=16, batches=(1, 4))


def test_a_stop_id_ends_a_row_wherever_it_falls(family):
    """transformers#47912, #31301, koboldcpp#1276: a stop id inside a block did not stop."""
    offsets, wanted = set(), {0, 1, 2, 3}
    for prompt, draft in product(PROMPTS, family):  # their weights differ with transformers
        offsets |= checks.check_stops(family[0], draft, prompt, gamma=3, count=16)
        if offsets == wanted:
            break
    assert offsets == wanted


def test_a_real_batch_equals_its_rows_alone(family):
    """mlx-vlm#1962, #2113, #1155: ragged rows that saw zeroed keys, and positions that drifted."""
    target, near, _ = family
    for sampling in (GREEDY, Sampling(0.8, top_p=0.95)):
        settings = {"gamma": 3, "max_new_tokens": 16, "sampling": sampling}
        together = complete(target, near, PROMPTS, generators=checks.seeded(4), **settings)
        for row, generator in enumerate(checks.seeded(4)):
            alone = complete(target, near, [PROMPTS[row]], generators=[generator], **settings)
            assert together[row] == alone[0]


# --- acceptance ---


def test_a_draft_equal_to_the_target_is_always_accepted():
    """vllm#5765, #9730: after a full block the draft never read its last token."""
    checks.check_draft_is_target()


def test_a_real_draft_equal_to_the_target_is_always_accepted(family):
    """Sampled too: its q differs from p by rounding only, one rejection in some 10,000 runs."""
    checks.check_draft_is_target(family[0], gammas=(5,))


def test_a_hostile_draft_is_never_accepted():
    checks.check_hostile_draft()


def test_an_unrelated_draft_is_accepted_as_often_as_it_should():
    """transformers#28508: every drafted token was accepted."""
    checks.check_unrelated_draft()


def test_the_counts_agree_with_the_forecast():
    checks.check_forecast_tables()


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_real_counts_agree_with_the_forecast(name):
    target = checks.lively(name)
    draft = perturbed(target, 0.05)
    settings = {"gamma": 3, "stop": (1,), "count": 6}
    assert checks.check_forecast(target, draft, sampling=GREEDY, **settings) == 0
    assert checks.check_forecast(target, draft, sampling=Sampling(), **settings) > 0
    argmax = {"sampling": Sampling(), "draft_sampling": GREEDY}
    assert checks.check_forecast(target, draft, **argmax, **settings) == 0


# --- endings ---


def test_exactly_the_budget():
    """ik_llama.cpp#2358, transformers#28555: the budget overrun, or charged before it was used."""
    checks.check_budget()


def test_stop_ids_at_every_offset_of_a_block():
    checks.check_stop_offsets()


def test_only_the_targets_stop_ids_count():
    checks.check_default_stop()


# --- q is what was drawn from ---


def test_q_is_the_very_tensor_the_token_was_drawn_from():
    checks.check_q_tables()


def test_q_is_wide_although_the_draft_is_not():
    """DeepSpec#31: drawn through bfloat16, judged by float32."""
    target = tiny("llama")
    target.module.bfloat16()
    checks.check_q_is_drawn_from(target, perturbed(target, 0.05), PROMPTS[:2])


def test_an_id_of_probability_zero_is_never_drawn():
    checks.check_draw_at_the_edges()
    checks.check_residual_of_equals()


def test_an_unsure_draft_drafts_its_whole_block_and_judged_tokens_alone_count():
    """llama.cpp#3919, #25908: confidence cut-offs that were on by default made acceptance look like
    100 % or fall to 7 %. There is none here: q of the surest draft is 1/200."""
    target, draft = random_table(200, seed=23), TableModel(torch.zeros(200))
    prompts = [torch.tensor([i]) for i in range(20)]
    settings = {"gamma": 4, "max_new_tokens": 30, "sampling": Sampling(), "stop": ()}
    left, counts = dict.fromkeys(range(20), 30), Counts()
    for block in speculate(target, draft, prompts, generators=checks.seeded(20), **settings):
        for i, row in enumerate(block.rows):
            assert block.drafted[i] == min(4, left[row] - 1)
            rejected = block.accepted[i] < block.drafted[i]
            assert block.judged[i] == block.accepted[i] + rejected
            left[row] -= len(block.ids[i])
            counts += block.counts(i)
    assert counts.judged < counts.drafted
    assert counts.empirical_acceptance == counts.accepted / counts.judged


# --- randomness ---


def test_seeds_decide_and_the_global_random_state_is_untouched():
    """vllm#6038: the seed of a request was ignored."""
    checks.check_seeds()


def test_every_row_is_what_it_is_alone():
    checks.check_rows_alone()


# --- lenience ---


def test_lenience_accepts_more_and_its_identity_is_lossless():
    checks.check_lenience()


def test_a_lenient_step_follows_its_own_law():
    """vllm-ascend#7807: a rule of its own with the acceptance and residual of another."""
    checks.check_lenient_law()


def test_greedy_lenience_compares_with_the_largest_probability():
    checks.check_lenient_greedy()


# --- what a caller may rely on ---


def test_the_states_handed_on_are_the_teacher_forced_ones():
    checks.check_states()


def test_real_states_can_enter_a_loss():
    target = tiny("t5")
    checks.check_states(target, perturbed(target, 0.05), PROMPTS[:2], 1e-3)


def test_nothing_leaks_between_blocks_or_into_the_models():
    """Gradients stay on for the caller, and no model is changed by being decoded with."""
    target = tiny("llama")
    draft = perturbed(target, 0.05)
    draft.module.train()
    before = [model.module.config.to_dict() for model in (target, draft)]
    settings = {"gamma": 2, "max_new_tokens": 8, "sampling": Sampling(), "stop": ()}
    for _ in speculate(target, draft, PROMPTS[:2], **settings):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert [model.module.config.to_dict() for model in (target, draft)] == before
    assert (target.module.training, draft.module.training) == (False, True)
    assert all(p.grad is None for model in (target, draft) for p in model.parameters())


def test_one_call_of_each_model_per_block_and_token():
    """γ drafted tokens cost γ draft passes, a block costs one target pass, whatever the batch."""
    target, draft = (checks.Watched(random_table(seed=20)) for _ in range(2))
    blocks = list(
        speculate(
            target,
            draft,
            [torch.tensor([1]), torch.tensor([2])],
            gamma=3,
            max_new_tokens=9,
            sampling=GREEDY,
        )
    )
    assert target.calls == len(blocks)
    assert draft.calls == sum(max(block.drafted) for block in blocks)


def test_without_a_draft_it_is_autoregressive():
    target = random_table(seed=21, order=2)
    settings = {"max_new_tokens": 12, "sampling": GREEDY, "gamma": 0}
    for draft in (None, random_table(seed=22)):
        (output,) = complete(target, draft, [torch.tensor([3])], **settings)
        assert output.ids == checks.plain_greedy(target, torch.tensor([3]), 12)
        assert output.counts == checks.Counts(target_calls=12, tokens=12)
