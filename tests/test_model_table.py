"""The picker's table: how far each model has come, whether it fits, and text that stays text."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from run_directories import row, write_run, write_scoring

from colab_utils import records
from colab_utils.fingerprints import decoding_settings, fingerprint
from colab_utils.lock import locked
from colab_utils.manifests import load_experiment_manifest, load_model_manifest
from colab_utils.model_table import ModelRow, html_table, model_rows, run_state, text_table
from colab_utils.run_directory import RunDirectory

MODEL = load_model_manifest("smollm2-135m-instruct")
EMBEDDED = load_experiment_manifest("embedded")
STUDY = "code-switching-512"
ANSWERS = {f"{task}-0": (task, row("pwpwp")) for task in ("code", "sql", "finance")}
L4 = {"name": "NVIDIA L4", "memory_bytes": 23034 << 20, "compute_capability": 8.9}
T4 = {"name": "Tesla T4", "memory_bytes": 15360 << 20, "compute_capability": 7.5}


def begun(folder: Path, done: int, total: int, phase: str, *, silent: float = 0.0) -> Path:
    """A run directory with some answers and its last sign of life `silent` seconds ago."""
    write_run(folder, ANSWERS, scored=False, requests=total, completed=None)
    (folder / "responses.jsonl").unlink()
    at = (datetime.now(UTC) - timedelta(seconds=silent)).isoformat(timespec="seconds")
    beat = {"at": at, "pid": 1, "phase": phase, "phase_seconds": 1.0, "done": done, "total": total}
    records.append_line(folder / "heartbeat.jsonl", beat)
    return folder


def smoke(folder: Path, max_tokens: int | None = None, **changed: object) -> Path:
    cells = {name: (task, dict(c)) for name, (task, c) in ANSWERS.items()}
    cells["code-0"][1]["KO"] = {"outcome": "passed", **changed}
    digests = {name: file.sha256 for name, file in MODEL.files.items()}
    decoding = decoding_settings(MODEL, EMBEDDED, digests=digests)
    if max_tokens is not None:
        decoding["decoding"]["max_tokens"] = max_tokens
    known = {"decoding": decoding, "decoding_fingerprint": fingerprint(decoding)}
    return write_run(folder, cells, scored=False, kind="smoke", **known)


def state_in(folder: Path, *, runner: str = "", require_smoke: bool = True):
    with ExitStack() as held:
        if runner:
            held.enter_context(locked(RunDirectory(folder / runner)))
        return run_state(MODEL, EMBEDDED, folder, require_smoke)


def test_a_model_comes_from_nothing_to_scored(tmp_path):
    assert state_in(tmp_path) == ("none", ("smoke",))
    assert state_in(tmp_path, require_smoke=False) == ("none", ("smoke", "full_run"))
    begun(tmp_path / "smoke", 5, 15, "running")
    assert state_in(tmp_path, runner="smoke")[0] == "smoke 5/15 running"
    smoke(tmp_path / "smoke")
    assert state_in(tmp_path) == ("smoke passed", ("smoke", "full_run"))
    full = begun(tmp_path / "full", 1184, 2560, "running")
    assert state_in(tmp_path, runner="full") == ("1,184/2,560 running", ("smoke", "full_run"))
    write_run(full, ANSWERS, scored=False)
    assert state_in(tmp_path) == ("complete", ("score",))
    write_scoring(full, ANSWERS)
    assert state_in(tmp_path) == ("scored", ("score", "report"))


@pytest.mark.parametrize(
    ("phase", "runner", "silent", "state"),
    [
        ("running", "full", 5, "1,184/2,560 running"),
        ("running", "full", 90, "1,184/2,560 stalled"),
        ("running", "", 90, "1,184/2,560 interrupted"),
        ("stopped", "", 90, "1,184/2,560 stopped"),
        ("failed", "", 90, "1,184/2,560 failed"),
    ],
)
def test_a_part_of_a_run_says_how_it_stands(tmp_path, phase, runner, silent, state):
    begun(tmp_path / "full", 1184, 2560, phase, silent=silent)
    assert state_in(tmp_path, runner=runner)[0] == state


@pytest.mark.parametrize("changed", [{"text": " "}, {"outcome": "rejected"}])
def test_a_smoke_that_did_not_pass_allows_no_full_run(tmp_path, changed):
    smoke(tmp_path / "smoke", **changed)
    assert state_in(tmp_path) == ("smoke not passed", ("smoke",))


def test_a_smoke_under_other_settings_allows_no_full_run(tmp_path):
    smoke(tmp_path / "smoke", max_tokens=7)
    assert state_in(tmp_path) == ("smoke of other settings", ("smoke",))
    assert state_in(tmp_path, require_smoke=False)[1] == ("smoke", "full_run")


def test_a_file_that_cannot_be_read_is_one_models_problem(tmp_path):
    full = write_run(tmp_path / "embedded" / MODEL.name / "full", ANSWERS)
    (full / "responses.jsonl").unlink()
    (full / "responses.jsonl").mkdir()
    (found,) = rows_of("embedded", tmp_path)
    assert "responses.jsonl: cannot be read" in found.problem and found.can == ()


def test_a_scoring_of_other_answers_is_none(tmp_path):
    full = write_run(tmp_path / "full", ANSWERS)
    assert state_in(tmp_path)[0] == "scored"
    other = {name: (task, row("ppppp" if task == "sql" else "wwwww")) for name, (task, _) in
             ANSWERS.items()}  # fmt: skip
    longer = {f"{name}x": value for name, value in other.items()}
    write_run(full, longer, scored=False)
    assert state_in(tmp_path) == ("complete", ("score",))


def test_changed_answers_and_foreign_folders_are_told(tmp_path):
    full = write_run(tmp_path / "embedded" / MODEL.name / "full", ANSWERS)
    (full / "responses.jsonl").write_text("{}\n")
    state, can = state_in(full.parent)
    assert "changed or removed" in state and can == ("smoke",)
    # A full run joins them again from the chunks, as after a choice between two chunks.
    smoke(full.parent / "smoke")
    assert state_in(full.parent)[1] == ("smoke", "full_run")
    (full / "run.json").write_text('{"format": 99}')
    (found,) = rows_of("embedded", tmp_path)
    assert "not written by this version" in found.problem and found.can == ()


def rows_of(experiment: str, tmp_path: Path, **more: object) -> list[ModelRow]:
    values = {"runs": tmp_path, "cache": tmp_path, "gpu": None, "has_token": False} | more
    return model_rows(experiment, **values)


def test_licence_gate_size_and_fit_are_the_manifests_and_this_gpus(tmp_path):
    small, large = "llama-3.2-3b-instruct", "llama-3.1-8b-instruct"
    with_token = {r.name: r for r in rows_of(STUDY, tmp_path, gpu=L4, has_token=True)}
    without = {r.name: r for r in rows_of(STUDY, tmp_path)}
    assert with_token[small].fits.startswith("yes, ") and with_token[small].fits.endswith("at once")
    assert without[small].fits == "no GPU here" and "L4" in without[small].detail
    assert with_token[small].access == "gated, token found"
    assert without[small].access == "gated, needs HF_TOKEN"
    assert without["qwen3-8b"].access == "open" and without["qwen3-8b"].licence == "Apache-2.0"
    assert without[large].weights == "16.1 GB"
    on_t4 = {r.name: r for r in rows_of(STUDY, tmp_path, gpu=T4)}
    assert {r.fits for r in on_t4.values()} == {"no"}
    assert "no BF16" in text_table(list(on_t4.values()))
    (embedded,) = rows_of("embedded", tmp_path)
    assert (embedded.access, embedded.fits) == ("comes along", "on the CPU")


def test_hostile_text_is_shown_and_never_markup():
    evil = "<script>alert(1)</script>&\"'"
    rows = [ModelRow(name=evil, licence=evil, access=evil, weights=evil, fits="no", detail=evil),
            ModelRow(name="b", problem=evil)]  # fmt: skip
    page = html_table(rows, selected=evil, live=("b", evil))
    assert "<script" not in page and "&quot;" in page and page.count("&lt;script&gt;") == 7
    plain = [ModelRow(name="[bold]a[/bold]", licence="[/x]"), ModelRow(name="모델", state="none")]
    lines = text_table(plain).split("\n")
    assert lines[1].startswith("[bold]a[/bold]  [/x]")
    # A Korean letter is two places wide.
    assert lines[2].index("none") + 2 == lines[0].index("state")


def test_the_chosen_row_is_marked_and_a_living_one_says_so():
    rows = [ModelRow(name="a", state="none"), ModelRow(name="b", state="none", locked=False)]
    page = html_table(rows, selected="b", live=("a", "smoke 3/15"))
    assert "<b>b *</b>" in page and page.count("smoke 3/15") == 1 and page.count(">none<") == 1
    assert "not confirmed" in page
