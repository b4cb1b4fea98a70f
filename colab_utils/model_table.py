"""The picker's table: an experiment's models, whether each runs here, and how far it has come.

Reads manifests and run directories only, and knows no widgets: a row is data, and is shown as
text or as HTML.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from colab_utils import environments, fingerprints, gate
from colab_utils.batch_plan import decoding_now, scored
from colab_utils.engine import Operating
from colab_utils.errors import FitError, RecordError, WorkbenchError
from colab_utils.fit import require_fit, verdicts_by_card
from colab_utils.manifests import (
    ExperimentManifest,
    ModelManifest,
    load_experiment_manifest,
    load_model_manifest,
)
from colab_utils.responses import parse_responses
from colab_utils.run_directory import RunDirectory, RunStatus
from colab_utils.weights import is_complete, model_folder

COLUMNS = ("model", "licence", "access", "weights", "fits here", "state")
_WIDTH = 130
_NOT_LOCKED = "* not confirmed with the hub yet"


@dataclass(frozen=True)
class ModelRow:
    """One model as the picker shows it.

    `can` names the actions that its state allows (smoke, full_run, score, report) and `next` the
    one that comes next, empty when all is done. `hub` and `gated` tell whether its weights come
    from the hub, and whether that asks for a token. `detail` says more of the fit; `problem` is
    the sentence that keeps the row from being read, empty when there is none.
    """

    name: str
    licence: str = ""
    access: str = ""
    weights: str = ""
    fits: str = ""
    state: str = ""
    can: tuple[str, ...] = ()
    next: str = ""
    locked: bool = True
    hub: bool = False
    gated: bool = False
    detail: str = ""
    problem: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands in the columns."""
        name = self.name if self.locked else f"{self.name} *"
        if self.problem:
            return (name, "", "", "", "", self.problem)
        return (name, self.licence, self.access, self.weights, self.fits, self.state)


def model_rows(
    experiment: str,
    *,
    runs: Path,
    cache: Path,
    gpu: dict[str, Any] | None,
    has_token: bool,
    require_smoke: bool = True,
) -> list[ModelRow]:
    """One row a model of the experiment, in its order.

    `gpu` is what `colab.probe_gpu` found. What is wrong with one model stands in its row; raises
    `ManifestError` only when the experiment manifest cannot be read.
    """
    manifest = load_experiment_manifest(experiment)
    rows = []
    for name in manifest.models:
        try:
            model = load_model_manifest(name)
            folder = runs / manifest.name / model.name
            state, can = run_state(model, manifest, folder, require_smoke)
            fits, detail = _fits(model, manifest, gpu)
            rows.append(
                ModelRow(
                    name=model.name,
                    licence=model.licence,
                    access=_access(model, has_token),
                    weights=_weights(model, cache),
                    fits=fits,
                    state=state,
                    can=can,
                    next=_next(can, state),
                    locked=model.locked,
                    hub=model.distribution is None,
                    gated=model.gated,
                    detail=detail,
                )
            )
        except WorkbenchError as error:
            rows.append(ModelRow(name=name, problem=str(error)))
    return rows


def run_state(
    model: ModelManifest, experiment: ExperimentManifest, folder: Path, require_smoke: bool = True
) -> tuple[str, tuple[str, ...]]:
    """How far a model has come, and the actions that this allows.

    `folder` holds its run directories `smoke` and `full`. The state is one of `none`, `smoke 7/15`
    or `1,184/2,560` with its phase (running, stalled, stopped, failed, interrupted ...), `smoke
    passed`, `smoke not passed`, `smoke of other settings` (than the manifests' now), `complete`,
    `scored`. Raises `RunDirectoryError` for a foreign folder, `RecordError` for one that can't be
    read.
    """
    smoke, full = RunDirectory(folder / "smoke"), RunDirectory(folder / "full")
    smoke_state = _smoke_state(model, experiment, smoke)
    passed = smoke_state == "smoke passed"
    runnable = ("smoke", "full_run") if passed or not require_smoke else ("smoke",)
    status = full.status()
    if full.is_complete():
        return ("scored", ("score", "report")) if scored(full) else ("complete", ("score",))
    if status.phase == "complete":
        return "complete, then its answers were changed or removed", runnable
    if status.phase != "none":
        return _part(status), runnable
    return smoke_state, runnable


def _smoke_state(model: ModelManifest, experiment: ExperimentManifest, smoke: RunDirectory) -> str:
    status = smoke.status()
    if not smoke.is_complete():
        if status.phase == "none":
            return "none"
        return f"smoke {_part(status)}"
    run = smoke.read_run()
    assert run is not None
    try:
        now = fingerprints.fingerprint(decoding_now(run, model, experiment))
    except (KeyError, TypeError, ValueError):
        now = ""
    if run["decoding_fingerprint"] != now:
        return "smoke of other settings"
    try:
        answers = parse_responses(smoke.responses.read_bytes(), where=str(smoke.responses))
    except RecordError:
        return "smoke not passed"
    return "smoke passed" if gate.judge(answers, model).passed else "smoke not passed"


