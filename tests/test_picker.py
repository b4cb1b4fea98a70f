"""The picker in a real kernel, without a browser: buttons, causes and mends, attaching, text."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import papermill
import pytest
import yaml
from answered_runs import CODE, RIGHT, answered_run
from builders import small_lines, write_dataset
from kernel_front import KernelFront, kernel_front
from papermill.exceptions import PapermillExecutionError
from run_directories import DATASET_SHA256, row, write_run

from colab_utils import jobs, records
from colab_utils.errors import (
    ParameterError,
    RecordError,
    RunDirectoryError,
    RunnerBusy,
    WorkbenchError,
)
from colab_utils.heartbeat import now
from colab_utils.job_record import Job, JobSpec, files_of, jobs_folder
from colab_utils.lock import locked
from colab_utils.manifests import PROJECT, load_dataset_manifest
from colab_utils.notebooks import NOTEBOOKS
from colab_utils.picker import show
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import load_dataset

MODEL = "smollm2-135m-instruct"
OTHER = "qwen3-8b"
EVALUATOR_PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"
COLAB_PYTHON = PROJECT / ".envs" / "colab-kernel" / "bin" / "python"
ANSWERS = {f"{task}-0": (task, row("pwpwp")) for task in ("code", "sql", "finance")}
LOOP = CODE.replace("return 2 * x", "while True: pass")
IMPORT = "from colab_utils import picker"


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    """A folder whose name is markup, so that every sentence which names a file tries to be.

    What a failed test leaves going below it is stopped.
    """
    made = tmp_path / "<b>&runs"
    made.mkdir()
    yield made
    job = jobs.current(made / "runs")
    if job is not None:
        jobs.stop(job)


def experiment_in(folder: Path) -> Path:
    """An experiment of two models on a small data set."""
    dataset = write_dataset(folder, small_lines())
    content = yaml.safe_load((PROJECT / "manifests/experiments/embedded.yaml").read_text())
    content |= {"name": "small", "dataset": str(dataset), "models": [OTHER, MODEL]}
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def values(folder: Path, **more: object) -> dict[str, object]:
    given = {
        "experiment": str(folder / "experiment.yaml"), "model": MODEL, "runs": str(folder / "runs"),
        "cache": str(folder / "cache"), "engine_python": str(folder / "no-python"),
        "evaluator_python": str(EVALUATOR_PYTHON), "allow_weak_sandbox": True, "replay": 0,
    }  # fmt: skip
    return given | more


def show_cell(folder: Path, **more: object) -> str:
    return f"front = picker.show(**{values(folder, **more)!r})"


@pytest.fixture(
    params=[
        pytest.param(Path(sys.executable), id="this-kernel"),
        pytest.param(COLAB_PYTHON, id="colabs-kernel", marks=pytest.mark.slow),
    ]
)
def front(request, folder) -> Iterator[KernelFront]:
    """A page on a kernel with the newest ipywidgets, and on one with Colab's 7.7.1."""
    if not request.param.exists():
        pytest.fail("the environment with Colab's versions is missing: run `make browser`")
    experiment_in(folder)
    with kernel_front(request.param, folder) as page:
        yield page


def looping_run(folder: Path) -> Path:
    """A complete run on `experiment_in`'s data set whose code answers never end."""
    path = folder / "small.yaml"
    run_dir = folder / "runs" / "small" / MODEL / "full"
    dataset = load_dataset(load_dataset_manifest(path))
    answered_run(run_dir, dataset, lambda r: LOOP if r.sample.task == "code" else
                 RIGHT[r.sample.task])  # fmt: skip
    run = records.read_json(run_dir / "run.json") | {"dataset_manifest": str(path)}
    (run_dir / "run.json").write_bytes(records.encode_line(run))
    return run_dir


