"""A list of models through the project's notebooks: smoke, full run, scoring, one joint report.

Each notebook is run by papermill in a process of its own. A model that fails is recorded with
its cause and the next one starts. What is done is read from the run directories, so that a batch
started again goes on where it was, whatever ended it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colab_utils import batch_plan, colab, launch, notebook_process, records, weights, workbench
from colab_utils.batch_plan import PHASES, Job, Phase, Plan, Record, next_phase
from colab_utils.batch_table import LiveTable, Row
from colab_utils.errors import BatchFailed, RunnerBusy, RunStopped, WorkbenchError
from colab_utils.heartbeat import now
from colab_utils.lock import locked
from colab_utils.mirror_hub import HUB
from colab_utils.mirror_ledger import MirrorReader
from colab_utils.notebooks import failure_in
from colab_utils.parameters import BatchParameters, checked
from colab_utils.progress import PLAIN
from colab_utils.run_directory import RunDirectory, RunStatus

Say = Callable[[str], None]
_POLL_SECONDS = 0.5
_NOTEBOOK: dict[Phase, str] = {"smoke": "smoke", "full": "full_run", "scoring": "scoring"}


@dataclass(frozen=True)
class ModelResult:
    """How one model ended: `answers` of `requests` are there, `cause` is a failure's sentence.

    `copies` says which of the full run's files are safe on its mirror, empty without one.
    """

    model: str
    state: str
    smoke_passed: bool
    answers: int
    requests: int
    run_dir: Path
    cause: str
    copies: str = ""

    def __str__(self) -> str:
        smoke = "smoke passed" if self.smoke_passed else "smoke not passed"
        answers = f"{self.answers} of {self.requests} answers" if self.requests else "no answers"
        text = f"{self.state:8}{self.model}: {smoke}, {answers}, {self.run_dir}"
        return "\n        ".join(filter(None, (text, self.cause, self.copies)))


@dataclass(frozen=True)
class BatchResult:
    """The summary. `report` is the page on the models that are done, None when there is none."""

    experiment: str
    models: tuple[ModelResult, ...]
    report: Path | None
    report_cause: str

    @property
    def missing(self) -> list[str]:
        """Models that are not done, so that no report covers them."""
        return [result.model for result in self.models if result.state != "done"]

    def __str__(self) -> str:
        done = len(self.models) - len(self.missing)
        lines = [f"Batch {self.experiment}: {done} of {len(self.models)} models are done."]
        lines += [str(result) for result in self.models]
        lines.append(f"report  {self.report or self.report_cause}")
        if self.missing:
            lines.append(f"        without {', '.join(self.missing)}: not complete and scored")
        return "\n".join(lines)


def batch(say: Say = print, **values: Any) -> BatchResult:
    """Run every model of a list to its scoring, then make the joint report.

    Takes the fields of `BatchParameters`, all checked before anything starts. An interrupt stops
    the running model's engine; a killed batch leaves it running and the next one waits for it.
    Raises `RunnerBusy` while another batch works on the experiment, `RunStopped` after an
    interrupt, and, once the summary is said, `BatchFailed` unless all models are done.
    """
    parameters = checked(BatchParameters, values)
    plan = batch_plan.make_plan(parameters, chunk_size=workbench.CHUNK_SIZE["full"])
    records.make_folder(plan.folder)
    with _alone(plan):
        workbench.setup(parameters.experiment, say=say)
        workbench.setup_evaluator(say=say)
        batch_plan.require_mirror(plan, parameters.mirror)
        with LiveTable() as table:
            result = _Batch(plan, parameters, table, say).run()
    say(str(result))
    if result.missing or result.report is None:
        done = len(result.models) - len(result.missing)
        raise BatchFailed(
            f"{done} of {len(result.models)} models are done"
            + ("" if result.report else " and there is no report"),
            where=f"batch {result.experiment}",
            mend="mend the causes above and start the same batch again: it does what is not done",
        )
    return result


@contextmanager
def _alone(plan: Plan) -> Iterator[None]:
    """One batch at a time on an experiment."""
    directory = RunDirectory(plan.folder)
    holder = directory.runner()
    if holder is not None:
        raise RunnerBusy(
            f"another batch is going on (process {holder.get('pid', 'unknown')} on "
            f"{holder.get('host', 'unknown')} since {holder.get('since', 'unknown')})",
            where=str(plan.folder),
            mend="let it end, or end it by SIGTERM first",
        )
    with locked(directory):
        yield


class _Batch:
    """One start of a batch, which holds the experiment's batch lock."""

    def __init__(self, plan: Plan, parameters: BatchParameters, table: LiveTable, say: Say) -> None:
        self._plan = plan
        self._parameters = parameters
        self._table = table
        self._say = say
        self._record = Record(plan.folder)
        self._states = {job.name: "waiting" for job in plan.jobs}
        self._causes: dict[str, str] = {}
        # Directories of runs that go on, and since when their signs of life count.
        self._watched: dict[str, tuple[RunDirectory, str]] = {}
        self._token: str | None = None

    def run(self) -> BatchResult:
        """Go through the list; raises `RunStopped` after an interrupt."""
        hub = any(job.model.distribution is None for job in self._plan.jobs)
        if hub or self._parameters.mirror.startswith(HUB):
            # A kernel that papermill starts can't ask Colab for it.
            self._token = colab.hub_token()
        try:
            for job in self._plan.jobs:
                if self._record.last(job.name).get("state") not in ("done", "waiting"):
                    self._record.write(job.name, "waiting")
            self._wait_for_others()
            for job in self._plan.jobs:
                self._run_model(job)
            page, cause = self._report()
        except KeyboardInterrupt:
            raise RunStopped(
                "the batch was stopped; what is finished is kept",
                mend="start the same batch again: it goes on where it was",
            ) from None
        return BatchResult(
            self._plan.experiment.name, tuple(map(self._result, self._plan.jobs)), page, cause
        )

    def _run_model(self, job: Job) -> None:
        try:
            batch_plan.restore(self._plan, job, self._parameters.mirror, self._say)
            phases = set()
            while (phase := next_phase(self._plan, job)) is not None:
                phases.add(phase)
                self._run_phase(job, phase)
            if "full" not in phases:
                batch_plan.copy(self._plan, job, self._parameters.mirror)
            self._enter(job, "done")
            self._free(job)
        except WorkbenchError as error:
            self._enter(job, "failed", cause=str(error))
        except KeyboardInterrupt:
            self._enter(job, "waiting", cause=f"stopped on request in {self._states[job.name]}")
            raise

    def _run_phase(self, job: Job, phase: Phase) -> None:
        if phase != "scoring":
            weights.require_room(job.model, job.weights)
        output = batch_plan.new_notebook(self._plan, job.name, phase)
        self._enter(job, phase, notebook=output.name)
        directory = job.directory(phase)
        if phase != "scoring":
            self._watched[job.name] = (directory, now())
        try:
            code = self._run_notebook(
                _NOTEBOOK[phase], output, self._notebook_parameters(job, phase), directory
            )
        finally:
            self._watched.clear()
        # Not the exit code: a notebook that was killed at its end may have done its work, and
        # one that did it may end with an error that must be seen (copies that contradict it).
        following = next_phase(self._plan, job)
        undone = following is not None and PHASES.index(following) <= PHASES.index(phase)
        if undone or failure_in(output) is not None:
            raise notebook_process.failure(output, code)

    def _run_notebook(
        self, name: str, output: Path, parameters: dict[str, Any], directory: RunDirectory | None
    ) -> int:
        """The process's exit code, once it has ended and no engine works in `directory`."""
        environment = {key: text for key, text in os.environ.items() if key != "HF_TOKEN"}
        if self._token and name in ("smoke", "full_run"):
            environment["HF_TOKEN"] = self._token
        run_dir = None if directory is None else directory.path
        process = notebook_process.start(
            name,
            output,
            parameters,
            environment=environment | {PLAIN: "1"},
            note={"notebook": output.name, "run_dir": None if run_dir is None else str(run_dir)},
        )
        try:
            while process.poll() is None or (directory and directory.runner() is not None):
                self._show()
                time.sleep(_POLL_SECONDS)
        except BaseException:
            notebook_process.stop(process.pid, run_dir)
            process.wait()
            raise
        return process.returncode

    def _notebook_parameters(self, job: Job, phase: Phase) -> dict[str, Any]:
        given = self._parameters
        if phase == "scoring":
            return {
                "RUN_DIR": str(job.full.path),
                "EVALUATOR_PYTHON": given.evaluator_python,
                "ALLOW_WEAK_SANDBOX": given.allow_weak_sandbox,
                "WORKERS": given.workers,
            }
        parameters: dict[str, Any] = {
            "EXPERIMENT": self._plan.experiment_given,
            "MODEL": job.given,
            "RUNS": str(self._plan.home.parent),
            "CACHE": str(self._plan.cache),
            "ENGINE_PYTHON": given.engine_python,
            "MIRROR": given.mirror,
        }
        if phase == "full":
            parameters |= {"CHUNK_SIZE": self._plan.chunk_size, "REPLAY": given.replay}
        return parameters

    def _wait_for_others(self) -> None:
        """Wait for what a killed batch, or another notebook, has left running: one GPU, one model.

        An interrupt stops that, as it would stop this batch's own.
        """
        known: set[Path] = set()
        note: dict[str, Any] | None = None
        going: list[RunDirectory] = []
        try:
            while True:
                note = notebook_process.at_work(self._plan.notebooks)
                going = [d for d in self._run_directories() if d.runner() is not None]
                if note is None and not going:
                    break
                self._attach(going, known)
                if note is not None and not known:
                    known.add(self._plan.notebooks)
                    self._say(f"waiting for {note.get('notebook')} of an earlier batch")
                self._show()
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            if note is not None and "pid" in note:
                run_dir = note.get("run_dir")
                notebook_process.stop(int(note["pid"]), Path(run_dir) if run_dir else None)
            for directory in going:
                launch.stop(directory.path)
            raise
        self._watched.clear()
        for job in self._plan.jobs:
            self._states[job.name] = "waiting"

    def _attach(self, going: list[RunDirectory], known: set[Path]) -> None:
        for directory in going:
            if directory.path in known:
                continue
            known.add(directory.path)
            name, kind = directory.path.parent.name, directory.path.name
            self._say(f"waiting for the {kind} run of {name}, which is going on already")
            for job in self._plan.jobs:
                if directory in (job.smoke, job.full):
                    self._watched[name] = (directory, "")
                    self._enter(job, kind, attached=True)

    def _run_directories(self) -> list[RunDirectory]:
        kinds = [path for kind in ("smoke", "full") for path in self._plan.home.glob(f"*/{kind}")]
        return [RunDirectory(path) for path in sorted(kinds)]

    def _report(self) -> tuple[Path | None, str]:
        """The page on all models that are done, and why there is none."""
        jobs = [job for job in self._plan.jobs if self._states[job.name] == "done"]
        if not jobs:
            return None, "none: no model is complete and scored"
        try:
            self._score_alike(jobs)
            folder = self._plan.home if len(jobs) > 1 else jobs[0].full.path
            page = folder / "report" / "report.html"
            covers = {job.name: list(self._scoring(job)) for job in jobs}
            last = self._record.last(None)
            if last.get("state") == "done" and last.get("covers") == covers and page.exists():
                return page, ""
            output = batch_plan.new_notebook(self._plan, self._plan.experiment.name, "report")
            self._say(f"report: {output}")
            run_dirs = [str(job.full.path) for job in jobs]
            code = self._run_notebook("report", output, {"RUN_DIRS": run_dirs}, None)
            if code != 0:
                raise notebook_process.failure(output, code)
            self._record.write(None, "done", covers=covers, notebook=output.name)
            return page, ""
        except WorkbenchError as error:
            self._record.write(None, "failed", cause=str(error))
            return None, f"failed: {error}"

    def _score_alike(self, jobs: list[Job]) -> None:
        """Score again where evaluators differ: models are compared only under one."""
        if len({self._scoring(job)[1] for job in jobs}) == 1:
            return
        for job in jobs:
            output = batch_plan.new_notebook(self._plan, job.name, "scoring")
            parameters = self._notebook_parameters(job, "scoring")
            code = self._run_notebook("scoring", output, parameters, job.full)
            if code != 0:
                raise notebook_process.failure(output, code)

    def _scoring(self, job: Job) -> tuple[str, str]:
        """Digest of the answers and fingerprint of the evaluator that judged them."""
        result = batch_plan.scored(job.full)
        assert result is not None
        return str(result.scoring.responses_sha256), result.scoring.evaluator_fingerprint

    def _free(self, job: Job) -> None:
        if not self._parameters.free_cache:
            return
        for other in self._plan.jobs:
            if other.weights == job.weights and self._states[other.name] != "done":
                self._say(f"{job.name}: the weights stay, {other.name} needs them")
                return
        try:
            freed = weights.remove_weights(job.model, self._plan.cache)
        except WorkbenchError as error:
            self._say(str(error))
            return
        if freed:
            self._say(f"{job.name}: {freed / 1e9:.2f} GB of weights removed from the cache")

    def _enter(self, job: Job, state: str, **more: Any) -> None:
        self._states[job.name] = state
        if state != "done" or self._record.last(job.name).get("state") != "done":
            self._record.write(job.name, state, **more)
        self._show()
        if state == "failed":
            self._causes[job.name] = more["cause"]
            self._say(f"{job.name}: {more['cause']}")

    def _show(self) -> None:
        rows = []
        for job in self._plan.jobs:
            watched = self._watched.get(job.name)
            status = None if watched is None else _status(*watched)
            rows.append(Row(job.name, self._states[job.name], status))
        self._table.show(rows)

    def _result(self, job: Job) -> ModelResult:
        cause = self._causes.get(job.name, "")
        try:
            passed, status = batch_plan.smoke_passed(job), job.full.status()
            answers, requests = status.done, status.total
            mirror = MirrorReader(job.full.path).state() if self._parameters.mirror else None
        except WorkbenchError:
            # A foreign file there is this model's cause already.
            passed, answers, requests, mirror = False, 0, 0, None
        return ModelResult(
            job.name, self._states[job.name], passed, answers, requests, job.full.path, cause,
            "" if mirror is None else str(mirror),
        )  # fmt: skip


def _status(directory: RunDirectory, since: str) -> RunStatus | None:
    """The run's status, None while its newest sign of life is an earlier start's."""
    status = directory.status()
    return status if status.alive or str(status.beat.get("at", "")) >= since else None
