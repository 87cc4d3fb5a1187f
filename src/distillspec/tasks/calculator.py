"""The calculator of GSM8K, applied to a finished text: wrong results of equations are put right.

Two conventions. The data set's own (Cobbe et al. 2021) marks an equation as `<<48/2=24>>24`; bare
equations, `48/2 = 24`, are what models write that never saw such marks (Wei et al. 2022). In both
the result is computed anew, and a wrong one is replaced wherever it stands later in the text, so
that the final answer follows: Wei et al. carry results on "via string matching" too.

Left alone: a result that is the exact value rounded to its own digits (200/3 = 67), percentages
(12/50 = 24%, 1.2 * 100% = 120), dollars given in cents ($0.25 * 10 = 250), mixed numbers (17/3 =
5 and 2/3), a quotient of a fraction, which can be read in two ways (3 / 1/4), an equation whose
beginning words cut off ("3 apples + 2 * 4 = 11"), and whatever is not +, -, *, / and brackets on
plain numbers.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

_NUMBER = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_OPERATOR = r"(?:[-+*/×÷\u2013\u2212]|x(?=[\s\d$(]))"
_BARE = (
    rf"(?P<bare>\(*\$?{_NUMBER}%?(?:[)\s]*{_OPERATOR}[(\s]*\$?{_NUMBER}%?)+[)\s]*)"
    rf"=(?P<equals>\s*-?\$?)(?P<result>{_NUMBER})"
    rf"(?![\d.,:]*\d|%|\s*{_OPERATOR}\s*[\d$(]|\s+and\s+\(?\d+/)"
)
_MARK = rf"<<(?P<marked>[^<>=]*)=(?P<claim>[^<>=]*)>>(?P<repeat>{_NUMBER})?"
_EQUATION = re.compile(f"{_MARK}|{_BARE}")
_CUT_OFF = re.compile(r"(?:[-+*/×÷\u2013\u2212x^%)$\d]\s*|[^\W\d]|\d,\s?|\s\.\s*)$")
_TWO_WAYS = re.compile(rf"{_NUMBER}\s*/\s*\$?{_NUMBER}\s*/")
_STANDALONE = re.compile(rf"(?<![\w.,]){_NUMBER}(?![\w]|[.,]\d)")
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{_NUMBER})(?P<percent>%?)|(?P<sign>[-+*/×÷x()\u2013\u2212]))"
)
_NOISE = Fraction(1, 10**9)
"""Relative: 1.6666666666666665 is what floating point makes of 5/3."""
_SIGNS = {"×": "*", "x": "*", "÷": "/", "\u2013": "-", "\u2212": "-"}
_LONGEST = 200
"""Characters of an equation; a longer one is noise, not arithmetic."""


def calculated(text: str) -> str:
    """Put the results of a text's equations right.

    >>> calculated("5 boxes of 12: 5 * 12 = 50 pens. She has 50 - 8 = 42. #### 42")
    '5 boxes of 12: 5 * 12 = 60 pens. She has 60 - 8 = 52. #### 52'
    >>> calculated("48/2 = <<48/2=23>>23 clips")
    '48/2 = <<48/2=24>>24 clips'
    """
    right: dict[str, str] = {}  # by the wrong result
    done = 0
    parts: list[str] = []
    for match in _EQUATION.finditer(text):
        parts.append(_carried(text[done : match.start()], right))
        if match["marked"] is not None:
            parts.append(_marked(match, right))
        elif _is_cut_off(text, match):
            parts.append(_carried(match[0], right))  # the end of a longer expression
        else:
            parts.append(_bare(match, right))
        done = match.end()
    parts.append(_carried(text[done:], right))
    return "".join(parts)


def _is_cut_off(text: str, match: re.Match[str]) -> bool:
    """Say whether what stands before a bare equation belongs to it."""
    before = text[max(match.start() - _LONGEST, 0) : match.start()]
    mixed = re.search(r"\d\s+and\s+$", before) and re.match(r"\(*\d+/\d", match["bare"])
    return _CUT_OFF.search(before) is not None or mixed is not None


def _bare(match: re.Match[str], right: dict[str, str]) -> str:
    expression = _carried(match["bare"], right)
    signed = match["equals"].strip().replace("$", "") + match["result"]
    result = _result(expression, signed, right)
    if result is None:
        return f"{expression}={match['equals']}{_carried(match['result'], right)}"
    equals = match["equals"] if "-" in signed else match["equals"].replace("-", "")
    return f"{expression}={equals.replace('-', '')}{result}"


def _marked(match: re.Match[str], right: dict[str, str]) -> str:
    expression = _carried(match["marked"], right)
    claim, repeat = match["claim"], match["repeat"] or ""
    result = _result(expression, claim.strip().replace("$", ""), right)
    if result is None:
        return f"<<{expression}={_carried(claim, right)}>>{_carried(repeat, right)}"
    same = _plain(repeat) == _plain(claim.strip().replace("$", ""))
    return f"<<{expression}={result}>>{result if same else repeat}"


def _result(expression: str, claim: str, right: dict[str, str]) -> str | None:
    """Give the right result where the claimed one is wrong, and remember it."""
    value = _evaluated(expression)
    claimed = _plain(claim)
    if value is None or re.fullmatch(rf"-?{_NUMBER}", claimed) is None:
        return None
    if ("$" in expression or "%" in expression) and Fraction(claimed) == 100 * value:
        return None
    digits = len(claimed.partition(".")[2])
    off = abs(value - Fraction(claimed))
    if off * 2 * 10**digits <= 1 or off <= abs(value) * _NOISE:
        right.pop(claimed, None)  # from here on this number is a result that holds
        return None
    result = _written(value)
    right.pop(result, None)
    if not claimed.startswith("-"):
        right[claimed] = result
    elif result.startswith("-"):  # the sign stays where it is
        right[claimed[1:]] = result[1:]
    return result


def _carried(text: str, right: dict[str, str]) -> str:
    """Replace results that were put right earlier."""
    if not right:
        return text
    return _STANDALONE.sub(lambda match: right.get(_plain(match[0]), match[0]), text)


def _plain(number: str) -> str:
    return number.replace(",", "")


def _written(value: Fraction) -> str:
    """Write a number as text: to six decimals where they suffice, else to ten."""
    short = round(value, 6)
    close = abs(value - short) <= max(abs(value), Fraction(1)) * _NOISE * 100
    text = f"{Decimal(round((short if close else value) * 10**10)).scaleb(-10):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _evaluated(expression: str) -> Fraction | None:
    """Compute an expression exactly; None where it is none, or divides by zero."""
    if len(expression) > _LONGEST or _TWO_WAYS.search(expression):
        return None
    tokens: list[Fraction | str] = []
    position = 0
    expression = expression.replace("$", "").strip()
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            return None
        if match["number"] is None:
            tokens.append(_SIGNS.get(match["sign"], match["sign"]))
        else:
            number = Fraction(_plain(match["number"]))
            tokens.append(number / 100 if match["percent"] else number)
        position = match.end()
    try:
        value, rest = _sum(tokens)
    except (_NoExpressionError, ZeroDivisionError, RecursionError):
        return None
    return None if rest else value


class _NoExpressionError(Exception):
    """The tokens are no expression; it never leaves this module."""


_Tokens = list[Fraction | str]


def _sum(tokens: _Tokens) -> tuple[Fraction, _Tokens]:
    value, tokens = _product(tokens)
    while tokens and tokens[0] in ("+", "-"):
        sign = 1 if tokens[0] == "+" else -1
        term, tokens = _product(tokens[1:])
        value += sign * term
    return value, tokens


def _product(tokens: _Tokens) -> tuple[Fraction, _Tokens]:
    value, tokens = _factor(tokens)
    while tokens and tokens[0] in ("*", "/"):
        divides = tokens[0] == "/"
        factor, tokens = _factor(tokens[1:])
        value = value / factor if divides else value * factor
    return value, tokens


def _factor(tokens: _Tokens) -> tuple[Fraction, _Tokens]:
    if not tokens:
        raise _NoExpressionError
    first, rest = tokens[0], tokens[1:]
    if isinstance(first, Fraction):
        return first, rest
    if first == "-":
        value, rest = _factor(rest)
        return -value, rest
    if first == "(":
        value, rest = _sum(rest)
        if rest and rest[0] == ")":
            return value, rest[1:]
    raise _NoExpressionError
