"""What an evaluator says of one answer, and how it runs a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal[
    "passed", "wrong_answer", "error", "timeout", "no_answer", "unsafe", "reference_error"
]

# Runs one worker job, given its limit in seconds, and returns the worker's result.
RunJob = Callable[[dict[str, Any], float], dict[str, Any]]


@dataclass(frozen=True)
class Judgement:
    """Both verdicts of one answer, why, and what was judged.

    `passed` follows our extraction, `passed_upstream` the benchmark's own; `extra` holds
    task-specific columns.
    """

    passed: bool
    passed_upstream: bool
    outcome: Outcome
    detail: str
    extracted: str | None
    extra: dict[str, Any] = field(default_factory=dict)


def ended_early(result: dict[str, Any]) -> tuple[Outcome, str] | None:
    """Outcome of a job whose program ended its process or its time; None when it did neither."""
    died = result.get("died")
    if died == "timeout":
        return "timeout", "the time limit ended it"
    if died == "forged":
        return "unsafe", "wrote to the channel that the result comes through"
    if died is not None:
        return "error", f"ended its own process ({result.get('detail', 'no result')})"
    return None