def _part(status: RunStatus) -> str:
    counts = f"{status.done:,}/{status.total:,}"
    if status.phase in ("done", "complete"):
        return counts
    return f"{counts} {'stalled' if status.stalled else status.phase}"


def _next(can: tuple[str, ...], state: str) -> str:
    if state in ("smoke not passed", "smoke of other settings"):
        return "smoke"
    return can[-1] if can else ""


def _access(model: ModelManifest, has_token: bool) -> str:
    if model.distribution is not None:
        return "comes along"
    if not model.gated:
        return "open"
    return "gated, token found" if has_token else "gated, needs HF_TOKEN"


def _weights(model: ModelManifest, cache: Path) -> str:
    size = f"{model.architecture.parameters * 2 / 1e9:.1f} GB"
    return f"{size}, here" if is_complete(model_folder(model, cache)) else size


def _fits(
    model: ModelManifest, experiment: ExperimentManifest, gpu: dict[str, Any] | None
) -> tuple[str, str]:
    """Whether it fits in a word or two, and the sentence behind it."""
    everywhere = verdicts_by_card(model)
    if experiment.engine_lock == environments.CPU_LOCK:
        return "on the CPU", f"this experiment runs on the CPU; {everywhere}"
    if gpu is None:
        return "no GPU here", everywhere
    try:
        fit = require_fit(model, experiment, gpu, Operating().gpu_memory_utilization)
    except FitError as error:
        return "no", str(error)
    return (
        f"yes, {fit.sequences:,} at once",
        f"{fit.sequences} sequences of {model.max_model_len} tokens at once",
    )


def notes(rows: Sequence[ModelRow]) -> list[str]:
    """What the reader has to know beside the table, one clause each."""
    said = [_NOT_LOCKED] if any(not row.locked for row in rows) else []
    if any(" at once" in row.fits for row in rows):
        said.append("at once: sequences of full length that fit the GPU together")
    said += [row.detail for row in rows if row.fits == "no"]
    return said


def text_table(rows: Sequence[ModelRow]) -> str:
    """The rows as text in columns; wide (Korean) characters take two places."""
    table = Table(*COLUMNS, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        # Text as it is: a bracket in a name is no markup.
        table.add_row(*(Text(cell) for cell in row.cells))
    console = Console(file=io.StringIO(), width=_WIDTH, force_jupyter=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().split("\n") if line.strip()]
    return "\n".join([*lines, *notes(rows)])


def html_table(
    rows: Sequence[ModelRow], selected: str = "", live: tuple[str, str] = ("", "")
) -> str:
    """The rows as an HTML table, all text escaped.

    The row of `selected` is marked; `live` names a row and what stands as its state. Colours are
    tints, so that light and dark themes keep their own.
    """
    head = "".join(f'<th style="{_HEAD}">{escape(name)}</th>' for name in COLUMNS)
    body = []
    for row in rows:
        chosen = row.name == selected
        cells = [*row.cells[:-1], live[1] if row.name == live[0] else row.cells[-1]]
        style = _CELL + ("background:rgba(66,133,244,.16);" if chosen else "")
        shown = [escape(cell) for cell in cells]
        shown[0] = f"<b>{shown[0]}</b>" if chosen else shown[0]
        shown[-1] = f'<span style="{_tint(cells[-1], row)}">{shown[-1]}</span>'
        body.append(
            f'<tr title="{escape(row.detail)}">'
            + "".join(f'<td style="{style}">{cell}</td>' for cell in shown)
            + "</tr>"
        )
    below = "".join(f'<div style="opacity:.75">{escape(note)}</div>' for note in notes(rows))
    return (
        '<div style="overflow-x:auto;line-height:1.5">'
        '<table style="border-collapse:collapse;width:100%;margin:0 0 4px 0">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>{below}</div>"
    )


_CELL = "padding:4px 10px;text-align:left;border-top:1px solid rgba(128,128,128,.35);"
_HEAD = "padding:4px 10px;text-align:left;font-weight:600;opacity:.75;"


def _tint(state: str, row: ModelRow) -> str:
    good = state in ("smoke passed", "complete", "scored")
    bad = bool(row.problem) or state.endswith(("not passed", "other settings", "failed", "stalled"))
    colour = "52,168,83" if good else "234,67,53" if bad else "128,128,128"
    return f"background:rgba({colour},.2);border-radius:4px;padding:1px 6px;"
