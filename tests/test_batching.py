"""Chunks in flight together, the self-test that allows it, and replays: counts from real runs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from answered_runs import RIGHT, answered_run
from builders import run_spec, small_lines, write_dataset

from colab_utils import launch, records
from colab_utils.analysis import analyse
from colab_utils.checkpoints import ChunkRange, commit, plan
from colab_utils.engine import Answer, Engine, Operating
from colab_utils.engine_modes import EAGER
from colab_utils.errors import EngineFailed, ParameterError, RunDirectoryError
from colab_utils.feeding import OPEN, ChunkWriter, answered_chunks
from colab_utils.invariance import SelfTest, can_be_invariant, spread
from colab_utils.manifests import (
    PROJECT,
    load_dataset_manifest,
    load_experiment_manifest,
    load_model_manifest,
)
from colab_utils.prompts import Prompt
from colab_utils.report_text import replay as replay_sentence
from colab_utils.responses import parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import load_dataset
from colab_utils.scoring import latest_scoring, score
from colab_utils.store import build_database
from colab_utils.workbench import replay

MODEL = "llama-3.2-3b-instruct"
EVALUATOR = PROJECT / ".envs" / "evaluator" / "bin" / "python"
# Read by the engine interpreter at its start, so that a run on the CPU takes the way of a GPU.
# `holds` names the modes whose self-test is left to tell the truth; the others fail.
AS_ON_A_GPU = """
import os
from colab_utils import colab, engine, engine_modes, invariance, run_record
eager = [engine_modes.Mode(name, eager=True) for name in os.environ["MODES"].split(",")]
engine_modes.MODES = tuple(eager)
engine_modes.COMPILED = eager[0]
colab.probe_gpu = lambda: {"name": "made-up", "driver": "1", "compute_capability": "8.9",
                           "memory_bytes": 2**34}
run_record.engine_device = lambda: "cuda"
plain_environment, plain_test = engine.set_engine_environment, invariance.self_test
def environment(device, operating, mode, **more):
    plain_environment("cpu", operating, mode, **more)
engine.set_engine_environment = environment
def test(loaded, prompts, *, mode, committed):
    found = plain_test(loaded, prompts, mode=mode, committed=committed)
    if mode in os.environ["HOLDS"].split(","):
        return found
    return invariance.SelfTest(**{**found.record(), "differ": 1})
