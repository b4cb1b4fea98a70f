"""Start, watch, attach to and stop a run, from a notebook or a shell.

The run is a child process of the engine interpreter in its own session: a kernel restart or
a closed tab leaves it running, and attaching again is reading its folder.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from colab_utils import errors, records
from colab_utils.errors import (
    EngineFailed,
    EngineStalled,
    RunDirectoryError,
    RunStopped,
    WorkbenchError,
)
from colab_utils.failures import explain
from colab_utils.heartbeat import now
from colab_utils.lock import busy
from colab_utils.progress import seconds_text
from colab_utils.run_directory import RunDirectory, RunStatus
from colab_utils.run_record import RunSpec

Show = Callable[[RunStatus], None]

_POLL_SECONDS = 0.5
_TERM_SECONDS = 20.0
_TERM_STALLED_SECONDS = 5.0
_LOG_BYTES = 1 << 20
# The engine process prints its own error as "Class: sentence".
_OWN_ERRORS: dict[str, type[WorkbenchError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, WorkbenchError)
}
_SEGMENT = "=== engine process started"
# The engine runs model repositories' own code, so it gets no token and no agent's socket.
_SECRET = ("TOKEN", "SECRET", "PASSW", "_KEY", "_PAT", "CREDENTIAL", "SSH_AUTH_SOCK")


def without_secrets() -> dict[str, str]:
    """This process's environment without tokens, keys and passwords."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "PATH" or not any(word in name.upper() for word in _SECRET)
    }


def engine_environment() -> dict[str, str]:
    """Environment of an engine process: this one's, without secrets, offline."""
    kept = without_secrets()
    # The engine interpreter has its own packages; a notebook's settings must not leak in.
    for name in ("PYTHONPATH", "PYTHONHOME", "MPLBACKEND"):
        kept.pop(name, None)
    return {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # A token that a login left in the home folder is out of sight, too.
        "HF_TOKEN_PATH": os.devnull,
        "PYTHONUNBUFFERED": "1",
    }


