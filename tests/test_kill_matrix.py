"""SIGKILL at every step of a commit, a lock, a completion, a mirror copy and a restore."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import run_spec, small_lines, write_dataset
from kills import killed_steps, random_kills
from mirrored_runs import add_chunk, answers, bring, copier, make_run
from test_chunks import IDS

from colab_utils import checkpoints, launch, records
from colab_utils.checkpoints import ChunkRange
from colab_utils.engine import Answer
from colab_utils.feeding import ChunkWriter, Feed
from colab_utils.lock import locked
from colab_utils.manifests import load_dataset_manifest
from colab_utils.prompts import Prompt
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import complete
from colab_utils.samples import load_dataset

MODEL = "llama-3.2-3b-instruct"


def counted(name: str, folders: Iterator[Path], capsys) -> Iterator[Path]:
    """The folders, and at their end how many there were."""
    steps = 0
    for folder in folders:
        steps += 1
        yield folder
    assert steps > 3, "nothing was traced"
    with capsys.disabled():
        print(f"\n{name}: killed at each of {steps} steps and again, 0 lost, 0 doubled")


@pytest.fixture
def feed(tmp_path) -> Feed:
    path = write_dataset(tmp_path / "data", small_lines(1))
    requests = load_dataset(load_dataset_manifest(path)).requests()[:5]
    feed = Feed(ChunkRange(0, 4), [Prompt(r, (1, 2), None) for r in requests], 0.0)
    for request in requests:
        name = request.request_id
        feed.answers[name] = Answer(name, f"답 {name}\u2028", [1, 2], "stop", None, 0)
    return feed


def test_at_every_step_of_a_commit(feed, tmp_path, capsys):
    ids = [prompt.request.request_id for prompt in feed.members]

    def commit(folder: Path) -> None:
        directory = RunDirectory(folder)
        with ChunkWriter(directory, lambda: {"pid": 1}) as writer:
            writer.given(feed)
            writer.commit(feed)

    def fresh(name: str) -> Path:
        (tmp_path / name / "chunks").mkdir(parents=True)
        return tmp_path / name

    whole = fresh("whole")
    commit(whole)
    seen = set()
    for folder in counted("commit", killed_steps(commit, fresh), capsys):
        found = checkpoints.verify(folder / "chunks", ids)
        assert not found.torn
        seen.add(len(found.finished))
        records.read_log(folder / "timeline.jsonl")
        commit(folder)
        again = {p.name: p.read_bytes() for p in (folder / "chunks").glob("*.jsonl")}
        assert again == {p.name: p.read_bytes() for p in (whole / "chunks").glob("*.jsonl")}
        lines = records.read_log(folder / "timeline.jsonl")
        assert lines[-1]["event"] == "committed"
    assert seen == {0, 1}


def test_at_every_step_of_a_lock(tmp_path, capsys):
    directory = RunDirectory(tmp_path)

    def hold() -> None:
        with locked(directory):
            pass

    for _ in counted("lock", killed_steps(lambda _: hold(), lambda _: tmp_path), capsys):
        assert directory.runner() is None
        with locked(directory):
            assert directory.runner() is not None


def test_at_every_step_of_a_completion(tmp_path, capsys):
    def fresh(name: str) -> Path:
        return make_run(tmp_path / name, chunks=5)

    def finish(folder: Path) -> str:
        return complete(RunDirectory(folder), checkpoints.verify(folder / "chunks", IDS))

    digest = finish(fresh("whole"))
    for folder in counted("completion", killed_steps(finish, fresh), capsys):
        assert finish(folder) == digest == records.sha256_file(folder / "responses.jsonl")
        assert RunDirectory(folder).is_complete()


@pytest.mark.slow
def test_at_every_step_of_a_mirror_copy(tmp_path, capsys):
    made = make_run(tmp_path / "made")

    def copy(folder: Path) -> None:
        mirror = copier(folder / "run", folder / "drive")
        mirror.step(alive=False)
        add_chunk(folder / "run", 4)
        mirror.step(alive=False)

    def fresh(name: str) -> Path:
        shutil.copytree(made, tmp_path / name / "run")
        return tmp_path / name

    for folder in counted("mirror copy", killed_steps(copy, fresh), capsys):
        own = answers(folder / "run")
        assert len(own) >= 2
        assert copier(folder / "run", folder / "drive").step(alive=False)
        bring(folder / "drive", folder / "new")
        assert answers(folder / "new") == own
        json.loads((folder / "new" / "run.json").read_text())
        shutil.rmtree(folder)


@pytest.mark.slow
def test_at_every_step_of_a_restore(tmp_path, capsys):
    run = make_run(tmp_path / "run", chunks=3)
    assert copier(run, tmp_path / "drive").step(alive=False)

    def restore(new: Path) -> None:
        bring(tmp_path / "drive", new)

    for new in counted("restore", killed_steps(restore, lambda name: tmp_path / name), capsys):
        bring(tmp_path / "drive", new)
        assert answers(new) == answers(run)
        assert (new / "run.json").read_bytes() == (run / "run.json").read_bytes()


@pytest.mark.slow
def test_ten_times_at_a_random_moment_of_real_runs(tiny, engine_python, tmp_path, capsys):
    dataset = write_dataset(tmp_path / "data", small_lines(3))

    def spec(name: str):
        return run_spec(tmp_path / name, tiny(MODEL), dataset, chunk_size=4)

    launch.watch(tmp_path / "undisturbed", launch.start(spec("undisturbed"), engine_python))
    counts = random_kills(
        lambda number: spec(f"run-{number}"), engine_python,
        RunDirectory(tmp_path / "undisturbed"), kills=10, seed=7,
    )  # fmt: skip
    with capsys.disabled():
        print(f"\n{counts.total()} kills: {dict(counts)}; 0 lost, 0 doubled, 0 computed again")
