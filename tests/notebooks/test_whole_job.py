"""The four notebooks through papermill, as `make demo` runs them, on the real engine."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest

from colab_utils import workbench
from colab_utils.demo import EXPERIMENT, MODEL, demo
from colab_utils.errors import ParameterError, SmokeNotPassed, WorkbenchError
from colab_utils.manifests import PROJECT
from colab_utils.notebooks import NOTEBOOKS, execute
from colab_utils.run_directory import RunDirectory

NAMES = ("smoke", "full_run", "scoring", "report")


@pytest.fixture(scope="module")
def runs(engine_python, tmp_path_factory) -> Path:
    """The folder of all runs after one demo; what it said is kept beside."""
    folder = tmp_path_factory.mktemp("runs")
    said: list[str] = []
    demo(str(folder), say=said.append)
    (folder / "said.json").write_text(json.dumps(said))
    return folder


@pytest.mark.slow
def test_the_whole_job_leaves_answers_verdicts_database_and_report(runs):
    full = workbench.run_dir(str(runs), EXPERIMENT, MODEL, "full")
    assert RunDirectory(full).is_complete()
    assert len((full / "responses.jsonl").read_bytes().splitlines()) == 120
    page = (full / "report" / "report.html").read_text(encoding="utf-8")
    assert MODEL in page and "http://" not in page.replace("http://www.w3.org", "")
    database = sqlite3.connect(full / "results.sqlite")
    assert database.execute("SELECT COUNT(*) FROM verdicts").fetchone() == (120,)
    said = json.loads((runs / "said.json").read_text())
    assert any(str(full / "report" / "report.html") in line for line in said)


@pytest.mark.slow
def test_output_notebooks_are_whole(runs):
    folder = workbench.run_dir(str(runs), EXPERIMENT, MODEL).parent / "notebooks"
    for name in NAMES:
        notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in code if cell.source.strip())
        assert not [o for cell in code for o in cell.outputs if o.output_type == "error"]
    report = nbformat.read(folder / "report.ipynb", as_version=4)
    assert any("image/png" in o.get("data", {}) for c in report.cells for o in c.get("outputs", []))


@pytest.mark.slow
def test_a_second_demo_does_nothing_and_says_so(runs):
    full = workbench.run_dir(str(runs), EXPERIMENT, MODEL, "full")
    before = {path: path.stat().st_mtime_ns for path in full.rglob("*") if path.is_file()}
    said: list[str] = []
    demo(str(runs), say=said.append)
    assert [line for line in said if "already done" in line] == [
        f"{name}: already done, nothing to do" for name in NAMES
    ]
    assert {path: path.stat().st_mtime_ns for path in full.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_complete_run_starts_no_engine_and_scoring_is_not_repeated(runs):
    full = workbench.run_dir(str(runs), EXPERIMENT, MODEL, "full")
    segments = len(RunDirectory(full).read_run()["segments"])
    result = workbench.full_run(
        say=lambda text: None, experiment=EXPERIMENT, model=MODEL, runs=str(runs), cache=".cache"
    )
    assert result.already_complete and result.requests == 120
    assert len(RunDirectory(full).read_run()["segments"]) == segments
    assert workbench.score(run_dir=str(full)).already_done


def test_a_full_run_without_smoke_is_refused(engine_python, tmp_path):
    with pytest.raises(SmokeNotPassed, match="run smoke first"):
        workbench.full_run(
            say=lambda text: None,
            experiment=EXPERIMENT,
            model=MODEL,
            runs=str(tmp_path),
            cache=".cache",
        )
    assert not list(tmp_path.rglob("run.json"))


def test_a_failing_notebook_keeps_the_librarys_sentence_and_exit_code(tmp_path):
    with pytest.raises(WorkbenchError, match="holds no run") as caught:
        execute("scoring", tmp_path / "scoring.ipynb", {"RUN_DIR": str(tmp_path / "nothing")})
    assert caught.value.exit_code == 2
    assert (tmp_path / "scoring.ipynb").exists()
    with pytest.raises(ParameterError, match="RUNDIR"):
        execute("scoring", tmp_path / "scoring.ipynb", {"RUNDIR": "x"})


@pytest.mark.parametrize(
    ("notebook", "name", "value", "message"),
    [
        ("full_run", "CHUNK_SIZE", "many", "parameter chunk_size"),
        ("full_run", "MODEL", "2026_12_01", "parameter model: .*20261201.*-r"),
        ("full_run", "REQUIRE_SMOKE", "perhaps", "parameter require_smoke"),
        # "false" arrives as text and is understood, so that the next check speaks.
        ("full_run", "REQUIRE_SMOKE", "false", "parameter runs: is on Drive"),
        ("batch", "MODELS", "smollm2-135m-instruct", "parameter models"),
    ],
)
def test_papermill_parameters_are_checked_by_type(tmp_path, notebook, name, value, message):
    drive = ["-p", "RUNS", "/content/drive/MyDrive/runs"]
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", *drive, "-p", name, value]
    command += [str(NOTEBOOKS / f"{notebook}.ipynb"), str(tmp_path / "out.ipynb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode != 0

    assert re.search(message, done.stderr.strip().splitlines()[-1])


@pytest.mark.parametrize("name", ("smoke", "scoring", "batch"))
def test_papermill_refuses_an_unknown_parameter_and_keeps_the_notebook(tmp_path, name):
    output = tmp_path / "out.ipynb"
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "-p", "CHUNK_SISE", "4"]
    command += [str(NOTEBOOKS / f"{name}.ipynb"), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode != 0
    known = papermill.inspect_notebook(str(NOTEBOOKS / f"{name}.ipynb"))
    assert done.stderr.strip().splitlines()[-1] == (
        "ParameterError: parameter CHUNK_SISE: is not a parameter of this notebook; it has "
        f"{', '.join(known)}."
    )
    # The notebook as far as it came: what was given, and the error where it arose.
    kept = nbformat.read(output, as_version=4)
    nbformat.validate(kept)
    assert [cell for cell in kept.cells if "injected-parameters" in cell.metadata.get("tags", [])]
    failed = [c for c in kept.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert len(failed) == 1 and len(kept.cells) > kept.cells.index(failed[0]) + 1


@pytest.mark.parametrize("name", (*NAMES, "batch", "pick_model"))
def test_notebooks_hold_no_logic(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    for line in "\n".join(sources).splitlines():
        assert not line.startswith(("def ", "class ", "if ", "for ", "while ", "try"))
        assert "input(" not in line and "getpass" not in line
    assert not [cell for cell in notebook.cells if cell.get("outputs")]
    assert f"notebooks/{name}.ipynb" in notebook.cells[0].source
    assert "colab-badge.svg" in notebook.cells[0].source
    tagged = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert papermill.inspect_notebook(str(NOTEBOOKS / f"{name}.ipynb"))
