"""Metrics: equal to the packages that made them, and able to fail."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import sacrebleu
from rouge_score import rouge_scorer

from distillspec.errors import UserError
from distillspec.studies.estimates import estimate
from distillspec.tasks import Row, load_task
from distillspec.tasks.metrics import bleu, difference, metric_of
from distillspec.tasks.summaries import rouge, sentences, words

# sacrebleu's README example: three sentences and two sets of references.
SYSTEM = [
    "The dog bit the man.",
    "It wasn't surprising.",
    "The man had just bitten him.",
]
REFERENCES = [
    ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
    ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
]
GERMAN = [
    ("Der Hund schläft im Garten hinter dem Haus.", "Der Hund schläft im Garten beim Haus."),
    ("Sie kauft heute Brot und Milch.", "Heute kauft sie Milch und Brot."),
    ("Das Wetter ist schön, nicht wahr?", "Das Wetter ist schön, nicht wahr?"),
    ("", "Wir gehen nach Hause."),
]


def scored(task: str, pairs: list[tuple[str, str]], domains: list[str] | None = None):
    """Judge (output, reference) pairs with a task's metric."""
    names = domains or ["d"] * len(pairs)
    rows = [Row(f"r{n}", "p", pair[1], names[n]) for n, pair in enumerate(pairs)]
    metric = metric_of(load_task(task))
    assert metric is not None
    found = metric.score(rows, [pair[0] for pair in pairs])
    assert tuple(found.statistics) == metric.figures
    assert found.columns.shape == (len(pairs), len(found.names))
    return found


def test_bleu_is_sacrebleus_to_the_last_digit() -> None:
    for part in (GERMAN, GERMAN[:1], GERMAN[1:]):
        wanted = sacrebleu.corpus_bleu([h for h, _ in part], [[r for _, r in part]]).score
        assert scored("wmt14_en_de", part).value("bleu") == wanted
    assert 0 < scored("wmt14_en_de", GERMAN).value("bleu") < 100


def test_bleu_with_several_references_a_row_is_that_of_the_readme() -> None:
    """References given the wrong way round score without an error (sacrebleu#275, #272)."""
    by_row = [list(row) for row in zip(*REFERENCES, strict=True)]
    found = bleu(SYSTEM, by_row).value("bleu")
    assert found == sacrebleu.corpus_bleu(SYSTEM, REFERENCES).score
    assert round(found, 2) == 48.53
    with pytest.raises(ValueError, match="3 outputs and references for 2"):
        bleu(SYSTEM, REFERENCES)
    with pytest.raises(ValueError, match="a list of references for each output"):
        bleu(SYSTEM, REFERENCES[0])


def test_empty_outputs_score_nothing() -> None:
    """Empty hypotheses are mishandled elsewhere (sacrebleu#132, #239)."""
    empty = [("", reference) for _, reference in GERMAN]
    assert scored("wmt14_en_de", empty).value("bleu") == 0
    assert scored("xsum", empty).value("rougeLsum") == 0
    assert scored("gsm8k", [("", "#### 4")]).value("accuracy") == 0
    assert scored("bbh", [("", "(A)")]).value("accuracy") == 0


def test_as_many_outputs_as_rows_are_wanted() -> None:
    metric = metric_of(load_task("xsum"))
    assert metric is not None
    for rows, texts in (([Row("a", "p", "t")], ["x", "y"]), ([], [])):
        with pytest.raises(ValueError, match="expected as many"):
            metric.score(rows, texts)


@pytest.mark.parametrize("task", ["xsum", "wmt14_en_de", "gsm8k", "bbh"])
def test_a_row_without_a_reference_is_named(task: str) -> None:
    metric = metric_of(load_task(task))
    assert metric is not None
    with pytest.raises(UserError, match="r9: no reference"):
        metric.score([Row("r9", "p")], ["x"])
    if task in ("xsum", "gsm8k"):
        with pytest.raises(UserError, match="r9: the reference has no"):
            metric.score([Row("r9", "p", "!?")], ["x"])


def test_rouge_is_rouge_scores_on_ascii() -> None:
    reference = "The cat sat on the mat. It was happy, and it slept for 3 hours."
    text = "A cat sat on a mat! It slept for 3 long hours."
    kinds = ["rouge1", "rouge2", "rougeLsum"]
    theirs = rouge_scorer.RougeScorer(kinds).score(
        reference.replace(". ", ".\n"), text.replace("! ", "!\n")
    )
    assert rouge(text, reference) == tuple(theirs[kind].fmeasure for kind in kinds)


def test_rouge_reads_every_script() -> None:
    """Equal Russian texts scored 0 (evaluate#256, lm-evaluation-harness#157)."""
    for text in ("кошка сидит дома", "猫が好き", "η γάτα", "بيت كبير", "日本語 and ASCII"):
        assert rouge(text, text) == (1.0, 1.0, 1.0)
    partly = rouge("猫が好き", "犬が好き")
    assert partly is not None
    assert partly[0] == 0.75
    assert words("Don't: 3.5 Кота_x é") == ["don", "t", "3", "5", "кота", "x", "é"]
    assert words("e\u0301") == words("\u00e9")


