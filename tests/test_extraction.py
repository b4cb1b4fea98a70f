"""What in a reply is the answer: our extraction, and what upstream makes of the same reply."""

from __future__ import annotations

import pytest

from colab_utils.evaluators.extraction import (
    code_answer,
    finance_answer,
    sql_answer,
    strip_thinking,
    upstream_finance,
)
from colab_utils.evaluators.program_value import is_within
from colab_utils.evaluators.text_value import text_value

FUNCTION = "def task_func(x):\n    return 2 * x"
SOLUTION = "def solution():\n    return 5"


@pytest.mark.parametrize(
    ("reply", "how"),
    [
        (f"```python\n{FUNCTION}\n```", "block 1 of 1"),
        (f"```py\n{FUNCTION}\n```", "block 1 of 1"),
        (f"```Python\n{FUNCTION}\n```", "block 1 of 1"),
        (f"``` python title='a'\n{FUNCTION}\n```", "block 1 of 1"),
        (f"```\n{FUNCTION}\n```", "block 1 of 1"),
        (f"~~~python\n{FUNCTION}\n~~~", "block 1 of 1"),
        (f"````python\n{FUNCTION}\n````", "block 1 of 1"),
        (f"물론입니다.\n\n```python\n{FUNCTION}\n```\n\n감사합니다 😀", "block 1 of 1"),
        (f"```python\n{FUNCTION}", "block 1 of 1"),
        (f"```bash\npip install x\n```\n```python\n{FUNCTION}\n```", "block 2 of 2"),
        (f"```python\ntask_func(2)\n```\n```python\n{FUNCTION}\n```", "block 2 of 2"),
        (f"<think>```python\n{SOLUTION}\n```</think>\n```python\n{FUNCTION}\n```", "block 1 of 1"),
        (f"half a thought</think>\n```python\n{FUNCTION}\n```", "block 1 of 1"),
        (FUNCTION, "whole text"),
    ],
)  # fmt: skip
def test_code_is_found(reply, how):
    found = code_answer(reply, "task_func")
    assert (found.code.strip(), found.how) == (FUNCTION, how)
    windows = code_answer(reply.replace("\n", "\r\n"), "task_func")
    assert windows.code.replace("\r\n", "\n").strip() == FUNCTION


def test_code_of_an_indented_block_loses_the_indent_of_its_fence():
    reply = "1. 함수:\n   ```python\n   def task_func(x):\n       return 2 * x\n   ```\n"
    assert code_answer(reply, "task_func").code == FUNCTION


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "죄송합니다.",
        "```python\ndef other(x):\n    return x\n```",
        f"<think>\n```python\n{FUNCTION}\n```",
    ],
)
def test_code_that_is_not_there_is_not_found(reply):
    assert code_answer(reply, "task_func").code is None


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>a</think>b", "b"),
        ("<THINK>a</THINK>b<think>c", "b"),
        ("a</think>b", "b"),
        ("a < b", "a < b"),
    ],
)
def test_thinking_is_stripped(text, rest):
    assert strip_thinking(text) == rest


@pytest.mark.parametrize(
    ("reply", "query"),
    [
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("```sqlite\nselect 1;\n```", "select 1;"),
        ("```\n-- 주석\nWITH a AS (SELECT 1) SELECT * FROM a\n```",
         "-- 주석\nWITH a AS (SELECT 1) SELECT * FROM a"),
        ("```python\nx = 1\n```\n```sql\nSELECT 1\n```", "SELECT 1"),
        ("SELECT 1", "SELECT 1"),
        ("쿼리는 다음과 같습니다:\nSELECT a\nFROM b; 끝", "SELECT a\nFROM b"),
        ("쿼리:\nSELECT a\nFROM b\n\n설명입니다.", "SELECT a\nFROM b"),
        ("<think>SELECT 0</think>\nSELECT 1", "SELECT 1"),
        ("```sql\nDROP TABLE a\n```", None),
        ("모르겠습니다.", None),
        ("", None),
    ],
)  # fmt: skip
def test_query_is_found(reply, query):
    assert sql_answer(reply).code == query


@pytest.mark.parametrize(
    "reply",
    [
        f"```python\n{SOLUTION}\n```",
        f"```py\n{SOLUTION}\n```",
        f"답:\n{SOLUTION}",
        f"{SOLUTION}\n\n이 프로그램은 5를 돌려줍니다.",
        f"<think>{SOLUTION.replace('5', '6')}</think>\n```\n{SOLUTION}\n```",
        "    return 5\n```\n설명",
        "return 5",
    ],
)
def test_finance_program_is_found(reply):
    namespace: dict = {}
    exec(finance_answer(reply).code, namespace)
    assert namespace["solution"]() == 5


