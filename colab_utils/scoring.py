"""Run directory -> verdicts: references first, then every answer, each in the sandbox.

A scoring lies in `scoring/<first 12 hex of the evaluator fingerprint>/`. Verdicts are
appended to `verdicts.part.jsonl` as they come, so that a killed scoring goes on where it was;
`verdicts.jsonl` and, last, `scoring.json` are written when all are there. Answers are only
read.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colab_utils import records
from colab_utils.answers import dataset_requests, load_answers
from colab_utils.errors import ParameterError, ScoringError
from colab_utils.evaluators import execution_accuracy, program_value, unit_tests
from colab_utils.evaluators.extraction import EXTRACTION_VERSION
from colab_utils.evaluators.probing import probe
from colab_utils.evaluators.sandbox import Sandbox
from colab_utils.flips import judge_changed
from colab_utils.heartbeat import now
from colab_utils.interpreters import describe_interpreter
from colab_utils.judging import SANITISE_SECONDS, Judge, Reference, answer_digest
from colab_utils.responses import Response
from colab_utils.samples import Dataset
from colab_utils.scoring_progress import Meter, Progress
from colab_utils.verdicts import Scoring, load_scorings

_SANITISER = "bigcodebench"


@dataclass(frozen=True)
class PartialScoring:
    """Verdict lines of the chosen answers; a complete scoring takes them over."""

    verdicts: list[dict[str, Any]]
    folder: Path

    def __str__(self) -> str:
        passed = sum(verdict["passed"] for verdict in self.verdicts)
        return f"{len(self.verdicts)} answers judged, {passed} passed; kept in {self.folder}"


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
    with _judging(
        run_dir, dataset, evaluator_python, allow_weak_sandbox, allow_incomplete, workers, progress
    ) as session:
        earlier = session.earlier()
        if earlier is not None and earlier.responses_sha256 == session.digest:
            judged = {v.request_id: v.model_dump() for v in earlier.verdicts}
            judge_changed(run_dir, session.folder, session.verdict_of, judged)
            return ScoringResult(earlier, session.folder, True)
        if earlier is not None and not earlier.incomplete:
            raise ScoringError(
                "holds this evaluator's verdicts on other answers",
                where=str(session.folder),
                mend="move that folder away to score these answers",
            )
        verdicts = _verdicts(session, session.responses, progress)
        ordered = [verdicts[response.request_id] for response in session.responses]
        lines = records.encode_lines(ordered)
        records.write_atomic(session.folder / "verdicts.jsonl", lines)
        record = records.encode_line(session.record(records.sha256_bytes(lines)))
        records.write_atomic(session.folder / "scoring.json", record)
        (session.folder / "verdicts.part.jsonl").unlink(missing_ok=True)
        judge_changed(run_dir, session.folder, session.verdict_of, verdicts)
        scoring = session.earlier()
        assert scoring is not None
        return ScoringResult(scoring, session.folder, False)


def score_part(
    run_dir: Path,
    only: str,
    *,
    dataset: Dataset,
    evaluator_python: Path,
    allow_weak_sandbox: bool = False,
    workers: int | None = None,
    progress: Progress = lambda state: None,
) -> PartialScoring:
    """Judge only the answers of one task, condition, sample or request.

    Takes what a run has answered so far. Raises what `score` raises, and `ParameterError` when
    `only` names nothing that was answered.
    """
    with _judging(
        run_dir, dataset, evaluator_python, allow_weak_sandbox, True, workers, progress
    ) as session:
        chosen = [
            r for r in session.responses if only in (r.task, r.condition, r.sample_id, r.request_id)
        ]
        if not chosen:
            raise ParameterError(
                f"{only!r} is no task, condition, sample or request that was answered",
                where="only",
                mend=f"give for instance {session.responses[0].request_id!r}",
            )
        verdicts = _verdicts(session, chosen, progress)
        return PartialScoring([verdicts[r.request_id] for r in chosen], session.folder)


def verify_references(
    folder: Path,
    *,
    dataset: Dataset,
    evaluator_python: Path,
    allow_weak_sandbox: bool = False,
    workers: int | None = None,
    progress: Progress = lambda state: None,
) -> dict[str, Reference]:
    """Run every reference of a data set; what was found is kept in `folder`.

    Raises what `score` raises of the sandbox and the interpreter.
    """
    box = probe(evaluator_python, allow_weak=allow_weak_sandbox)
    with Judge(dataset, evaluator_python, box, _workers(workers)) as judge:
        return _references(folder, judge, _evaluator_settings(evaluator_python, box), progress)


@dataclass(frozen=True)
class _Session:
    """One scoring at work: what it judges, by whom, and where its verdicts lie."""

    run_dir: Path
    responses: list[Response]
    digest: str
    judge: Judge
    box: Sandbox
    settings: dict[str, Any]
    references: dict[str, Reference]

    @property
    def excluded(self) -> dict[str, str]:
        """Samples whose reference fails, with the reason."""
        return {n: r.problem for n, r in self.references.items() if r.problem is not None}

    @property
    def fingerprint(self) -> str:
        """The evaluator fingerprint."""
        return records.sha256_json({**self.settings, "excluded": sorted(self.excluded)})

    @property
    def folder(self) -> Path:
        """Where the verdicts under this fingerprint lie."""
        return _folder(self.run_dir, self.fingerprint)

    def verdict_of(self, response: Response) -> dict[str, Any]:
        """The verdict on one answer."""
        return self.judge.verdict(response, self.references[response.sample_id])

    def earlier(self) -> Scoring | None:
        """The completed scoring under this fingerprint, if there is one."""
        scorings = load_scorings(self.run_dir)
        return next((s for s in scorings if s.evaluator_fingerprint == self.fingerprint), None)

    def record(self, verdicts_sha256: str) -> dict[str, Any]:
        """The content of `scoring.json`."""
        asked = {r.request_id for r in dataset_requests(self.run_dir, self.judge.dataset)}
        return {
            "format": 1,
            "evaluator_fingerprint": self.fingerprint,
            "evaluator": {**self.settings, "excluded": sorted(self.excluded)},
            "sandbox": {"level": self.box.level, "what": self.box.what},
            "responses_sha256": self.digest,
            "verdicts_sha256": verdicts_sha256,
            "dataset_sha256": self.judge.dataset.manifest.sha256,
            "requests": len(self.responses),
            "incomplete": sorted(asked - {r.request_id for r in self.responses}),
            "excluded": sorted(self.excluded),
            "excluded_because": self.excluded,
            "missing_modules": self.judge.missing_modules,
            "equal_programs": self.judge.reused,
            "completed": now(),
        }


@contextmanager
def _judging(
    run_dir: Path,
    dataset: Dataset,
    evaluator_python: Path,
    allow_weak_sandbox: bool,
    allow_incomplete: bool,
    workers: int | None,
    progress: Progress,
) -> Iterator[_Session]:
    """Check everything, hold the run's scoring lock, run the references."""
    count = _workers(workers)
    responses, digest = load_answers(run_dir, dataset, allow_incomplete)
    packages = describe_interpreter(evaluator_python).packages
    if _SANITISER not in packages and any(r.task == "code" for r in responses):
        raise ScoringError(
            f"lacks {_SANITISER}, whose sanitiser passed_upstream needs",
            where=str(evaluator_python),
            mend="run the set-up again, or name an interpreter that has it",
        )
    box = probe(evaluator_python, allow_weak=allow_weak_sandbox)
    with _alone(run_dir), Judge(dataset, evaluator_python, box, count) as judge:
        settings = _evaluator_settings(evaluator_python, box)
        references = _references(run_dir / "scoring", judge, settings, progress)
        yield _Session(run_dir, responses, digest, judge, box, settings, references)


