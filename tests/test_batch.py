"""A batch: what is done is read from run directories; a failing model does not stop the next."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from batch_worlds import World, make_world, manifest_of, put_weights, tiny_manifest
from run_directories import row, write_run, write_scoring

from colab_utils import batch as batches
from colab_utils import batch_plan, fingerprints, records, weights, workbench
from colab_utils.batch_plan import make_plan, next_phase, require_room
from colab_utils.batch_table import LiveTable, Row, as_html, as_text
from colab_utils.errors import (
    BatchFailed,
    DownloadFailed,
    FingerprintMismatch,
    ManifestError,
    ParameterError,
    RunnerBusy,
    WeightsError,
)
from colab_utils.lock import locked
from colab_utils.manifests import load_dataset_manifest, load_experiment_manifest
from colab_utils.notebooks import failure_in
from colab_utils.parameters import BatchParameters, checked
from colab_utils.run_directory import RunDirectory, RunStatus

PETABYTES = {"family": "llama", "parameters": 10**15, "layers": 2, "kv_heads": 2, "head_size": 64}
ANSWERS = {
    f"{task}-0": (task, row("p" * 5 if task == "code" else "pwwpw"))
    for task in ("code", "sql", "finance")
}


def plan_of(world: World, *models: str, **more: Any) -> batch_plan.Plan:
    return make_plan(checked(BatchParameters, world.values(*models, **more)), chunk_size=32)


def write_kind(
    world: World, model: str, kind: str, *, scored: bool = False, complete: bool = True, **more: Any
) -> RunDirectory:
    """A run as the engine would have left it under the world's own manifests."""
    manifest = manifest_of(world, model)
    experiment = load_experiment_manifest(world.experiment)
    dataset = load_dataset_manifest(experiment.dataset)
    decoding = fingerprints.decoding_settings(
        manifest, experiment.decoding, engine="vllm", digests={"model.safetensors": "f" * 64}
    )
    fields: dict[str, Any] = {
        "kind": kind, "decoding": decoding, "experiment": {"name": "small"},
        "decoding_fingerprint": fingerprints.fingerprint(decoding), "dataset": "small",
        "dataset_manifest": experiment.dataset, "run": {"dataset_sha256": dataset.sha256},
        "model": {"name": model, "repo": manifest.repo},
    } | more  # fmt: skip
    if not complete:
        fields["completed"] = None
    folder = write_run(world.run(model, kind).path, ANSWERS, scored=False, **fields)
    run = records.read_json(folder / "run.json")
    run["manifests"]["dataset"] = dataset.model_dump(mode="json")
    run["manifests"]["experiment"] |= {"models": list(world.models)}
    (folder / "run.json").write_bytes(records.encode_line(run))
    if scored:
        write_scoring(folder, ANSWERS, dataset_sha256=dataset.sha256)
    return RunDirectory(folder)


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(
        tmp_path, {name: {"repo": f"example/{name}"} for name in ("one", "two", "three")}
    )


def test_the_next_phase_is_what_the_run_directories_lack(world):
    plan = plan_of(world)
    one, two, three = plan.jobs
    assert [next_phase(plan, job) for job in plan.jobs] == ["smoke"] * 3
    write_kind(world, "one", "smoke")
    assert batch_plan.smoke_passed(one) and next_phase(plan, one) == "full"
    write_kind(world, "one", "full", complete=False)
    assert next_phase(plan, one) == "full"
    write_kind(world, "one", "full")
    assert next_phase(plan, one) == "scoring"
    write_kind(world, "one", "full", scored=True)
    assert next_phase(plan, one) is None
    # Verdicts on other answers are none on these.
    with open(one.full.responses, "ab") as stream:
        stream.write(b"\n")
    assert next_phase(plan, one) == "full"
    write_kind(world, "two", "smoke", complete=False)
    assert next_phase(plan, two) == "smoke"
    # A smoke that ended and did not pass is no passed one.
    answers = dict(ANSWERS) | {"sql-0": ("sql", row("ppprp"))}
    write_kind(world, "three", "smoke")
    write_run(three.smoke.path, answers, scored=False, **_kept(three.smoke))
    assert next_phase(plan, three) == "smoke" and not batch_plan.smoke_passed(three)


def _kept(directory: RunDirectory) -> dict[str, Any]:
    run = directory.read_run()
    assert run is not None
    return {key: run[key] for key in ("kind", "decoding", "decoding_fingerprint", "run")}


