"""Finance: the program's number is right within 0.2 % of the gold value.

Upstream is FinanceReasoning's `get_acc` (commit b0fe645): relative and inclusive, no absolute
floor, no rounding; booleans by equality when either side is one; the first element of a list
or tuple; None, NaN and everything that can't be compared fails; 10 s.

Beside that verdict stand looser rules, so that a report can show whether a result hangs on the
tolerance: within 1 %, rounded as the gold value is, and right but for a factor of 100. Each holds
wherever the answer passes. A returned text is also read with its notations (`number_text`).
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from colab_utils.evaluators import number_text
from colab_utils.evaluators.extraction import (
    finance_answer,
    strip_thinking,
    upstream_finance,
)
from colab_utils.evaluators.judgement import Judgement, Outcome, RunJob, ended_early, taken_wrongly
from colab_utils.evaluators.text_value import text_value

NAME, VERSION = "program_value", "3"
SECONDS = 10.0
TOLERANCE = 0.002
LOOSER_TOLERANCE = 0.01
COLUMNS = ("within_1_percent", "equal_rounded", "percent_x100", "notation", "read_as")
# The worker sends at most half of this; upstream's patterns take seconds over a longer text.
_LONGEST_TEXT = 4000


def judge(text: str, ground_truth: float | bool, seconds: float, run: RunJob) -> Judgement:
    """Judge one reply by the gold value; a bool is judged as a bool."""
    ours = finance_answer(text)
    upstream = upstream_finance(text)
    upstream_result = run(_job(upstream), seconds) if upstream else {"error": "empty"}
    passed_upstream = _is_right(upstream_result, ground_truth)
    outcome: Outcome = "no_answer"
    detail = "no solution() in the reply"
    result: dict[str, Any] = {}
    if ours.code is not None:
        same = ours.code.strip() == upstream.strip()
        result = upstream_result if same else run(_job(ours.code), seconds)
        outcome, detail = _outcome(result, ground_truth)
    if outcome != "passed" and passed_upstream and strip_thinking(text) == text:
        outcome, detail = taken_wrongly(outcome, detail)
    returned = result.get("returned")
    kind = returned["type"] if isinstance(returned, dict) else None
    extra = {"found": ours.how, "returned_type": kind, **_columns(result, ground_truth)}
    return Judgement(outcome == "passed", passed_upstream, outcome, detail, ours.code, extra)


def reference_holds(
    program: str, ground_truth: float | bool, seconds: float, run: RunJob
) -> str | None:
    """Why the reference program does not give the gold value; None when it does."""
    outcome, detail = _outcome(run(_job(program), seconds), ground_truth)
    return None if outcome == "passed" else f"{outcome}: {detail}"


def is_within(predicted: Any, gold: float | bool, tolerance: float = TOLERANCE) -> bool:
    """Upstream's rule for one plain value; what can't be compared is not right."""
    if predicted is None:
        return False
    if isinstance(gold, bool) or isinstance(predicted, bool):
        return bool(predicted == gold)
    margin = tolerance * abs(gold)
    try:
        return bool(gold - margin <= predicted <= gold + margin)
    except TypeError:
        return False


def is_equal_rounded(predicted: Any, gold: float | bool) -> bool:
    """Right, or equal to the gold value once rounded (as Python does) to its decimals."""
    right, number = is_within(predicted, gold), _as_float(predicted)
    if right or number is None or isinstance(gold, bool):
        return right
    return round(number, _decimals(gold)) == gold


def is_within_x100(predicted: Any, gold: float | bool) -> bool:
    """Right as it is, or once multiplied or divided by 100: a percentage against a fraction."""
    right, number = is_within(predicted, gold), _as_float(predicted)
    if right or number is None or isinstance(gold, bool):
        return right
    return is_within(number * 100, gold) or is_within(number / 100, gold)


def _columns(result: dict[str, Any], gold: float | bool) -> dict[str, Any]:
    """The sensitivity columns of one result; all None when it has no returned value."""
    if "returned" not in result or ended_early(result) is not None:
        return dict.fromkeys(COLUMNS)
    predicted = _plain(result["returned"])
    text = _returned_text(result["returned"])
    reading = number_text.read(text) if text is not None else None
    return {
        "within_1_percent": is_within(predicted, gold, LOOSER_TOLERANCE),
        "equal_rounded": is_equal_rounded(predicted, gold),
        "percent_x100": is_within_x100(predicted, gold),
        "notation": list(reading.notations) if reading else [],
        "read_as": reading.value if reading else None,
    }


def _as_float(value: Any) -> float | None:
    """A number as a float; None for a bool, for what is no number, and for one too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _decimals(gold: float) -> int:
    """Decimals that the gold value is written with: 2 for 0.25, 5 for 1e-05, 0 for an int."""
    exponent = Decimal(repr(gold)).as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _job(program: str) -> dict[str, Any]:
    return {"kind": "finance", "program": program}


def _outcome(result: dict[str, Any], gold: float | bool) -> tuple[Outcome, str]:
    early = ended_early(result)
    if early is not None:
        return early
    if "returned" not in result:
        return "error", str(result.get("error", "no result"))
    shown = _shown(result["returned"]) + _reading_shown(result["returned"], gold)
    if _is_right(result, gold):
        return "passed", f"returned {shown}"
    return "wrong_answer", f"returned {shown}, gold {gold}"


def _is_right(result: dict[str, Any], gold: float | bool) -> bool:
    if "returned" not in result:
        return False
    return is_within(_plain(result["returned"]), gold)


def _plain(returned: dict[str, Any]) -> Any:
    """The value that upstream would compare, from the worker's description of it.

    A text is read as a number only when it is returned itself, not within a list.
    """
    if "first" in returned:
        first = returned["first"]
        return _described(first) if first else None
    value = _described(returned)
    if isinstance(value, str):
        value = text_value(value) if len(value) <= _LONGEST_TEXT else None
    if isinstance(value, list):
        return value[0] if value else None
    return value


def _returned_text(returned: dict[str, Any]) -> str | None:
    """The text that was returned, itself or as the first of a list; None when it is no text."""
    value = (returned.get("first") or returned).get("value")
    return value if isinstance(value, str) else None


def _described(returned: dict[str, Any]) -> Any:
    return _number(returned["number"]) if "number" in returned else returned.get("value")


def _number(text: str) -> float | int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if math.isfinite(value) and re.fullmatch(r"-?\d+", text):
        return int(text)
    return value


def _shown(returned: dict[str, Any]) -> str:
    if "first" in returned:
        inner = _shown(returned["first"]) if returned["first"] else "nothing"
        return f"{returned['type']} beginning with {inner}"
    value = returned.get("number", returned.get("value"))
    return f"{returned['type']} {value!s:.60}"


def _reading_shown(returned: dict[str, Any], gold: float | bool) -> str:
    """What the notations of a returned text say, for the detail; nothing when it has none."""
    text = _returned_text(returned)
    reading = number_text.read(text) if text is not None else None
    if reading is None or not reading.notations:
        return ""
    names = ", ".join(reading.notations)
    if reading.value is None:
        return f" ({names}: can't be read as one number)"
    verdict = "would be right" if is_within(reading.value, gold) else "would not be right"
    return f" ({names}: reads as {reading.value}, which {verdict})"