invariance.self_test = test
"""


@dataclass
class NewestFirst:
    """Stands for an engine that finishes its newest request first, one a step."""

    chunk_of: dict[str, int]
    given: list[str] = field(default_factory=list)
    most: int = 0
    most_requests: int = 0
    resets: int = 0

    @property
    def in_flight(self) -> int:
        return len(self.given)

    def add(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        self.given.append(request_id)
        self.most = max(self.most, len({self.chunk_of[name] for name in self.given}))
        self.most_requests = max(self.most_requests, len(self.given))

    def step(self) -> list[Answer]:
        last = self.given.pop()
        return [Answer(last, f"answer to {last}", [1, 2], "stop", None, 3)]

    def reset_prefix_cache(self) -> None:
        self.resets += 1


@dataclass
class TokenAStep:
    """Stands for an engine that runs `at_once` requests, each a token further in each step."""

    lengths: dict[str, int]
    at_once: int
    waiting: list[str] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    steps: int = 0

    @property
    def in_flight(self) -> int:
        return len(self.waiting) + len(self.running)

    def add(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        self.waiting.append(request_id)

    def step(self) -> list[Answer]:
        self.steps += 1
        while self.waiting and len(self.running) < self.at_once:
            name = self.waiting.pop(0)
            self.running[name] = self.lengths[name]
        self.running = {name: left - 1 for name, left in self.running.items()}
        ended = [name for name, left in self.running.items() if left == 0]
        for name in ended:
            del self.running[name]
        return [Answer(name, "", [1], "stop", None, 0) for name in ended]

    def reset_prefix_cache(self) -> None:
        pass


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"), small_lines(3))


def prompts_of(dataset: Path, rejected: tuple[int, ...] = ()) -> list[Prompt]:
    requests = load_dataset(load_dataset_manifest(dataset)).requests()
    return [
        Prompt(request, (1, 2, 3), "too long" if number in rejected else None)
        for number, request in enumerate(requests)
    ]


def test_a_window_keeps_an_engine_as_full_as_one_call_would(tmp_path):
    requests = load_dataset(
        load_dataset_manifest(write_dataset(tmp_path, small_lines(100)))
    ).requests()
    prompts = [Prompt(request, (1, 2, 3), None) for request in requests]
    # Lengths spread like answers: a long tail, cut at the limit.
    chance = random.Random(5)
    lengths = {
        r.request_id: min(512, max(1, round(150 * chance.lognormvariate(0, 0.7)))) for r in requests
    }
    steps = {}
    for window in (9, 100_000):
        engine = TokenAStep(lengths, at_once=256)
        for _ in answered_chunks(
            engine, plan(len(prompts), 32), prompts, window=window,
            on_given=lambda feed: None, on_step=lambda answers: None,
        ):  # fmt: skip
            pass
        steps[window] = engine.steps
    assert steps[9] <= 1.01 * steps[100_000]


@pytest.mark.parametrize("window", [1, 2, 5, 100])
@pytest.mark.parametrize("chunk_size", [4, 7])
def test_each_chunk_is_committed_once_and_the_engine_is_kept_full_to_the_window(
    dataset, tmp_path, window, chunk_size
):
    prompts = prompts_of(dataset, rejected=(0, 1, 2, 3, 9))
    chunks = plan(len(prompts), chunk_size)
    engine = NewestFirst({p.request.request_id: n // chunk_size for n, p in enumerate(prompts)})
    directory = RunDirectory(tmp_path)
    directory.chunks.mkdir()
    with ChunkWriter(directory, lambda: {"pid": 1}) as writer:
        for feed in answered_chunks(
            engine, chunks, prompts, window=window, on_given=writer.given, on_step=lambda a: None
        ):
            writer.commit(feed)
    assert engine.most <= (1 if window == 1 else OPEN * window)
    # As full as whole chunks make it, whatever the older ones still wait for.
    fullest = min(window * chunk_size, 45 - 5)
    assert fullest - chunk_size < engine.most_requests <= fullest
    # From an empty cache each, where the order decides the answers.
    assert engine.resets == (len(chunks) - (chunk_size == 4) if window == 1 else 0)
    lines = records.read_log(directory.timeline)
    for name in ("given", "committed"):
        assert sorted(x["chunk"] for x in lines if x["event"] == name) == list(map(str, chunks))
    found = [
        json.loads(line)
        for path in sorted(directory.chunks.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert [x["request_id"] for x in found] == [p.request.request_id for p in prompts]
    assert [x["finish_reason"] == "rejected" for x in found] == [
        p.rejected is not None for p in prompts
    ]
    assert sum(x["cached_tokens"] for x in lines if x["event"] == "committed") == 3 * (45 - 5)


@pytest.mark.parametrize(
    ("room", "most", "at_once"), [(10_000, 256, 256), (2600, 256, 100), (2600, 64, 64), (1, 9, 1)]
)
def test_a_shared_context_is_counted_once_for_the_sequences_that_run_at_once(
    dataset, tmp_path, room, most, at_once
):
    class Loaded(Engine):
        def kv_room_tokens(self) -> int:
            return room

    requests = load_dataset(load_dataset_manifest(dataset)).requests()
    # Five questions of 10 tokens share 40 tokens: 90 for five, and 8 of an answer each.
    prompts = [
        Prompt(request, (number // 5,) * 40 + (100 + number,) * 10, None)
        for number, request in enumerate(requests)
    ]
    engine = Loaded(
        tmp_path, load_model_manifest(MODEL), load_experiment_manifest("embedded").decoding,
        Operating(max_num_seqs=most), mode=EAGER, stop_token_ids=[],
    )  # fmt: skip
    assert engine.sequences_at_once(prompts, answer_tokens=8) == at_once


def test_a_full_disk_ends_the_run_and_finished_chunks_stay(dataset, tmp_path):
    prompts = prompts_of(dataset)
    engine = NewestFirst({p.request.request_id: n // 5 for n, p in enumerate(prompts)})
    directory = RunDirectory(tmp_path)
    directory.chunks.mkdir()
    with pytest.raises(RunDirectoryError), ChunkWriter(directory, dict) as writer:
        for number, feed in enumerate(
            answered_chunks(
                engine, plan(45, 5), prompts, window=2, on_given=lambda f: None,
                on_step=lambda a: None,
            )
        ):  # fmt: skip
            if number == 3:
                # The writer's thread has its own pace.
                while not list(directory.chunks.glob("*.jsonl")):
                    time.sleep(0.01)
                directory.chunks.rename(tmp_path / "full")
                directory.chunks.write_text("no folder")
            writer.commit(feed)
    assert len(list((tmp_path / "full").glob("*.jsonl"))) >= 1


def test_a_self_test_without_comparisons_proves_nothing():
    empty = SelfTest("compiled", chosen=0, others=0, tokens=32, compared=0, differ=0, seconds=0)
    assert not empty.holds
    assert spread(list("abcdef"), 3) == list("ace")
    assert spread(list("ab"), 5) == ["a", "b"]
    assert [
        can_be_invariant(gpu)
        for gpu in (None, {"compute_capability": "7.5"}, {"compute_capability": "8.9"})
    ] == [False, False, True]


def as_on_a_gpu(
    spec, engine_python: Path, folder: Path, *, holds: str, modes: str = "compiled,graphs"
) -> subprocess.Popen:
    """A run's process that believes in a GPU; `holds` names modes whose self-test may hold."""
    (folder / "sitecustomize.py").write_text(AS_ON_A_GPU)
    directory = RunDirectory(spec.run_dir)
    directory.chunks.mkdir(parents=True, exist_ok=True)
    with directory.log.open("ab") as log:
        child = subprocess.Popen(
            [str(engine_python), "-m", "colab_utils.runs"], stdin=subprocess.PIPE, stdout=log,
            stderr=log, start_new_session=True,
            env={**launch.engine_environment(), "PYTHONPATH": str(folder), "HOLDS": holds,
                 "MODES": modes, "VLLM_CPU_KVCACHE_SPACE": "1"},
        )  # fmt: skip
    with child.stdin:
        child.stdin.write(spec.model_dump_json().encode())
    return child


