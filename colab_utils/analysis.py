"""Numbers of a report: from the database's views to accuracies, contrasts and outcomes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from sqlite_utils import Database

from colab_utils import paired
from colab_utils.errors import ReportError
from colab_utils.manifests import CONDITIONS, TASKS
from colab_utils.paired import CompleteSamples, Interaction, PairedDifference, Proportion
from colab_utils.verdicts import OUTCOMES

ALL_TASKS = "all"
"""The name of the row over all tasks; every sample weighs the same there."""


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of one model under one condition, over complete samples."""

    task: str
    condition: str
    passed: Proportion
    upstream: Proportion


@dataclass(frozen=True)
class ContrastResult:
    """One declared contrast. `p_holm` is given for the primary family over all tasks only."""

    task: str
    name: str
    condition: str
    base: str
    family: str
    passed: PairedDifference
    upstream: PairedDifference
    p_holm: float | None = None

    @property
    def in_family(self) -> bool:
        """Whether this row is one of the tests that Holm's correction counts."""
        return self.task == ALL_TASKS and self.family == "primary"


@dataclass(frozen=True)
class Outcomes:
    """What became of the responses of one task under one condition, and what they look like.

    `counts` holds the outcomes, `rejected` and `no_verdict`, which add up to `responses`;
    `cut_by_length` overlaps them. `judged` responses have a verdict and were not rejected; in
    `differ` of them the two verdicts differ. The other fields describe answers that were
    given: medians, and shares from 0 to 1 (None where there is nothing to count).
    """

    task: str
    condition: str
    responses: int
    counts: dict[str, int]
    cut_by_length: int
    judged: int
    differ: int
    output_tokens_median: float | None
    characters_median: float | None
    hangul_share_mean: float | None
    with_hangul_share: float | None


@dataclass(frozen=True)
class Replay:
    """Requests answered again under another batching, over all replays of a run.

    `verdicts_changed` is None where the chosen scoring has not judged the changed answers.
    """

    requests: int
    answers_changed: int
    verdicts_changed: int | None


@dataclass(frozen=True)
class RunAnalysis:
    """All numbers of one run under its chosen scoring."""

    run_id: str
    model: str
    record: dict[str, Any]
    scoring: dict[str, Any]
    conditions: tuple[str, ...]
    tasks: tuple[str, ...]
    samples: int
    complete: int
    left_out: dict[str, list[str]]
    accuracy: tuple[Accuracy, ...]
    contrasts: tuple[ContrastResult, ...]
    interaction: Interaction | None
    outcomes: tuple[Outcomes, ...]
    excluded: tuple[str, ...]
    alpha: float
    replay: Replay | None


def analyse(database_path: Path) -> list[RunAnalysis]:
    """Analyse every run of a database; Holm's correction runs over all their primary tests.

    Raises `ReportError` when a run has no usable scoring, or when runs were scored by
    different evaluators or declare different contrasts or alpha.
    """
    database = Database(str(database_path))
    try:
        runs = list(database.query("SELECT * FROM runs ORDER BY rowid"))
        scorings = {
            row["run_id"]: row for row in database.query("SELECT * FROM scorings WHERE chosen")
        }
        _check_comparable(runs, scorings, database)
        analyses = [_analyse_run(database, run, scorings[run["run_id"]]) for run in runs]
    finally:
        database.conn.close()
    return _with_holm(analyses)


