"""Where a scoring stands: counts, time left, and a table by task and condition."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from colab_utils.progress import seconds_text
from colab_utils.responses import Response

Progress = Callable[["ScoringProgress"], None]


@dataclass(frozen=True)
class ScoringProgress:
    """Where a scoring stands: `phase` is `references` or `answers`; `table` what has come out."""

    phase: str
    done: int
    total: int
    passed: int
    seconds_left: float | None
    table: str = ""

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", left: {seconds_text(self.seconds_left)}"
        return f"judging {self.phase}: {self.done}/{self.total}, {self.passed} passed{left}"


class Meter:
    """Counts what is done and tells `progress` of it."""

    def __init__(self, phase: str, total: int, done: int, progress: Progress) -> None:
        self.passed = 0
        self._phase, self._total, self._done, self._progress = phase, total, done, progress
        self._before, self._began = done, time.monotonic()
        self._cells: dict[tuple[str, str], Counter[str]] = {}

    def count(self, passed: bool, response: Response, verdicts: dict[str, dict[str, Any]]) -> None:
        """Count one verdict into the table."""
        self.passed += passed
        verdict = verdicts[response.request_id]
        cell = self._cells.setdefault((response.task, response.condition), Counter())
        cell.update(
            ["judged"]
            + ["passed"] * passed
            + ["no answer"] * (verdict["outcome"] == "no_answer")
            + ["wrong extraction"] * (verdict["outcome"] == "wrong_extraction")
            + ["upstream differs"] * (passed != verdict["passed_upstream"])
        )

    def one_more(self) -> None:
        """One more is done: tell where things stand."""
        self._done += 1
        each = (time.monotonic() - self._began) / (self._done - self._before)
        left = each * (self._total - self._done)
        self._progress(
            ScoringProgress(self._phase, self._done, self._total, self.passed, left, self._table())
        )

    def _table(self) -> str:
        """Passed of judged by task and condition, and what extraction decided by condition."""
        tasks = sorted({task for task, _ in self._cells})
        conditions = sorted({condition for _, condition in self._cells})
        if not tasks:
            return ""
        rows = [["passed", *conditions]]
        for task in tasks:
            cells = [self._cells.get((task, condition), Counter()) for condition in conditions]
            rows.append([task, *(f"{cell['passed']}/{cell['judged']}" for cell in cells)])
        for name in ("no answer", "wrong extraction", "upstream differs"):
            sums = [
                sum(self._cells.get((t, c), Counter())[name] for t in tasks) for c in conditions
            ]
            rows.append([name, *map(str, sums)])
        return "\n".join(f"{row[0]:18}" + "".join(f"{c:>9}" for c in row[1:]) for row in rows)