def test_a_scoring_of_other_answers_is_done_again(world):
    plan = plan_of(world, "one")
    full = write_kind(world, "one", "full", scored=True)
    write_scoring(full.path, ANSWERS, responses_sha256="0" * 64)
    assert next_phase(plan, plan.jobs[0]) == "scoring"


@pytest.mark.parametrize("kind", ["smoke", "full"])
def test_answers_under_another_setting_are_neither_taken_nor_mixed(world, kind):
    changed = fingerprints.decoding_settings(
        manifest_of(world, "one"),
        load_experiment_manifest("embedded").decoding,
        engine="vllm",
        digests={},
    )
    write_kind(world, "one", kind, scored=kind == "full", decoding=changed)
    plan = plan_of(world, "one")
    with pytest.raises(FingerprintMismatch, match=r"decoding.max_tokens: 256 became 24"):
        next_phase(plan, plan.jobs[0])


def test_weights_other_than_the_locked_ones_are_told_without_weights_at_hand(tmp_path):
    locked_file = {"model.safetensors": {"size": 1, "sha256": "a" * 64}}
    world = make_world(tmp_path, {"one": {"files": locked_file}})
    write_kind(world, "one", "full", scored=True)
    plan = plan_of(world, "one")
    with pytest.raises(FingerprintMismatch, match=r"files.model.safetensors"):
        next_phase(plan, plan.jobs[0])


def test_another_chunk_size_is_refused_where_answers_depend_on_batching(world):
    full = write_kind(world, "one", "full", scored=True)
    assert next_phase(*_of(plan_of(world, "one", chunk_size=8))) is None
    run = full.read_run()
    assert run is not None
    run["run"]["batch_invariant"] = False
    full.run_json.write_bytes(records.encode_line(run))
    with pytest.raises(FingerprintMismatch, match="chunk_size: 32 became 8"):
        next_phase(*_of(plan_of(world, "one", chunk_size=8)))


def _of(plan: batch_plan.Plan) -> tuple[batch_plan.Plan, batch_plan.Job]:
    return plan, plan.jobs[0]


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"models": []}, ParameterError, "parameter models: names no model"),
        ({"models": "one"}, ParameterError, "parameter models"),
        ({"models": ["one", "one"]}, ParameterError, "parameter models: names 'one' twice"),
        ({"models": ["nobody"]}, ManifestError, r"nobody.yaml: cannot be read.*known models"),
        ({"models": ["qwen3-8b"]}, ParameterError, "is not a model of experiment small; choose"),
        ({"chunk_size": 0}, ParameterError, "parameter chunk_size"),
        ({"free_cache": "perhaps"}, ParameterError, "parameter free_cache"),
        ({"runs": "/content/drive/MyDrive/runs"}, ParameterError, "parameter runs: is on Drive"),
        ({"model": "one"}, ParameterError, "parameter model"),
    ],
)
def test_bad_parameters_are_refused_before_anything_starts(world, changed, kind, message):
    with pytest.raises(kind, match=message) as caught:
        batches.batch(**world.values() | changed)
    assert "\n" not in str(caught.value)
    assert not world.runs.exists()


def test_a_model_named_twice_by_two_paths_is_refused(world):
    copy = shutil.copy(world.models["one"], world.folder / "again.yaml")
    values = world.values("one")
    values["models"].append(str(copy))
    with pytest.raises(ParameterError, match="parameter models: names one twice"):
        batches.batch(**values)


def test_a_second_batch_on_the_experiment_is_refused(world):
    world.batch.mkdir(parents=True)
    with (
        locked(RunDirectory(world.batch)),
        pytest.raises(RunnerBusy, match=f"another batch is going on .process {os.getpid()} "),
    ):
        batches.batch(**world.values())


def test_room_is_asked_for_before_a_download(tmp_path):
    world = make_world(
        tmp_path,
        {
            "huge": {"repo": "example/huge", "architecture": PETABYTES},
            "small": {"repo": "example/small"},
        },
    )
    huge, small = plan_of(world).jobs
    with pytest.raises(
        DownloadFailed, match=r"model huge: needs 2100000.0 GB .* are missing; free some space"
    ):
        require_room(huge, world.cache)
    # Whole weights need no room, and what a broken download left is not needed again.
    folder = world.weights("huge")
    folder.mkdir(parents=True)
    (folder / "part").write_bytes(b"x" * 1000)
    assert weights.room_needed(huge.model, folder) == 2_100_000_000_000_000 - 1000
    weights.mark_complete(folder)
    require_room(huge, world.cache)
    assert weights.room_needed(small.model, small.weights) > 0


