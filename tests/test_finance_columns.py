"""What a finance verdict says beside upstream's rule: looser rules, and notations in a text."""

from __future__ import annotations

import json
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colab_utils import records
from colab_utils.evaluators import number_text, program_value

REPLY = "```python\ndef solution():\n    return answer\n```"
LOOSER = ("within_1_percent", "equal_rounded", "percent_x100")


def judged(result: dict, gold: float | bool, reply: str = REPLY):
    """The judgement of a reply whose program gave `result`; it must fit a verdict line."""
    judgement = program_value.judge(reply, gold, 1.0, lambda job, seconds: result)
    assert json.loads(records.dumps(judgement.extra)) == judgement.extra
    return judgement


def number(value: float, kind: str = "float") -> dict:
    return {"returned": {"type": kind, "number": repr(value)}}


def text(value: str) -> dict:
    return {"returned": {"type": "str", "value": value}}


def in_list(value: str, kind: str = "list") -> dict:
    return {"returned": {"type": kind, "first": {"type": "str", "value": value}}}


def looser(judgement) -> tuple:
    return tuple(judgement.extra[name] for name in LOOSER)


@pytest.mark.parametrize(
    ("returned", "gold", "passed", "columns"),
    [
        (12.5, 12.5, True, (True, True, True)),
        (12.52, 12.5, True, (True, True, True)),
        (99.0, 100, False, (True, False, False)),
        (101.0, 100, False, (True, False, False)),
        (98.99, 100, False, (False, False, False)),
        (101.01, 100, False, (False, False, False)),
        (-101.0, -100, False, (True, False, False)),
        (100.0, -100, False, (False, False, False)),
        (0.064748, 0.065, False, (True, True, False)),
        (0.0109, 0.01, False, (False, True, False)),
        (1.449, 1.4, False, (False, True, False)),
        (1.451, 1.4, False, (False, False, False)),
        (99.6, 100, False, (True, True, False)),
        (2.3, 2, False, (False, True, False)),
        # A gold value written 2.0 has one decimal, one written 2 has none.
        (2.3, 2.0, False, (False, False, False)),
        (1.2e-05, 1e-05, False, (False, True, False)),
        (1.6e-05, 1e-05, False, (False, False, False)),
        (1.54e-07, 1.5e-07, False, (False, True, False)),
        (1.004e22, 1e22, False, (True, False, False)),
        (0.125, 12.5, False, (False, False, True)),
        (12.5, 0.125, False, (False, False, True)),
        (0.1252, 12.5, False, (False, False, True)),
        (0.1253, 12.5, False, (False, False, False)),
        (-0.125, 12.5, False, (False, False, False)),
        (0.3, 0, False, (False, True, False)),
        (1e-9, 0, False, (False, True, False)),
        (0.0, 0, True, (True, True, True)),
        (float("nan"), 5, False, (False, False, False)),
        (float("inf"), 5, False, (False, False, False)),
        (float("-inf"), 0.5, False, (False, False, False)),
        (1.7e308, 5, False, (False, False, False)),
        (5.0, float("nan"), False, (False, False, False)),
    ],
)
def test_numbers_are_judged_by_looser_rules_too(returned, gold, passed, columns):
    judgement = judged(number(returned), gold)
    assert (judgement.passed, looser(judgement)) == (passed, columns)
    assert (judgement.extra["notation"], judgement.extra["read_as"]) == ([], None)


@pytest.mark.parametrize(
    ("result", "gold", "right"),
    [
        ({"returned": {"type": "bool", "value": True}}, True, True),
        ({"returned": {"type": "bool", "value": True}}, False, False),
        ({"returned": {"type": "bool", "value": True}}, 1, True),
        ({"returned": {"type": "bool", "value": True}}, 1.004, False),
        ({"returned": {"type": "bool", "value": True}}, 100, False),
        (number(1.0), True, True),
        (number(1.004), True, False),
        (number(100, "int"), True, False),
        (number(0.0), False, True),
        (text("yes"), True, True),
        ({"returned": {"type": "list", "first": {"type": "bool", "value": True}}}, True, True),
    ],
)
def test_booleans_are_judged_by_equality_in_every_column(result, gold, right):
    judgement = judged(result, gold)
    assert (judgement.passed, looser(judgement)) == (right, (right,) * 3)


@pytest.mark.parametrize(
    "result",
    [
        {"error": "NameError: x"},
        {"died": "timeout"},
        {"died": "forged", "returned": {"type": "int", "number": "5"}},
        {"died": "killed", "detail": "signal 9"},
        {},
    ],
)
def test_columns_are_empty_without_a_returned_value(result):
    judgement = judged(result, 5)
    assert [judgement.extra[name] for name in program_value.COLUMNS] == [None] * 5


