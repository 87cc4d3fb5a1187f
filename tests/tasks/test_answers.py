"""Final answers, all texts written and checked by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distillspec.tasks.answers import agrees, cut, final_number, marked_number, options

FILMS = "Which film is like these?\nOptions:\n(A) Up, Up\n(B) Monsters, Inc\n(C) The Room"
CHOICES = options(FILMS)


def test_stops_are_a_list_of_texts() -> None:
    """A stop given as a text was iterated letter by letter (lm-evaluation-harness#700)."""
    assert cut("\n\n5 apples\nQ: next", ["\nQ:", "###"]) == "5 apples"
    assert cut("5 ### 6\nQ:", ["\nQ:", "###"]) == "5 "
    assert cut("Quite", []) == "Quite"
    with pytest.raises(TypeError, match="must be a list"):
        cut("Quite", "Q")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("He has 3 + 4 = 7.\n#### 7", 7),
        ("#### 1,250", 1250),
        ("####12 dollars", 12),
        ("#### -3.50", Fraction(-7, 2)),
        ("#### $18", 18),
        ("First #### 5, corrected\n#### 6", 6),
        ("The answer is 8.\n#### 9", 9),
        ("So the answer is $1,204.50.", Fraction(2409, 2)),
        ("The answer is 5 * 3 = 15. It took 4 steps.", 15),
        ("The answer (arabic numerals) is 40", 40),
        ("**Answer: 12** apples, of 30", 12),
        ("Thus \\boxed{42} of 100", 42),
        ("A: 26", 26),
        ("Q: 5?\nA: 5\nQ: mine\nA: 6 of 9", 6),
        ("The answer is unclear. We count 3 or 4", 4),
        # Headings of Markdown used to be taken for the mark, and hid the answer.
        ("#### Step 1: add\n2 + 3 = 5\n#### Step 2: multiply\nThe answer is 42.", 42),
        ("#### **18**", 18),
        ("#### \\$18", 18),
        ("#### £ 18", 18),
        # Thousands as TeX writes them.
        ("\\boxed{1{,}250}", 1250),
        ("The answer is 1,\\!250,\\!000.", 1_250_000),
        ("5-3 leaves 2", 2),
        ("between 10-12", 12),
        ("it is \u22125", -5),
        ("we get 1,2,3", 3),
        (".5", Fraction(1, 2)),
        ("", None),
        ("none at all", None),
        ("9" * 5000, None),
    ],
)
def test_the_last_final_number_wins(text: str, number: int | Fraction | None) -> None:
    """A recited example's answer must not be taken for the model's (lm-evaluation-harness#3438)."""
    assert final_number(text) == number


def test_the_strict_form_is_the_data_sets_own_mark() -> None:
    assert marked_number("The answer is 5.") is None
    assert marked_number("#### five") is None
    assert marked_number("#### Step 2: multiply") is None
    assert marked_number("#### 5\n#### 6.0") == 6


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        # Options: "(B)." and a trailing blank used to fail (lm-evaluation-harness#2013).
        ("So the answer is (B). ", "(B)"),
        ("So the answer is B.", "(B)"),
        ("So the answer is (B) Monsters, Inc.", "(B)"),
        ("The answer is B) Monsters, Inc", "(B)"),
        ("the answer is option (b)", "(B)"),
        ("the answer is **(B)**.", "(B)"),
        ("Answer: (B)\n\nI am sure.", "(B)"),
        ("The answer is:\n(B)", "(B)"),
        ("the answer is clearly the second, (B).", "(B)"),
        ("the answer is $\\boxed{B}$.", "(B)"),
        ("(B)", "(B)"),
        ("B", "(B)"),
        ("After all that it must be (B).", "(B)"),
        ("The answer is Monsters, Inc.", "(B)"),
        ("monsters inc", "(B)"),
        ("Shown: so the answer is (A). Mine: so the answer is (B).", "(B)"),
        ("the answer is (B)", "Monsters, Inc"),
        ("the answer is Monsters, Inc.", "Monsters, Inc"),
        # Booleans, yes and no, validity.
        ("So the answer is True.", "True"),
        ("So the answer is false ", "False"),
        ("the answer is Yes, he does.", "Yes"),
        ("the answer is no.", "No"),
        ("No", "no"),
        ("So the argument is invalid.", "invalid"),
        ("the answer is that it is not valid.", "invalid"),
        # Numbers.
        ("So the answer is -35.", "-35"),
        ("the answer is 3 * 4 = 12.", "12"),
        ("the answer is 8 fruits", "8"),
        ("8.0", "8"),
        # Lists of words.
        ("So the answer is apple pear quince.", "apple pear quince"),
        ("So the answer is Apple, pear,  quince", "apple pear quince"),
        ("apple\npear\nquince", "apple pear quince"),
        # Brackets.
        ("So the answer is ] ) }.", "] ) }"),
        ("the answer is ])}", "] ) }"),
        ("the answer is `> >`.", "> >"),
        (")", ")"),
    ],
)
def test_the_forms_of_a_right_answer(text: str, gold: str) -> None:
    assert agrees(text, gold, CHOICES)


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("So the answer is (A).", "(B)"),
        ("So the answer is (B) or (C).", "(B)"),
        ("So the answer is (B). No: the answer is (C).", "(B)"),
        ("If we look at (B), it says that the", "(B)"),
        ("A dog is in the room", "(A)"),
        ("the answer is Cinema", "(C)"),
        ("the answer is Up", "(A)"),
        ("Because not True is False and", "True"),
        ("the answer is yes or no", "Yes"),
        ("the answer is valid", "invalid"),
        ("the answer is invalid", "valid"),
        ("the answer is not invalid or valid", "valid"),
        ("So the answer is 35.", "-35"),
        ("So the answer is 350.", "35"),
        ("8 - 1 + 6 =", "6"),
        ("We see 8 of them", "8"),
        ("So the answer is pear apple quince.", "apple pear quince"),
        ("So the answer is apple pear.", "apple pear quince"),
        ("the answer is ] )", "] ) }"),
        ("the answer is [ ] ) }", "] ) }"),
        ("", "(B)"),
        ("So the answer is", "(B)"),
    ],
)
def test_a_wrong_or_unsure_answer_is_wrong(text: str, gold: str) -> None:
    assert not agrees(text, gold, CHOICES)


def test_options_are_those_of_the_last_question() -> None:
    shown = "Options:\n(A) old\n(D) older\nA: (A)\n\nQ: new?\nOptions:\n(A) one\n(B) two, three"
    assert options(shown) == {"A": "one", "B": "two, three"}
    assert options("no options here (A)") == {}


@settings(deadline=None, derandomize=True, max_examples=300)
@given(text=st.text(max_size=60), gold=st.sampled_from(["(B)", "True", "12", "a b", ") ]"]))
def test_any_text_is_survived(text: str, gold: str) -> None:
    assert agrees(text, gold, CHOICES) in (True, False)
    assert final_number(text) is None or isinstance(final_number(text), Fraction)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(number=st.integers(-(10**9), 10**9))
def test_a_number_is_read_however_it_is_written(number: int) -> None:
    for form in ("#### {}", "the answer is {}.", "It was 3, then {:,}", "A: {:.2f}"):
        assert final_number(form.format(number)) == number
