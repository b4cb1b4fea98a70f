"""Finance: the program's number is right within 0.2 % of the gold value.

Upstream is FinanceReasoning's `get_acc` (commit b0fe645): relative and inclusive, no absolute
floor, no rounding; booleans by equality when either side is one; the first element of a list
or tuple; None, NaN and everything that can't be compared fails; 10 s.
"""

from __future__ import annotations

import math
import re
from typing import Any

from colab_utils.evaluators.extraction import finance_answer, upstream_finance
from colab_utils.evaluators.judgement import Judgement, Outcome, RunJob, ended_early
from colab_utils.evaluators.text_value import text_value

NAME, VERSION = "program_value", "1"
SECONDS = 10.0
TOLERANCE = 0.002


def judge(text: str, ground_truth: float | bool, seconds: float, run: RunJob) -> Judgement:
    """Judge one reply by the gold value; a bool is judged as a bool."""
    ours = finance_answer(text)
    upstream = upstream_finance(text)
    upstream_result = run(_job(upstream), seconds) if upstream else {"error": "empty"}
    passed_upstream = _is_right(upstream_result, ground_truth)
    if ours.code is None:
        detail = "no solution() in the reply"
        return Judgement(False, passed_upstream, "no_answer", detail, None, {"found": ours.how})
    same = ours.code.strip() == upstream.strip()
    result = upstream_result if same else run(_job(ours.code), seconds)
    outcome, detail = _outcome(result, ground_truth)
    returned = result.get("returned")
    kind = returned["type"] if isinstance(returned, dict) else None
    extra = {"found": ours.how, "returned_type": kind}
    return Judgement(outcome == "passed", passed_upstream, outcome, detail, ours.code, extra)


def reference_holds(
    program: str, ground_truth: float | bool, seconds: float, run: RunJob
) -> str | None:
    """Why the reference program does not give the gold value; None when it does."""
    outcome, detail = _outcome(run(_job(program), seconds), ground_truth)
    return None if outcome == "passed" else f"{outcome}: {detail}"


def is_within(predicted: Any, gold: float | bool) -> bool:
    """Upstream's rule for one plain value; what can't be compared is not right."""
    if predicted is None:
        return False
    if isinstance(gold, bool) or isinstance(predicted, bool):
        return bool(predicted == gold)
    margin = TOLERANCE * abs(gold)
    try:
        return bool(gold - margin <= predicted <= gold + margin)
    except TypeError:
        return False


def _job(program: str) -> dict[str, Any]:
    return {"kind": "finance", "program": program}


def _outcome(result: dict[str, Any], gold: float | bool) -> tuple[Outcome, str]:
    early = ended_early(result)
    if early is not None:
        return early
    if "returned" not in result:
        return "error", str(result.get("error", "no result"))
    shown = _shown(result["returned"])
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
        value = text_value(value)
    if isinstance(value, list):
        return value[0] if value else None
    return value


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