def test_only_a_models_own_folder_in_the_cache_is_removed(world, tmp_path):
    one = manifest_of(world, "one")
    folder = world.weights("one")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 5000)
    weights.mark_complete(folder)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"y" * 100)
    (folder / "link").symlink_to(outside)
    neighbour = world.weights("two")
    neighbour.mkdir(parents=True)
    assert 5000 <= weights.remove_weights(one, world.cache) < 5100
    assert not folder.exists() and neighbour.is_dir() and (outside / "kept").exists()
    assert weights.remove_weights(one, world.cache) == 0
    folder.parent.mkdir(exist_ok=True)
    folder.symlink_to(outside)
    with pytest.raises(WeightsError, match="link that leads elsewhere"):
        weights.remove_weights(one, world.cache)
    assert (outside / "kept").exists()


def test_the_embedded_models_folder_stays(tmp_path):
    manifest = batch_plan.load_model_manifest("smollm2-135m-instruct")
    folder = weights.model_folder(manifest, tmp_path)
    folder.mkdir(parents=True)
    assert weights.remove_weights(manifest, tmp_path) == 0 and folder.is_dir()


def test_the_table_shows_each_models_phase_speed_and_last_sign_of_life(capsys):
    beat = {"at": "2026-12-01T10:00:00+00:00", "phase": "running", "tokens_per_second": 321.5,
            "seconds_left": 90.0, "in_flight": 3}  # fmt: skip
    rows = [
        Row("one [b]", "full", RunStatus("running", True, 12, 45, 4.2, beat)),
        Row("<two>", "waiting"),
    ]
    for text in (as_text(rows), as_html(rows)):
        for shown in ("one [b]", "full: running", "12/45", "321.5", "1 min 30 s", "4 s ago"):
            assert shown in text
    assert "&lt;two&gt;" in as_html(rows) and "<two>" not in as_html(rows)
    # A plain log gets a line when a phase changes, and none while it does not.
    with LiveTable() as table:
        table.show(rows)
        table.show(rows)
        table.show([rows[0], Row("<two>", "smoke")])
    assert capsys.readouterr().out.splitlines() == [
        "one [b]: full: running: 12/45, 3 in flight, 321.5 tokens/s, left: 1 min 30 s, "
        "last sign of life 4 s ago",
        "<two>: waiting",
        "<two>: smoke",
    ]


@pytest.mark.slow
def test_done_models_are_reported_together_freed_and_not_run_again(tmp_path, capsys):
    shared = {"repo": "example/shared"}
    world = make_world(
        tmp_path,
        {
            "one": {"repo": "example/one"},
            "huge": {"repo": "example/huge", "architecture": PETABYTES},
            "two": shared,
            "three": shared | {"architecture": PETABYTES},
        },
    )
    for name in ("one", "two"):
        write_kind(world, name, "full", scored=True)
        folder = world.weights(name)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"x" * 20_000_000)
    before = {name: world.run(name).run_json.read_bytes() for name in ("one", "two")}
    values = world.values(free_cache=True)
    with pytest.raises(BatchFailed, match="2 of 4 models are done; mend"):
        batches.batch(**values)
    said = capsys.readouterr().out
    assert "model huge: needs 2100000.0 GB for weights" in said
    assert "one: 0.02 GB of weights removed from the cache" in said
    assert "two: the weights stay, three needs them" in said
    assert not world.weights("one").exists() and world.weights("two").exists()
    assert not world.weights("huge").exists()
    page = world.runs / "small" / "report" / "report.html"
    assert f"report  {page}" in said and "without huge, three: not complete" in said
    assert "does not cover: huge, three." in page.read_text(encoding="utf-8")
    assert [path.name for path in sorted((world.batch / "notebooks").glob("*.ipynb"))] == [
        "0001-small-report.ipynb"
    ]
    # Again: nothing is done twice, the failed are tried again.
    with pytest.raises(BatchFailed):
        batches.batch(**values)
    assert len(list((world.batch / "notebooks").glob("*.ipynb"))) == 1
    assert {name: world.run(name).run_json.read_bytes() for name in before} == before
    lines = records.read_jsonl(world.batch / "record.jsonl")
    states = [line["state"] for line in lines if line["model"] == "huge"]
    assert states == ["waiting", "failed"] * 2
    assert [line["state"] for line in lines if line["model"] == "one"] == ["waiting", "done"]