def test_lsum_sees_sentences_a_line_each() -> None:
    """The same text scored 0.57 and 1.00 without and with line ends (#79, evaluate#256)."""
    reference = "Rain fell all night. The river rose fast. Two roads closed."
    text = "Two roads closed. The river rose fast. Rain fell all night."
    found = rouge(text, reference)
    assert found is not None
    assert found[2] == 1.0
    joined = rouge_scorer.RougeScorer(["rougeLsum"]).score(reference, text)["rougeLsum"].fmeasure
    assert joined < 0.6
    assert rouge(text.replace(". ", ".\n"), reference) == found


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("Dr. A. Day of St. Ives paid 3.5 million.", ["Dr. A. Day of St. Ives paid 3.5 million."]),
        ("It cost 5 p. in all", ["It cost 5 p. in all"]),
        ("one line .\n\n another .", ["one line .", "another ."]),
        ("", []),
    ],
)
def test_sentences_end_by_the_rule(text: str, parts: list[str]) -> None:
    assert sentences(text) == parts


# Outputs of my own making to three problems whose answers are 14, 60 and 5.
SUMS = [
    ("3 * 4 = 12 and 2 more make 12 + 2 = 14.\n#### 14", "#### 14"),
    ("5 boxes of 12 pens hold 5 * 12 = 50. The answer is 50.", "#### 60"),
    ("10 / 2 = <<10/2=4>>4\n#### 4\nQ: Another?\nA: 77\n#### 77", "#### 5"),
    ("I do not know.", "#### 8"),
]


def test_gsm8k_with_and_without_calculator_by_hand() -> None:
    found = scored("gsm8k", SUMS)
    values = {name: found.value(name) for name in found.statistics}
    assert values == {
        "accuracy": 75.0,
        "accuracy_strict": 50.0,
        "accuracy_unaided": 25.0,
        "accuracy_strict_unaided": 25.0,
    }


def test_bbh_counts_every_task_alike() -> None:
    pairs = [("the answer is (A).", "(A)"), ("(B)", "(A)"), ("yes", "yes"), ("It is no", "no")]
    found = scored("bbh", [*pairs, ("no", "yes")], ["one", "one", "two", "two", "two"])
    assert found.value("accuracy") == pytest.approx(60.0)
    assert found.value("accuracy_by_task") == pytest.approx(100 * (1 / 2 + 2 / 3) / 2)
    lacking = found.columns[:2].sum(axis=0, keepdims=True)
    assert found.statistics["accuracy_by_task"](lacking)[0] == 50.0


def test_bbh_options_are_read_from_the_prompt() -> None:
    metric = metric_of(load_task("bbh"))
    assert metric is not None
    prompt = "Q: Which?\nOptions:\n(A) Heat\n(B) Cold Fish\nA: Let's think step by step."
    row = Row("r", prompt, "(B)", "movie_recommendation")
    assert metric.score([row], ["So the answer is Cold Fish."]).value("accuracy") == 100


@pytest.mark.parametrize(
    ("task", "pairs"),
    [
        ("wmt14_en_de", GERMAN),
        ("xsum", GERMAN),
        ("gsm8k", SUMS),
        ("bbh", [("yes", "yes"), ("a", "b")]),
    ],
)
def test_figures_have_intervals_and_paired_differences(task: str, pairs: list) -> None:
    found = scored(task, pairs)
    worse = scored(task, [("", reference) for _, reference in pairs])
    for name, statistic in found.statistics.items():
        made = estimate(statistic, found.columns)
        assert made["value"] == found.value(name)
        assert 0 <= made["low"] <= made["value"] <= made["high"] <= 100 + 1e-9
        apart = estimate(*difference(name, found, worse))
        assert apart["value"] == pytest.approx(found.value(name) - worse.value(name))
        same = estimate(*difference(name, found, found))
        assert (same["low"], same["high"]) == (0, 0)
    shorter = dataclasses.replace(worse, columns=worse.columns[:1])
    with pytest.raises(ValueError, match="cannot be paired"):
        difference(next(iter(found.statistics)), found, shorter)


def test_a_task_without_a_metric_has_none() -> None:
    assert metric_of(load_task("lm1b")) is None
    with pytest.raises(ValueError, match="unknown metric 'x'"):
        metric_of(dataclasses.replace(load_task("lm1b"), metric="x"))


def test_columns_add_up_over_parts() -> None:
    whole = scored("wmt14_en_de", GERMAN).columns.sum(axis=0)
    parts = [scored("wmt14_en_de", part).columns.sum(axis=0) for part in (GERMAN[:2], GERMAN[2:])]
    assert np.array_equal(whole, parts[0] + parts[1])
