"""The report's tables as CSV files: UTF-8, comma, a header line, `\\n` between rows.

Shares run from 0 to 1, differences from -1 to 1; an empty cell means that there was nothing
to count.

accuracy.csv: run_id, model, task, condition, n (complete samples), passed, accuracy, ci_low,
    ci_high (Wilson), passed_upstream, accuracy_upstream, upstream_ci_low, upstream_ci_high.
contrasts.csv: run_id, model, task, name, condition, base, family, n, both, only_condition,
    only_base, neither, difference, ci_low, ci_high (Newcombe), p_value (exact McNemar),
    p_holm (primary family over all tasks only), difference_upstream, p_value_upstream. One row
    named "interaction" holds the 2x2's estimate and bootstrap limits.
outcomes.csv: run_id, model, task, condition, responses, one column an outcome, rejected,
    no_verdict, cut_by_length, passed_differs_upstream, output_tokens_median,
    characters_median, hangul_share_mean, with_hangul_share.
responses_with_verdicts.csv: the database's view `judged`, one row a response; `escaped`
    names the columns of a row that hold a JSON literal because of lone surrogates.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from colab_utils import records
from colab_utils.analysis import ALL_TASKS, RunAnalysis, design


def write_csv(folder: Path, database: Path, analyses: Sequence[RunAnalysis]) -> dict[str, Path]:
    """Write the four files into `folder`; returns their paths by short name."""
    opened = Database(str(database))
    try:
        judged = list(opened.query("SELECT * FROM judged ORDER BY run_id, position"))
    finally:
        opened.conn.close()
    tables: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "accuracy": ("accuracy.csv", _accuracy(analyses)),
        "contrasts": ("contrasts.csv", _contrasts(analyses)),
        "outcomes": ("outcomes.csv", _outcomes(analyses)),
        "responses": ("responses_with_verdicts.csv", judged),
    }
    paths = {}
    for name, (file_name, rows) in tables.items():
        # only contrasts can be none at all
        columns = list(rows[0]) if rows else _CONTRAST_COLUMNS
        paths[name] = folder / file_name
        records.write_atomic(paths[name], _encode(columns, rows))
    return paths


def _encode(columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    # only a contrast's name can still hold a lone surrogate: it becomes its escape
    return text.getvalue().encode("utf-8", "backslashreplace")


def _accuracy(analyses: Sequence[RunAnalysis]) -> list[dict[str, Any]]:
    return [
        {
            "run_id": a.run_id, "model": a.model, "task": row.task, "condition": row.condition,
            "n": row.passed.n,
            "passed": row.passed.passed, "accuracy": row.passed.share,
            "ci_low": row.passed.ci_low, "ci_high": row.passed.ci_high,
            "passed_upstream": row.upstream.passed, "accuracy_upstream": row.upstream.share,
            "upstream_ci_low": row.upstream.ci_low, "upstream_ci_high": row.upstream.ci_high,
        }
        for a in analyses
        for row in a.accuracy
    ]  # fmt: skip


_CONTRAST_COLUMNS = (
    "run_id", "model", "task", "name", "condition", "base", "family", "n", "both",
    "only_condition", "only_base", "neither", "difference", "ci_low", "ci_high", "p_value",
    "p_holm", "difference_upstream", "p_value_upstream",
)  # fmt: skip


def _contrasts(analyses: Sequence[RunAnalysis]) -> list[dict[str, Any]]:
    rows = []
    for a in analyses:
        for c in a.contrasts:
            p = c.passed
            rows.append({
                "run_id": a.run_id, "model": a.model, "task": c.task, "name": c.name,
                "condition": c.condition, "base": c.base, "family": c.family, "n": p.n,
                "both": p.both, "only_condition": p.only_condition, "only_base": p.only_base,
                "neither": p.neither, "difference": p.difference, "ci_low": p.ci_low,
                "ci_high": p.ci_high, "p_value": p.p_value, "p_holm": c.p_holm,
                "difference_upstream": c.upstream.difference,
                "p_value_upstream": c.upstream.p_value,
            })  # fmt: skip
        names = design(a.record)
        if a.interaction is not None and names is not None:
            both, first, second, base = names
            rows.append({
                "run_id": a.run_id, "model": a.model, "task": ALL_TASKS, "name": "interaction",
                "condition": f"{both} - {first} - {second} + {base}", "family": "descriptive",
                "n": a.interaction.n, "difference": a.interaction.estimate,
                "ci_low": a.interaction.ci_low, "ci_high": a.interaction.ci_high,
            })  # fmt: skip
    return [{name: row.get(name) for name in _CONTRAST_COLUMNS} for row in rows]


def _outcomes(analyses: Sequence[RunAnalysis]) -> list[dict[str, Any]]:
    return [
        {
            "run_id": a.run_id, "model": a.model, "task": row.task, "condition": row.condition,
            "responses": row.responses, **row.counts, "cut_by_length": row.cut_by_length,
            "passed_differs_upstream": row.differ,
            "output_tokens_median": row.output_tokens_median,
            "characters_median": row.characters_median,
            "hangul_share_mean": row.hangul_share_mean,
            "with_hangul_share": row.with_hangul_share,
        }
        for a in analyses
        for row in a.outcomes
    ]  # fmt: skip