def _workers(given: int | None) -> int:
    if given is not None and given < 1:
        raise ParameterError(f"is {given}", where="workers", mend="give 1 or more, or leave it out")
    return given or min(2, os.cpu_count() or 1)


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
    folder: Path, judge: Judge, settings: dict[str, Any], progress: Progress
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
    records.make_folder(folder)
    store = folder / f"references.{key}.jsonl"
    known = {
        line["sample_id"]: line
        for line in records.read_appended(store)
        if {"sample_id", "problem", "gold"} <= line.keys()
    }
    todo = [sample for sample in samples if sample.sample_id not in known]
    meter = Meter("references", len(samples), len(samples) - len(todo), progress)
    meter.passed = sum(line["problem"] is None for line in known.values())
    if not todo:
        return _as_references(known)
    for sample, found in _parallel(judge, judge.reference, todo):
        line = {"sample_id": sample.sample_id, "problem": found.problem, "gold": found.gold}
        records.append_line(store, line)
        known[sample.sample_id] = line
        meter.passed += found.problem is None
        meter.one_more()
    return _as_references(known)


def _as_references(lines: dict[str, dict[str, Any]]) -> dict[str, Reference]:
    return {name: Reference(line["problem"], line["gold"]) for name, line in lines.items()}


def _verdicts(
    session: _Session, responses: list[Response], progress: Progress
) -> dict[str, dict[str, Any]]:
    """All verdicts by request id; those that an earlier scoring left on equal answers are kept.

    An earlier one was killed, or judged what there was of a run that has gone on since.
    """
    folder, judge = session.folder, session.judge
    part = folder / "verdicts.part.jsonl"
    records.make_folder(folder)
    answers = {response.request_id: answer_digest(response) for response in responses}
    left = [*records.read_appended(folder / "verdicts.jsonl"), *records.read_appended(part)]
    verdicts = {
        line["request_id"]: line
        for line in left
        if line.get("request_id") in answers
        and answers[line["request_id"]] == line.get("answer_sha256")
    }
    todo = [response for response in responses if response.request_id not in verdicts]
    meter = Meter("answers", len(responses), len(verdicts), progress)
    for response in responses:
        if response.request_id in verdicts:
            meter.count(verdicts[response.request_id]["passed"], response, verdicts)
    for response, verdict in _parallel(judge, session.verdict_of, todo):
        records.append_line(part, verdict)
        verdicts[response.request_id] = verdict
        meter.count(verdict["passed"], response, verdicts)
        meter.one_more()
    return verdicts


@contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run's scorings; raises `ScoringError` when another process does."""
    path = run_dir / "scoring" / "lock"
    records.make_folder(path.parent)
    try:
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
    """(item, result) in order, several at once; what runs at an interrupt ends with the judge."""
    pool = ThreadPoolExecutor(judge.workers)
    try:
        futures: list[Future[Any]] = [pool.submit(work, item) for item in items]
        for item, future in zip(items, futures, strict=True):
            yield item, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _folder(run_dir: Path, fingerprint: str) -> Path:
    return run_dir / "scoring" / fingerprint[:12]
