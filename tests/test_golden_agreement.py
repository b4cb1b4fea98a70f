"""Our verdicts against upstream's own, on real replies and real tasks."""

from __future__ import annotations

import ast
import gzip
import importlib
import json
import queue
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from colab_utils.evaluators import execution_accuracy, program_value, unit_tests
from colab_utils.evaluators.probing import probe
from colab_utils.evaluators.workers import Workers
from colab_utils.manifests import PROJECT

PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"
WORKERS = 2


class Pool:
    """Runs judgements two at a time, each with a sandbox user of its own."""

    def __init__(self) -> None:
        self.workers = Workers(PYTHON, probe(PYTHON, allow_weak=False))
        self.slots: queue.Queue[int] = queue.Queue()
        for slot in range(WORKERS):
            self.slots.put(slot)

    def run(self, *readable: Path):
        def run_job(job: dict, seconds: float) -> dict:
            slot = self.slots.get()
            try:
                return self.workers.run(job, seconds=seconds, slot=slot, readable=readable)
            finally:
                self.slots.put(slot)

        return run_job

    def sanitise(self, text: str, entry_point: str) -> str | None:
        job = {"kind": "sanitise", "text": text, "entry_point": entry_point}
        return self.run()(job, 60.0).get("program")

    def map(self, judge, items):
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(judge, items))


@pytest.fixture(scope="module")
def pool():
    made = Pool()
    yield made
    made.workers.close()


def lines(path: Path) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


@pytest.mark.slow
def test_finance_714_of_714(golden, pool):
    replies = lines(golden / "finance" / "pot_outputs.jsonl.gz")
    judged = pool.map(
        lambda r: program_value.judge(r["output"], r["ground_truth"], 10.0, pool.run()), replies
    )
    differ = [
        (reply["question_id"], reply["model"])
        for reply, judgement in zip(replies, judged, strict=True)
        if judgement.passed_upstream != bool(reply["upstream_acc"])
    ]
    assert (len(replies), differ) == (714, [])
    assert [j.detail for j in judged if j.passed != j.passed_upstream] == []


@pytest.mark.slow
def test_sql_351_of_351(golden, pool):
    replies = lines(golden / "bird" / "superhero_predictions.jsonl.gz")
    database = golden / "bird" / "superhero.sqlite"
    run = pool.run(database)
    gold = {
        query: execution_accuracy.gold_rows(query, database, run)
        for query in {reply["gold"] for reply in replies}
    }
    judged = pool.map(
        lambda r: execution_accuracy.judge(
            r["prediction"], r["gold"], gold[r["gold"]], database, 30.0, run
        ),
        replies,
    )
    differ = [
        (reply["question_id"], reply["model"])
        for reply, judgement in zip(replies, judged, strict=True)
        if judgement.passed_upstream != bool(reply["upstream_ex"])
    ]
    assert (len(replies), differ) == (351, [])
    # Where ours says more, the query stood in a fence, which upstream executes as it stands.
    moved = [j for j in judged if j.passed and not j.passed_upstream]
    assert len(moved) == 8 and all("block" in j.extra["found"] for j in moved)
    assert not [j for j in judged if j.passed_upstream and not j.passed]


def standard_library_tasks(golden: Path) -> list[dict]:
    """Tasks that import nothing but the standard library."""
    tasks = lines(golden / "code" / "bigcodebench_hard.jsonl.gz")
    tasks += lines(golden / "code" / "bigcodebench_even.jsonl.gz")
    chosen = {}
    for task in tasks:
        libraries: list[str] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(task["code_prompt"] + "    pass\n" + task["test"])
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                libraries += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                libraries.append(node.module or "")
        if all(name.split(".")[0] in sys.stdlib_module_names for name in libraries):
            chosen[task["task_id"]] = task
    return list(chosen.values())


# 176 and 314 ask the internet; 1104 sleeps longer than the limit; 1040 takes a minute of sockets.
NOT_HERE = {f"BigCodeBench/{number}" for number in (176, 314, 1040, 1104)}


@pytest.mark.slow
def test_code_references_pass_as_chat_replies_and_broken_ones_fail(golden, pool):
    tasks = [task for task in standard_library_tasks(golden) if task["task_id"] not in NOT_HERE]

    def judge_reply(task: dict) -> tuple[str, bool, bool]:
        program = task["code_prompt"] + task["canonical_solution"]
        reply = f"네, 요청하신 함수입니다.\n\n```python\n{program}\n```\n\n이렇게 작성했습니다.\n"
        judged = unit_tests.judge(reply, task, 60.0, pool.run(), pool.sanitise)
        return task["task_id"], judged.passed, judged.passed_upstream

    def judge_broken(task: dict) -> tuple[str, bool, bool]:
        reply = f"```python\n{task['code_prompt']}    raise RuntimeError('no')\n```"
        judged = unit_tests.judge(reply, task, 60.0, pool.run(), pool.sanitise)
        return task["task_id"], judged.passed, judged.passed_upstream

    assert len(tasks) == 165
    assert [row for row in pool.map(judge_reply, tasks) if row[1:] != (True, True)] == []
    # Some tests mean to see an exception, so that only most broken programs must fail.
    broken = pool.map(judge_broken, tasks[::5])
    assert sum(row[1] or row[2] for row in broken) <= 1


@pytest.mark.slow
def test_code_verdicts_are_those_of_bigcodebench_itself(golden, monkeypatch):
    """A few tasks with many libraries here; the whole set by benchmarks/evaluators.py."""
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    evaluators = importlib.import_module("evaluators")
    kinds = ["canonical", "chat", "body", "constant", "exception"]
    both = evaluators.beside_upstream(
        [golden / "code" / "bigcodebench_hard.jsonl.gz"], 25, kinds, workers=2
    )
    assert len(both) == 30
    assert {name for name, (ours, theirs) in both.items() if ours != theirs} == set()
    assert {ours for ours, _ in both.values()} == {True, False}