@pytest.mark.slow
def test_the_first_mode_that_holds_is_used_and_chunks_overlap(
    tiny, engine_python, dataset, tmp_path
):
    spec = run_spec(tmp_path / "run", tiny(MODEL), dataset, chunk_size=4)
    directory = RunDirectory(spec.run_dir)
    child = as_on_a_gpu(spec, engine_python, tmp_path, holds="graphs")
    launch.watch(spec.run_dir, child)
    run = directory.read_run()
    assert (run["run"]["mode"], run["run"]["batch_invariant"]) == ("graphs", True)
    assert "order" not in run["run"]
    segment = run["segments"][0]
    assert [(t["mode"], t["differ"]) for t in segment["self_tests"]] == [
        ("compiled", 1), ("graphs", 0),
    ]  # fmt: skip
    assert segment["self_tests"][1]["compared"] >= 32
    assert segment["window"] > 1
    phases = ["check", "import", "tokenizer", "prompts", "load", "self_test"]
    assert list(segment["seconds"]) == phases
    assert segment["pid"] == child.pid
    events = [(x["event"], x["chunk"]) for x in records.read_log(directory.timeline)]
    assert [event for event, _ in events[:3]] == ["given"] * 3

    # Another chunk size goes on where it was; a mode that no longer holds is refused.
    for path in sorted(directory.chunks.glob("*.jsonl"))[3:5]:
        path.unlink()
    before = directory.responses.read_bytes()
    again = run_spec(spec.run_dir, tiny(MODEL), dataset, chunk_size=3)
    with pytest.raises(EngineFailed, match="answers depend on batching here"):
        launch.watch(spec.run_dir, as_on_a_gpu(again, engine_python, tmp_path, holds=""))

    # So is an engine that no longer gives the answers which the run holds.
    path = sorted(directory.chunks.glob("*.jsonl"))[0]
    kept = path.read_bytes()
    first, *others = parse_responses(kept, where=str(path))
    tokens = [first.output_token_ids[0] + 1, *first.output_token_ids[1:]]
    path.unlink()
    other = first.model_copy(update={"output_token_ids": tokens})
    changed = commit(directory.chunks, ChunkRange(0, 3), [other, *others])
    with pytest.raises(EngineFailed, match="1 of 37 committed answers .* begin otherwise"):
        launch.watch(spec.run_dir, as_on_a_gpu(again, engine_python, tmp_path, holds="graphs"))
    changed.unlink()
    path.write_bytes(kept)

    launch.watch(spec.run_dir, as_on_a_gpu(again, engine_python, tmp_path, holds="graphs"))
    assert directory.responses.read_bytes() == before
    assert len(list(directory.chunks.glob("*.jsonl"))) == 13
    resumed = directory.read_run()["segments"][-1]["self_tests"][0]
    assert (resumed["committed"], resumed["committed_differ"]) == (37, 0)


