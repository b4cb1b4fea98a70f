"""A private data set as mirror, over a local server that speaks the needed part of the protocol."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hub_server import REPOSITORY, TOKEN, hub_server
from mirrored_runs import FOLDER, add_chunk, answers, make_run, state

from colab_utils import mirror_launch
from colab_utils.errors import ChunkConflict, InputError, ParameterError, RunDirectoryError
from colab_utils.mirror_launch import mirror_of
from colab_utils.run_directory import RunDirectory

MIRROR = f"hf://datasets/{REPOSITORY}"


@pytest.fixture
def hub(monkeypatch):
    with hub_server() as (address, hub_state):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub_state


def mirrored(runs: Path, **more):
    """A run below `runs`, its mirror, and nothing copied yet."""
    run = make_run(runs / FOLDER, **more)
    mirror = mirror_of(MIRROR, run, runs)
    assert mirror is not None
    return run, mirror


def test_a_run_goes_to_the_hub_in_one_commit_that_confirms_it_and_comes_back(hub, tmp_path):
    run, mirror = mirrored(tmp_path / "a")
    done = mirror.finish(mirror.start(None), seconds=30)
    assert done.is_safe and len(done.confirmed) == 3
    assert len(hub.commits) == 2 and hub.private
    assert len([n for n in hub.files if n.startswith(f"{FOLDER}/chunks/")]) == 4
    ledger = (run / "mirror.jsonl").read_text()
    assert f"commit {hub.commits[-1][0]}" in ledger
    back = tmp_path / "b" / FOLDER
    said: list[str] = []
    mirror_of(MIRROR, back, tmp_path / "b").restore(said.append)
    assert answers(back) == answers(run) and state(back).is_safe
    assert RunDirectory(back).read_run() == RunDirectory(run).read_run()
    assert said == [f"mirror {MIRROR}/{FOLDER}: 3 files restored, 3 are there"]
    # The token is in the environment of the process only.
    for folder in (run, back):
        for path in folder.rglob("*"):
            assert path.is_dir() or TOKEN.encode() not in path.read_bytes()


def test_a_public_data_set_is_refused_in_one_sentence(hub, tmp_path):
    hub.create(private=False)
    run, mirror = mirrored(tmp_path / "a")
    with pytest.raises(InputError, match="is a public data set.*make it private"):
        mirror.restore(lambda text: None)
    done = mirror_launch.RunMirror(mirror.mirror, mirror.folder, run, TOKEN)
    child = done.start(None)
    try:
        told = done.finish(child, seconds=3)
    finally:
        child.kill()
        child.wait()
    assert "public data set" in told.problem and len(told.local) == 3
    assert list(hub.files) == [".gitattributes"]


def test_what_the_hub_stored_otherwise_is_not_confirmed_and_goes_again(hub, tmp_path, monkeypatch):
    def torn(files):
        hub.spoil = None
        return {name: data[:-3] if "/chunks/" in name else data for name, data in files.items()}

    hub.spoil = torn
    run, mirror = mirrored(tmp_path / "a")
    done = mirror.finish(mirror.start(None), seconds=30)
    assert done.is_safe and len(hub.commits) == 3
    ledger = (run / "mirror.jsonl").read_text()
    assert "is not what was committed" in ledger


def test_a_hub_that_fails_keeps_nobody_from_running_and_stops_a_blind_start(hub, tmp_path):
    _, mirror = mirrored(tmp_path / "a")
    hub.fail = 403
    said: list[str] = []
    mirror.restore(said.append)
    assert len(said) == 1 and "the run goes on from what this machine has" in said[0]
    child = mirror.start(None)
    try:
        told = mirror.finish(child, seconds=3)
        assert len(told.local) == 3 and "403" in told.problem
        assert "3 on this machine only" in str(told)
        hub.fail = 0
        assert mirror.finish(child, seconds=30).is_safe
    finally:
        child.kill()
        child.wait()
    hub.fail = 403
    with pytest.raises(RunDirectoryError, match="cannot be read.*start without a mirror"):
        mirror_of(MIRROR, tmp_path / "b" / FOLDER, tmp_path / "b").restore(said.append)


def test_two_machines_on_one_data_set_are_both_named(hub, tmp_path):
    _, mirror = mirrored(tmp_path / "a")
    assert mirror.finish(mirror.start(None), seconds=30).is_safe
    run, other = mirrored(tmp_path / "b", chunks=0, host="there")
    add_chunk(run, 0, text="another", host="there")
    with pytest.raises(ChunkConflict, match=r"on here.*on there|on there.*on here"):
        other.finish(other.start(None), seconds=30)
    assert len([n for n in hub.files if n.endswith(".jsonl")]) == 3


def test_no_token_is_told_and_a_wrong_name_too(hub, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    mirror = mirror_of(MIRROR, tmp_path / "b" / FOLDER, tmp_path / "b")
    with pytest.raises(RunDirectoryError, match="does not give it to this token, or there is no"):
        mirror.restore(lambda text: None)
    for wrong in ("hf://datasets/answers", "s3://bucket/x"):
        with pytest.raises(ParameterError, match="parameter mirror"):
            mirror_of(wrong, tmp_path / "b" / FOLDER, tmp_path / "b")
    assert os.environ.get("HF_TOKEN") is None
