"""A verb as a process of its own: it outlives the kernel that started it.

`colab_utils.job_process` reads what to do from its standard input, prints what the verb says into
a log file, and writes how it ended into a record (`job_record`). So a button's callback returns at
once, a kernel restart ends nothing, and attaching is reading files. `runs/.jobs/lock` is held while
a job lives, and says which one: one job a folder of runs, since one model at a time has the GPU.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from colab_utils import launch, records
from colab_utils.errors import RunDirectoryError, RunnerBusy, RunStopped, WorkbenchError
from colab_utils.heartbeat import now
from colab_utils.job_record import (
    Action,
    Job,
    JobProgress,
    JobSpec,
    files_of,
    jobs_folder,
    last_line,
    read,
    record_of,
)
from colab_utils.launch import status_text
from colab_utils.manifests import PROJECT
from colab_utils.progress import seconds_text
from colab_utils.run_directory import RunDirectory

_POLL_SECONDS = 0.5
# A run's own end takes 20 s at most, then its engine is killed; a second more for the rest.
_STOP_SECONDS = 40.0
_ATTEMPTS = 5


def start(spec: JobSpec, token: str | None = None) -> subprocess.Popen[bytes]:
    """Start a job in a session of its own and return at once.

    `token` is passed through its standard input: its environment could be read by a model's own
    code. Raises `RunnerBusy` when the folder of runs has a job, `RunDirectoryError` when it can't
    be written.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    spec = spec.model_copy(update={"id": f"{stamp}-{spec.action}"})
    record, log, _ = files_of(spec)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        # The job inherits the lock: there is no moment between this process and that one.
        lock = _take_lock(spec.runs)
        try:
            records.write_atomic(record, record_of(spec))
            with open(log, "wb") as stream:
                child = subprocess.Popen(
                    [sys.executable, "-u", "-m", "colab_utils.job_process"],
                    stdin=subprocess.PIPE,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    cwd=PROJECT,
                    env=_environment(),
                    start_new_session=True,
                    pass_fds=(lock,),
                )
            holder = {
                "pid": child.pid,
                "host": socket.gethostname(),
                "since": now(),
                "record": str(record.relative_to(spec.runs)),
            }
            os.pwrite(lock, records.encode_line(holder), 0)
        finally:
            os.close(lock)
    except OSError as error:
        raise records.unwritable(spec.runs, error) from error
    assert child.stdin is not None
    # Where it ended before it read, its log says why.
    with suppress(BrokenPipeError), child.stdin:
        message = {"spec": spec.model_dump(mode="json"), "token": token}
        child.stdin.write(records.encode_line(message))
    return child


