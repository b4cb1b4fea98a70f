"""Finance: call `solution()` and describe what it returned."""

import pickle
from typing import Any

from .text import describe, short


def run(job: dict) -> dict:
    """Call `solution()` of a program whose `print` does nothing, as FinanceReasoning does.

    Upstream sends the value through a queue, so one that can't be pickled is lost.
    """
    namespace = {"print": lambda *arguments, **more: None}
    try:
        exec(compile(job["program"], "solution.py", "exec"), namespace)
        value = namespace["solution"]()
        pickle.dumps(value)
        return {"returned": plain_value(value)}
    except BaseException as error:
        return {"error": describe(error)}


def plain_value(value: Any) -> dict:
    """A returned value as JSON, its Python type named; the scoring side never sees the object."""
    kind = short(type(value).__name__)
    if value is None or isinstance(value, bool):
        return {"type": kind, "value": value}
    if isinstance(value, (list, tuple)):
        first = plain_value(value[0]) if len(value) else None
        nested = isinstance(value[0], (list, tuple)) if len(value) else False
        return {"type": kind, "first": None if nested else first}
    if isinstance(value, str):
        return {"type": "str", "value": short(value)}
    if isinstance(value, int):
        return {"type": kind, "number": str(value) if abs(value) < 10**300 else "inf"}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"type": kind}
    try:
        # An array of one element compares like that element.
        single = value.item() if getattr(value, "ndim", 0) else value
        return {"type": kind, "number": repr(float(single))}
    except (AttributeError, TypeError, ValueError, OverflowError):
        return {"type": kind}
