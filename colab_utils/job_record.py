"""What is kept of a job: what it was told, what it said, and how it ended.

Below the folder of runs lie `.jobs/EXPERIMENT/MODEL/ID.json`, a job's record, and `ID.log`, what it
said; an ID begins with the time. `ID.stopped` marks that somebody asked it to stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from colab_utils import errors, records
from colab_utils.errors import RecordError, RunStopped, WorkbenchError

Action = Literal["smoke", "full_run", "score", "report"]
TITLES: dict[Action, str] = {
    "smoke": "smoke",
    "full_run": "full run",
    "score": "scoring",
    "report": "report",
}
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
    without a word). `text` says what came out, `figure` is a report's picture, `error` what made it
    fail. `pid` is None for a run that was started without a job; `host` is where a living job runs.
    """

    spec: JobSpec
    alive: bool
    pid: int | None
    outcome: Literal["done", "failed", "stopped", "vanished"] | None = None
    text: str = ""
    figure: str = ""
    error: WorkbenchError | None = None
    host: str = ""

    @property
    def log(self) -> Path:
        """What the job said."""
        return files_of(self.spec)[1]


@dataclass(frozen=True)
class JobProgress:
    """Where a living job stands: a line, counts (0 of 0 for none), and whether it stands still."""

    text: str
    done: int = 0
    total: int = 0
    stalled: bool = False


def read(record: Path) -> Job:
    """A job as it stands in its record, taken for ended; raises `RecordError` for a foreign one."""
    content = records.read_json(record)
    try:
        spec = JobSpec.model_validate_json(records.dumps(content["spec"]))
        end, pid = content["end"], content["pid"]
    except (KeyError, TypeError, ValidationError) as foreign:
        raise RecordError(
            "was not written by this version of the workbench",
            where=str(record),
            mend="remove that file; runs and answers are elsewhere",
        ) from foreign
    _, log, stopped = files_of(spec)
    if end is None and stopped.exists():
        end = stopped_end(spec)
    if end is None:
        said = last_line(log) or "nothing in its log"
        vanished = WorkbenchError(
            f"the process ended without a word ({said})",
            where=spec.title,
            mend=f"start it again, what was finished is kept; its log is {log}",
        )
        end = failed_end(vanished, outcome="vanished")
    if end["outcome"] == "done":
        return Job(spec, False, pid, "done", text=end["text"], figure=end.get("figure", ""))
    cause = getattr(errors, end["kind"])(end["problem"], where=end["where"], mend=end["mend"])
    cause.exit_code = end["exit_code"]
    return Job(spec, False, pid, end["outcome"], error=cause)


def failed_end(error: WorkbenchError, outcome: str = "failed") -> dict[str, Any]:
    """How a job ended that raised `error`, for its record."""
    return {
        "outcome": outcome,
        "kind": type(error).__name__,
        "exit_code": error.exit_code,
        "problem": error.problem,
        "where": error.where,
        "mend": error.mend,
    }


def stopped_end(spec: JobSpec) -> dict[str, Any]:
    """How a job ended that was stopped, for its record."""
    return failed_end(
        RunStopped(f"{spec.title} was stopped; what was finished is kept"), outcome="stopped"
    )


def record_of(spec: JobSpec, pid: int | None = None, end: dict[str, Any] | None = None) -> bytes:
    """What a job's record holds; `end` is None until it has ended."""
    return records.encode_line({"spec": spec.model_dump(mode="json"), "pid": pid, "end": end})


def jobs_folder(runs: Path) -> Path:
    """Where the records of all jobs on a folder of runs are kept."""
    return runs / ".jobs"


def files_of(spec: JobSpec) -> tuple[Path, Path, Path]:
    """A job's record and log, and the mark that a stop was asked for."""
    folder = jobs_folder(spec.runs) / spec.experiment / spec.model
    record, log, stopped = (f"{spec.id}.{ending}" for ending in ("json", "log", "stopped"))
    return folder / record, folder / log, folder / stopped


def last_line(log: Path) -> str:
    """The last line of a log that says something, empty when there is none."""
    if not log.exists():
        return ""
    text = log.read_bytes()[-_LOG_TAIL:].decode("utf-8", "replace")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return lines[-1] if lines else ""
