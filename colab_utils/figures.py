"""The report's figure: accuracy by condition, and the declared contrasts, one row a model."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from colab_utils.analysis import ALL_TASKS, RunAnalysis
from colab_utils.report_text import printable

# two colours of Okabe and Ito's palette; shape says the same, so that grey print does too
_OURS = "#0072B2"
_UPSTREAM = "#D55E00"
_HANGUL_FONTS = ("Noto Sans CJK KR", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo")


def draw(analyses: Sequence[RunAnalysis]) -> tuple[bytes, bytes]:
    """Draw the figure; returns (SVG, PNG) bytes. The same numbers give the same SVG."""
    with matplotlib.rc_context(_style()):
        figure = _figure(analyses)
        svg, png = io.BytesIO(), io.BytesIO()
        undated = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(svg, format="svg", metadata=undated)
        figure.savefig(png, format="png", dpi=150)
    return svg.getvalue(), png.getvalue()


def inline_svg(svg: bytes, label: str) -> str:
    """The SVG as an element of an HTML page: no prolog, no address, named for screen readers.

    `label` is escaped here.
    """
    text = svg.decode("utf-8")
    body = text[text.index("<svg") :]
    body = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", body)
    escaped = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return body.replace("<svg", f'<svg role="img" aria-label="{escaped}"', 1)


def _style() -> Any:
    installed = {font.name for font in fontManager.ttflist}
    return {
        "font.family": [
            "DejaVu Sans",
            *(name for name in _HANGUL_FONTS if name in installed),
            "sans-serif",
        ],
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#444444",
        "text.parse_math": False,
        # text stays text: a browser has the fonts for Hangul, and a reader can search it
        "svg.fonttype": "none",
        "svg.hashsalt": "report",
    }


def _figure(analyses: Sequence[RunAnalysis]) -> Figure:
    tasks = [t for t in (ALL_TASKS, "code", "sql", "finance") if _shown(t, analyses)]
    contrasts = any(a.contrasts for a in analyses)
    rows = len(analyses)
    most = max((len({c.name for c in a.contrasts}) for a in analyses), default=0)
    row_height = 1.1 + 0.26 * max(5, most)
    figure = Figure(figsize=(11, 0.75 + row_height * rows), layout="constrained")
    figure.set_facecolor("white")
    grid = figure.subplots(
        rows,
        len(tasks) + contrasts,
        squeeze=False,
        width_ratios=[1.0] * len(tasks) + [1.75] * contrasts,
    )
    reach = _reach(analyses)
    for index, analysis in enumerate(analyses):
        for column, task in enumerate(tasks):
            _accuracy_panel(grid[index][column], analysis, task, first=column == 0)
            if index == 0:
                grid[index][column].set_title("all tasks" if task == ALL_TASKS else task)
        if contrasts:
            _contrast_panel(grid[index][-1], analysis, reach)
            if index == 0:
                grid[index][-1].set_title("contrasts, all tasks")
    handles = _legend(analyses[0].alpha)
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _shown(task: str, analyses: Sequence[RunAnalysis]) -> bool:
    if task == ALL_TASKS:
        return any(len(a.tasks) != 1 for a in analyses)
    return any(task in a.tasks for a in analyses)


def _reach(analyses: Sequence[RunAnalysis]) -> float:
    """Half width of the contrast panels, in points: one scale for all models."""
    limits = [
        abs(value)
        for a in analyses
        for c in a.contrasts
        for value in (c.passed.ci_low, c.passed.ci_high)
        if value is not None and c.task == ALL_TASKS
    ]
    return 100 * max(limits, default=0.1) * 1.05


def _accuracy_panel(axes: Axes, analysis: RunAnalysis, task: str, *, first: bool) -> None:
    cells = [a for a in analysis.accuracy if a.task == task]
    for place, cell in enumerate(cells):
        passed = cell.passed
        if passed.share is None or passed.ci_low is None or passed.ci_high is None:
            axes.text(50, place, "no complete sample", ha="center", va="center", color="#555555")
            continue
        axes.plot([100 * passed.ci_low, 100 * passed.ci_high], [place] * 2, color=_OURS, lw=1.8)
        if cell.upstream.share is not None:
            # below the line: the two are often equal, and must both be seen
            axes.plot(100 * cell.upstream.share, place + 0.27, "D", ms=4, mfc="none", mec=_UPSTREAM)
        axes.plot(100 * passed.share, place, "o", ms=5, color=_OURS)
    _rows(axes, [cell.condition for cell in cells] if first else [""] * len(cells), len(cells))
    axes.set_xlim(-3, 103)
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "", "50", "", "100 %"])
    n = cells[0].passed.n if cells else 0
    axes.set_xlabel(f"accuracy, n = {n}")
    if first:
        axes.set_ylabel(printable(analysis.model, 34))


def _contrast_panel(axes: Axes, analysis: RunAnalysis, reach: float) -> None:
    rows = [c for c in analysis.contrasts if c.task == ALL_TASKS]
    axes.axvline(0, color="#777777", lw=1)
    for place, row in enumerate(rows):
        result = row.passed
        if result.difference is None or result.ci_low is None or result.ci_high is None:
            axes.text(0, place, "nothing to compare", ha="center", va="center", color="#555555")
            continue
        low, high = 100 * result.ci_low, 100 * result.ci_high
        axes.plot([low, high], [place] * 2, color=_OURS, lw=1.8)
        face = _OURS if row.family == "primary" else "white"
        axes.plot(100 * result.difference, place, "o", ms=5.5, mfc=face, mec=_OURS, mew=1.3)
    _rows(axes, [printable(row.name, 26) for row in rows], len(rows))
    axes.set_xlim(-reach, reach)
    axes.xaxis.set_major_locator(MaxNLocator(5, symmetric=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(_signed_tick))
    axes.set_xlabel("difference in accuracy, points")


def _signed_tick(value: float, position: int) -> str:
    return f"{value:+g}".replace("-", "\u2212") if value else "0"


def _rows(axes: Axes, labels: Sequence[str], count: int) -> None:
    axes.set_yticks(range(count), labels)
    axes.set_ylim(max(count, 1) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", lw=0.7)
    axes.set_axisbelow(True)


def _legend(alpha: float) -> list[Line2D]:
    ours = f"passed, with {100 * (1 - alpha):g} % interval"
    return [
        Line2D([], [], color=_OURS, marker="o", ms=5, label=ours),
        Line2D([], [], ls="", marker="D", ms=4, mfc="none", mec=_UPSTREAM,
               label="passed by upstream's extraction"),
        Line2D([], [], color=_OURS, marker="o", ms=5, mfc="white", label="secondary contrast"),
    ]  # fmt: skip
