"""Measure the evaluators: seconds an answer by task, alone and two at a time; what a start costs.

Uses the references of the embedded data set as answers, so it needs nothing but this project.
"""

from __future__ import annotations

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from colab_utils.evaluators import sandbox
from colab_utils.judging import Judge
from colab_utils.manifests import PROJECT, load_dataset_manifest
from colab_utils.responses import Response
from colab_utils.samples import Sample, load_dataset

PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"
ROUNDS = 3


def reply(sample: Sample, number: int) -> Response:
    """The sample's reference as a chat reply; `number` keeps equal answers apart."""
    reference = sample.reference
    if sample.task == "code":
        tag, program = "python", reference["code_prompt"] + reference["canonical_solution"]
    elif sample.task == "sql":
        tag, program = "sql", reference["gold_sql"]
    else:
        tag, program = "python", reference["python_solution"]
    return Response(
        request_id=f"{sample.sample_id}/KO", sample_id=sample.sample_id, task=sample.task,
        condition="KO", text=f"{number}번째 답입니다.\n\n```{tag}\n{program}\n```\n\n끝.",
        output_token_ids=[], finish_reason="stop", stop_reason=None, error=None,
        prompt_tokens=1, output_tokens=0, prompt_sha256="0" * 64,
    )  # fmt: skip


def main() -> None:
    """Print one line a measure."""
    if not PYTHON.exists():
        sys.exit("the evaluator environment is missing: run `make setup`")
    dataset = load_dataset(load_dataset_manifest("embedded"))
    box = sandbox.probe(PYTHON, allow_weak=True)
    print(f"sandbox: {box.level} ({box.what})")
    program = {"kind": "finance", "program": "def solution():\n    return 1\n"}
    starts = []
    for _ in range(20):
        began = time.perf_counter()
        box.run(PYTHON, program, seconds=10)
        starts.append(time.perf_counter() - began)
    print(f"one job that does nothing: median {statistics.median(starts) * 1000:.0f} ms")
    for task in ("code", "sql", "finance"):
        samples = [sample for sample in dataset.samples if sample.task == task]
        for workers in (1, 2):
            judge = Judge(dataset, PYTHON, box, workers)
            answers = [reply(sample, number) for number in range(ROUNDS) for sample in samples]
            began = time.perf_counter()
            with ThreadPoolExecutor(workers) as pool:
                verdicts = list(pool.map(lambda answer, by=judge: by.verdict(answer, {}), answers))
            seconds = time.perf_counter() - began
            passed = sum(verdict["passed"] for verdict in verdicts)
            print(
                f"{task}: {len(answers)} answers, {workers} at a time: {seconds:.1f} s, "
                f"{seconds / len(answers) * 1000:.0f} ms each, {passed} passed"
            )


if __name__ == "__main__":
    main()
