"""SIGKILL at every step of what writes to a disk, and at random moments of real runs.

A step is a moment after which the disk may differ: the first line that runs after a call that the
interpreter audits (open, rename, remove, mkdir, ...), and every line of the functions that write.
`python tests/kills.py --random 100` kills real runs as often as that and prints the counts.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from jupyter_client.manager import KernelManager

from colab_utils import launch, records
from colab_utils.manifests import PROJECT
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import RunSpec

PACKAGE = str(PROJECT / "colab_utils")
WRITERS = {"write_atomic", "append_line", "write", "locked", "_fsync_folder", "_put", "rename"}
CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "fcntl.flock", "os.utime")
# Starts a run with its mirror, watches it and starts it again, as a notebook's cell does.
WATCHER = """
import os
from pathlib import Path
from colab_utils.following import run_to_end
from colab_utils.mirror_launch import mirror_of
from colab_utils.run_record import RunSpec
spec = RunSpec.model_validate_json(Path({spec!r}).read_bytes())
mirror = mirror_of({mirror!r}, spec.run_dir, spec.run_dir.parent)
mirror.restore(print)
mirror.finish(run_to_end(spec, Path({python!r}), mirror, print))
os._exit(0)
"""
TARGETS = ("engine", "engine", "watcher", "kernel", "all")


class Steps:
    """Counts the steps of an action in this process, and dies at one of them."""

    def __init__(self, die_at: int) -> None:
        self._count = 0
        self._die_at = die_at
        self._changed = False
        self._active = True
        sys.addaudithook(self._audit)

    def run(self, action: Callable[[], Any]) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            action()
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self._active = False

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._active and event in CHANGES:
            self._changed = True

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event in ("line", "return") and (self._changed or frame.f_code.co_name in WRITERS):
            self._changed = False
            self._count += 1
            if self._count == self._die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._trace


def killed_steps(action: Callable[[Path], Any], fresh: Callable[[str], Path]) -> Iterator[Path]:
    """Each step in turn: what an action left in a fresh folder when it died there.

    It is started again there, as a resume would, and killed a second time on its way.
    """
    for step in count(1):
        folder = fresh(f"at-{step}")
        if not killed_at(step, lambda folder=folder: action(folder)):  # type: ignore[misc]
            return
        killed_at(1 + step % 17, lambda folder=folder: action(folder))  # type: ignore[misc]
        yield folder


def killed_at(step: int, action: Callable[[], Any]) -> bool:
    """Do an action in a process of its own that dies at a step; whether it came to that step."""
    return in_a_child(lambda: Steps(step).run(action) or 0) == -signal.SIGKILL


def in_a_child(work: Callable[[], int]) -> int:
    """What `work` returns in a forked process, or the negative number of the signal it died of."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writing, str(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    with open(reading, "rb") as answer:
        said = answer.read()
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status)
    assert os.waitstatus_to_exitcode(status) == 0, "the action failed in its process"
    return int(said)


def random_kills(
    make_spec: Callable[[int], RunSpec],
    engine_python: Path,
    undisturbed: RunDirectory,
    kills: int,
    seed: int,
) -> Counter[str]:
    """Kill runs at random moments until it was done `kills` times; counts by what was killed.

    Engine process, the process that watches it (a shell's or a Jupyter kernel), or all of them and
    the one that copies to the mirror. Every run is resumed to its end, and must equal
    `undisturbed`: the same bytes, nothing computed twice that was committed, all of it mirrored.
    """
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    number = 0
    while counts.total() < kills:
        spec = make_spec(number)
        number += 1
        directory = RunDirectory(spec.run_dir)
        mirror = spec.run_dir.parent / f"{spec.run_dir.name}.mirror"
        mirror.mkdir()
        while True:
            target = chance.choice(TARGETS)
            in_kernel = target == "kernel" or (target == "all" and chance.random() < 0.5)
            watcher = _watched(spec, engine_python, mirror, in_kernel=in_kernel)
            if counts.total() < kills and _kill_at_random(directory, watcher, target, chance):
                counts[f"{target}, {directory.status().phase}"] += 1
            if _settle(directory, watcher) == 0:
                break
        _require_equal(directory, undisturbed)
        copied = {path.name for path in mirror.rglob("*.jsonl")}
        assert copied >= {path.name for path in directory.chunks.glob("*.jsonl")}
    return counts


