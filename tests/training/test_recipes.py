"""Recipes are data: they round-trip, and refuse what means nothing by name."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.errors import UserError
from distillspec.training.optimization import AdamW, Schedule
from distillspec.training.randomness import uniform
from distillspec.training.recipes import (
    BEYOND,
    GKD,
    RECIPES,
    Divergence,
    Mixture,
    Recipe,
    named,
)


@pytest.mark.parametrize("name", RECIPES)
def test_the_papers_recipes_round_trip_through_json(name):
    recipe = named(name)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert "Table 1" in recipe.reference


@pytest.mark.parametrize("name", BEYOND)
def test_recipes_beyond_the_paper_say_where_they_come_from(name):
    recipe = named(name)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert "arXiv" in recipe.reference or recipe.reference.startswith("ours")
    assert name not in RECIPES


def test_the_newer_recipes():
    table = {name: (str(r.divergence), r.mixture) for name, r in BEYOND.items()}
    assert table == {
        "adaspec": ("select:0.4:forward_kl", Mixture(fixed=1)),
        "acceptance": ("acceptance", Mixture(target=1)),
        "path": ("path:5", Mixture(target=1)),
    }


def test_a_recipe_with_every_field_moved_round_trips_too():
    recipe = Recipe(
        Divergence("jsd", 0.3),
        Mixture(0.2, 0.3, 0.5),
        optimizer=AdamW(weight_decay=0.1, beta2=0.95),
        schedule=Schedule(1, 2, 3, 0.5, "seconds"),
        learning_rate=1e-4,
        batch_size=3,
        max_new_tokens=7,
        clip=1.0,
        reduction="token_mean",
        precision="bfloat16",
        frozen=("*embed*",),
        reference="a test",
    )
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_the_papers_table_1():
    table = {name: (str(r.divergence), r.mixture) for name, r in RECIPES.items()}
    assert table == {
        "seqkd": ("cross_entropy", Mixture(target=1)),
        "supervised_kd": ("forward_kl", Mixture(fixed=1)),
        "imitkd": ("forward_kl", Mixture(fixed=0.5, draft=0.5)),
        "fdistill": ("total_variation", Mixture(draft=0.5, target=0.5)),
        "gkd": ("forward_kl", Mixture(draft=1)),
    }
    assert (GKD.learning_rate, GKD.batch_size, GKD.reduction) == (3e-4, 32, "sequence_mean")


@pytest.mark.parametrize(
    "text",
    [
        "forward_kl",
        "reverse_kl",
        "jsd:0.5",
        "total_variation",
        "cross_entropy",
        "acceptance",
        "path:5",
        "select:0.4:forward_kl",
        "select:0.25:jsd:0.1",
    ],
)
def test_a_divergence_is_spelt_as_it_is_read(text):
    assert str(Divergence.parse(text)) == text


def test_a_selection_is_of_forward_kl_unless_it_says_otherwise():
    assert Divergence.parse("select:0.4") == Divergence("forward_kl", fraction=0.4)


@pytest.mark.parametrize(
    "text",
    [
        *("kl", "jsd", "jsd:", "jsd:0", "jsd:1", "jsd:x", "jsd:nan", "forward_kl:0.5", ""),
        *("path", "path:", "path:0", "path:-1", "path:2.5", "acceptance:1", "acceptance:"),
        *("select", "select:", "select:0", "select:1", "select:x", "select:nan"),
        *("select:0.5:kl", "select:0.5:path:2", "select:0.5:select:0.5"),
    ],
)
def test_an_unknown_divergence_is_refused_by_name(text):
    with pytest.raises(UserError, match="forward_kl|beta|gamma|fraction|number|weighs"):
        Divergence.parse(text)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "forward_kl", "gamma": 3}, "takes no gamma"),
        ({"name": "acceptance", "beta": 0.5}, "takes no beta"),
        ({"name": "path", "gamma": True}, "whole number"),
        ({"name": "path", "gamma": 3.0}, "whole number"),
        ({"name": "forward_kl", "fraction": "0.4"}, "fraction inside"),
    ],
)
def test_a_divergence_takes_its_own_numbers_only(fields, words):
    with pytest.raises(UserError, match=words):
        Divergence(**fields)


def test_a_path_is_of_the_targets_own_outputs():
    path = Divergence("path", gamma=3)
    assert Recipe(path, Mixture(fixed=0.5, target=0.5)).divergence == path
    with pytest.raises(UserError, match="sampled from the draft"):
        Recipe(path, Mixture(fixed=0.5, draft=0.5))


@pytest.mark.parametrize(
    "shares", [(0.5, 0.4, 0.0), (-0.5, 1.5, 0.0), (0, 0, 0), (float("nan"), 1, 0), ("1", 0, 0)]
)
def test_a_mixture_must_be_a_distribution(shares):
    with pytest.raises(UserError, match="add up to 1"):
        Mixture(*shares)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rte": 1}, "did you mean 'learning_rate'"),
        ({"learning_rate": "1e-4"}, "learning_rate must be a number"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"max_new_tokens": True}, "max_new_tokens must be a whole number"),
        ({"clip": 0}, "clip must be above 0"),
        ({"reduction": "batchmean"}, "use one of: sequence_mean, token_mean"),
        ({"precision": "float16"}, "use one of: float32, bfloat16"),
        ({"optimizer": {"name": "adam"}}, "use one of: adafactor, adamw"),
        ({"optimizer": {"name": "adamw", "lr": 1}}, "unknown key 'lr' in optimizer"),
        ({"schedule": {"warm_up": 3}}, "did you mean 'warmup'"),
        ({"mixture": 1}, "mixture must be a table"),
        ({"divergence": "kld"}, "unknown divergence 'kld'"),
        ({"divergence": {}}, "divergence lacks name"),
        ({"divergence": 3}, "divergence must be a table of settings, got 3"),
        ({"divergence": {"name": "jsd", "beta": "0.5"}}, "jsd needs a beta inside"),
        ({"optimizer": "adamw"}, "optimizer must be a table of settings, got 'adamw'"),
        ({"optimizer": {}}, "unknown optimizer name None"),
        ({"optimizer": {"name": "adamw", "beta1": 1.5}}, "beta1 must be a number, at least 0 and"),
        ({"optimizer": {"name": "adamw", "beta2": 1}}, "beta2 must be a number, at least 0 and"),
        ({"optimizer": {"name": "adamw", "weight_decay": -1}}, "weight_decay must be a number"),
        ({"optimizer": {"name": "adafactor", "weight_decay": "0"}}, "weight_decay must be a num"),
        ({"frozen": "*embed*"}, "frozen must be a list of patterns, .* got '.embed.'"),
        ({"frozen": [1]}, "frozen must be a list of patterns"),
    ],
)
def test_what_a_recipe_cannot_use_is_refused_by_name(change, words):
    with pytest.raises(UserError, match=words):
        Recipe.from_dict({**GKD.to_dict(), **change})


@pytest.mark.parametrize("missing", ["divergence", "mixture"])
def test_a_recipe_without_its_heart_is_refused(missing):
    data = GKD.to_dict()
    del data[missing]
    with pytest.raises(UserError, match=f"lacks {missing}"):
        Recipe.from_dict(data)


@given(st.floats(0, 1, exclude_max=True))
@settings(deadline=None, derandomize=True)
def test_a_share_of_one_is_always_chosen_and_a_share_of_zero_never(u):
    assert Mixture(fixed=1).source(u) == "fixed"
    assert Mixture(draft=1).source(u) == "draft"
    assert Mixture(target=1).source(u) == "target"
    assert Mixture(fixed=0.1, draft=0.9).source(u) != "target"
    assert Mixture(fixed=0.1, target=0.9).source(u) != "draft"


def test_shares_that_round_to_less_than_one_leave_no_gap():
    mixture = Mixture(fixed=0.1, draft=0.9 - 1e-16)
    assert mixture.fixed + mixture.draft < 1
    assert mixture.source(math.nextafter(1, 0)) == "draft"


def test_the_order_of_the_coins_is_the_papers():
    """trl#1814: the comparison was the wrong way round."""
    mixture = Mixture(fixed=0.25, draft=0.5, target=0.25)
    assert [mixture.source(u) for u in (0, 0.2499, 0.25, 0.7499, 0.75, 0.9999)] == [
        "fixed", "fixed", "draft", "draft", "target", "target",
    ]  # fmt: skip


def test_the_coins_of_a_run_keep_the_shares():
    """Each count is binomial(4000, share); five standard deviations miss once in 1.7 million."""
    mixture = Mixture(fixed=0.5, draft=0.3, target=0.2)
    chosen = [mixture.source(uniform(0, "source", step)) for step in range(4000)]
    for source, share in (("fixed", 0.5), ("draft", 0.3), ("target", 0.2)):
        spread = (4000 * share * (1 - share)) ** 0.5
        assert abs(chosen.count(source) - 4000 * share) < 5 * spread


def test_recipes_do_not_need_torch():
    code = "import distillspec.training.recipes, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_task_changes_a_recipe_by_replacing_fields():
    assert replace(GKD, max_new_tokens=320).mixture == GKD.mixture
