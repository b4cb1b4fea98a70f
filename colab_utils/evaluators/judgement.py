"""What an evaluator says of one answer, and how it runs a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal[
    "passed", "wrong_answer", "error", "timeout", "no_answer", "wrong_extraction", "unsafe",
    "reference_error",
]  # fmt: skip
"""What an evaluator can say of a response, in the order reports show it.

`wrong_extraction`: what we took from the reply fails, and what upstream's extraction took from
the same reply passes by our rule; a reply whose program stands in its thinking is not meant.
"""

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


def taken_wrongly(outcome: Outcome, detail: str) -> tuple[Outcome, str]:
    """Outcome and detail of a failure that is our extraction's, not the answer's."""
    why = f"what upstream takes from the reply passes; ours: {outcome}: {detail}"
    return "wrong_extraction", why


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