def _watched(
    spec: RunSpec, engine_python: Path, mirror: Path, *, in_kernel: bool
) -> subprocess.Popen[bytes]:
    """A process that runs WATCHER and ends; its output is kept, for a test that fails."""
    beside = spec.run_dir.with_name(f"{spec.run_dir.name}.spec.json")
    beside.write_text(spec.model_dump_json())
    code = WATCHER.format(spec=str(beside), mirror=str(mirror), python=str(engine_python))
    with spec.run_dir.with_name(f"{spec.run_dir.name}.watcher.log").open("ab") as log:
        if not in_kernel:
            return subprocess.Popen(
                [sys.executable, "-c", code], stdout=log, stderr=log, cwd=PROJECT
            )
        manager = KernelManager()
        manager.start_kernel(cwd=str(PROJECT), stdout=log, stderr=log)
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    client.execute(code)
    # The kernel has it once it says that it is busy.
    while client.get_iopub_msg(timeout=120)["content"].get("execution_state") != "busy":
        pass
    client.stop_channels()
    process = manager.provisioner.process
    assert isinstance(process, subprocess.Popen)
    return process


def _kill_at_random(
    directory: RunDirectory, watcher: subprocess.Popen[bytes], target: str, chance: random.Random
) -> bool:
    """Kill at a random moment: while it starts, or after a random number of commits more."""
    commits = len(list(directory.chunks.glob("*.jsonl"))) + chance.randrange(4)
    deadline = time.monotonic() + (chance.uniform(0, 8) if chance.random() < 0.25 else 300)
    while time.monotonic() < deadline and watcher.poll() is None:
        if len(list(directory.chunks.glob("*.jsonl"))) > commits:
            time.sleep(chance.uniform(0, 0.3))
            break
        time.sleep(0.01)
    runner = directory.runner()
    if watcher.poll() is not None or runner is None or "pid" not in runner:
        return False
    if target == "engine":
        os.killpg(int(runner["pid"]), signal.SIGKILL)
        return True
    below = Path(f"/proc/{watcher.pid}/task/{watcher.pid}/children").read_text().split()
    watcher.kill()
    if target == "all":
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    return True


def _settle(directory: RunDirectory, watcher: subprocess.Popen[bytes]) -> int:
    """Wait until nobody works on the run any more; what was left running goes on to its end.

    Returns the watcher's exit code.
    """
    code = watcher.wait()
    while directory.runner() is not None:
        time.sleep(0.1)
    return code


def _require_equal(directory: RunDirectory, undisturbed: RunDirectory) -> None:
    assert directory.responses.read_bytes() == undisturbed.responses.read_bytes()
    ours, theirs = (
        {path.name: path.read_bytes() for path in each.chunks.glob("*.jsonl")}
        for each in (directory, undisturbed)
    )
    assert ours == theirs, "a chunk is lost, doubled or changed"
    lines = records.read_log(directory.timeline)
    committed: set[str] = set()
    for line in lines:
        if line["event"] == "committed":
            committed.add(line["chunk"])
        elif line["event"] == "given":
            assert line["chunk"] not in committed, f"{line['chunk']} was computed again"


def main() -> None:
    """Kill real runs of a tiny random model."""
    from builders import run_spec, small_lines, tiny_model, write_dataset

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    python = PROJECT / ".envs" / "engine" / "bin" / "python"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = tiny_model("llama-3.2-3b-instruct", python, folder)
        dataset = write_dataset(folder / "data", small_lines(3))
        first = run_spec(folder / "undisturbed", model, dataset, chunk_size=4)
        launch.watch(first.run_dir, launch.start(first, python))
        counts = random_kills(
            lambda number: run_spec(folder / f"run-{number}", model, dataset, chunk_size=4),
            python, RunDirectory(first.run_dir), given.random, given.seed,
        )  # fmt: skip
    print(f"{counts.total()} kills: {dict(counts)}; 0 lost, 0 doubled, 0 computed again")


if __name__ == "__main__":
    main()
