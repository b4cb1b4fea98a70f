"""A list of models through the real notebooks: what fails is recorded, what is done stays done."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
from batch_worlds import make_world, put_weights, tiny_manifest

from colab_utils import batch_plan, records, weights
from colab_utils.batch import BatchResult, ModelResult, batch
from colab_utils.batch_plan import Record, make_plan, new_notebook, next_phase, require_room
from colab_utils.batch_table import Row, as_html, as_text
from colab_utils.errors import DownloadFailed, ParameterError, RunnerBusy, WeightsError
from colab_utils.lock import locked
from colab_utils.manifests import PROJECT
from colab_utils.parameters import BatchParameters, checked
from colab_utils.run_directory import RunDirectory, RunStatus

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path, {"one": {}, "two": {"repo": "made/two"}})


def plan_of(world, *models: str, **more):
    return make_plan(checked(BatchParameters, world.values(*models) | more), chunk_size=32)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"models": []}, "models.*names no model"),
        ({"models": ["one", "one"]}, "models.*names 'one' twice"),
        ({"models": ["nobody"]}, "nobody"),
        ({"models": ["qwen3-8b"]}, "qwen3-8b is not a model of experiment"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_starts(world, changed, said):
    with pytest.raises(Exception, match=said) as error:
        batch(**(world.values() | changed))
    assert error.value.exit_code == 2
    assert not world.runs.exists()


def test_two_manifests_of_one_model_are_refused(world, tmp_path):
    copy = shutil.copy(world.models["one"], tmp_path / "copy.yaml")
    with pytest.raises(ParameterError, match="names one twice"):
        plan_of(world, models=[str(world.models["one"]), str(copy)])


def test_one_batch_at_a_time(world):
    records.make_folder(world.batch)
    directory = RunDirectory(world.batch)
    with locked(directory), pytest.raises(RunnerBusy, match="another batch is going on"):
        batch(**world.values())


def test_a_model_without_runs_begins_with_smoke_and_notebooks_are_never_overwritten(world):
    plan = plan_of(world, "one")
    assert next_phase(plan, plan.jobs[0]) == "smoke"
    plan.notebooks.mkdir(parents=True)
    for number in (1, 2):
        path = new_notebook(plan, "one", "smoke")
        assert path.name == f"000{number}-one-smoke.ipynb"
        path.touch()


def test_room_is_asked_for_before_a_download(world, monkeypatch):
    job = plan_of(world, "one").jobs[0]
    needed = int(job.model.architecture.parameters * 2 * 1.05)
    free = {"bytes": needed - 10**9}
    monkeypatch.setattr(batch_plan.shutil, "disk_usage", lambda path: Usage(0, 0, free["bytes"]))
    with pytest.raises(DownloadFailed, match=r"model one: .*1\.0 GB are missing.*free_cache"):
        require_room(job, world.cache)
    free["bytes"] = needed
    require_room(job, world.cache)
    job.weights.mkdir(parents=True)
    weights.mark_complete(job.weights)
    free["bytes"] = 0
    require_room(job, world.cache)


def test_only_a_models_own_folder_in_the_cache_is_freed(world, tmp_path):
    job, other = plan_of(world).jobs
    for one in (job, other):
        one.weights.mkdir(parents=True)
        (one.weights / "model.safetensors").write_bytes(b"x" * 1000)
    assert weights.remove_weights(job.model, world.cache) == 1000
    assert not job.weights.exists() and other.weights.exists()
    assert weights.remove_weights(job.model, world.cache) == 0
    elsewhere = tmp_path / "elsewhere"
    shutil.move(other.weights, elsewhere)
    other.weights.symlink_to(elsewhere)
    with pytest.raises(WeightsError, match="leads elsewhere, so nothing is removed"):
        weights.remove_weights(other.model, world.cache)
    assert (elsewhere / "model.safetensors").exists()


def test_a_foreign_line_in_the_record_says_nothing(tmp_path):
    (tmp_path / "record.jsonl").write_text('{"x": 1}\nnot json\n{"model": "a", "state": "done"}\n')
    record = Record(tmp_path)
    assert (record.last("a")["state"], record.last("b")) == ("done", {})


def test_the_table_and_the_summary_say_where_each_model_stands():
    beat = {"tokens_per_second": 12.5, "seconds_left": 90.0}
    status = RunStatus("running", True, 1184, 2560, 4.0, beat)
    rows = [Row("a", "full", status), Row("<b>[bold]", "waiting")]
    text = as_text(rows)
    assert "1184/2560" in text and "12.5" in text and "1 min 30 s" in text and "4 s ago" in text
    assert "<b>[bold]" in text
    assert "&lt;b&gt;[bold]" in as_html(rows) and "<b>" not in as_html(rows)
    done = ModelResult("a", "done", True, 15, 15, Path("runs/a"), "")
    failed = ModelResult("b", "failed", False, 0, 0, Path("runs/b"), "no disk.")
    said = str(BatchResult("small", (done, failed), None, "none: no model is complete and scored"))
    assert said.splitlines() == [
        "Batch small: 1 of 2 models are done.",
        "done    a: smoke passed, 15 of 15 answers, runs/a",
        "failed  b: smoke not passed, no answers, runs/b",
        "        no disk.",
        "report  none: no model is complete and scored",
        "        without b: not complete and scored",
    ]


def batch_process(world, log: Path) -> subprocess.Popen[bytes]:
    values = world.values()
    command = [sys.executable, "-m", "colab_utils", "batch", *values.pop("models")]
    for name in ("experiment", "runs", "cache"):
        command += [f"--{name}", values[name]]
    command += ["--chunk-size", "5", "--replay", "0"]
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=PROJECT, stdout=out, stderr=out)


def wait_for(condition, process) -> None:
    while not condition():
        assert process.poll() is None, "the batch ended early"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_failing_model_is_recorded_the_next_starts_and_a_killed_batch_goes_on(tiny, tmp_path):
    model = tiny("llama-3.2-3b-instruct")
    names = ("one", "broken", "two")
    world = make_world(
        tmp_path, {name: tiny_manifest(model, f"made/{name}") for name in names}, samples_a_task=2
    )
    for name in names:
        put_weights(world, name, model.folder)
    shard = next(world.weights("broken").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:1000])

    first = batch_process(world, tmp_path / "first.log")
    chunks = world.run("one").chunks
    wait_for(lambda: len(list(chunks.glob("*.jsonl"))) >= 1, first)
    first.kill()
    first.wait()
    second = batch_process(world, tmp_path / "second.log")
    assert second.wait() == 1
    said = (tmp_path / "second.log").read_text()
    assert "Batch small: 2 of 3 models are done." in said, said
    assert "waiting for" in said
    assert "without broken: not complete and scored" in said
    record = records.read_log(world.batch / "record.jsonl")
    causes = [line["cause"] for line in record if line.get("state") == "failed"]
    assert len(causes) == 1 and shard.name in causes[0]

    for name in ("one", "two"):
        for kind in ("smoke", "full"):
            run = world.run(name, kind)
            assert run.is_complete() and len(run.read_run()["segments"]) == 1
        given = [
            x["chunk"] for x in records.read_log(world.run(name).timeline) if x["event"] == "given"
        ]
        assert len(given) == len(set(given)) == 6
    assert not world.run("broken").run_json.exists()
    kept = sorted(path.name for path in (world.batch / "notebooks").glob("*.ipynb"))
    assert [name.split("-", 1)[1] for name in kept] == [
        "one-smoke.ipynb", "one-full.ipynb", "one-scoring.ipynb", "broken-smoke.ipynb",
        "two-smoke.ipynb", "two-full.ipynb", "two-scoring.ipynb", "small-report.ipynb",
    ]  # fmt: skip
    page = (world.runs / "small" / "report" / "report.html").read_text()
    assert "does not cover: broken." in page
