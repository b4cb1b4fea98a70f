"""Run directory -> verdicts: references first, then every answer, each in the sandbox.

A scoring lies in `scoring/<first 12 hex of the evaluator fingerprint>/`. Verdicts are
appended to `verdicts.part.jsonl` as they come, so that a killed scoring goes on where it was;
`verdicts.jsonl` and, last, `scoring.json` are written when all are there. Answers are only
read.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colab_utils import checkpoints, records
from colab_utils.errors import ParameterError, ScoringError
from colab_utils.evaluators import execution_accuracy, program_value, unit_tests
from colab_utils.evaluators.extraction import EXTRACTION_VERSION
from colab_utils.evaluators.probing import probe
from colab_utils.evaluators.sandbox import Sandbox
from colab_utils.heartbeat import now
from colab_utils.interpreters import describe_interpreter
from colab_utils.judging import SANITISE_SECONDS, Judge, Reference, answer_digest
from colab_utils.responses import Response, parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import Dataset
from colab_utils.verdicts import Scoring, load_scorings

Progress = Callable[["ScoringProgress"], None]

_SANITISER = "bigcodebench"


@dataclass(frozen=True)
class ScoringProgress:
    """Where a scoring stands: `phase` is `references` or `answers`."""

    phase: str
    done: int
    total: int
    passed: int
    seconds_left: float | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", left: {self.seconds_left:.0f} s"
        return f"judging {self.phase}: {self.done}/{self.total}, {self.passed} passed{left}"


@dataclass(frozen=True)
class ScoringResult:
    """One completed scoring, its folder, and whether it had been done before."""

    scoring: Scoring
    folder: Path
    already_done: bool

    @property
    def verdicts_path(self) -> Path:
        """The verdicts, one line a request."""
        return self.folder / "verdicts.jsonl"

    def __str__(self) -> str:
        verdicts = self.scoring.verdicts
        passed = sum(verdict.passed for verdict in verdicts)
        upstream = sum(verdict.passed_upstream for verdict in verdicts)
        outcomes = Counter(verdict.outcome for verdict in verdicts)
        parts = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
        done = "had been scored before" if self.already_done else "are scored"
        return (
            f"{len(verdicts)} answers {done}: {passed} passed ({upstream} by upstream's own "
            f"extraction); {parts}; {len(self.scoring.excluded)} samples excluded; "
            f"sandbox {self.scoring.sandbox['level']}: {self.verdicts_path}"
        )


def latest_scoring(run_dir: Path) -> ScoringResult | None:
    """The newest completed scoring of a run directory, None when there is none."""
    done = [scoring for scoring in load_scorings(run_dir) if scoring.completed_at is not None]
    if not done:
        return None
    newest = max(
        done, key=lambda scoring: (str(scoring.completed_at), scoring.evaluator_fingerprint)
    )
    return ScoringResult(newest, _folder(run_dir, newest.evaluator_fingerprint), True)


def score(
    run_dir: Path,
    *,
    dataset: Dataset,
    evaluator_python: Path,
    allow_weak_sandbox: bool = False,
    allow_incomplete: bool = False,
    workers: int | None = None,
    progress: Progress = lambda state: None,
) -> ScoringResult:
    """Judge every answer of a run; does nothing when the same evaluator has judged them.

    Raises `ParameterError` for fewer than one worker; `ScoringError` when the directory holds no
    answers or those of another data set, when answers are missing and `allow_incomplete` is
    False, or when this evaluator's folder holds verdicts on other answers; `SandboxUnavailable`
    when only the weak sandbox can be had and `allow_weak_sandbox` is False, or when programs
    can't import there; `EvaluatorFailed` when a worker can't be run.
    """
    if workers is not None and workers < 1:
        raise ParameterError(
            f"is {workers}", where="workers", mend="give 1 or more, or leave it out"
        )
    responses, digest = _answers(run_dir, dataset, allow_incomplete)
    packages = describe_interpreter(evaluator_python).packages
    if _SANITISER not in packages and any(r.task == "code" for r in responses):
        raise ScoringError(
            f"lacks {_SANITISER}, whose sanitiser passed_upstream needs",
            where=str(evaluator_python),
            mend="run the set-up again, or name an interpreter that has it",
        )
    box = probe(evaluator_python, allow_weak=allow_weak_sandbox)
    with (
        _alone(run_dir),
        Judge(dataset, evaluator_python, box, workers or min(2, os.cpu_count() or 1)) as judge,
    ):
        return _scored(run_dir, dataset, evaluator_python, judge, box, responses, digest, progress)


def _scored(
    run_dir: Path,
    dataset: Dataset,
    evaluator_python: Path,
    judge: Judge,
    box: Sandbox,
    responses: list[Response],
    digest: str,
    progress: Progress,
) -> ScoringResult:
    settings = _evaluator_settings(evaluator_python, box)
    references = _references(run_dir, judge, settings, progress)
    excluded = {name: r.problem for name, r in references.items() if r.problem is not None}
    settings["excluded"] = sorted(excluded)
    fingerprint = records.sha256_json(settings)
    folder = _folder(run_dir, fingerprint)
    expected = {request.request_id for request in dataset_requests(run_dir, dataset)}
    missing = sorted(expected - {response.request_id for response in responses})
    earlier = next(
        (s for s in load_scorings(run_dir) if s.evaluator_fingerprint == fingerprint), None
    )
    if earlier is not None and earlier.responses_sha256 == digest:
        return ScoringResult(earlier, folder, True)
    if earlier is not None and not earlier.incomplete:
        raise ScoringError(
            "holds this evaluator's verdicts on other answers",
            where=str(folder),
            mend="move that folder away to score these answers",
        )
    verdicts = _verdicts(folder, responses, judge, references, progress)
    ordered = [verdicts[response.request_id] for response in responses]
    records.write_atomic(folder / "verdicts.jsonl", records.encode_lines(ordered))
    record = {
        "format": 1,
        "evaluator_fingerprint": fingerprint,
        "evaluator": settings,
        "sandbox": {"level": box.level, "what": box.what},
        "responses_sha256": digest,
        "dataset_sha256": dataset.manifest.sha256,
        "requests": len(responses),
        "incomplete": missing,
        "excluded": sorted(excluded),
        "excluded_because": excluded,
        "missing_modules": judge.missing_modules,
        "equal_programs": judge.reused,
        "completed": now(),
    }
    records.write_atomic(folder / "scoring.json", records.encode_line(record))
    (folder / "verdicts.part.jsonl").unlink(missing_ok=True)
    scoring = next(s for s in load_scorings(run_dir) if s.evaluator_fingerprint == fingerprint)
    return ScoringResult(scoring, folder, False)


def dataset_requests(run_dir: Path, dataset: Dataset) -> Sequence[Any]:
    """The requests that a run of this kind has."""
    run = RunDirectory(run_dir).read_run()
    smoke = run is not None and run["kind"] == "smoke"
    return dataset.smoke_requests() if smoke else dataset.requests()


def _answers(run_dir: Path, dataset: Dataset, allow_incomplete: bool) -> tuple[list[Response], str]:
    directory = RunDirectory(run_dir)
    run = directory.read_run()
    if run is None:
        raise ScoringError("holds no run", where=str(run_dir), mend="name a run directory")
    if run["run"]["dataset_sha256"] != dataset.manifest.sha256:
        raise ScoringError(
            f"answers another data set than {dataset.manifest.name} as it is now",
            where=str(run_dir),
            mend="restore the data set that the run pinned",
        )
    if directory.responses.exists():
        data = records.read_bytes(directory.responses)
    elif allow_incomplete:
        ids = [request.request_id for request in dataset_requests(run_dir, dataset)]
        finished = checkpoints.verify(directory.chunks, ids).finished
        data = b"".join(finished[chunk].read_bytes() for chunk in sorted(finished))
    else:
        raise ScoringError(
            "is not complete, so some answers are missing",
            where=str(run_dir),
            mend="let the run end, or score what is there (allow_incomplete)",
        )
    digest = records.sha256_bytes(data)
    completed = run.get("completed") or {}
    if directory.responses.exists() and completed.get("responses_sha256") != digest:
        raise ScoringError(
            "is not what the run wrote (another sha256 than run.json says)",
            where=str(directory.responses),
            mend="restore the file; a start of the run makes it again from its chunks",
        )
    responses = parse_responses(data, where=str(directory.responses))
    known = {request.request_id for request in dataset_requests(run_dir, dataset)}
    for response in responses:
        if response.request_id not in known:
            raise ScoringError(
                f"answers {response.request_id!r}, which the data set does not have",
                where=str(directory.responses),
            )
    if not responses:
        raise ScoringError("holds no answers", where=str(run_dir))
    return responses, digest


def _evaluator_settings(python: Path, box: Sandbox) -> dict[str, Any]:
    described = describe_interpreter(python)
    return {
        "rules": {
            module.NAME: {"version": module.VERSION, "seconds": module.SECONDS}
            for module in (unit_tests, execution_accuracy, program_value)
        },
        "embedded_code_seconds": unit_tests.EMBEDDED_SECONDS,
        "gold_query_seconds": execution_accuracy.GOLD_SECONDS,
        "sanitise_seconds": SANITISE_SECONDS,
        "extraction": EXTRACTION_VERSION,
        "python": described.version,
        "packages_digest": described.digest,
        "code_sanitiser": f"{_SANITISER} {described.packages.get(_SANITISER, 'none')}",
        "sandbox": {"level": box.level, "limits": vars(box.limits)},
    }


def _references(
    run_dir: Path, judge: Judge, settings: dict[str, Any], progress: Progress
) -> dict[str, Reference]:
    """Every sample's reference by sample id, run once an evaluator and data set.

    What was found is appended line by line, so that a killed scoring goes on where it was.
    """
    samples = judge.dataset.samples
    databases = sorted({s.reference["db_id"] for s in samples if s.task == "sql"})
    content = {
        "dataset": judge.dataset.manifest.sha256,
        "databases": {
            name: records.sha256_file(judge.dataset.database_path(name)) for name in databases
        },
    }
    key = records.sha256_json({**settings, **content})[:12]
    store = run_dir / "scoring" / f"references.{key}.jsonl"
    known = {
        line["sample_id"]: line
        for line in _whole_lines(store)
        if {"sample_id", "problem", "gold"} <= line.keys()
    }
    todo = [sample for sample in samples if sample.sample_id not in known]
    meter = _Meter("references", len(samples), len(samples) - len(todo), progress)
    meter.passed = sum(line["problem"] is None for line in known.values())
    for sample, found in _parallel(judge, judge.reference, todo):
        line = {"sample_id": sample.sample_id, "problem": found.problem, "gold": found.gold}
        records.append_line(store, line)
        known[sample.sample_id] = line
        meter.one_more(found.problem is None)
    return {name: Reference(line["problem"], line["gold"]) for name, line in known.items()}


def _verdicts(
    folder: Path,
    responses: list[Response],
    judge: Judge,
    references: dict[str, Reference],
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """All verdicts by request id; those that an earlier scoring left on equal answers are kept.

    An earlier one was killed, or judged what there was of a run that has gone on since.
    """
    part = folder / "verdicts.part.jsonl"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise records.unwritable(folder, error) from error
    answers = {response.request_id: answer_digest(response) for response in responses}
    left = [*_whole_lines(folder / "verdicts.jsonl"), *_whole_lines(part)]
    verdicts = {
        line["request_id"]: line
        for line in left
        if line.get("request_id") in answers
        and answers[line["request_id"]] == line.get("answer_sha256")
    }
    todo = [response for response in responses if response.request_id not in verdicts]
    meter = _Meter("answers", len(responses), len(verdicts), progress)
    meter.passed = sum(verdict["passed"] for verdict in verdicts.values())

    def verdict_of(response: Response) -> dict[str, Any]:
        return judge.verdict(response, references[response.sample_id])

    for response, verdict in _parallel(judge, verdict_of, todo):
        records.append_line(part, verdict)
        verdicts[response.request_id] = verdict
        meter.one_more(verdict["passed"])
    return verdicts


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file that is appended to; a last line that a kill has torn is cut off."""
    if not path.exists():
        return []
    data = records.read_bytes(path)
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        records.write_atomic(path, whole)
    return [record for _, record in records.parse_lines(whole, where=str(path))]


@contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run's scorings; raises `ScoringError` when another process does."""
    path = run_dir / "scoring" / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise records.unwritable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ScoringError(
            "is being scored by another process",
            where=str(run_dir),
            mend="wait until that scoring has ended",
        ) from error
    finally:
        os.close(descriptor)


def _parallel(
    judge: Judge, work: Callable[[Any], Any], items: Sequence[Any]
) -> Iterator[tuple[Any, Any]]:
    """(item, result) in order, several at once; an interrupt waits for what is running only."""
    pool = ThreadPoolExecutor(judge.workers)
    try:
        futures: list[Future[Any]] = [pool.submit(work, item) for item in items]
        for item, future in zip(items, futures, strict=True):
            yield item, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Meter:
    def __init__(self, phase: str, total: int, done: int, progress: Progress) -> None:
        self.passed = 0
        self._phase, self._total, self._done, self._progress = phase, total, done, progress
        self._before, self._began = done, time.monotonic()

    def one_more(self, passed: bool) -> None:
        self._done += 1
        self.passed += passed
        each = (time.monotonic() - self._began) / (self._done - self._before)
        left = each * (self._total - self._done)
        self._progress(ScoringProgress(self._phase, self._done, self._total, self.passed, left))


def _folder(run_dir: Path, fingerprint: str) -> Path:
    return run_dir / "scoring" / fingerprint[:12]