def test_buttons_do_their_job_and_a_failure_shows_its_cause_and_mend(front, folder):
    fields = {"model": {"name": OTHER}, "dataset_manifest": str(folder / "small.yaml")}
    full = write_run(folder / "runs" / "small" / OTHER / "full", ANSWERS, **fields)
    for path in full.rglob("*.json"):
        sha256 = load_dataset_manifest(folder / "small.yaml").sha256
        path.write_text(path.read_text().replace(DATASET_SHA256, sha256))
    said = front.run(IMPORT, show_cell(folder))
    assert "Traceback" not in said
    # Elsewhere the same output is text.
    assert "Experiment small" in said and "comes along" in said
    assert front.can_press() == {"Smoke"} and front.button("Smoke")["button_style"] == "primary"
    front.press("Smoke")
    front.see(f"smoke of {MODEL}: failed")
    page = front.page()
    assert "What to do:</b>" in page and "no-python" in page
    assert "<b>&runs" not in page and "&lt;b&gt;&amp;runs" in page
    front.choose("Model", OTHER)
    front.wait(lambda: front.can_press() == {"Score", "Report"})
    front.wait(lambda: "no-python" not in front.page())
    front.press("Report")
    front.see(f"<b>report of {OTHER}: ")
    assert f"report of {OTHER}: done" in front.page()
    (image,) = (s for s in front.widgets.values() if s.get("_model_name") == "ImageModel")
    front.wait(lambda: image.get("value", b"").startswith(b"\x89PNG"))
    assert (full / "report" / "report.html").exists()


def test_a_job_outlives_its_kernel_is_attached_to_and_stopped(front, folder):
    run_dir = looping_run(folder)
    front.run(IMPORT, show_cell(folder))
    assert front.can_press() == {"Score"}
    front.press("Score")
    front.see("judging ")
    started = jobs.current(folder / "runs")
    front.restart()
    front.run(IMPORT, show_cell(folder, model=OTHER))
    # The going model is chosen, whatever the parameters say.
    assert front.chosen("Model") == MODEL and front.can_press() == {"Stop"}
    assert f"scoring of {MODEL}:" in front.page() and "last sign of life" in front.page()
    assert jobs.current(folder / "runs").spec == started.spec
    front.press("Stop")
    front.see(f"scoring of {MODEL}: stopped")
    front.wait(lambda: front.can_press() == {"Score"})
    assert jobs.current(folder / "runs") is None
    assert not (run_dir / "results.sqlite").exists()


def test_interrupting_the_watching_cell_stops_what_goes_on(front, folder):
    looping_run(folder)
    front.run(IMPORT, show_cell(folder))
    front.press("Score")
    front.see("judging ")
    front.send("await front.watch()")
    front.wait(lambda: "judging " in front.text)
    front.interrupt()
    front.see(f"{MODEL} was stopped; what was finished is kept")
    assert jobs.last(folder / "runs", "small", MODEL).outcome == "stopped"


def test_an_experiment_that_cannot_be_read_is_not_shown_as_chosen(front, folder):
    front.run(IMPORT, show_cell(folder))
    front.choose("Experiment", "embedded")
    front.wait(lambda: front.chosen("Experiment") == "embedded")
    (folder / "experiment.yaml").write_text("models: [\n")
    front.choose("Experiment", "small")
    front.see("this was not done")
    # What a button does now is on what the lists say.
    front.wait(lambda: front.chosen("Experiment") == "embedded")
    assert front.chosen("Model") == MODEL
    child = jobs.start(spec_of_embedded(folder))
    child.wait()
    # How a later job ends is not hidden behind the old complaint.
    front.see(f"scoring of {MODEL}: failed")
    assert "this was not done" not in front.page()


def spec_of_embedded(folder: Path) -> JobSpec:
    given = values(folder) | {"experiment_file": "embedded", "experiment": "embedded"}
    return JobSpec.model_validate({"action": "score", **given})


def run_notebook(folder: Path, **more: object) -> str:
    """pick_model.ipynb through papermill: what its cells said."""
    experiment_in(folder)
    given = {name.upper(): value for name, value in values(folder, **more).items()}
    output = folder / "out.ipynb"
    try:
        papermill.execute_notebook(
            NOTEBOOKS / "pick_model.ipynb", output, given, kernel_name="python3",
            progress_bar=False, cwd=str(PROJECT),
        )  # fmt: skip
    finally:
        cells = nbformat.read(output, as_version=4).cells
        said = [o.get("text", o.get("data", {}).get("text/plain", "")) for c in cells
                if c.cell_type == "code" for o in c.outputs]  # fmt: skip
        assert "widget-view" not in output.read_text()
    return "\n".join(said)


