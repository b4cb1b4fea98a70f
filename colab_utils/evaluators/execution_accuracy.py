"""SQL: execution accuracy, the set of predicted rows equals the set of gold rows.

Upstream is BIRD Mini-Dev's `evaluation_ex.py` (commit 4d970a9): rows as tuples, duplicates and
order ignored, 30 s; it executes the reply as it stands, so that a fence is a syntax error and
`passed_upstream` is false for most chat replies. Deviations: the connection only reads
(upstream's is writable, and a predicted DROP TABLE spoils every later verdict), and a gold
query that fails is the reference's fault. For `passed` an empty or non-SELECT answer fails;
upstream scores one as right when the gold query returns no rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colab_utils.evaluators.extraction import is_query, sql_answer
from colab_utils.evaluators.judgement import Judgement, Outcome, RunJob, ended_early

NAME, VERSION = "execution_accuracy", "1"
SECONDS = 30.0
MAX_ROWS = 1_000_000


def judge(text: str, gold_sql: str, database: Path, seconds: float, run: RunJob) -> Judgement:
    """Judge one reply against the gold query on a SQLite database."""
    ours = sql_answer(text)
    queries = [text] if ours.code in (None, text) else [text, ours.code]
    result = run(_job(queries, gold_sql, database, seconds), _whole(seconds, len(queries)))
    early = ended_early(result)
    if early is not None or "gold" not in result:
        outcome, detail = early or ("error", str(result.get("error", "no result")))
        return Judgement(False, False, outcome, detail, ours.code, {"found": ours.how})
    gold = result["gold"]
    extra = {"found": ours.how}
    if gold["how"] != "rows":
        detail = f"the gold query failed: {gold['detail']}"
        return Judgement(False, False, "reference_error", detail, ours.code, extra)
    first = result["queries"][0]
    # On upstream's writable connection a statement that returns no rows gives an empty set.
    passed_upstream = first["same"] or (first["how"] == "unsafe" and gold["empty"])
    if ours.code is None:
        detail = "no SELECT in the reply" if text.strip() else "the reply is empty"
        return Judgement(False, passed_upstream, "no_answer", detail, None, extra)
    last = result["queries"][-1]
    if last["how"] != "rows":
        ended: Outcome = last["how"] if last["how"] in ("timeout", "unsafe") else "error"
        return Judgement(False, passed_upstream, ended, last["detail"], ours.code, extra)
    if last["same"] and is_query(ours.code):
        return Judgement(True, passed_upstream, "passed", last["detail"], ours.code, extra)
    return Judgement(
        False, passed_upstream, "wrong_answer", f"other rows ({last['detail']})", ours.code, extra
    )


def reference_holds(gold_sql: str, database: Path, seconds: float, run: RunJob) -> str | None:
    """Why the gold query fails; None when it returns."""
    result = run(_job([], gold_sql, database, seconds), _whole(seconds, 0))
    early = ended_early(result)
    if early is not None:
        return ": ".join(early)
    gold = result.get("gold", {"how": "error", "detail": result.get("error", "no result")})
    return None if gold["how"] == "rows" else f"{gold['how']}: {gold['detail']}"


def _job(queries: list[str], gold: str, database: Path, seconds: float) -> dict[str, Any]:
    return {
        "kind": "sql",
        "database_uri": database.absolute().as_uri(),
        "gold": gold,
        "queries": queries,
        "seconds": seconds,
        "max_rows": MAX_ROWS,
    }


def _whole(seconds: float, queries: int) -> float:
    # Each query has its own limit inside; this bounds the process, rows and sets included.
    return seconds * (queries + 1) + 10
