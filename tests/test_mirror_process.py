"""The process that copies: it outlives what started it, may be killed, and ends by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from builders import run_spec, small_lines, write_dataset
from mirrored_runs import FOLDER, add_chunk, answers, make_run, state

from colab_utils import launch, records
from colab_utils.mirror_launch import mirror_of
from colab_utils.mirror_ledger import read_ledger
from colab_utils.run_directory import RunDirectory

MODEL = "llama-3.2-3b-instruct"
CHUNK_SIZE = 4
# Starts the mirror process of a run and ends at once, as a kernel does whose tab is closed.
STARTER = """
import sys
from pathlib import Path
from colab_utils.mirror_launch import mirror_of
runs, run, drive, pid = sys.argv[1:]
print(mirror_of(drive, Path(run), Path(runs)).start(int(pid)).pid)
"""


def wait_until(true, what: str) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture
def world(tmp_path):
    """A run, an empty mirror folder, and a process that stands for the engine's."""
    run = make_run(tmp_path / "runs" / FOLDER)
    (tmp_path / "drive").mkdir()
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield run, tmp_path, engine
    engine.kill()
    engine.wait()


def is_copied(run, count: int) -> bool:
    if not (run / "mirror.jsonl").exists():
        return False
    found = state(run)
    return len(found.copied) == count and not found.local


def test_it_copies_on_when_its_starter_is_gone_and_ends_with_the_run(world):
    run, folder, engine = world
    told = subprocess.run(
        [sys.executable, "-c", STARTER, str(folder / "runs"), str(run), str(folder / "drive"),
         str(engine.pid)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pid = int(told.stdout)
    wait_until(lambda: is_copied(run, 3), "what was there")
    add_chunk(run, 4)
    wait_until(lambda: is_copied(run, 4), "what came after its starter had ended")
    assert lives(pid)
    engine.kill()
    wait_until(lambda: not lives(pid), "its own end")


def test_killed_it_harms_nothing_and_the_next_start_goes_on_copying(world):
    run, folder, engine = world
    mirror = mirror_of(str(folder / "drive"), run, folder / "runs")
    assert mirror is not None
    child = mirror.start(engine.pid)
    wait_until(lambda: is_copied(run, 3), "what was there")
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    before = answers(run)
    add_chunk(run, 4)
    again = mirror.start(engine.pid)
    # One more beside it waits, and takes over when the first is killed.
    third = mirror.start(engine.pid)
    wait_until(lambda: is_copied(run, 4), "what came after the kill")
    os.killpg(again.pid, signal.SIGKILL)
    again.wait()
    add_chunk(run, 6)
    wait_until(lambda: is_copied(run, 5), "the one that waited")
    engine.kill()
    engine.wait()
    done = mirror.finish(third)
    assert third.returncode == 0 and len(done.copied) == 5
    assert before.items() <= answers(run).items()
    assert "5 copied" in str(done) and "not confirmed yet" in str(done)


def test_a_mirror_that_is_gone_at_the_end_is_said_and_the_wait_is_bounded(world):
    run, folder, engine = world
    mirror = mirror_of(str(folder / "drive"), run, folder / "runs")
    assert mirror is not None
    shutil.rmtree(folder / "drive")
    engine.kill()
    engine.wait()
    child = mirror.start(engine.pid)
    try:
        wait_until(lambda: any("problem" in line for line in read_ledger(run)), "the problem")
        done = mirror.finish(child, seconds=0)
        assert len(done.local) == 3 and "not safe: " in str(done) and not done.is_safe
        (folder / "drive").mkdir()
        # It tries on, beyond the run's end.
        assert len(mirror.finish(child).copied) == 3
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_mirror_on_an_empty_disk(
    tiny, engine_python, tmp_path, monkeypatch
):
    dataset = write_dataset(tmp_path / "data", small_lines(3))
    monkeypatch.setenv("HF_TOKEN", "hf_canary_0123456789")
    spec = run_spec(tmp_path / "runs" / FOLDER, tiny(MODEL), dataset, chunk_size=CHUNK_SIZE)
    directory = RunDirectory(spec.run_dir)
    drive = str(tmp_path / "drive")
    (tmp_path / "drive").mkdir()
    mirror = mirror_of(drive, spec.run_dir, tmp_path / "runs")
    assert mirror is not None
    child = launch.start(spec, engine_python)
    copying = mirror.start(child.pid)
    try:
        wait_until(
            lambda: (
                len([p for p in (tmp_path / "drive").rglob("*.jsonl") if "chunks" in p.parts]) >= 3
                or child.poll() is not None
            ),
            "three chunks on the mirror",
        )
        assert child.poll() is None, directory.log.read_text()[-3000:]
    finally:
        for process in (child, copying):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    # The machine is gone, with its disk.
    shutil.rmtree(spec.run_dir)
    again = mirror_of(drive, spec.run_dir, tmp_path / "runs")
    assert again is not None
    said: list[str] = []
    again.restore(said.append)
    assert "files restored" in said[0]
    back = {path.name for path in directory.chunks.glob("*.jsonl")}
    assert len(back) >= 3
    child = launch.start(spec, engine_python)
    copying = again.start(child.pid)
    launch.watch(spec.run_dir, child)
    done = again.finish(copying)
    assert not done.local and copying.returncode == 0
    lines = records.read_log(directory.timeline)
    second = [line for line in lines if line["pid"] == child.pid]
    assert not {name.split(".")[0] for name in back} & {line["chunk"] for line in second}
    undisturbed = spec.model_copy(update={"run_dir": tmp_path / "undisturbed"})
    launch.watch(undisturbed.run_dir, launch.start(undisturbed, engine_python))
    whole = RunDirectory(undisturbed.run_dir)
    assert directory.responses.read_bytes() == whole.responses.read_bytes()
    run = directory.read_run()
    assert len(run["segments"]) == 2
    assert run["completed"]["prefill"] == whole.read_run()["completed"]["prefill"]
    assert run["prompts_sha256"] == whole.read_run()["prompts_sha256"]