def _check_comparable(
    runs: Sequence[dict[str, Any]], scorings: dict[str, dict[str, Any]], database: Database
) -> None:
    for run in runs:
        if run["run_id"] not in scorings:
            raise ReportError(
                "has no completed scoring of its present answers",
                where=f"run {run['folder']}",
                mend="score it, then make the report",
            )
    chosen = {scorings[run["run_id"]]["evaluator_fingerprint"] for run in runs}
    if len(chosen) > 1:
        common = database.query(
            "SELECT evaluator_fingerprint AS fp FROM scorings WHERE same_answers AND "
            "completed IS NOT NULL GROUP BY fp HAVING count(*) = ?",
            [len(runs)],
        )
        known = ", ".join(row["fp"][:12] for row in common)
        raise ReportError(
            "were scored by different evaluators: "
            + ", ".join(
                f"{r['folder']} by {scorings[r['run_id']]['evaluator_fingerprint'][:12]}"
                for r in runs
            ),
            where="runs",
            mend=f"name the scoring they share: {known}" if known else "score them by one",
        )
    declared = {
        json.dumps([_experiment(run).get(key) for key in ("contrasts", "alpha")]) for run in runs
    }
    if len(declared) > 1:
        raise ReportError("declare different contrasts or alpha", where="the runs' experiments")


def _experiment(run: dict[str, Any]) -> dict[str, Any]:
    manifests = json.loads(run["run_json"]).get("manifests", {})
    return manifests.get("experiment") or {}


def _analyse_run(database: Database, run: dict[str, Any], scoring: dict[str, Any]) -> RunAnalysis:
    rows = list(database.query("SELECT * FROM judged WHERE run_id = ?", [run["run_id"]]))
    conditions = tuple(c for c in CONDITIONS if any(r["condition"] == c for r in rows))
    tasks = tuple(t for t in TASKS if any(r["task"] == t for r in rows))
    passed = paired.complete_samples(_cells(rows, "passed"), conditions)
    upstream = paired.complete_samples(_cells(rows, "passed_upstream"), conditions)
    record = json.loads(run["run_json"])
    experiment = _experiment(run)
    alpha = float(experiment.get("alpha", 0.05))
    task_of = {row["sample_id"]: row["task"] for row in rows}
    groups = {ALL_TASKS: sorted(passed.passed)}
    groups |= {t: [s for s in groups[ALL_TASKS] if task_of[s] == t] for t in tasks}
    left_out: dict[str, list[str]] = {}
    for sample_id, reason in passed.left_out.items():
        left_out.setdefault(reason, []).append(sample_id)
    excluded = database.query(
        "SELECT sample_id FROM excluded WHERE run_id = ? AND evaluator_fingerprint = ?",
        [run["run_id"], scoring["evaluator_fingerprint"]],
    )
    return RunAnalysis(
        run_id=run["run_id"],
        model=run["model"] or run["run_id"],
        record=record,
        scoring=scoring,
        conditions=conditions,
        tasks=tasks,
        samples=len(task_of),
        complete=len(passed.passed),
        left_out=left_out,
        accuracy=tuple(
            Accuracy(
                task,
                condition,
                _share(passed, group, condition, alpha),
                _share(upstream, group, condition, alpha),
            )
            for task, group in groups.items()
            for condition in conditions
        ),
        contrasts=tuple(
            ContrastResult(
                task,
                declared["name"],
                declared["condition"],
                declared["base"],
                declared["family"],
                _difference(passed, group, declared, alpha),
                _difference(upstream, group, declared, alpha),
            )
            for task, group in groups.items()
            for declared in experiment.get("contrasts", ())
        ),
        interaction=_interaction(passed, record, conditions, task_of, alpha),
        outcomes=tuple(
            _outcomes(task, condition, rows)
            for task in (ALL_TASKS, *tasks)
            for condition in conditions
        ),
        excluded=tuple(row["sample_id"] for row in excluded),
        alpha=alpha,
        replay=_replay(database, run["run_id"]),
    )


def _replay(database: Database, run_id: str) -> Replay | None:
    rows = list(database.query("SELECT * FROM replays WHERE run_id = ?", [run_id]))
    if not rows:
        return None
    verdicts = [row["verdicts_changed"] for row in rows]
    return Replay(
        sum(row["requests"] for row in rows),
        sum(row["answers_changed"] for row in rows),
        None if None in verdicts else sum(verdicts),
    )