@pytest.mark.slow
def test_no_mode_holds_so_chunks_run_one_after_another_and_that_is_said(
    tiny, engine_python, dataset, tmp_path
):
    spec = run_spec(tmp_path / "run", tiny(MODEL), dataset, chunk_size=15)
    launch.watch(
        spec.run_dir, as_on_a_gpu(spec, engine_python, tmp_path, holds="", modes="compiled")
    )
    run = RunDirectory(spec.run_dir).read_run()
    assert not run["run"]["batch_invariant"]
    assert run["run"]["order"]["window"] == run["segments"][0]["window"] == 1
    assert [t["differ"] for t in run["segments"][0]["self_tests"]] == [1]
    assert "answers depend on batching in every mode" in run["warnings"][0]


@pytest.mark.slow
def test_replays_at_the_end_and_by_themselves(tiny, engine_python, dataset, tmp_path):
    spec = run_spec(tmp_path / "run", tiny(MODEL), dataset, chunk_size=5, replay=7)
    directory = RunDirectory(spec.run_dir)
    launch.watch(spec.run_dir, launch.start(spec, engine_python))
    first = records.read_json(directory.replays / "000.json")
    assert first["requests"] == 7 == len(set(first["request_ids"]))
    assert first["changed"] == len(first["changed_answers"])
    assert sum(cell["requests"] for cell in first["by"]) == 7
    before = directory.responses.read_bytes()
    alone = run_spec(spec.run_dir, tiny(MODEL), dataset, chunk_size=5, replay_chunks=2)
    launch.watch(spec.run_dir, launch.start(alone, engine_python))
    second = records.read_json(directory.replays / "001.json")
    assert second["requests"] == 10
    assert directory.responses.read_bytes() == before

    unfinished = run_spec(tmp_path / "none", tiny(MODEL), dataset, replay_chunks=2)
    with pytest.raises(EngineFailed, match="nothing to replay"):
        launch.watch(unfinished.run_dir, launch.start(unfinished, engine_python))


def test_replay_refuses_before_anything_starts(tmp_path):
    with pytest.raises(ParameterError, match="chunks: is 0"):
        replay(tmp_path, 0, cache=".cache")
    with pytest.raises(RunDirectoryError, match="holds no complete run"):
        replay(tmp_path, 1, cache=".cache")


@pytest.mark.slow
def test_changed_answers_are_judged_and_the_flip_rate_stands_in_the_report(dataset, tmp_path):
    known = load_dataset(load_dataset_manifest(dataset))
    run = answered_run(tmp_path / "run", known, lambda request: RIGHT[request.sample.task])
    lines = [json.loads(line) for line in (run / "responses.jsonl").read_text().splitlines()]
    wrong = {**lines[0], "text": "no program", "output_token_ids": [7], "output_tokens": 1}
    # Another wording of an answer that still passes.
    other = {**lines[5], "text": "Well.\n" + lines[5]["text"], "output_token_ids": [8]}
    other["output_tokens"] = 1
    by = [
        {"task": x["task"], "condition": x["condition"], "requests": 5, "changed": 1}
        for x in (wrong, other)
    ]
    (run / "replays").mkdir()
    record = {
        "at": "2026-12-03T00:00:00+00:00", "requests": 10, "changed": 2, "by": by,
        "request_ids": [line["request_id"] for line in lines[:10]],
        "changed_answers": [wrong, other],
    }  # fmt: skip
    (run / "replays" / "000.json").write_text(json.dumps(record))

    def sentence() -> str:
        return replay_sentence(analyse(build_database(run))[0])

    score(run, dataset=known, evaluator_python=EVALUATOR, allow_weak_sandbox=True)
    assert "10 requests answered again" in sentence()
    assert "2 answers changed, 1 verdicts changed (flip rate 10.0 %)" in sentence()
    # One that comes after the scoring is judged by the next start of it.
    (run / "replays" / "001.json").write_text(json.dumps({**record, "changed_answers": [wrong]}))
    assert "were not judged" in sentence()
    score(run, dataset=known, evaluator_python=EVALUATOR, allow_weak_sandbox=True)
    assert "4 answers changed, 2 verdicts changed (flip rate 10.0 %)" in sentence()
    assert latest_scoring(run) is not None
    assert os.listdir(run / "scoring")
