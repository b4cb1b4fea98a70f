"""What a job's own process does: one verb of the workbench, told through standard input.

Started by `jobs.start` in a session of its own. What the verb says goes to standard output, the
job's log; how it ended goes to the job's record.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any

from colab_utils import records, workbench
from colab_utils.errors import RunStopped, WorkbenchError
from colab_utils.job_record import JobSpec, failed_end, files_of, record_of, stopped_end


def work(spec: JobSpec) -> dict[str, Any]:
    """Do what a job is told, in this process; returns what came out: `text`, maybe `figure`.

    Environments that are missing are made first. Raises what the verb raises.
    """
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        print(text, flush=True)

    folder = str(spec.run_dir)
    if spec.action in ("smoke", "full_run"):
        values: dict[str, Any] = {
            "experiment": spec.experiment_file,
            "model": spec.model,
            "runs": str(spec.runs),
            "cache": str(spec.cache),
            "engine_python": spec.engine_python,
            "mirror": spec.mirror,
        }
        if not spec.engine_python:
            workbench.setup(spec.experiment_file, model=spec.model, cache=str(spec.cache), say=say)
        if spec.action == "smoke":
            workbench.smoke(say=say, **values)
        else:
            workbench.full_run(
                say=say, **values, require_smoke=spec.require_smoke, replay=spec.replay
            )
        return {"text": said[-1]}
    if spec.action == "score":
        if not spec.evaluator_python:
            workbench.setup_evaluator(say=say)
        result = workbench.score(
            say=say,
            run_dir=folder,
            evaluator_python=spec.evaluator_python,
            allow_weak_sandbox=spec.allow_weak_sandbox,
        )
        return {"text": str(result)}
    report = workbench.report(say=say, run_dirs=[folder])
    return {"text": f"report: {report.html}", "figure": str(report.figure_png)}


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """The job's process; its exit code is the error's."""
    # A kernel ignores SIGINT between cells and its children inherit that, so SIGTERM is the word.
    signal.signal(signal.SIGTERM, _interrupt)
    message = records.loads(sys.stdin.buffer.read(), where="what the job is told")
    spec = JobSpec.model_validate_json(records.dumps(message["spec"]))
    if message["token"]:
        os.environ["HF_TOKEN"] = message["token"]
    record, log, _ = files_of(spec)
    records.write_atomic(record, record_of(spec, os.getpid()))
    end: dict[str, Any]
    code = 0
    try:
        end = {"outcome": "done", **work(spec)}
    except (KeyboardInterrupt, RunStopped):
        end, code = stopped_end(spec), RunStopped.exit_code
    except WorkbenchError as error:
        print(error)
        end, code = failed_end(error), error.exit_code
    except Exception as error:
        # A fault of ours: the traceback is for the log, the reader gets a sentence.
        traceback.print_exc()
        fault = WorkbenchError(
            f"{type(error).__name__}: {error}",
            where=spec.title,
            mend=f"this is a fault of the workbench, the traceback is in {log}",
        )
        end, code = failed_end(fault), fault.exit_code
    # What follows must not be cut short by a second wish to stop.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    records.write_atomic(record, record_of(spec, os.getpid(), end))
    return code


if __name__ == "__main__":
    sys.exit(main())