def _cells(rows: Sequence[dict[str, Any]], column: str) -> dict[str, dict[str, bool | str]]:
    cells: dict[str, dict[str, bool | str]] = {}
    for row in rows:
        status = row["status"]
        cell = status if status in paired.REASONS else bool(row[column])
        cells.setdefault(row["sample_id"], {})[row["condition"]] = cell
    return cells


def _share(
    complete: CompleteSamples, group: Sequence[str], condition: str, alpha: float
) -> Proportion:
    verdicts = [complete.passed[sample_id][condition] for sample_id in group]
    return paired.wilson(sum(verdicts), len(verdicts), alpha=alpha)


def _difference(
    complete: CompleteSamples, group: Sequence[str], contrast: dict[str, Any], alpha: float
) -> PairedDifference:
    first, second = contrast["condition"], contrast["base"]
    pairs = [
        (row[first], row[second])
        for row in (complete.passed[sample_id] for sample_id in group)
        if first in row and second in row
    ]
    return paired.paired_difference(pairs, alpha=alpha)


def design(record: dict[str, Any]) -> tuple[str, str, str, str] | None:
    """(both, first, second, base) of the 2x2 that the data set manifest declares, if it does."""
    manifest = record.get("manifests", {}).get("dataset") or {}
    switched = {name: set(parts) for name, parts in (manifest.get("switched") or {}).items()}
    singles = [name for name, parts in switched.items() if len(parts) == 1]
    both = [name for name, parts in switched.items() if len(parts) == 2]
    if len(singles) != 2 or len(both) != 1 or "base" not in manifest:
        return None
    if switched[singles[0]] | switched[singles[1]] != switched[both[0]]:
        return None
    return both[0], singles[0], singles[1], manifest["base"]


def _interaction(
    complete: CompleteSamples,
    record: dict[str, Any],
    conditions: Sequence[str],
    task_of: dict[str, str],
    alpha: float,
) -> Interaction | None:
    names = design(record)
    if names is None or not set(names) <= set(conditions):
        return None
    strata: dict[str, list[tuple[bool, bool, bool, bool]]] = {}
    for sample_id in sorted(complete.passed):
        row = complete.passed[sample_id]
        both, first, second, base = (row[name] for name in names)
        strata.setdefault(task_of[sample_id], []).append((both, first, second, base))
    return paired.interaction(dict(sorted(strata.items())), alpha=alpha)


def _outcomes(task: str, condition: str, rows: Sequence[dict[str, Any]]) -> Outcomes:
    cell = [r for r in rows if r["condition"] == condition and task in (ALL_TASKS, r["task"])]
    given = [r for r in cell if r["finish_reason"] != "rejected"]
    lettered = [r["hangul_letters"] / r["letters"] for r in given if r["letters"]]
    return Outcomes(
        task=task,
        condition=condition,
        responses=len(cell),
        counts={
            name: sum(r["status"] == name for r in cell)
            for name in (*OUTCOMES, "rejected", "no_verdict")
        },
        cut_by_length=sum(r["finish_reason"] == "length" for r in cell),
        judged=sum(r["passed"] is not None for r in given),
        differ=sum(r["passed"] != r["passed_upstream"] for r in given),
        output_tokens_median=median(r["output_tokens"] for r in given) if given else None,
        characters_median=median(r["characters"] for r in given) if given else None,
        hangul_share_mean=mean(lettered) if lettered else None,
        with_hangul_share=mean(r["hangul_letters"] > 0 for r in given) if given else None,
    )


def _with_holm(analyses: Sequence[RunAnalysis]) -> list[RunAnalysis]:
    """One family: the primary contrasts over all tasks, of every model in the report."""
    family = [c.passed.p_value for a in analyses for c in a.contrasts if c.in_family]
    alpha = analyses[0].alpha if analyses else 0.05
    adjusted = iter(paired.holm(family, alpha=alpha))
    return [
        replace(
            analysis,
            contrasts=tuple(
                replace(c, p_holm=next(adjusted)) if c.in_family else c for c in analysis.contrasts
            ),
        )
        for analysis in analyses
    ]