# What upstream's own function returned for each of these.
UPSTREAM = [
    ("", ""),
    ("argparse", ""),
    (f"```python\n{SOLUTION}\n```", SOLUTION),
    (f"```py\n{SOLUTION}\n```", f"py\n{SOLUTION}"),
    (f"```Python\n{SOLUTION}\n```", f"Python\n{SOLUTION}"),
    ("```python\n```\n```python\nx\n```", ""),
    ("return 5", "def solution():\n    return 5"),
    ("    return 5", "def solution():\n    return 5"),
    ("x = 5\n    return x", "def solution():\n    x = 5\n    return x"),
    ("x = 5\nreturn x", "def solution():\n    x = 5\nreturn x"),
    ("    return 5\n```\nprose", "def solution():\n    return 5"),
    ("return 5\n```", "def solution():\n    return 5"),
    (f"{SOLUTION}\n```", SOLUTION),
    ("def solution(x=1):\n    return 5", "def solution():\n    def solution(x=1):\n    return 5"),
    (f"~~~python\n{SOLUTION}\n~~~", f"~~~python\n{SOLUTION}\n~~~"),
    ("```python def solution(): return 5```", "def solution(): return 5"),
]


@pytest.mark.parametrize(("reply", "program"), UPSTREAM)
def test_upstreams_finance_extraction_is_kept(reply, program):
    assert upstream_finance(reply) == program


# (text, gold value, upstream's own verdict)
TEXTS = [
    ("1,152", 1152, 0), ("1,152", 1, 1), ("$1,152", 1152, 1), ("1,052", 1052, 1),
    ("12.5%", 12.5, 1), ("12.5%", 0.125, 0), ("5 million", 5, 1), ("$5 million", 5_000_000, 0),
    ("5 or 6", 5, 1), ("5 and 6", 6, 1), ("0 or 5", 5, 1), ("yes", True, 1), ("No", False, 1),
    ("Yes, 5", 5, 1), ("true story", True, 1), ("answer is 5", 5, 0), ("about 5", 5, 1),
    ("approximately 5", 5, 1), ("≈5", 5, 1), ("x = 5", 5, 1), ("USD 5", 5, 1), ("약 5", 5, 1),
    ("5원", 5, 1), ("₩5", 5, 1), ("10^2", 100, 0), ("10^2", 8, 1), ("5 x 10^2", 500, 0),
    ("2**3", 8, 1), ("7//2", 3, 1), ("5 × 2", 10, 1), ("5×2", 10, 0), ("1j", 1, 0),
    ("[5, 6]", 5, 1), ("[[5]]", 5, 0), ("[]", 0, 0), ("'5'", 5, 0), ("", 0, 0), ("None", 0, 0),
    (" 5 ", 5, 1), ("5.", 5, 1), ("..5", 5, 1), ("1 000", 1000, 0), ("5 years", 5, 1),
    ("5 years old", 5, 0), ("\ud800", 5, 0), ("5\x00", 5, 1), ("1 < 2", True, 1), ("inf", 5, 0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "gold", "right"), TEXTS)
def test_returned_text_is_read_as_upstream_reads_it(text, gold, right):
    value = text_value(text)
    if isinstance(value, list):
        value = value[0] if value else None
    assert is_within(value, gold) == bool(right)


@pytest.mark.parametrize(
    "text",
    ["9**9**9", "1 << 10**9", "[0] * 10**9", "(" * 2000, "-" * 2000 + "1", "__import__('os')",
     "open('/etc/passwd')", "text_value"],
)  # fmt: skip
def test_returned_text_is_never_run_nor_takes_long(text):
    assert not is_within(text_value(text), 5)


@pytest.mark.parametrize(
    ("reply", "query"),
    [
        ("SELECT a FROM t;\n\nThis lists a.", "SELECT a FROM t"),
        ("SELECT ';' FROM t; -- done", "SELECT ';' FROM t"),
        ("Answer: ```sql\nSELECT a FROM t\n```", "SELECT a FROM t"),
        ("```sql\nSELECT a FROM t```", "SELECT a FROM t"),
        ("```sql SELECT a FROM t ```", "SELECT a FROM t"),
        ("With this query we get it:\nSELECT a FROM t;", "SELECT a FROM t"),
        ("WITH x AS (SELECT 1)\nSELECT * FROM x", "WITH x AS (SELECT 1)\nSELECT * FROM x"),
        ("With pleasure.", None),
    ],
)
def test_a_query_is_found_as_chat_models_write_it(reply, query):
    assert sql_answer(reply).code == query


def test_a_fence_that_closes_at_a_lines_end_is_no_part_of_the_program():
    reply = "Here: ```python\ndef solution():\n    return 1```"
    assert finance_answer(reply).code == "def solution():\n    return 1"
