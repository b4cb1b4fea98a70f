"""One response -> one verdict line: which evaluator, in which sandbox, how often."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colab_utils import records
from colab_utils.evaluators import execution_accuracy, program_value, unit_tests
from colab_utils.evaluators.judgement import Judgement, RunJob
from colab_utils.evaluators.sandbox import Sandbox
from colab_utils.evaluators.workers import Workers, imported_modules
from colab_utils.responses import Response
from colab_utils.samples import Dataset, Sample

SANITISE_SECONDS = 60.0
_RULES = {"code": unit_tests, "sql": execution_accuracy, "finance": program_value}


@dataclass(frozen=True)
class Reference:
    """What a sample's reference does: `problem` says why it fails its own evaluator, None when
    it holds; `gold` is what its gold query returns (SQL only)."""

    problem: str | None
    gold: dict[str, Any] | None = None


class Judge:
    """Judges one answer at a time for several threads; equal programs of a sample once.

    `workers` answers are judged at once. To be closed: it holds the evaluator's processes.
    """

    def __init__(self, dataset: Dataset, python: Path, box: Sandbox, workers: int) -> None:
        self.dataset = dataset
        self.workers = workers
        self.reused = 0
        self._samples = {sample.sample_id: sample for sample in dataset.samples}
        self._processes = Workers(python, box, imported_modules(_programs(dataset)))
        self._slots: queue.Queue[int] = queue.Queue()
        for slot in range(workers):
            self._slots.put(slot)
        self._done: dict[tuple[str, str], Judgement] = {}
        self._ran: dict[tuple[str, str], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *error: object) -> None:
        self._processes.close()

    @property
    def missing_modules(self) -> dict[str, str]:
        """Modules of the references that the interpreter can't import, with the reason."""
        return self._processes.missing

    def reference(self, sample: Sample) -> Reference:
        """Run a sample's reference under its own evaluator."""
        with self._slot() as slot:
            run = self._runner(sample, slot)
            if sample.task == "sql":
                database = self.dataset.database_path(sample.reference["db_id"])
                gold = execution_accuracy.gold_rows(sample.reference["gold_sql"], database, run)
                problem = gold.get("problem")
                return Reference(problem, None if problem else gold)
            if sample.task == "code":
                seconds = unit_tests.seconds_for(sample.benchmark)
                return Reference(unit_tests.reference_holds(sample.reference, seconds, run))
            return Reference(
                program_value.reference_holds(
                    sample.reference["python_solution"],
                    sample.reference["ground_truth"],
                    program_value.SECONDS,
                    run,
                )
            )

    def verdict(self, response: Response, reference: Reference) -> dict[str, Any]:
        """The verdict line of one response."""
        sample = self._samples[response.sample_id]
        began = time.monotonic()
        if response.finish_reason == "rejected":
            judgement = Judgement(False, False, "no_answer", f"rejected: {response.error}", None)
        elif reference.problem is not None:
            why = f"the reference fails: {reference.problem}"
            judgement = Judgement(False, False, "reference_error", why, None)
        else:
            judgement = self._judged_once(sample, response.text, reference)
        rule = _RULES[sample.task]
        return {
            "request_id": response.request_id,
            "answer_sha256": answer_digest(response),
            "passed": judgement.passed,
            "passed_upstream": judgement.passed_upstream,
            "outcome": judgement.outcome,
            "detail": judgement.detail,
            "extracted": judgement.extracted,
            "evaluator": {"name": rule.NAME, "version": rule.VERSION},
            "seconds": round(time.monotonic() - began, 3),
            "extra": judgement.extra,
        }

    def _judged_once(self, sample: Sample, text: str, reference: Reference) -> Judgement:
        key = (sample.sample_id, text)
        with self._lock:
            known = self._done.get(key)
            if known is not None:
                self.reused += 1
                return replace(known, extra={**known.extra, "equal_to_another_answer": True})
        with self._slot() as slot:
            judgement = self._judge(sample, text, reference, slot)
        with self._lock:
            self._done[key] = judgement
        return judgement

    def _judge(self, sample: Sample, text: str, reference: Reference, slot: int) -> Judgement:
        run = self._once(sample, self._runner(sample, slot))
        if sample.task == "code":
            seconds = unit_tests.seconds_for(sample.benchmark)

            def sanitise(reply: str, entry_point: str) -> str | None:
                job = {"kind": "sanitise", "text": reply, "entry_point": entry_point}
                program: str | None = run(job, SANITISE_SECONDS).get("program")
                return program

            return unit_tests.judge(text, sample.reference, seconds, run, sanitise)
        if sample.task == "sql":
            assert reference.gold is not None
            return execution_accuracy.judge(
                text,
                sample.reference["gold_sql"],
                reference.gold,
                self.dataset.database_path(sample.reference["db_id"]),
                execution_accuracy.SECONDS,
                run,
            )
        gold_value = sample.reference["ground_truth"]
        return program_value.judge(text, gold_value, program_value.SECONDS, run)

    def _runner(self, sample: Sample, slot: int) -> RunJob:
        readable: tuple[Path, ...] = ()
        if sample.task == "sql":
            readable = (self.dataset.database_path(sample.reference["db_id"]).absolute(),)

        def run(job: dict[str, Any], seconds: float) -> dict[str, Any]:
            return self._processes.run(job, seconds=seconds, slot=slot, readable=readable)

        return run

    def _once(self, sample: Sample, run: RunJob) -> RunJob:
        """`run` that gives the result it gave before to an equal job of the same sample."""

        def run_once(job: dict[str, Any], seconds: float) -> dict[str, Any]:
            key = (sample.sample_id, records.sha256_json(job))
            with self._lock:
                known = self._ran.get(key)
                if known is not None:
                    self.reused += 1
                    return known
            result = run(job, seconds)
            with self._lock:
                self._ran[key] = result
            return result

        return run_once

    @contextmanager
    def _slot(self) -> Iterator[int]:
        slot = self._slots.get()
        try:
            yield slot
        finally:
            self._slots.put(slot)


def answer_digest(response: Response) -> str:
    """Digest of what a verdict depends on in a response."""
    return records.sha256_json([response.finish_reason, response.error, response.text])


def _programs(dataset: Dataset) -> Iterator[str]:
    """The reviewed programs of a data set, whose libraries answers will need too."""
    for sample in dataset.samples:
        reference = sample.reference
        if sample.task == "code":
            yield reference["code_prompt"] + reference["canonical_solution"]
            yield reference["test"]
        elif sample.task == "finance":
            yield reference["python_solution"]
