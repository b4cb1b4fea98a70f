"""A run's files are copied to a mirror, come back on an empty disk, and are judged anew."""

from __future__ import annotations

import pytest
from mirrored_runs import (
    FOLDER,
    HERE,
    THERE,
    add_chunk,
    answers,
    bring,
    copier,
    make_run,
    state,
    write_run_json,
)

from colab_utils import mirror_restore, records
from colab_utils.errors import FingerprintMismatch, MirrorError
from colab_utils.mirror_ledger import Ledger, MirrorReader
from colab_utils.mirror_store import FolderStore
from colab_utils.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def test_a_run_comes_back_on_an_empty_disk_and_is_confirmed_there(tmp_path, run):
    assert copier(run, tmp_path / "drive").step(alive=False)
    assert [len(x) for x in (state(run).local, state(run).copied, state(run).confirmed)] == [
        0,
        3,
        0,
    ]
    fresh = tmp_path / "fresh"
    found = bring(tmp_path / "drive", fresh)
    assert answers(fresh) == answers(run) and len(answers(fresh)) == 2
    assert (found.whole, found.confirmed, found.damaged) == (3, 3, {})
    assert RunDirectory(fresh).read_run() == RunDirectory(run).read_run()
    assert state(fresh).is_safe
    # What computes the prefix cache's share needs the timeline of all segments.
    assert records.read_log(fresh / "timeline.jsonl") == records.read_log(run / "timeline.jsonl")
    assert not [p for p in (tmp_path / "drive").rglob("*") if p.name in ("lock", "heartbeat.jsonl")]
    assert bring(tmp_path / "drive", fresh).files == ()


def test_a_read_through_the_mount_that_wrote_confirms_nothing(tmp_path, run):
    copier(run, tmp_path / "drive").step(alive=False)
    found = bring(tmp_path / "drive", run, machine=HERE)
    assert (found.whole, found.confirmed) == (3, 0)
    assert len(state(run).copied) == 3
    # A wiped disk on the same machine: the mount's cache may still answer.
    bring(tmp_path / "drive", tmp_path / "wiped", machine=HERE)
    assert len(state(tmp_path / "wiped").copied) == 3
    store = FolderStore(tmp_path / "drive", FOLDER)
    ledger = Ledger(run, state(run).mirror)
    assert mirror_restore.confirm(run, store, ledger, HERE, plain=False).confirmed == 0
    assert mirror_restore.confirm(run, store, ledger, HERE, plain=True).confirmed == 3
    assert state(run).is_safe and "3 files confirmed" in str(state(run))


def test_a_copy_is_not_repeated_and_a_changed_file_goes_beside_the_older(tmp_path, run):
    drive = tmp_path / "drive"
    copier(run, drive).step(alive=False)
    stamps = {path: path.stat().st_mtime_ns for path in drive.rglob("*.json*")}
    write_run_json(run, completed={"responses_sha256": "f" * 64})
    assert state(run).local == ("run.json",)
    copier(run, drive).step(alive=False)
    assert len(list((drive / FOLDER).glob("run.*.json"))) == 2
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    bring(drive, tmp_path / "fresh")
    assert RunDirectory(tmp_path / "fresh").read_run()["completed"]
    # An older snapshot never replaces what is newer here.
    assert "run.json" not in bring(drive, run).files


def test_a_chunk_waits_for_its_writers_line_while_the_run_lives(tmp_path, run):
    path = add_chunk(run, 4)
    timeline = run / "timeline.jsonl"
    timeline.write_bytes(b"".join(timeline.read_bytes().splitlines(keepends=True)[:-1]))
    mirror = copier(run, tmp_path / "drive")
    assert not mirror.step(alive=True)
    assert state(run).local == (f"chunks/{path.name}",)
    assert mirror.step(alive=False) and not state(run).local


def test_run_json_is_made_again_from_a_chunks_record_when_every_snapshot_is_lost(tmp_path, run):
    drive = tmp_path / "drive"
    copier(run, drive).step(alive=False)
    for path in (drive / FOLDER).glob("run.*.json"):
        path.write_bytes(b"")
    found = bring(drive, tmp_path / "fresh")
    again, before = RunDirectory(tmp_path / "fresh").read_run(), RunDirectory(run).read_run()
    assert again["run_fingerprint"] == before["run_fingerprint"] and again["run"] == before["run"]
    assert again["segments"][0]["host"] == "here"
    assert list(found.damaged.values()) == ["is empty"]


def test_a_torn_chunk_here_is_never_copied_and_is_mended_from_the_mirror(tmp_path, run):
    drive = tmp_path / "drive"
    whole = answers(run)
    copier(run, drive).step(alive=False)
    torn = sorted((run / "chunks").glob("*.jsonl"))[0]
    torn.write_bytes(torn.read_bytes()[:-9])
    assert copier(run, drive).step(alive=False)
    assert bring(drive, run).files == (f"chunks/{torn.name}",)
    assert answers(run) == whole
    assert len(list((run / "chunks" / "set-aside").iterdir())) == 1


def test_two_machines_overwrite_nothing_and_both_writers_are_named(tmp_path, run):
    drive = tmp_path / "drive"
    other = make_run(tmp_path / "other", chunks=1, host="there")
    second = add_chunk(other, 2, text="another", host="there")
    copier(run, drive).step(alive=False)
    assert copier(other, drive, machine=THERE).step(alive=False)
    names = [p.name for p in (drive / FOLDER / "chunks").glob("*.jsonl")]
    assert len(names) == 3 and second.name in names
    # Seen while copying, told once, and kept from being joined.
    (sentence,) = state(other).conflicts
    assert "process 7 on here" in sentence and "process 7 on there" in sentence
    assert "both answer requests 2 to 3" in sentence
    found = bring(drive, tmp_path / "fresh", machine={"host": "third", "boot": "3"})
    assert len(found.conflicts) == 1
    assert "process 7 on here" in found.conflicts[0] and "on there" in found.conflicts[0]
    # The history of both machines is in the run's record.
    segments = RunDirectory(tmp_path / "fresh").read_run()["segments"]
    assert {segment["host"] for segment in segments} == {"here", "there"}


def test_answers_of_another_setting_are_refused(tmp_path, run):
    drive = tmp_path / "drive"
    copier(run, drive).step(alive=False)
    other = make_run(tmp_path / "other", chunks=0, gpu="NVIDIA L4", host="there")
    with pytest.raises(FingerprintMismatch, match=r"gpu: .*null became|gpu: .*became.*here"):
        bring(drive, other)
    assert answers(other) == {}


def test_a_mirror_that_has_nothing_restores_nothing_and_one_that_is_gone_is_told(tmp_path, run):
    (tmp_path / "drive").mkdir()
    assert bring(tmp_path / "drive", run).whole == 0
    with pytest.raises(MirrorError) as caught:
        bring(tmp_path / "gone", tmp_path / "fresh")
    assert caught.value.gone


def test_a_mount_that_vanished_is_not_made_again_on_this_disk(tmp_path, run):
    drive = tmp_path / "drive"
    mirror, reader = copier(run, drive), MirrorReader(run)
    assert mirror.step(alive=True)
    for path in sorted(drive.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    drive.rmdir()
    path = add_chunk(run, 4)
    for _ in range(3):
        assert not mirror.step(alive=True)
    assert not drive.exists()
    (told,) = reader.news()
    assert "1 files are on this machine only" in told and path.name in told
    assert state(run).local == (f"chunks/{path.name}",)
