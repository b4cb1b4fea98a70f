"""A run directory as its readers see it: which file is where, and what state the run is in.

Reading never needs the writer: a notebook attaches to a run by reading its folder.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from colab_utils import records
from colab_utils.errors import RunDirectoryError
from colab_utils.heartbeat import ENDED, Phase

FORMAT = 1


@dataclass(frozen=True)
class RunStatus:
    """What a run is doing now.

    `phase` is the heartbeat's, or `none` (nothing was started), `complete`, or `interrupted`
    (the last runner vanished without a word). `silent_seconds` counts since the last sign of
    life; `beat` is the last heartbeat line.
    """

    # Three signs of life missed.
    STALLED_SECONDS: ClassVar[float] = 60.0

    phase: str
    alive: bool
    done: int
    total: int
    silent_seconds: float | None
    beat: dict[str, Any]

    @property
    def still_seconds(self) -> float:
        """Seconds in which a living run gave no sign of life, or its engine finished no step."""
        if not self.alive or self.silent_seconds is None:
            return 0.0
        return float(self.beat.get("step_seconds", 0.0)) + self.silent_seconds

    @property
    def stalled(self) -> bool:
        """Whether a living run has given no sign of life for a minute."""
        return self.alive and (self.silent_seconds or 0.0) > self.STALLED_SECONDS


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run directory, and reads of its small files."""

    path: Path

    @property
    def run_json(self) -> Path:
        """Fingerprints, what they were made of, segments, completion."""
        return self.path / "run.json"

    @property
    def chunks(self) -> Path:
        """Folder of committed chunks."""
        return self.path / "chunks"

    @property
    def responses(self) -> Path:
        """All responses in request order; exists once the run is complete."""
        return self.path / "responses.jsonl"

    @property
    def replays(self) -> Path:
        """Requests answered again under another batching, one file each time."""
        return self.path / "replays"

    @property
    def heartbeat(self) -> Path:
        """Signs of life."""
        return self.path / "heartbeat.jsonl"

    @property
    def timeline(self) -> Path:
        """What was given to the engine and committed, when and by whom."""
        return self.path / "timeline.jsonl"

    @property
    def lock(self) -> Path:
        """File that the runner holds an flock on."""
        return self.path / "lock"

    @property
    def log(self) -> Path:
        """Output of the engine process, vLLM's own log included."""
        return self.path / "engine.log"

    def read_run(self) -> dict[str, Any] | None:
        """`run.json`, or None where no run has begun; raises `RunDirectoryError` if foreign."""
        if not self.run_json.exists():
            return None
        run = records.read_json(self.run_json)
        needed = {"decoding_fingerprint", "run_fingerprint", "decoding", "run", "requests", "kind"}
        if not isinstance(run, dict) or run.get("format") != FORMAT or not needed <= run.keys():
            raise RunDirectoryError(
                "was not written by this version of the workbench",
                where=str(self.run_json),
                mend="choose another run directory",
            )
        return run

    def is_complete(self) -> bool:
        """Whether the answers are all there and unchanged since the run ended.

        Raises `RecordError` for answers that can't be read, and as `read_run` does.
        """
        run = self.read_run()
        if run is None or not run.get("completed") or not self.responses.exists():
            return False
        answers = records.read_bytes(self.responses)
        return bool(records.sha256_bytes(answers) == run["completed"]["responses_sha256"])

    def runner(self) -> dict[str, Any] | None:
        """Who holds the lock (pid, host, since), or None when nobody does."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            lines = records.read_log(self.lock)
            return lines[-1] if lines else {}
        finally:
            os.close(descriptor)
        return None

    def status(self) -> RunStatus:
        """The state of the run, from its files alone."""
        run = self.read_run()
        beat: dict[str, Any] = next(
            filter(_is_beat, reversed(records.read_log(self.heartbeat))), {}
        )
        alive = self.runner() is not None
        total = run["requests"] if run else int(beat.get("total", 0))
        done = int(beat.get("done", 0))
        silent = None
        if "at" in beat:
            at = datetime.fromisoformat(beat["at"])
            silent = (datetime.now(UTC) - at).total_seconds()
        if alive:
            phase = str(beat.get("phase", "starting"))
        elif run and run.get("completed"):
            phase, done = "complete", total
        elif not beat:
            phase = "none"
        elif beat["phase"] in ENDED:
            phase = str(beat["phase"])
        else:
            phase = "interrupted"
        return RunStatus(phase, alive, done, total, silent, beat)


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("has no time zone")
    return text


class _Beat(BaseModel):
    """What readers take from a line of `heartbeat.jsonl`."""

    model_config = ConfigDict(strict=True)

    at: Annotated[str, AfterValidator(_moment)]
    pid: int
    phase: Phase
    phase_seconds: float
    done: int = 0
    total: int = 0
    in_flight: int = 0
    tokens_per_second: float = 0
    seconds_left: float | None = None
    step_seconds: float = 0
    error: str = ""
    exit_code: int = 1


def _is_beat(line: dict[str, Any]) -> bool:
    """Whether a line is one that a run has written; a torn or foreign one shows nothing."""
    try:
        _Beat.model_validate(line)
    except ValidationError:
        return False
    return True
