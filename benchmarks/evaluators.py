"""Measure the evaluators: seconds an answer by task, and the code evaluator beside upstream's own.

Without arguments the embedded data set's references are the answers. With BigCodeBench task files
(see code_replies.py) upstream's evaluator judges the same replies in the same interpreter, with as
many workers, all of them in one bubblewrap, each library loaded for each reply as upstream does.
"""

from __future__ import annotations

import argparse
import json
import queue
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from code_replies import imported, load_tasks, replies

from colab_utils.evaluators import unit_tests
from colab_utils.evaluators.judgement import Judgement
from colab_utils.evaluators.probing import probe
from colab_utils.evaluators.workers import Workers
from colab_utils.judging import SANITISE_SECONDS, Judge
from colab_utils.manifests import PROJECT, load_dataset_manifest
from colab_utils.responses import Response
from colab_utils.samples import Sample, load_dataset

PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"
ROUNDS = 3


def reply(sample: Sample, number: int) -> Response:
    """The sample's reference as a chat reply; `number` keeps equal answers apart."""
    reference = sample.reference
    if sample.task == "code":
        stub = f"# {number}\n{reference['code_prompt']}"
        tag, program = "python", stub + reference["canonical_solution"]
    elif sample.task == "sql":
        tag, program = "sql", f"-- {number}\n{reference['gold_sql']}"
    else:
        tag, program = "python", f"# {number}\n{reference['python_solution']}"
    return Response(
        request_id=f"{sample.sample_id}/KO", sample_id=sample.sample_id, task=sample.task,
        condition="KO", text=f"{number}번째 답입니다.\n\n```{tag}\n{program}\n```\n",
        output_token_ids=[], finish_reason="stop", stop_reason=None, error=None,
        prompt_tokens=1, output_tokens=0, prompt_sha256="0" * 64,
    )  # fmt: skip


def embedded() -> None:
    """Seconds an answer by task on the embedded data set."""
    dataset = load_dataset(load_dataset_manifest("embedded"))
    box = probe(PYTHON, allow_weak=True)
    print(f"sandbox: {box.level} ({box.what})")
    for task in ("code", "sql", "finance"):
        samples = [sample for sample in dataset.samples if sample.task == task]
        for workers in (1, 2):
            with Judge(dataset, PYTHON, box, workers) as judge:
                known = {s.sample_id: judge.reference(s) for s in samples}
                answers = [reply(s, n) for n in range(ROUNDS) for s in samples]
                began = time.perf_counter()
                with ThreadPoolExecutor(workers) as pool:
                    verdicts = list(
                        pool.map(lambda a, j=judge, k=known: j.verdict(a, k[a.sample_id]), answers)
                    )
                seconds = time.perf_counter() - began
            passed = sum(verdict["passed"] for verdict in verdicts)
            print(
                f"{task}: {len(answers)} answers, {workers} at a time: {seconds:.1f} s, "
                f"{seconds / len(answers) * 1000:.0f} ms each, {passed} passed"
            )