def test_columns_are_empty_without_a_program():
    judgement = judged({"error": "SyntaxError: invalid syntax"}, 5, reply="모르겠습니다.")
    assert judgement.outcome == "no_answer"
    assert [judgement.extra[name] for name in program_value.COLUMNS] == [None] * 5


@pytest.mark.parametrize(
    "returned",
    [
        {"type": "NoneType", "value": None},
        {"type": "dict"},
        {"type": "list", "first": None},
        {"type": "list", "first": {"type": "set"}},
        {"type": "int", "number": "not a number"},
    ],
)
def test_what_is_no_number_is_wrong_in_every_column(returned):
    judgement = judged({"returned": returned}, 5)
    assert (judgement.passed, looser(judgement)) == (False, (False,) * 3)
    assert (judgement.extra["notation"], judgement.extra["read_as"]) == ([], None)


@pytest.mark.parametrize(("gold", "passed"), [(12.5, True), (0.125, False), (1250, False)])
def test_a_list_is_judged_by_its_first_element(gold, passed):
    result = {"returned": {"type": "tuple", "first": {"type": "float", "number": "12.5"}}}
    judgement = judged(result, gold)
    assert (judgement.passed, judgement.extra["percent_x100"]) == (passed, True)


def test_a_text_is_judged_by_the_number_that_upstream_reads():
    judgement = judged(text("12.5%"), 0.125)
    assert (judgement.passed, looser(judgement)) == (False, (False, False, True))


def test_a_text_in_a_list_is_never_a_number():
    judgement = judged(in_list("5"), 5)
    assert (judgement.passed, looser(judgement)) == (False, (False,) * 3)
    assert (judgement.extra["notation"], judgement.extra["read_as"]) == ([], 5)


WON, PERCENT, COMMAS = "won", "percent", "thousands separators"
KOREAN, WIDE = "Korean units", "full-width digits"

READ = [
    ("1152", [], 1152),
    ("-12.50", [], -12.5),
    ("1e-05", [], 1e-05),
    ("1,152", [COMMAS], 1152),
    ("1,234,567.5", [COMMAS], 1234567.5),
    ("1,152원", [WON, COMMAS], 1152),
    ("1152 원.", [WON], 1152),
    ("₩1,152", [WON, COMMAS], 1152),
    ("￦500", [WON], 500),
    ("-₩500", [WON], -500),
    ("₩-500", [WON], -500),
    ("−500원", [WON], -500),
    ("KRW 1,152", [WON, COMMAS], 1152),
    ("500krw", [WON], 500),
    ("12.5%", [PERCENT], 12.5),
    ("12.5 퍼센트", [PERCENT], 12.5),
    ("12프로", [PERCENT], 12),
    ("-0.5％", [PERCENT], -0.5),
    ("1억 2,000만 원", [WON, COMMAS, KOREAN], 120_000_000),
    ("1억2000만원", [WON, KOREAN], 120_000_000),
    ("3천만", [KOREAN], 30_000_000),
    ("3천5백만 원", [WON, KOREAN], 35_000_000),
    ("5백50만", [KOREAN], 5_500_000),
    ("1.5억", [KOREAN], 150_000_000),
    ("0.29억", [KOREAN], 29_000_000),
    ("2조 5천억", [KOREAN], 2_500_000_000_000),
    ("1조 2억 3만 4", [KOREAN], 1_000_200_030_004),
    ("1,152백만원", [WON, COMMAS, KOREAN], 1_152_000_000),
    ("5천원", [WON, KOREAN], 5000),
    ("3만 5천 원", [WON, KOREAN], 35_000),
    ("2십", [KOREAN], 20),
    ("-3만", [KOREAN], -30_000),
    ("0.00015만", [KOREAN], 1.5),
    ("１，１５２원", [WON, COMMAS, WIDE], 1152),
    ("１２．５％", [PERCENT, WIDE], 12.5),
]
NOT_READ = [
    ("", []),
    ("원", []),
    ("천만 원", [WON]),
    ("약 1,152원", [WON, COMMAS]),
    ("1,152원입니다", [WON, COMMAS]),
    ("100원에서 200원", [WON]),
    ("1,2000원", [WON]),
    ("1,00,000", []),
    ("1,152,5", []),
    ("1.2.3", []),
    ("5 3", []),
    ("1억 2천", [KOREAN]),
    ("2조 5천 원", [WON, KOREAN]),
    ("1억 2억", [KOREAN]),
    ("2만 1억", [KOREAN]),
    ("1만 20,000원", [WON, COMMAS, KOREAN]),
    ("5백 2천", [KOREAN]),
    ("3억 천만 원", [WON, KOREAN]),
    ("₩5%", [WON, PERCENT]),
    ("-₩-5", [WON]),
    ("(1,152)", [COMMAS]),
    ("▲1,152", [COMMAS]),
    ("$1,152", [COMMAS]),
    ("3 만기", []),
    ("5만큼", []),
    ("100 원금", []),
    ("5 프로그램", []),
    ("10²", []),
    ("①", []),
    ("٣٤", []),
    ("1e999", []),
    ("nan", []),
    ("Infinity", []),
    ("1_000", []),
    ("2**10", []),
    ("__import__('os').getpid()", []),
    ("1152\0원", []),
    ("\0", []),
    ("\ud800", []),
    ("1,152\udfff원", [COMMAS]),
    ("1억\n2만 원", [WON, KOREAN]),
]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("wrap", [text, in_list])
@pytest.mark.parametrize(
    ("value", "names", "read_as"), [*READ, *((value, names, None) for value, names in NOT_READ)]
)
def test_notations_of_a_text_are_named_and_read(value, names, read_as, wrap, form):
    judgement = judged(wrap(unicodedata.normalize(form, value)), 7.77)
    assert (judgement.extra["notation"], judgement.extra["read_as"]) == (names, read_as)
    assert type(judgement.extra["read_as"]) is type(read_as)
    assert all(name in judgement.detail for name in names)