def start(spec: RunSpec, engine_python: Path) -> subprocess.Popen[bytes]:
    """Start the engine process of a run; its output goes to `engine.log`.

    Raises `RunnerBusy` when the directory has a runner, `RunDirectoryError` when it cannot
    be written.
    """
    directory = RunDirectory(spec.run_dir)
    if directory.runner() is not None:
        raise busy(directory)
    try:
        directory.chunks.mkdir(parents=True, exist_ok=True)
        probe = directory.path / ".writable"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
        log = open(directory.log, "ab")  # noqa: SIM115  (handed to the child)
    except OSError as error:
        raise records.unwritable(directory.path, error) from error
    with log:
        log.write(f"{_SEGMENT} {now()}\n".encode())
        log.flush()
        child = subprocess.Popen(
            [str(engine_python), "-m", "colab_utils.runs"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=engine_environment(),
            start_new_session=True,
        )
    assert child.stdin is not None
    try:
        with child.stdin:
            child.stdin.write(spec.model_dump_json().encode())
    except BrokenPipeError:
        # It ended before it read its spec; watch() reads the cause from its log.
        pass
    return child


def watch(
    run_dir: Path,
    child: subprocess.Popen[bytes] | None = None,
    *,
    show: Show | None = None,
    stall_seconds: float | None = None,
) -> RunStatus:
    """Follow a run to its end and return its last status; attaches to one started elsewhere.

    `child` is the process `start` returned, if this process started it. An interrupt
    (Ctrl-C, a notebook's stop button) stops the run. Raises `EngineFailed` with the cause
    when the run ended without being complete, or the run's own error, and `RunStopped`. A `child`
    that stands still for `stall_seconds` is ended: `EngineStalled`.
    """
    directory = RunDirectory(run_dir)
    try:
        while True:
            status = directory.status()
            if show is not None:
                show(status)
            ended = child.poll() is not None if child is not None else not status.alive
            if ended:
                return _outcome(directory, child)
            if child is not None and stall_seconds is not None:
                _end_stalled(directory, child, status, stall_seconds)
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        # In its first seconds a child holds no lock yet, so it is ended by its own number.
        if child is None:
            stop(run_dir)
        else:
            _end_group(child.pid, _TERM_SECONDS)
            child.wait()
        raise RunStopped("the run was stopped; finished chunks are committed") from None


def status_text(status: RunStatus) -> str:
    """A run's state in one line: phase, done, speed, time left, last sign of life."""
    beat = status.beat
    doing = {
        "importing": "importing the engine",
        "loading": "loading the model",
        "testing": "testing whether answers depend on batching",
    }.get(
        status.phase,
        "starting the engine process" if status.phase in ("none", "starting") else None,
    )
    if doing is not None:
        return f"{doing} ({beat.get('phase_seconds', 0):.0f} s)"
    if status.stalled:
        return (
            f"stalled in phase {status.phase} at {status.done}/{status.total}: no sign of life for "
            f"{status.silent_seconds:.0f} s"
        )
    parts = [f"{status.phase}: {status.done}/{status.total}"]
    if status.phase == "running":
        parts.append(f"{beat.get('in_flight', 0)} in flight")
        parts.append(f"{beat.get('tokens_per_second', 0)} tokens/s")
        parts.append(f"left: {seconds_text(beat.get('seconds_left'))}")
        if status.silent_seconds is not None:
            parts.append(f"last sign of life {status.silent_seconds:.0f} s ago")
    return ", ".join(parts)


def stop(run_dir: Path, *, term_seconds: float = _TERM_SECONDS) -> bool:
    """End a run: SIGTERM, wait, then SIGKILL to its whole process group until it is empty.

    Returns whether there was a runner. Finished chunks stay committed. Raises
    `RunDirectoryError` when the runner is on another host, or another user's.
    """
    runner = RunDirectory(run_dir).runner()
    if not runner or "pid" not in runner:
        return False
    if runner.get("host") != socket.gethostname():
        raise RunDirectoryError(
            f"is held by a runner on {runner.get('host')}", where=str(run_dir), mend="stop it there"
        )
    try:
        _end_group(int(runner["pid"]), term_seconds)
    except PermissionError as error:
        raise RunDirectoryError(
            f"process {runner['pid']} belongs to another user",
            where=str(run_dir),
            mend="stop it as that user",
        ) from error
    return True


def last_log_lines(directory: RunDirectory, count: int = 3) -> str:
    """The last lines of the engine's log that say something, in one line."""
    lines = [line.strip() for line in _last_segment(directory).splitlines()]
    return " | ".join([line for line in lines if line][-count:])


def _end_stalled(
    directory: RunDirectory,
    child: subprocess.Popen[bytes],
    status: RunStatus,
    stall_seconds: float,
) -> None:
    # Until its first own sign of life the last beat is an earlier segment's.
    if status.beat.get("pid") != child.pid or status.still_seconds < stall_seconds:
        return
    _end_group(child.pid, _TERM_STALLED_SECONDS)
    child.wait()
    raise EngineStalled(
        f"stood still for {status.still_seconds:.0f} s in phase {status.phase} and was ended; its "
        f"log ends: {last_log_lines(directory)}",
        where=str(directory.path),
        mend="start again to go on from the last committed chunk",
    )


def _end_group(pid: int, term_seconds: float) -> None:
    deadline = time.monotonic() + term_seconds
    _signal_group(pid, signal.SIGTERM)
    while _group_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    while _group_alive(pid):
        _signal_group(pid, signal.SIGKILL)
        time.sleep(0.1)


def _outcome(directory: RunDirectory, child: subprocess.Popen[bytes] | None) -> RunStatus:
    status = directory.status()
    if child is None and status.phase == "none":
        raise RunDirectoryError("holds no run", where=str(directory.path), mend="start one first")
    code = child.returncode if child is not None else None
    # An older segment's last words say nothing of this one.
    beat = status.beat if child is None or status.beat.get("pid") == child.pid else {}
    if not code and beat.get("phase") == "done" and directory.is_complete():
        return status
    if beat.get("phase") == "stopped" and code in (None, RunStopped.exit_code):
        raise RunStopped("the run was stopped; finished chunks are committed")
    log = _last_segment(directory)
    if "error" in beat:
        raise _failure(beat["error"], int(beat.get("exit_code", 1)))
    own = re.findall(rf"^({'|'.join(_OWN_ERRORS)}): (.+)$", log, re.MULTILINE)
    if own:
        name, text = own[-1]
        raise _failure(text, _OWN_ERRORS[name].exit_code)
    cause = explain(log, code)
    chunks = len(list(directory.chunks.glob("*.jsonl")))
    raise EngineFailed(
        f"{cause.problem} ({chunks} chunks are committed)",
        where=str(directory.log),
        mend=cause.mend,
    )


def _failure(text: str, exit_code: int) -> EngineFailed:
    failed = EngineFailed(text)
    failed.exit_code = exit_code
    return failed


def _last_segment(directory: RunDirectory) -> str:
    if not directory.log.exists():
        return ""
    text = directory.log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace")
    return text.rpartition(_SEGMENT)[2]


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def _group_alive(pid: int) -> bool:
    """Whether the process group has a member that is not yet dead (a zombie is)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "pid (name) state ppid pgrp ...", where the name may hold anything.
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(group) == pid and state not in "ZX":
            return True
    return False
