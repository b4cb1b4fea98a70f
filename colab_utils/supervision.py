"""See a run to its end: watch it, and start it again when it stands still.

A frozen engine is rare and costs a night when nobody looks. So a run that gives no sign of life,
or whose engine finishes no step, for `STALL_SECONDS` is ended and started again from its last
committed chunk, at most `RESTARTS` times; each time is kept in the run's timeline.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from colab_utils import launch, records
from colab_utils.errors import EngineStalled
from colab_utils.heartbeat import now
from colab_utils.run_directory import RunDirectory, RunStatus
from colab_utils.run_record import RunSpec

# Far longer than any step or silent part of a start that was seen.
STALL_SECONDS = 600.0
RESTARTS = 3

Say = Callable[[str], None]


def supervise(
    spec: RunSpec,
    engine_python: Path,
    *,
    show: launch.Show,
    say: Say,
    stall_seconds: float = STALL_SECONDS,
    restarts: int = RESTARTS,
    started: Callable[[int], None] = lambda pid: None,
) -> RunStatus:
    """Start a run and watch it to its end, restarting what stands still; its last status.

    `started` hears of each engine process's number. Raises what `launch.start` and `launch.watch`
    raise; `EngineStalled` when the run stood still once more than `restarts` times.
    """
    directory = RunDirectory(spec.run_dir)
    again = 0
    while True:
        child = launch.start(spec, engine_python)
        started(child.pid)
        try:
            return launch.watch(spec.run_dir, child, show=show, stall_seconds=stall_seconds)
        except EngineStalled as stalled:
            line = {
                "event": "stalled", "at": now(), "pid": os.getpid(), "host": socket.gethostname(),
                "runner": child.pid, "problem": stalled.problem,
            }  # fmt: skip
            records.append_line(directory.timeline, line)
            if again == restarts:
                raise
            again += 1
            say(f"{stalled} Started again, {again} of at most {restarts} times.")
