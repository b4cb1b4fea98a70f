"""One runner a run directory: an flock that a killed process can't leave behind."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from colab_utils import records
from colab_utils.errors import RunnerBusy
from colab_utils.heartbeat import now
from colab_utils.run_directory import RunDirectory

_ATTEMPTS = 5
_PAUSE_SECONDS = 0.1


@contextmanager
def locked(directory: RunDirectory) -> Iterator[None]:
    """Hold the run directory's lock; a killed process leaves none behind.

    Raises `RunnerBusy` naming the runner that holds it.
    """
    try:
        descriptor = os.open(directory.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise records.unwritable(directory.lock, error) from error
    try:
        _acquire(descriptor, directory)
        os.ftruncate(descriptor, 0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
        os.write(descriptor, records.encode_line(holder))
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, directory: RunDirectory) -> None:
    # A reader that asks who holds the lock holds it for a moment itself: so ask again.
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
    raise busy(directory)


def busy(directory: RunDirectory) -> RunnerBusy:
    """The one sentence for a directory that another runner holds."""
    runner = directory.runner() or {}
    beats = records.read_log(directory.heartbeat)
    last = beats[-1]["at"] if beats else "none yet"
    return RunnerBusy(
        f"is held by process {runner.get('pid', 'unknown')} on {runner.get('host', 'unknown')} "
        f"since {runner.get('since', 'unknown')}, last sign of life {last}",
        where=str(directory.path),
        mend="watch that run, or stop it first",
    )
