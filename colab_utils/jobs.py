"""A verb as a process of its own: it outlives the kernel that started it.

`colab_utils.job_process` reads what to do from its standard input, prints what the verb says into
a log file, and writes how it ended into a record. So a button's callback returns at once, a kernel
restart ends nothing, and attaching is reading two files and a lock below `runs/.jobs/`:

    lock                       held while a job lives; says which one
    EXPERIMENT/MODEL/ID.json   what a job does, and how it ended; an ID begins with the time
    EXPERIMENT/MODEL/ID.log    what it said

One job a folder of runs: one model at a time has the GPU.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from colab_utils import errors, launch, records
from colab_utils.errors import RunnerBusy, RunStopped, WorkbenchError
from colab_utils.heartbeat import now
from colab_utils.launch import status_text
from colab_utils.manifests import PROJECT
from colab_utils.progress import seconds_text
from colab_utils.run_directory import RunDirectory

Action = Literal["smoke", "full_run", "score", "report"]
TITLES: dict[Action, str] = {
    "smoke": "smoke",
    "full_run": "full run",
    "score": "scoring",
    "report": "report",
}
_POLL_SECONDS = 0.5
# A run's own end takes 20 s at most, then its engine is killed; a second more for the rest.
_STOP_SECONDS = 40.0
_ATTEMPTS = 5
_LOG_TAIL = 1 << 16


class JobSpec(BaseModel):
    """What a job is told: an action on one model of one experiment, and where things lie.

    `experiment` and `model` are the manifests' names, `experiment_file` what the verbs load;
    `runs` and `cache` are absolute folders; `start` gives the `id`. The other fields are those of
    `RunParameters` and `ScoringParameters`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = ""
    action: Action
    experiment: str
    experiment_file: str
    model: str
    runs: Path
    cache: Path
    engine_python: str = ""
    evaluator_python: str = ""
    mirror: str = ""
    require_smoke: bool = True
    allow_weak_sandbox: bool = False
    replay: int = 32

    @property
    def run_dir(self) -> Path:
        """The run directory that the action works on."""
        kind = "smoke" if self.action == "smoke" else "full"
        return self.runs / self.experiment / self.model / kind

    @property
    def title(self) -> str:
        """What is done to which model, in words."""
        return f"{TITLES[self.action]} of {self.model}"


@dataclass(frozen=True)
class Job:
    """A job as its files tell it.

    `outcome` is None while it is alive, then `done`, `failed`, `stopped`, or `vanished` (it ended
    without a word). `text` says what came out; a failure has its parts in `problem`, `where` and
    `mend`. `figure` is a report's picture. `pid` is None for a run that was started without a job.
    """

    spec: JobSpec
    alive: bool
    pid: int | None
    outcome: Literal["done", "failed", "stopped", "vanished"] | None = None
    text: str = ""
    problem: str = ""
    where: str = ""
    mend: str = ""
    figure: str = ""
    error: WorkbenchError | None = None

    @property
    def log(self) -> Path:
        """What the job said."""
        return files_of(self.spec)[1]


@dataclass(frozen=True)
class JobProgress:
    """Where a living job stands: a line, and counts (0 of 0 where there are none)."""

    text: str
    done: int = 0
    total: int = 0


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
            os.ftruncate(lock, 0)
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
    return Job(_read(runs / holder["record"]).spec, alive=True, pid=int(holder["pid"]))


def last(runs: Path, experiment: str, model: str) -> Job | None:
    """The newest job of a model, going on or ended; None when there was none."""
    records_there = sorted((_folder(runs) / experiment / model).glob("*.json"))
    if not records_there:
        return None
    found = _read(records_there[-1])
    going = current(runs)
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
    """Where a living job stands, from its run's heartbeat or from the last line of its log."""
    if job.spec.action in ("smoke", "full_run"):
        status = RunDirectory(job.spec.run_dir).status()
        if status.alive:
            text = status_text(status)
            if "sign of life" not in text and status.silent_seconds is not None:
                text += f", last sign of life {status.silent_seconds:.0f} s ago"
            return JobProgress(text, status.done, status.total)
    line = _last_line(job.log) or "starting"
    counts = re.search(r"\b(\d+)/(\d+)\b", line)
    with suppress(FileNotFoundError):
        silent = max(0.0, time.time() - job.log.stat().st_mtime)
        line += f", last sign of life {seconds_text(silent)} ago"
    done, total = (int(counts[1]), int(counts[2])) if counts else (0, 0)
    return JobProgress(line, done, total)