def test_under_papermill_the_picker_is_text_and_says_what_to_do(folder):
    said = run_notebook(folder)
    assert "fits here" in said and f"{MODEL}" in said and "on the CPU" in said
    assert "There are no buttons here. Set the parameter ACTION" in said


def test_under_papermill_an_action_is_done_and_its_failure_ends_the_notebook(folder):
    with pytest.raises(PapermillExecutionError, match="no-python") as failed:
        run_notebook(folder, action="smoke, full_run")
    assert failed.value.ename == "EngineFailed" or "Error" in failed.value.ename
    # What was asked for after it was not begun.
    assert jobs.last(folder / "runs", "small", MODEL).spec.action == "smoke"


def test_an_action_is_done_on_its_own_model_whatever_else_goes_on(folder):
    experiment_in(folder)
    other = write_run(folder / "runs" / "small" / OTHER / "smoke", ANSWERS, kind="smoke")
    beat = {"at": now(), "pid": 1, "phase": "done", "phase_seconds": 1.0}
    records.append_line(other / "heartbeat.jsonl", beat)

    async def attach() -> None:
        with locked(RunDirectory(other)):
            picker = show(**values(folder, action="smoke"))
            watching = asyncio.create_task(picker.watch())
            await asyncio.sleep(0)
        with pytest.raises(WorkbenchError, match="no-python"):
            await watching

    asyncio.run(attach())
    # What was asked for was begun when the other model's run had ended.
    assert jobs.last(folder / "runs", "small", MODEL).outcome == "failed"
    assert jobs.last(folder / "runs", "small", OTHER) is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"action": "smoke, dance"}, "'dance' is no action"),
        ({"model": "gpt"}, "gpt is not a model of experiment small"),
        ({"mirror": "ftp://x"}, "parameter mirror"),
        ({"runs": __file__}, "parameter runs: is a file"),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_starts(folder, wrong, says):
    experiment_in(folder)
    with pytest.raises(ParameterError, match=says):
        show(**values(folder, **wrong))
    assert not jobs_folder(folder / "runs").exists()


def spec_in(folder: Path, **more: object) -> JobSpec:
    given = values(folder) | {"experiment_file": str(experiment_in(folder)), "experiment": "small"}
    return JobSpec.model_validate({"action": "smoke", **given, **more})


def test_one_job_a_folder_of_runs_and_none_of_another_host_is_touched(folder):
    spec = spec_in(folder, action="score")
    looping_run(folder)
    child = jobs.start(spec)
    try:
        with pytest.raises(RunnerBusy, match=f"scoring of {MODEL} is going on"):
            jobs.start(spec_in(folder))
        going = jobs.current(folder / "runs")
        lock = jobs_folder(folder / "runs") / "lock"
        holder = records.read_log(lock)[-1]
        lock.write_bytes(records.encode_line(holder | {"host": "elsewhere"}))
        with pytest.raises(RunDirectoryError, match="runs on elsewhere"):
            jobs.stop(jobs.current(folder / "runs"))
        assert child.poll() is None
        jobs.stop(going)
    finally:
        child.wait(60)
    assert jobs.last(folder / "runs", "small", MODEL).outcome == "stopped"


def test_a_job_that_ends_between_two_reads_has_not_vanished(folder, monkeypatch):
    child = jobs.start(spec_in(folder, action="score"))
    ask = jobs.current

    def when_it_has_ended(runs: Path) -> Job | None:
        child.wait()
        return ask(runs)

    monkeypatch.setattr(jobs, "current", when_it_has_ended)
    last = jobs.last(folder / "runs", "small", MODEL)
    assert last.outcome == "failed" and "holds no run" in last.error.problem


def test_a_job_that_vanished_says_so_and_a_foreign_record_is_refused(folder):
    child = jobs.start(spec_in(folder, action="score"))
    child.kill()
    child.wait()
    last = jobs.last(folder / "runs", "small", MODEL)
    assert last.outcome == "vanished" and "without a word" in last.error.problem
    record = files_of(last.spec)[0]
    assert "hf_" not in record.read_text()
    record.write_text('{"spec": {"a": 1}}')
    with pytest.raises(RecordError, match="remove that file"):
        jobs.last(folder / "runs", "small", MODEL)