def start_batch(world: World, *models: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "colab_utils", "batch"]
    command += [str(world.models[name]) for name in models]
    command += ["--experiment", str(world.experiment), "--runs", str(world.runs)]
    command += ["--cache", str(world.cache), "--chunk-size", "5", "--replay", "0"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_until(batch: subprocess.Popen[str], is_so: Any) -> None:
    while not is_so():
        assert batch.poll() is None, batch.communicate()[0]
        time.sleep(0.02)


def ran(world: World, ending: str) -> list[Path]:
    return sorted((world.batch / "notebooks").glob(f"*-{ending}.ipynb"))


def committed(directory: RunDirectory) -> list[str]:
    lines = records.read_log(directory.timeline)
    return [line["chunk"] for line in lines if line["event"] == "committed"]


@pytest.mark.slow
def test_a_failing_model_a_killed_batch_and_a_stopped_one(tiny, engine_python, tmp_path):
    checkpoint = tiny("llama-3.2-3b-instruct")
    world = make_world(
        tmp_path,
        {name: tiny_manifest(checkpoint, f"example/{name}") for name in ("torn", "whole")},
        samples_a_task=5,
        max_tokens=48,
    )
    put_weights(world, "whole", checkpoint.folder)
    shard = put_weights(world, "torn", checkpoint.folder) / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    smoke, full = world.run("whole", "smoke"), world.run("whole")

    # The torn model fails, the next one starts; SIGKILL ends the batch and not the engine.
    first = start_batch(world, "torn", "whole")
    wait_until(first, lambda: smoke.runner() is not None)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    engine = smoke.runner()
    assert engine is not None
    (torn,) = ran(world, "torn-smoke")
    cause = failure_in(torn)
    assert isinstance(cause, WeightsError) and "is truncated" in str(cause)

    # The next batch waits for that engine, tries the torn model again, and goes on with the full
    # run; SIGTERM stops the run in its middle and leaves nothing going.
    second = start_batch(world, "torn", "whole")
    wait_until(second, lambda: len(committed(full)) >= 2)
    second.terminate()
    said, _ = second.communicate()
    assert second.returncode == 130 and "goes on where it was" in said
    assert "waiting for the smoke run of whole, which is going on already" in said
    assert [segment["pid"] for segment in smoke.read_run()["segments"]] == [engine["pid"]]
    assert len(ran(world, "torn-smoke")) == 2 and len(ran(world, "whole-smoke")) == 1
    assert full.runner() is None and full.status().phase == "stopped"
    assert RunDirectory(world.batch / "notebooks").runner() is None
    assert "the run was stopped" in str(failure_in(ran(world, "whole-full")[0]))

    # The third finishes what is left, and nothing else.
    kept = {path: path.read_bytes() for path in (*smoke.path.glob("*.json*"), torn)}
    chunks = committed(full)
    third = start_batch(world, "whole")
    said, _ = third.communicate()
    assert third.returncode == 0, said
    assert "Batch small: 1 of 1 models are done." in said
    assert "whole: smoke passed, 75 of 75 answers" in said
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(ran(world, "whole-smoke")) == 1 and len(ran(world, "whole-full")) == 2
    assert len(full.read_run()["segments"]) == 2
    assert committed(full)[: len(chunks)] == chunks and len(set(committed(full))) == 15
    assert len(committed(full)) == 15 and len(full.path.glob("scoring/*/verdicts.jsonl").__next__()
                                              .read_bytes().splitlines()) == 75  # fmt: skip
    for path in (world.batch / "notebooks").glob("*.ipynb"):
        nbformat.validate(nbformat.read(path, as_version=4))
    states = [
        line["state"]
        for line in records.read_jsonl(world.batch / "record.jsonl")
        if line["model"] == "whole"
    ]
    assert states == ["waiting", "smoke", "waiting", "smoke", "full", "waiting", "full", "scoring",
                      "done"]  # fmt: skip
    assert workbench.run_dir(str(world.runs), str(world.experiment), str(world.models["whole"]))
