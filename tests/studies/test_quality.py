"""Quality of outputs that were judged by hand."""

from __future__ import annotations

import pytest

from distillspec.studies import quality
from distillspec.tasks import Row, load_task
from distillspec.tasks.metrics import metric_of

SUMS = [Row("a", "?", "So it is 5. #### 5"), Row("b", "?", "#### 7")]
LINES = [Row("a", "?", "a b c d e"), Row("b", "?", "f g h i")]


def scored(task, rows, texts):
    return metric_of(load_task(task)).score(rows, texts)


def test_a_row_has_the_figures_of_its_output():
    found = scored("gsm8k", SUMS, ["The answer is 5.", "3 + 4 = 8"])
    # The calculator puts the second right; neither has the data set's own form.
    assert quality.rows(found) == [
        {"accuracy": 100, "accuracy_strict": 0, "accuracy_unaided": 100,
         "accuracy_strict_unaided": 0},
        {"accuracy": 100, "accuracy_strict": 0, "accuracy_unaided": 0,
         "accuracy_strict_unaided": 0},
    ]  # fmt: skip
    assert quality.figures(found)["accuracy"]["value"] == 100
    assert quality.figures(found)["accuracy_unaided"]["value"] == 50


def test_answers_that_are_all_wrong_still_leave_room():
    """The bug: resampling gave [0, 0]. Wilson's interval of 0 in n ends at z²/(n + z²)."""
    found = scored("gsm8k", SUMS, ["The answer is 1.", "The answer is 1."])
    share = quality.figures(found)["accuracy"]
    z = 1.959964
    assert (share["value"], share["low"]) == (0, 0)
    assert share["high"] == pytest.approx(100 * z**2 / (2 + z**2), abs=1e-3)


def test_bleu_is_of_the_corpus_and_no_row_has_it():
    found = scored("wmt14_en_de", LINES, ["a b c d e", "f g h j"])
    # Matches over n-grams: 5+3 of 9, 4+2 of 7, 3+1 of 5, 2+0 of 3; nothing is too short.
    by_hand = 100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25
    assert quality.figures(found)["bleu"]["value"] == pytest.approx(by_hand)
    assert quality.rows(found) == [{}, {}]


def test_differences_are_paired():
    """Two models right on the same rows differ by nothing, however wide their own spread."""
    right = ["5", "no number"]
    first, second = scored("gsm8k", SUMS, right), scored("gsm8k", SUMS, right)
    assert quality.figures(first)["accuracy"]["high"] > 90
    assert quality.differences(first, second)["accuracy"] == {"value": 0, "low": 0, "high": 0}
    worse = scored("gsm8k", SUMS, ["6", "no number"])
    assert quality.differences(worse, first)["accuracy"]["value"] == -50


def test_a_part_is_judged_alone():
    found = scored("gsm8k", SUMS, ["5", "0"])
    assert quality.figures(quality.part(found, [0]))["accuracy"]["value"] == 100
    assert quality.figures(quality.part(found, [1]))["accuracy"]["value"] == 0