def current(runs: Path) -> Job | None:
    """The job that is going on in a folder of runs, None when there is none."""
    try:
        descriptor = os.open(_lock(runs), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        holder = (records.read_log(_lock(runs)) or [{}])[-1]
    finally:
        os.close(descriptor)
    if "record" not in holder:
        return None
    spec = read(runs / holder["record"]).spec
    return Job(spec, alive=True, pid=int(holder["pid"]), host=holder["host"])


def last(runs: Path, experiment: str, model: str) -> Job | None:
    """The newest job of a model, going on or ended; None when there was none."""
    records_there = sorted((jobs_folder(runs) / experiment / model).glob("*.json"))
    if not records_there:
        return None
    # Asked first: a job that ends after that has written how before its lock was free.
    going = current(runs)
    found = read(records_there[-1])
    return going if going is not None and going.spec.id == found.spec.id else found


def foreign_run(spec: JobSpec) -> Job | None:
    """A run of the model that was started without a job (by a notebook, the command line)."""
    actions: tuple[Action, ...] = ("smoke", "full_run")
    for action in actions:
        run = spec.model_copy(update={"action": action})
        if RunDirectory(run.run_dir).runner() is not None:
            return Job(run, alive=True, pid=None)
    return None


def progress(job: Job) -> JobProgress:
    """Where a living job stands, from its run's heartbeat or from the last line of its log.

    Raises `RunDirectoryError` when its run directory is a foreign one.
    """
    if job.spec.action in ("smoke", "full_run"):
        status = RunDirectory(job.spec.run_dir).status()
        if status.alive:
            text = status_text(status)
            if "sign of life" not in text and status.silent_seconds is not None:
                text += f", last sign of life {status.silent_seconds:.0f} s ago"
            return JobProgress(text, status.done, status.total, status.stalled)
    line = last_line(job.log) or "starting"
    counts = re.search(r"\b(\d+)/(\d+)\b", line)
    with suppress(FileNotFoundError):
        silent = max(0.0, time.time() - job.log.stat().st_mtime)
        line += f", last sign of life {seconds_text(silent)} ago"
    done, total = (int(counts[1]), int(counts[2])) if counts else (0, 0)
    return JobProgress(line, done, total)


def stop(job: Job) -> None:
    """Ask a job to end; returns at once. Finished chunks and verdicts are kept.

    Blocks for a run that has no job, until its engine has ended. Raises `RunDirectoryError` when
    it runs on another host or as another user.
    """
    if job.pid is None:
        launch.stop(job.spec.run_dir)
        return
    _require_here(job)
    records.write_atomic(files_of(job.spec)[2], b"")
    with suppress(ProcessLookupError):
        os.kill(job.pid, signal.SIGTERM)


def end_by_force(job: Job) -> None:
    """Kill a job that did not end when it was asked to, and the engine that it started.

    Raises as `stop` does.
    """
    if job.pid is not None:
        _require_here(job)
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    launch.stop(job.spec.run_dir)


async def follow(job: Job, show: Callable[[JobProgress], None]) -> Job:
    """Follow a job to its end and return it ended; an interrupt stops it.

    `show` is called twice a second. Raises nothing for a failed job: see `Job.error`.
    """
    try:
        while _still(job):
            show(progress(job))
            await asyncio.sleep(_POLL_SECONDS)
    except (KeyboardInterrupt, asyncio.CancelledError):
        # A kernel turns its interrupt of a cell that awaits into a cancellation.
        stop(job)
        deadline = time.monotonic() + _STOP_SECONDS
        while _still(job):
            show(JobProgress("stopping: what is finished is kept"))
            if time.monotonic() > deadline:
                end_by_force(job)
            await asyncio.sleep(_POLL_SECONDS)
    return ended(job)


def ended(job: Job) -> Job:
    """A job that is over, with its outcome; for a run without a job, the run's own."""
    if job.pid is not None:
        return read(files_of(job.spec)[0])
    try:
        status = launch.watch(job.spec.run_dir)
    except RunStopped as error:
        return Job(job.spec, False, None, "stopped", error=error)
    except WorkbenchError as error:
        return Job(job.spec, False, None, "failed", error=error)
    return Job(job.spec, False, None, "done", text=f"{status.done} of {status.total} answers")


def _require_here(job: Job) -> None:
    if job.host != socket.gethostname():
        raise RunDirectoryError(
            f"{job.spec.title} runs on {job.host}", where=str(job.spec.runs), mend="stop it there"
        )


def _still(job: Job) -> bool:
    """Whether the same job is still going on."""
    if job.pid is None:
        return RunDirectory(job.spec.run_dir).runner() is not None
    going = current(job.spec.runs)
    return going is not None and going.spec.id == job.spec.id


def _lock(runs: Path) -> Path:
    return jobs_folder(runs) / "lock"


def _take_lock(runs: Path) -> int:
    descriptor = os.open(_lock(runs), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    # A reader that asks who holds the lock holds it for a moment itself: so ask again.
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Until the new job is named, nobody may take it for the last one.
            os.ftruncate(descriptor, 0)
            return descriptor
        except BlockingIOError:
            time.sleep(0.1)
    os.close(descriptor)
    going = current(runs)
    doing = going.spec.title if going is not None else "another job"
    raise RunnerBusy(
        f"{doing} is going on", where=str(runs), mend="wait for its end, or stop it first"
    )


def _environment() -> dict[str, str]:
    """This process's, without the token and without a notebook's settings."""
    left_out = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MPLBACKEND")
    return {name: value for name, value in os.environ.items() if name not in left_out}
