"""A killed run goes on where it was, and its bytes equal an undisturbed run's."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from builders import run_spec, small_lines, write_dataset

from colab_utils import launch, records
from colab_utils.errors import EngineFailed, FingerprintMismatch, RunnerBusy, RunStopped
from colab_utils.run_directory import RunDirectory

MODEL = "llama-3.2-3b-instruct"
# Not a multiple of five: a sample's conditions straddle chunk borders, so that what one chunk
# leaves in the prefix cache would change the next.
CHUNK_SIZE = 4


def events(directory: RunDirectory, name: str) -> list[dict]:
    return [line for line in records.read_log(directory.timeline) if line["event"] == name]


def wait_for_commits(directory: RunDirectory, count: int, child) -> None:
    while len(events(directory, "committed")) < count:
        assert child.poll() is None, directory.log.read_text()[-3000:]
        time.sleep(0.02)


def kill_group(child) -> None:
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"), small_lines(3))


@pytest.fixture(scope="module")
def undisturbed(tiny, engine_python, dataset, tmp_path_factory) -> RunDirectory:
    spec = run_spec(tmp_path_factory.mktemp("run"), tiny(MODEL), dataset, chunk_size=CHUNK_SIZE)
    launch.watch(spec.run_dir, launch.start(spec, engine_python))
    return RunDirectory(spec.run_dir)


@pytest.mark.slow
def test_killed_twice_and_resumed_equals_undisturbed(
    tiny, engine_python, dataset, undisturbed, tmp_path
):
    spec = run_spec(tmp_path / "run", tiny(MODEL), dataset, chunk_size=CHUNK_SIZE)
    directory = RunDirectory(spec.run_dir)
    for commits in (2, 5):
        child = launch.start(spec, engine_python)
        wait_for_commits(directory, commits, child)
        kill_group(child)
        assert directory.status().phase == "interrupted"
        assert directory.runner() is None
        with pytest.raises(EngineFailed, match=r"signal 9.*are committed"):
            launch.watch(spec.run_dir, child)
    assert launch.watch(spec.run_dir, launch.start(spec, engine_python)).phase == "complete"

    assert directory.responses.read_bytes() == undisturbed.responses.read_bytes()
    chunks = {path.name: path.read_bytes() for path in directory.chunks.glob("*.jsonl")}
    assert chunks == {path.name: path.read_bytes() for path in undisturbed.chunks.glob("*.jsonl")}
    # What the engine was given, not only what is on disk: no finished chunk again.
    lines = records.read_log(directory.timeline)
    for position, line in enumerate(lines):
        if line["event"] == "committed":
            later = [x["chunk"] for x in lines[position:] if x["event"] == "given"]
            assert line["chunk"] not in later
    # Each chunk met the same prefix cache as in the undisturbed run.
    cached = {line["chunk"]: line["cached_tokens"] for line in events(directory, "committed")}
    assert cached == {
        line["chunk"]: line["cached_tokens"] for line in events(undisturbed, "committed")
    }
    assert len(directory.read_run()["segments"]) == 3


@pytest.mark.slow
def test_a_torn_chunk_is_set_aside_and_redone_alone(
    tiny, engine_python, dataset, undisturbed, tmp_path
):
    spec = run_spec(tmp_path / "run", tiny(MODEL), dataset, chunk_size=CHUNK_SIZE)
    directory = RunDirectory(spec.run_dir)
    directory.chunks.mkdir(parents=True)
    for path in undisturbed.chunks.glob("*.jsonl"):
        (directory.chunks / path.name).write_bytes(path.read_bytes())
    directory.run_json.write_bytes(undisturbed.run_json.read_bytes())
    torn = sorted(directory.chunks.glob("*.jsonl"))[3]
    torn.write_bytes(torn.read_bytes()[:-30])
    launch.watch(spec.run_dir, launch.start(spec, engine_python))
    assert directory.responses.read_bytes() == undisturbed.responses.read_bytes()
    assert [line["chunk"] for line in events(directory, "given")] == ["00012-00015"]
    assert len(list((directory.chunks / "set-aside").iterdir())) == 1


@pytest.mark.slow
def test_another_setting_is_refused_before_the_engine_starts(
    tiny, engine_python, dataset, undisturbed
):
    before = undisturbed.run_json.read_bytes()
    for change, named in (
        ({"max_tokens": 25}, r"decoding.max_tokens: 24 became 25"),
        ({"chunk_size": 8}, r"order.chunk_size: 4 became 8"),
    ):
        changed = {"chunk_size": CHUNK_SIZE} | change
        spec = run_spec(undisturbed.path, tiny(MODEL), dataset, **changed)
        with pytest.raises(EngineFailed, match=named) as caught:
            launch.watch(spec.run_dir, launch.start(spec, engine_python))
        assert caught.value.exit_code == FingerprintMismatch.exit_code
    assert undisturbed.run_json.read_bytes() == before
    assert "loading" not in [line["phase"] for line in records.read_log(undisturbed.heartbeat)[-4:]]


@pytest.mark.slow
def test_second_runner_is_refused_and_stop_leaves_no_process(
    tiny, engine_python, dataset, tmp_path
):
    spec = run_spec(tmp_path / "run", tiny(MODEL), dataset, chunk_size=CHUNK_SIZE)
    directory = RunDirectory(spec.run_dir)
    child = launch.start(spec, engine_python)
    wait_for_commits(directory, 1, child)
    with pytest.raises(RunnerBusy, match=f"process {child.pid} .* last sign of life"):
        launch.start(spec, engine_python)
    assert launch.stop(spec.run_dir)
    with pytest.raises(RunStopped):
        launch.watch(spec.run_dir, child)
    assert directory.status().phase == "stopped"
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)
    assert not launch.stop(spec.run_dir)
