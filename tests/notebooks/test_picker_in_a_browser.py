"""The picker in real JupyterLab and real chromium, on the real engine; pictures are kept.

JupyterLab and Playwright have an environment of their own (`make browser`). PICTURES names the
folder that pictures go to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import yaml

from colab_utils import jobs, records
from colab_utils.manifests import PROJECT, load_dataset_manifest
from colab_utils.notebooks import NOTEBOOKS
from colab_utils.run_directory import RunDirectory

MODEL = "smollm2-135m-instruct"
SCRIPTS = Path(__file__).parents[1] / "browser"
BROWSER_PYTHON = PROJECT / ".envs" / "browser" / "bin" / "python"
SAMPLES_A_TASK = 2


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed, and `make browser` could not install it")
    if not BROWSER_PYTHON.exists():
        pytest.fail("the browser's environment is missing: run `make browser`")
    return found


@pytest.fixture
def pictures(tmp_path, request) -> Path:
    """Where pictures of this test go; an earlier run's are taken away."""
    folder = Path(os.environ.get("PICTURES") or tmp_path / "pictures") / request.node.name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def small_experiment(folder: Path) -> Path:
    """The embedded experiment on a part of its samples, with a second model to choose from."""
    full = load_dataset_manifest("embedded")
    kept: dict[str, list[dict]] = {}
    for line in records.read_jsonl(full.file_path):
        kept.setdefault(line["benchmark"], []).append(line)
    first = set(full.smoke_samples)
    groups = (sorted(g, key=lambda line: line["sample_id"] not in first) for g in kept.values())
    lines = [line for group in groups for line in group[:SAMPLES_A_TASK]]
    data = records.encode_lines(lines)
    (folder / "part.jsonl").write_bytes(data)
    manifest = full.model_dump(mode="json") | {
        "name": "part", "file": "part.jsonl", "sha256": records.sha256_bytes(data),
        "samples": dict.fromkeys(kept, SAMPLES_A_TASK),
    }  # fmt: skip
    manifest["databases"]["folder"] = str(PROJECT / "data" / "databases")
    dataset = folder / "part.yaml"
    dataset.write_text(yaml.safe_dump(manifest, allow_unicode=True), encoding="utf-8")
    experiment = yaml.safe_load((PROJECT / "manifests/experiments/embedded.yaml").read_text())
    experiment |= {"name": "small", "dataset": str(dataset), "models": ["qwen3-8b", MODEL]}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(experiment), encoding="utf-8")
    return path


def notebook_with(folder: Path, **parameters: object) -> str:
    """A copy of the notebook whose parameters cell says something else."""
    notebook = nbformat.read(NOTEBOOKS / "pick_model.ipynb", as_version=4)
    cell = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in parameters.items())
    nbformat.write(notebook, folder / "pick_model.ipynb")
    return "pick_model.ipynb"


def drive(script: str, *arguments: object) -> None:
    """Run one of tests/browser's scripts; fails with what it said."""
    command = [str(BROWSER_PYTHON), str(SCRIPTS / script), *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        try:
            said = child.communicate()[0]
        finally:
            child.terminate()
    assert child.returncode == 0, said[-6000:]


@pytest.fixture
def runs(tmp_path) -> Iterator[Path]:
    """The folder of runs; what a failed test leaves going there is stopped."""
    yield tmp_path / "runs"
    job = jobs.current(tmp_path / "runs")
    if job is not None:
        jobs.stop(job)


@pytest.mark.slow
def test_from_the_first_click_to_the_report(engine_python, chromium, pictures, runs, tmp_path):
    name = notebook_with(
        tmp_path,
        EXPERIMENT=str(small_experiment(tmp_path)),
        MODEL="qwen3-8b",
        RUNS=str(runs),
        REPLAY=0,
    )
    drive("whole_job.py", BROWSER_PYTHON, sys.executable, tmp_path, name, chromium, pictures, MODEL)
    full = RunDirectory(runs / "small" / MODEL / "full")
    # The restart in the middle ended nothing: one engine process answered all.
    assert full.is_complete() and len(full.read_run()["segments"]) == 1
    assert jobs.last(runs, "small", MODEL).outcome == "done"
    assert (full.path / "report" / "report.html").exists()
    assert len(list(pictures.glob("*.png"))) == 8
