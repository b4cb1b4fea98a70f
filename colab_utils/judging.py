"""One response -> one verdict line: which evaluator, in which sandbox, how often."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from colab_utils import records
from colab_utils.evaluators import execution_accuracy, program_value, sandbox, unit_tests
from colab_utils.evaluators.judgement import Judgement, RunJob
from colab_utils.responses import Response
from colab_utils.samples import Dataset, Sample

SANITISE_SECONDS = 60.0
_RULES = {"code": unit_tests, "sql": execution_accuracy, "finance": program_value}


class Judge:
    """Judges one answer at a time for several threads; equal programs of a sample once."""

    def __init__(self, dataset: Dataset, python: Path, box: sandbox.Sandbox, workers: int) -> None:
        self.dataset = dataset
        self.workers = workers
        self.reused = 0
        self._samples = {sample.sample_id: sample for sample in dataset.samples}
        self._python = python
        self._box = box
        self._slots: queue.Queue[int] = queue.Queue()
        for slot in range(workers):
            self._slots.put(slot)
        self._done: dict[tuple[str, str], Judgement] = {}
        self._lock = threading.Lock()

    def reference_problem(self, sample: Sample) -> str | None:
        """Why a sample's reference fails its own evaluator; None when it holds."""
        with self._slot() as slot:
            run = self._runner(sample, slot)
            if sample.task == "code":
                seconds = unit_tests.seconds_for(sample.benchmark)
                return unit_tests.reference_holds(sample.reference, seconds, run)
            if sample.task == "sql":
                database = self.dataset.database_path(sample.reference["db_id"])
                return execution_accuracy.reference_holds(
                    sample.reference["gold_sql"], database, execution_accuracy.SECONDS, run
                )
            return program_value.reference_holds(
                sample.reference["python_solution"],
                sample.reference["ground_truth"],
                program_value.SECONDS,
                run,
            )

    def verdict(self, response: Response, excluded: dict[str, str]) -> dict[str, Any]:
        """The verdict line of one response."""
        sample = self._samples[response.sample_id]
        began = time.monotonic()
        if response.finish_reason == "rejected":
            judgement = Judgement(False, False, "no_answer", f"rejected: {response.error}", None)
        elif sample.sample_id in excluded:
            why = f"the reference fails: {excluded[sample.sample_id]}"
            judgement = Judgement(False, False, "reference_error", why, None)
        else:
            judgement = self._judged_once(sample, response.text)
        rule = _RULES[sample.task]
        return {
            "request_id": response.request_id,
            "passed": judgement.passed,
            "passed_upstream": judgement.passed_upstream,
            "outcome": judgement.outcome,
            "detail": judgement.detail,
            "extracted": judgement.extracted,
            "evaluator": {"name": rule.NAME, "version": rule.VERSION},
            "seconds": round(time.monotonic() - began, 3),
            "extra": judgement.extra,
        }

    def _judged_once(self, sample: Sample, text: str) -> Judgement:
        key = (sample.sample_id, text)
        with self._lock:
            known = self._done.get(key)
            if known is not None:
                self.reused += 1
                return replace(known, extra={**known.extra, "equal_to_another_answer": True})
        with self._slot() as slot:
            judgement = self._judge(sample, text, slot)
        with self._lock:
            self._done[key] = judgement
        return judgement

    def _judge(self, sample: Sample, text: str, slot: int) -> Judgement:
        run = self._runner(sample, slot)
        if sample.task == "code":
            seconds = unit_tests.seconds_for(sample.benchmark)
            return unit_tests.judge(text, sample.reference, seconds, run, self._sanitise)
        if sample.task == "sql":
            database = self.dataset.database_path(sample.reference["db_id"])
            gold = sample.reference["gold_sql"]
            return execution_accuracy.judge(text, gold, database, execution_accuracy.SECONDS, run)
        gold_value = sample.reference["ground_truth"]
        return program_value.judge(text, gold_value, program_value.SECONDS, run)

    def _runner(self, sample: Sample, slot: int) -> RunJob:
        readable: tuple[Path, ...] = ()
        if sample.task == "sql":
            readable = (self.dataset.database_path(sample.reference["db_id"]),)

        def run(job: dict[str, Any], seconds: float) -> dict[str, Any]:
            return self._box.run(self._python, job, seconds=seconds, slot=slot, readable=readable)

        return run

    def _sanitise(self, text: str, entry_point: str) -> str | None:
        job = {"text": text, "entry_point": entry_point}
        data = self._box.call(self._python, "sanitise.py", job, seconds=SANITISE_SECONDS)
        if not data:
            return None
        program: str | None = records.loads(data, where="the sanitiser's answer")["program"]
        return program

    @contextmanager
    def _slot(self) -> Iterator[int]:
        slot = self._slots.get()
        try:
            yield slot
        finally:
            self._slots.put(slot)
