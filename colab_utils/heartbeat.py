"""Signs of life of a run: written by the engine process, read by anyone."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from colab_utils import records
from colab_utils.errors import RunDirectoryError

Phase = Literal[
    "starting",
    "importing",
    "loading",
    "testing",
    "running",
    "replaying",
    "done",
    "stopped",
    "failed",
]
ENDED: tuple[Phase, ...] = ("done", "stopped", "failed")


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Heartbeat:
    """Appends a line to `heartbeat.jsonl` every `seconds`, from its own thread.

    A context manager: it starts before the engine is imported and ends with the process.
    `describe` gives the numbers of the moment; `beat` writes one line at once, when the
    phase changes or a chunk is committed.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._phase: Phase = "starting"
        self._since = time.monotonic()
        self._describe: Callable[[], dict[str, Any]] = dict
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self.beat()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def enter(
        self, phase: Phase, describe: Callable[[], dict[str, Any]] | None = None, **more: Any
    ) -> None:
        """Begin a phase and say so at once; `more` fields join this line only."""
        self._phase = phase
        self._since = time.monotonic()
        if describe is not None:
            self._describe = describe
        self.beat(**more)

    def beat(self, **more: Any) -> None:
        """Write one line now.

        A lost sign of life must not end a run (a commit that fails will), nor hide the error
        that does: where it can't be written, that is said in the log.
        """
        record = {
            "at": now(),
            "pid": os.getpid(),
            "phase": self._phase,
            "phase_seconds": round(time.monotonic() - self._since, 1),
            **self._describe(),
            **more,
        }
        with self._writing:
            try:
                records.append_line(self._path, record)
            except RunDirectoryError as error:
                print(f"heartbeat not written: {error}", file=sys.stderr, flush=True)

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self.beat()