@pytest.mark.parametrize(
    ("result", "gold", "outcome", "detail"),
    [
        (
            text("1억 2,000만 원"), 120000000, "wrong_answer",
            "returned str 1억 2,000만 원 (won, thousands separators, Korean units: reads as "
            "120000000, which would be right), gold 120000000",
        ),
        (
            in_list("1,152원"), 1152, "wrong_answer",
            "returned list beginning with str 1,152원 (won, thousands separators: reads as 1152, "
            "which would be right), gold 1152",
        ),
        (
            text("1,152원"), 1152, "passed",
            "returned str 1,152원 (won, thousands separators: reads as 1152, "
            "which would be right)",
        ),
        # Upstream reads a pair, and a number before a unit that it does not know.
        (
            text("1,152"), 1, "passed",
            "returned str 1,152 (thousands separators: reads as 1152, which would not be right)",
        ),
        (
            text("3천만"), 3, "passed",
            "returned str 3천만 (Korean units: reads as 30000000, which would not be right)",
        ),
        (
            text("12.5%"), 0.125, "wrong_answer",
            "returned str 12.5% (percent: reads as 12.5, which would not be right), gold 0.125",
        ),
        (
            text("약 5천 원"), 5000, "wrong_answer",
            "returned str 약 5천 원 (won, Korean units: can't be read as one number), gold 5000",
        ),
        (text("5"), 5, "passed", "returned str 5"),
        (number(5.0), 6, "wrong_answer", "returned float 5.0, gold 6"),
    ],
)  # fmt: skip
def test_the_detail_names_notations_and_leaves_the_verdict_to_upstream(
    result, gold, outcome, detail
):
    judgement = judged(result, gold)
    assert (judgement.outcome, judgement.detail) == (outcome, detail)
    assert judgement.passed == judgement.passed_upstream == (outcome == "passed")


@pytest.mark.parametrize(
    "unit", ["9", "1,152", "1억 ", "-", "(", "₩", "가", " ", "\0", "\ud800", "９", "ﷺ", "1천", "."]
)
@pytest.mark.parametrize("size", [200, 2000, 100_000])
def test_a_long_text_is_judged_at_once(unit, size):
    began = time.monotonic()
    judgement = judged(text((unit * size)[:size]), 5.0)
    assert time.monotonic() - began < 2
    assert not judgement.passed and len(judgement.detail) < 1000


def test_a_long_text_is_named_by_its_beginning_and_not_read():
    at_most = "1,152원".rjust(number_text.LONGEST)
    assert judged(text(at_most), 5).extra["read_as"] == 1152
    longer = judged(text("1,152원" + " " * number_text.LONGEST), 5)
    assert (longer.extra["notation"], longer.extra["read_as"]) == ([WON, COMMAS], None)


def test_numbers_of_many_digits_are_judged():
    assert judged(text("9" * 2000), 5.0).extra["percent_x100"] is False
    assert judged(number(10**299, "int"), 10.0**299).passed


@given(
    st.floats() | st.integers(-(10**300), 10**300),
    st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9),
    st.floats(-0.03, 0.03),
)
def test_each_column_is_looser_than_the_verdict(anything, gold, off):
    for returned in (anything, gold, gold * (1 + off)):
        judgement = judged(number(returned), gold)
        assert not judgement.passed or looser(judgement) == (True,) * 3


@given(st.text(st.sampled_from("0159.,-+e%₩원만억조천백십프로 \0\ud800０９²") | st.characters()))
def test_any_text_is_judged(value):
    for result in (text(value), in_list(value)):
        judgement = judged(result, 5)
        assert not judgement.passed or looser(judgement) == (True,) * 3
        read_as = judgement.extra["read_as"]
        assert read_as is None or type(read_as) in (int, float)
