"""The process that copies a run's files to its mirror: `python -m colab_utils.mirroring < spec`.

It runs beside the engine process, in the kernel's interpreter and a session of its own, so that
copying goes on after a tab was closed. It is no thread of the engine's: a write that a mount never
answers can't be interrupted, and would keep a killed engine process, its lock and its GPU memory
for ever; and a Hub mirror needs the token, which the engine process must not see. It only reads
the run; what it knows is in `mirror.jsonl`. Killed at any moment it leaves a run as it was, and
the next start goes on copying. It ends when the run has ended and all is copied, or when a mirror
has not answered for `linger_seconds` after that.

The same program restores and confirms, so that a mirror that hangs never hangs a kernel.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from colab_utils import records
from colab_utils.errors import WorkbenchError
from colab_utils.mirror import Copier
from colab_utils.mirror_hub import HUB, HubStore
from colab_utils.mirror_ledger import Ledger
from colab_utils.mirror_restore import Restored, confirm, restore
from colab_utils.mirror_store import FolderStore, Store, is_plain_folder, machine
from colab_utils.run_directory import RunDirectory


class MirrorSpec(BaseModel):
    """What a mirroring process is told; it comes on its standard input.

    `mirror` is a folder or `hf://datasets/OWNER/NAME`, `folder` the run's place in it.
    `engine_pid` is the engine process that it serves besides any other runner of the directory.
    It looks for new files every `poll_seconds`, and says so when the mirror has not answered for
    `patience_seconds`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    verb: Literal["copy", "restore", "confirm"]
    mirror: str
    folder: str
    run_dir: Path
    engine_pid: int | None = None
    poll_seconds: float = 1.0
    patience_seconds: float = 30.0
    linger_seconds: float = 3600.0

    @property
    def place(self) -> str:
        """Where the run's files lie, as a reader would write it; the ledger knows it by this."""
        return f"{self.mirror.rstrip('/')}/{self.folder}"

    @property
    def lock(self) -> Path:
        """Held by the one process that copies this run to this mirror."""
        return self.run_dir / f"mirror.{records.sha256_bytes(self.place.encode())[:8]}.lock"


def open_store(spec: MirrorSpec) -> Store:
    """The mirror that a spec names; raises `MirrorError` or `InputError` where it can't be used."""
    if spec.mirror.startswith(HUB):
        return HubStore(spec.mirror.removeprefix(HUB), spec.folder)
    return FolderStore(Path(spec.mirror), spec.folder)


def keep_copying(
    step: Callable[[bool], bool],
    alive: Callable[[], bool],
    on_silence: Callable[[str], None],
    spec: MirrorSpec,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Call `step` until the run has ended and nothing is left; return whether all is copied.

    `step` is told whether the run lives and returns whether nothing is left. It runs on a thread
    that is never waited for longer than `patience_seconds` without saying so, and not at all once
    the run has ended `linger_seconds` ago.
    """
    ended_at: float | None = None
    while True:
        running = alive()
        ended_at = None if running else ended_at or time.monotonic()
        task = _Task(step, running)
        while not task.done.wait(spec.patience_seconds):
            on_silence(f"has not answered for {spec.patience_seconds:.0f} s")
            if not alive():
                ended_at = ended_at or time.monotonic()
                if time.monotonic() - ended_at > spec.linger_seconds:
                    return False
        if task.error is not None:
            raise task.error
        if not running and task.clean:
            return True
        if ended_at is not None and time.monotonic() - ended_at > spec.linger_seconds:
            return False
        pause(spec.poll_seconds)


class _Task:
    """One step on a daemon thread; `done` is set when it has returned."""

    def __init__(self, step: Callable[[bool], bool], running: bool) -> None:
        self.done = threading.Event()
        self.clean = False
        self.error: BaseException | None = None
        self._step = step
        self._running = running
        threading.Thread(target=self._run, name="mirror", daemon=True).start()

    def _run(self) -> None:
        try:
            self.clean = self._step(self._running)
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()


def copy(spec: MirrorSpec) -> bool:
    """Serve one run to its end; return whether all of it is copied."""
    directory = RunDirectory(spec.run_dir)

    def alive() -> bool:
        return directory.runner() is not None or _lives(spec.engine_pid)

    descriptor = os.open(spec.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if not _only_one(descriptor, alive, spec):
        return False
    ledger = Ledger(spec.run_dir, spec.place)
    ledger.note_start(os.getpid())
    copier: Copier | None = None

    def step(running: bool) -> bool:
        nonlocal copier
        if copier is None:
            try:
                copier = Copier(spec.run_dir, open_store(spec), ledger, machine())
            except WorkbenchError as error:
                ledger.note_problem(error.problem)
                return False
        return copier.step(alive=running)

    return keep_copying(step, alive, ledger.note_problem, spec)


def run_verb(spec: MirrorSpec) -> Restored:
    """Restore a run from its mirror, or confirm what the mirror holds of it."""
    spec.run_dir.mkdir(parents=True, exist_ok=True)
    plain = False
    if not spec.mirror.startswith(HUB):
        root = Path(spec.mirror)
        if spec.verb == "restore":
            records.make_folder(root)
        plain = root.is_dir() and is_plain_folder(root)
    store, ledger = open_store(spec), Ledger(spec.run_dir, spec.place)
    if spec.verb == "restore":
        return restore(spec.run_dir, store, ledger, machine())
    return confirm(spec.run_dir, store, ledger, machine(), plain=plain)


def main() -> int:
    """Entry of the process; the answer of `restore` and `confirm` is one JSON line."""
    spec = MirrorSpec.model_validate_json(sys.stdin.buffer.read())
    if spec.verb == "copy":
        complete = copy(spec)
        sys.stdout.flush()
        # A thread that the mirror still holds must not keep the process.
        os._exit(0 if complete else 1)
    answer: dict[str, Any]
    try:
        answer = {"done": run_verb(spec).model_dump(mode="json")}
    except WorkbenchError as error:
        answer = {
            "error": type(error).__name__, "problem": error.problem, "where": error.where,
            "mend": error.mend,
        }  # fmt: skip
    print(records.dumps(answer), flush=True)
    return 0


def _only_one(descriptor: int, alive: Callable[[], bool], spec: MirrorSpec) -> bool:
    """Wait until no other process copies this run there, while there is something to serve."""
    ended_at: float | None = None
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            ended_at = None if alive() else ended_at or time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > spec.linger_seconds:
                return False
            time.sleep(spec.poll_seconds)


def _lives(pid: int | None) -> bool:
    """Whether a process is there and not yet dead (a zombie is)."""
    if pid is None:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


if __name__ == "__main__":
    sys.exit(main())
