"""SQL: execution accuracy, the set of predicted rows equals the set of gold rows.

Upstream is BIRD Mini-Dev's `evaluation_ex.py` (commit 4d970a9): rows as tuples, duplicates and
order ignored, 30 s for both queries together; it executes the reply as it stands, so that a
fence is a syntax error and `passed_upstream` is false for most chat replies. Deviations: the
connection only reads (upstream's is writable, and a predicted DROP TABLE spoils every later
verdict), a gold query that fails is the reference's fault, and for `passed` the predicted query
has the 30 s to itself: the gold one runs once a data set, under a longer limit. For `passed` an
empty or non-SELECT answer fails; upstream scores one as right when the gold query returns no
rows. The column `strict` asks more than either: equal rows as often, in the same order where
the gold query orders them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from colab_utils.evaluators.extraction import is_query, sql_answer, strip_thinking
from colab_utils.evaluators.judgement import Judgement, Outcome, RunJob, ended_early, taken_wrongly

NAME, VERSION = "execution_accuracy", "3"
SECONDS = 30.0
GOLD_SECONDS = 300.0
MAX_ROWS = 1_000_000

_QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_INNER = re.compile(r"\([^()]*\)")


def gold_rows(gold_sql: str, database: Path, run: RunJob) -> dict[str, Any]:
    """What the gold query returns, as digests (see worker/job_sql.py), or `problem`: why not."""
    result = run(_job(gold_sql, database, GOLD_SECONDS), _whole(GOLD_SECONDS))
    early = ended_early(result)
    if early is not None:
        return {"problem": ": ".join(early)}
    if result.get("how") != "rows":
        return {"problem": f"{result.get('how', 'error')}: {result.get('detail', 'no result')}"}
    return {key: result[key] for key in ("rows", "set", "multiset", "sequence", "query_seconds")}


def judge(
    text: str, gold_sql: str, gold: dict[str, Any], database: Path, seconds: float, run: RunJob
) -> Judgement:
    """Judge one reply by what `gold_rows` said of the gold query."""
    ours = sql_answer(text)
    results: dict[str, dict[str, Any]] = {}

    def result_of(query: str) -> dict[str, Any]:
        if query not in results:
            results[query] = run(_job(query, database, seconds), _whole(seconds))
        return results[query]

    passed_upstream = _passes_upstream(result_of(text), gold)
    extra: dict[str, Any] = {"found": ours.how, "strict": False}
    outcome: Outcome = "no_answer"
    detail = "no SELECT in the reply" if text.strip() else "the reply is empty"
    if ours.code is not None:
        result = result_of(ours.code)
        outcome, detail = _outcome(result, gold)
        extra["strict"] = (
            outcome == "passed"
            and result["multiset"] == gold["multiset"]
            and (not is_ordered(gold_sql) or result["sequence"] == gold["sequence"])
        )
    if outcome != "passed" and passed_upstream and is_query(text) and strip_thinking(text) == text:
        outcome, detail = taken_wrongly(outcome, detail)
    return Judgement(outcome == "passed", passed_upstream, outcome, detail, ours.code, extra)


def is_ordered(query: str) -> bool:
    """Whether a query orders its result: an ORDER BY outside quotes, comments and parentheses."""
    bare, found = _QUOTED.sub(" ", query), 1
    while found:
        bare, found = _INNER.subn(" ", bare)
    return bool(re.search(r"\bORDER\s+BY\b", bare, re.IGNORECASE))


def _outcome(result: dict[str, Any], gold: dict[str, Any]) -> tuple[Outcome, str]:
    early = ended_early(result)
    if early is not None:
        return early
    how, detail = result.get("how"), str(result.get("detail", result.get("error", "no result")))
    if how != "rows":
        return (how if how in ("timeout", "unsafe") else "error"), detail
    if result["set"] == gold["set"]:
        return "passed", detail
    return "wrong_answer", f"other rows ({detail}, gold {gold['rows']})"


def _passes_upstream(result: dict[str, Any], gold: dict[str, Any]) -> bool:
    if result.get("how") == "unsafe":
        # On upstream's writable connection a statement that returns no rows gives an empty set.
        return bool(gold["rows"] == 0)
    same = result.get("how") == "rows" and result["set"] == gold["set"]
    return same and result["query_seconds"] + gold["query_seconds"] <= SECONDS


def _job(query: str, database: Path, seconds: float) -> dict[str, Any]:
    return {
        "kind": "sql",
        "database_uri": database.absolute().as_uri(),
        "query": query,
        "seconds": seconds,
        "max_rows": MAX_ROWS,
    }


def _whole(seconds: float) -> float:
    # The query has its own limit inside; this bounds the process, rows and digests included.
    return seconds + 20