def stop(job: Job) -> None:
    """Ask a job to end; returns at once. Finished chunks and verdicts are kept.

    Blocks for a run that has no job, until its engine has ended. Raises `RunDirectoryError` when
    that runs on another host or as another user.
    """
    if job.pid is None:
        launch.stop(job.spec.run_dir)
        return
    stopped = files_of(job.spec)[2]
    records.write_atomic(stopped, b"")
    with suppress(ProcessLookupError):
        os.kill(job.pid, signal.SIGTERM)


def end_by_force(job: Job) -> None:
    """Kill a job that did not end when it was asked to, and the engine that it started."""
    if job.pid is not None:
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
        return _read(files_of(job.spec)[0])
    try:
        status = launch.watch(job.spec.run_dir)
    except RunStopped as error:
        return Job(job.spec, False, None, "stopped", problem=error.problem, error=error)
    except WorkbenchError as error:
        return Job(job.spec, False, None, "failed", **_parts(error), error=error)
    return Job(job.spec, False, None, "done", text=f"{status.done} of {status.total} answers")


def _still(job: Job) -> bool:
    """Whether the same job is still going on."""
    if job.pid is None:
        return RunDirectory(job.spec.run_dir).runner() is not None
    going = current(job.spec.runs)
    return going is not None and going.spec.id == job.spec.id


def _read(record: Path) -> Job:
    """A job as it stands in its record, taken for ended."""
    content = records.read_json(record)
    spec = JobSpec.model_validate_json(records.dumps(content["spec"]))
    _, log, stopped = files_of(spec)
    end = content["end"]
    if end is None and stopped.exists():
        end = stopped_end(spec)
    if end is None:
        said = _last_line(log) or "nothing in its log"
        vanished = WorkbenchError(
            f"the process ended without a word ({said})",
            where=spec.title,
            mend=f"start it again, what was finished is kept; its log is {log}",
        )
        end = failed_end(vanished, outcome="vanished")
    error = None
    if end["outcome"] != "done":
        kind = getattr(errors, end["kind"])
        error = kind(end["problem"], where=end["where"], mend=end["mend"])
        error.exit_code = end["exit_code"]
    fields = {k: end.get(k, "") for k in ("text", "problem", "where", "mend", "figure")}
    return Job(spec, False, content["pid"], end["outcome"], **fields, error=error)


def failed_end(error: WorkbenchError, outcome: str = "failed") -> dict[str, Any]:
    """How a job ended that raised `error`, for its record."""
    return {
        "outcome": outcome,
        "kind": type(error).__name__,
        "exit_code": error.exit_code,
        **_parts(error),
    }


def stopped_end(spec: JobSpec) -> dict[str, Any]:
    """How a job ended that was stopped, for its record."""
    return failed_end(
        RunStopped(f"{spec.title} was stopped; what was finished is kept"), outcome="stopped"
    )


def record_of(spec: JobSpec, pid: int | None = None, end: dict[str, Any] | None = None) -> bytes:
    """What a job's record holds; `end` is None until it has ended."""
    return records.encode_line(
        {"spec": spec.model_dump(mode="json"), "pid": pid, "started": now(), "end": end}
    )


def files_of(spec: JobSpec) -> tuple[Path, Path, Path]:
    """A job's record and log, and the mark that a stop was asked for."""
    folder = _folder(spec.runs) / spec.experiment / spec.model
    record, log, stopped = (f"{spec.id}.{ending}" for ending in ("json", "log", "stopped"))
    return folder / record, folder / log, folder / stopped


def _folder(runs: Path) -> Path:
    return runs / ".jobs"


def _lock(runs: Path) -> Path:
    return _folder(runs) / "lock"


def _take_lock(runs: Path) -> int:
    descriptor = os.open(_lock(runs), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    # A reader that asks who holds the lock holds it for a moment itself: so ask again.
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def _last_line(log: Path) -> str:
    if not log.exists():
        return ""
    text = log.read_bytes()[-_LOG_TAIL:].decode("utf-8", "replace")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return lines[-1] if lines else ""


def _parts(error: WorkbenchError) -> dict[str, str]:
    return {"problem": error.problem, "where": error.where, "mend": error.mend}