def beside_upstream(
    paths: list[Path], every: int, kinds: list[str], workers: int, only: tuple[str, ...] = ()
) -> dict[str, tuple[bool, bool]]:
    """Both evaluators on the same replies, one after another; (ours, upstream's) by reply."""
    tasks = [t for t in load_tasks(paths) if not only or t["task_id"] in only][::every]
    chosen = [r for r in replies(tasks) if r["id"].rpartition("/")[2] in kinds]
    box = probe(PYTHON, allow_weak=False)
    lines = "".join(json.dumps(r) + "\n" for r in chosen)
    script = Path(__file__).with_name("upstream_code.py")
    scratch = Path(tempfile.gettempdir())
    confined = box.confinement(PYTHON, slot=0, scratch=scratch, readable=(script,))
    began = time.perf_counter()
    upstream = subprocess.run(
        [*confined["holder"], "--setenv", "MPLBACKEND", "Agg", "--setenv", "HOME", "/tmp", "--",
         str(PYTHON), "-I", str(script), "--workers", str(workers)],
        input=lines, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    theirs = time.perf_counter() - began
    # Programs may print there too.
    told = [json.loads(n) for n in upstream.stdout.split("\n") if n.startswith('{"id": ')]
    said = {line["id"]: line["passed"] for line in told}
    slots: queue.Queue[int] = queue.Queue()
    for slot in range(workers):
        slots.put(slot)
    began = time.perf_counter()
    with (
        Workers(PYTHON, box, [*imported(tasks), "tensorflow"]) as processes,
        ThreadPoolExecutor(workers) as pool,
    ):
        processes.start()
        loaded = time.perf_counter() - began
        verdicts = list(pool.map(lambda r: judged_reply(r, processes, slots), chosen))
        judged = {r["id"]: verdict for r, (verdict, _) in zip(chosen, verdicts, strict=True)}
    seconds = time.perf_counter() - began
    ours = {name: verdict.passed_upstream for name, verdict in judged.items()}
    differ = [
        f"{name} (ours {passed}: {judged[name].detail}; upstream {said[name]})"
        for name, passed in ours.items()
        if passed != said[name]
    ]
    only_ours = [name for name, v in judged.items() if v.passed and not v.passed_upstream]
    only_theirs = [name for name, v in judged.items() if v.passed_upstream and not v.passed]
    print(f"replies: {len(chosen)} ({', '.join(kinds)}), {workers} at a time; sandbox: {box.level}")
    print(f"upstream: {theirs:.1f} s; {sum(said.values())} passed")
    print(f"ours: {seconds:.1f} s, of it {loaded:.1f} s to load the libraries once")
    inside = sum(spent for _, spent in verdicts) / workers
    print(f"of it inside the programs and their tests, once a reply: {inside:.1f} s")
    print(f"upstream / ours: {theirs / seconds:.1f}; verdicts that differ: {differ or 'none'}")
    print(
        f"our extraction beside upstream's: {len(only_ours)} more pass {only_ours or ''}, "
        f"{len(only_theirs)} fewer {only_theirs or ''}"
    )
    return {name: (ours[name], said[name]) for name in ours}


def judged_reply(
    line: dict[str, Any], workers: Workers, slots: queue.Queue[int]
) -> tuple[Judgement, float]:
    """Our judgement of one reply, and the seconds that its program and tests took."""
    inside: list[float] = []

    def run(job: dict[str, Any], seconds: float) -> dict[str, Any]:
        slot = slots.get()
        try:
            result = workers.run(job, seconds=seconds, slot=slot)
            if job["kind"] == "code":
                inside.append(result.get("seconds", seconds))
            return result
        finally:
            slots.put(slot)

    def sanitise(text: str, entry_point: str) -> str | None:
        job = {"kind": "sanitise", "text": text, "entry_point": entry_point}
        program: str | None = run(job, SANITISE_SECONDS).get("program")
        return program

    judgement = unit_tests.judge(line["text"], line, unit_tests.SECONDS, run, sanitise)
    return judgement, inside[-1] if inside else 0.0


def main() -> None:
    """Print one line a measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take each n-th task")
    parser.add_argument("--workers", type=int, default=1, help="replies judged at once")
    parser.add_argument("--kinds", default="canonical", help="which replies of code_replies.py")
    parser.add_argument("--only", action="append", default=[], help="a task id, may be repeated")
    parser.add_argument("--rounds", type=int, default=1, help="how often, to see what varies")
    given = parser.parse_args()
    if not PYTHON.exists():
        sys.exit("the evaluator environment is missing: run `make setup`")
    if given.tasks:
        kinds = given.kinds.split(",")
        for _ in range(given.rounds):
            beside_upstream(given.tasks, given.every, kinds, given.workers, tuple(given.only))
    else:
        embedded()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"peak memory: scoring process {own:.0f} MiB, largest process below it {children:.0f} MiB"
    )


if __name__ == "__main__":
    main()
