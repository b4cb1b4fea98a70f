"""One self-contained report of one run, or of several models side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from sqlite_utils import Database

from colab_utils import figures, records
from colab_utils.analysis import ALL_TASKS, RunAnalysis, analyse
from colab_utils.errors import ReportError
from colab_utils.manifests import CONDITIONS
from colab_utils.report_csv import write_csv
from colab_utils.report_text import (
    header,
    limits,
    p_value,
    percent,
    plain,
    points,
    printable,
    replay,
    signed,
    summary,
)
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import Dataset
from colab_utils.store import as_folders, build_database
from colab_utils.verdicts import OUTCOMES

SHOWN = 20
"""How many rows of a list the page shows; the CSV files and the database hold all."""


@dataclass(frozen=True)
class Report:
    """Files of one report. `csv` maps accuracy, contrasts, outcomes and responses to paths."""

    html: Path
    database: Path
    csv: dict[str, Path]
    figure_svg: Path
    figure_png: Path


def make_report(
    run_dirs: Path | str | Sequence[Path | str],
    *,
    dataset: Dataset | None = None,
    scoring_fingerprint: str | None = None,
    target: Path | str | None = None,
    allow_smoke: bool = False,
) -> Report:
    """Write the report of one or several scored runs, and the database it is made from.

    For one run everything goes to `report/` in the run directory and the database to
    `results.sqlite` beside it; with `target` all of it goes into that folder, which several
    runs need. `scoring_fingerprint` (a prefix will do) chooses among scorings; the default is each
    run's newest completed one. The page needs no other file and no network.

    Raises `ReportError` when a run is a smoke run, is not scored, or when runs cannot be
    compared; and what `store.build_database` raises.
    """
    folders = as_folders(run_dirs)
    if target is None and len(folders) > 1:
        raise ReportError("is needed for several run directories", where="target")
    if not allow_smoke:
        _refuse_smoke(folders)
    folder = Path(target) if target is not None else folders[0] / "report"
    beside = folder if target is not None else folders[0]
    database = build_database(
        folders, beside / "results.sqlite", dataset=dataset,
        scoring_fingerprint=scoring_fingerprint,
    )  # fmt: skip
    analyses = analyse(database)
    svg, png = figures.draw(analyses)
    page = _render(database, analyses, svg)
    report = Report(
        html=folder / "report.html",
        database=database,
        csv=write_csv(folder, database, analyses),
        figure_svg=folder / "figure.svg",
        figure_png=folder / "figure.png",
    )
    records.write_atomic(report.figure_svg, svg)
    records.write_atomic(report.figure_png, png)
    records.write_atomic(report.html, page.encode("utf-8"))
    return report


def _refuse_smoke(folders: Iterable[Path]) -> None:
    for folder in folders:
        run = RunDirectory(folder).read_run()
        if run is not None and run["kind"] == "smoke":
            raise ReportError(
                "is a smoke run, and smoke is not a score",
                where=str(folder),
                mend="report a full run, or pass allow_smoke=True to look at the layout",
            )


def _render(database: Path, analyses: Sequence[RunAnalysis], svg: bytes) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )  # fmt: skip
    environment.filters |= {
        "percent": percent, "points": points, "signed": signed, "p_value": p_value,
        "limits": limits, "replay": replay, "plain": plain, "by_task": _by_task,
    }  # fmt: skip
    source = resources.files("colab_utils").joinpath("templates/report.html.j2")
    template = environment.from_string(source.read_text(encoding="utf-8"))
    paragraphs = [summary(analysis, len(analyses)) for analysis in analyses]
    return template.render(
        analyses=analyses,
        headers=[header(analysis) for analysis in analyses],
        summaries=paragraphs,
        lists=[_lists(database, analysis.run_id) for analysis in analyses],
        figure=Markup(figures.inline_svg(svg, _figure_label(analyses))),
        figure_label=_figure_label(analyses),
        outcomes=OUTCOMES,
        conditions=[c for c in CONDITIONS if any(c in a.conditions for a in analyses)],
        all_tasks=ALL_TASKS,
        level=f"{100 * (1 - analyses[0].alpha):g}",
        family=sum(c.p_holm is not None for a in analyses for c in a.contrasts),
        smoke=any(a.record["kind"] == "smoke" for a in analyses),
        missing=_missing(analyses),
        shown=SHOWN,
    )


def _missing(analyses: Sequence[RunAnalysis]) -> list[str]:
    """Models that the runs' experiments name and no run here is of."""
    named = [m for a in analyses for m in a.record["manifests"]["experiment"].get("models", [])]
    return sorted(set(named) - {a.model for a in analyses})


def _by_task(rows: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """Rows grouped by task, in the order they come in."""
    return [(task, list(group)) for task, group in groupby(rows, key=lambda row: row.task)]


def _figure_label(analyses: Sequence[RunAnalysis]) -> str:
    """What the figure shows, in words and numbers, for those who do not see it."""
    sentences = ["Accuracy by condition with intervals, and contrasts."]
    for analysis in analyses:
        cells = ", ".join(
            f"{a.condition} {percent(a.passed.share)}"
            for a in analysis.accuracy
            if a.task == ALL_TASKS
        )
        sentences.append(printable(f"{analysis.model}, all tasks: {cells}."))
    return " ".join(sentences)


def _lists(database: Path, run_id: str) -> dict[str, list[dict[str, Any]]]:
    """Rows that a reader should look at: rejected requests, verdicts that disagree, other rules."""
    opened = Database(str(database))
    try:
        return {
            "rejected": list(
                opened.query(
                    "SELECT request_id, error FROM rejected WHERE run_id = ? ORDER BY position",
                    [run_id],
                )
            ),
            "differences": list(
                opened.query(
                    "SELECT request_id, passed, passed_upstream, outcome, substr(detail, 1, 200) "
                    "AS detail FROM differences_passed_upstream WHERE run_id = ? "
                    "ORDER BY position",
                    [run_id],
                )
            ),
            "sensitivity": list(
                opened.query("SELECT * FROM sensitivity_by_condition WHERE run_id = ?", [run_id])
            ),
        }
    finally:
        opened.conn.close()
