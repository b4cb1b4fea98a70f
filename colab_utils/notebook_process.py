"""One notebook run by papermill in a process of its own: started, found again, stopped, judged.

The process has its own session, so that what ends its starter or another model's kernel does not
end it. It holds a lock for as long as it lives: a later starter sees that it is still at work.
"""

from __future__ import annotations

import base64
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from colab_utils import launch, records
from colab_utils.errors import RunnerBusy, WorkbenchError
from colab_utils.heartbeat import now
from colab_utils.manifests import PROJECT
from colab_utils.notebooks import NOTEBOOKS, failure_in
from colab_utils.run_directory import RunDirectory

_STOP_SECONDS = 60.0
_PAUSE_SECONDS = 5.0
_KERNEL_SECONDS = "180"
_LOG_BYTES = 1 << 16


def start(
    name: str,
    output: Path,
    parameters: dict[str, Any],
    *,
    environment: dict[str, str],
    note: dict[str, Any],
) -> subprocess.Popen[bytes]:
    """Run `notebooks/NAME.ipynb` with `parameters`, its result at `output`, its log beside it.

    `note` is what `at_work` of `output`'s folder says while the process lives. Raises
    `RunnerBusy` while another notebook of that folder is at work, `RunDirectoryError` when the
    folder can't be written.
    """
    folder = RunDirectory(output.parent)
    records.make_folder(folder.path)
    command = [
        *(sys.executable, "-m", "papermill", str(NOTEBOOKS / f"{name}.ipynb"), str(output)),
        *("--parameters_base64", base64.b64encode(records.dumps(parameters).encode()).decode()),
        *("--kernel", "python3", "--start-timeout", _KERNEL_SECONDS),
        *("--cwd", str(NOTEBOOKS), "--no-progress-bar", "--log-output"),
    ]
    try:
        lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        log = open(output.with_suffix(".log"), "xb")  # noqa: SIM115  (handed to the child)
    except OSError as error:
        raise records.unwritable(output.parent, error) from error
    with log, os.fdopen(lock, "wb", buffering=0) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunnerBusy(
                "another notebook is still at work", where=str(folder.path), mend="wait for it"
            ) from error
        # The child inherits the lock and the kernel does not: it is free when the child is gone.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=PROJECT,
            start_new_session=True,
            pass_fds=(held.fileno(),),
        )
        holder = {**note, "pid": child.pid, "host": socket.gethostname(), "since": now()}
        os.ftruncate(held.fileno(), 0)
        held.write(records.encode_line(holder))
    return child


def at_work(folder: Path) -> dict[str, Any] | None:
    """The note of the process that runs a notebook into `folder`, None when there is none."""
    return RunDirectory(folder).runner()


def failure(output: Path, code: int | None) -> WorkbenchError:
    """Why a notebook's process failed: the notebook's own error, else what its log ends with."""
    said = failure_in(output)
    if said is not None:
        return said
    log = output.with_suffix(".log")
    if code is not None and code < 0:
        cause = f"the notebook's process was ended by signal {-code}"
    else:
        text = records.read_bytes(log)[-_LOG_BYTES:].decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        cause = f"the notebook ended without a result ({lines[-1] if lines else 'no word'})"
    return WorkbenchError(cause, mend=f"see {log}")


def stop(pid: int, run_dir: Path | None) -> None:
    """End a notebook's process and its run; the notebook is saved as far as it came.

    Like a notebook's interrupt: the run in `run_dir` is stopped first and what is finished stays
    committed; where no run is going on, the kernel gets an interrupt. What does not end within a
    minute is killed.
    """
    deadline = time.monotonic() + _STOP_SECONDS
    while _alive(pid) and time.monotonic() < deadline:
        if run_dir is None or not launch.stop(run_dir):
            _interrupt(pid)
        pause = time.monotonic() + _PAUSE_SECONDS
        while _alive(pid) and time.monotonic() < pause:
            time.sleep(0.1)
    if _alive(pid):
        for process in (*_children(pid), pid):
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
    if run_dir is not None:
        launch.stop(run_dir)


def _interrupt(pid: int) -> None:
    kernels = _children(pid)
    for kernel in kernels:
        with suppress(ProcessLookupError):
            os.kill(kernel, signal.SIGINT)
    if not kernels:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _alive(pid: int) -> bool:
    """Whether a process is there and not yet dead (a zombie is)."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return fields is not None and fields[0] not in "ZX"


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = _stat(path)
        if fields is not None and int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def _stat(path: Path) -> list[str] | None:
    """State, parent and the rest of a process: what follows its name, which may hold anything."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return None
