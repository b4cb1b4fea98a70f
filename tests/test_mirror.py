"""Finished chunks are copied to another disk and come back on a new machine, judged anew."""

from __future__ import annotations

import pytest
from test_chunks import IDS, commit

from colab_utils import checkpoints, mirror


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    commit(folder / "chunks", 0, 1)
    commit(folder / "chunks", 2, 3)
    (folder / "run.json").write_text("{}")
    (folder / "heartbeat.jsonl").write_text("{}\n")
    (folder / "lock").write_text("{}\n")
    return folder


def test_chunks_come_back_on_a_new_machine(tmp_path, run):
    state = mirror.copy(run, tmp_path / "drive")
    assert (state.copied, state.local, state.problem) == (3, 0, None)
    assert "not confirmed" in str(state)
    fresh = tmp_path / "fresh"
    assert mirror.restore(tmp_path / "drive", fresh) == 3
    assert checkpoints.verify(fresh / "chunks", IDS).requests_done == 4
    assert mirror.restore(tmp_path / "drive", fresh) == 0
    assert not (tmp_path / "drive" / "lock").exists()


def test_a_copy_is_not_repeated_and_a_changed_file_is_copied_again(tmp_path, run):
    drive = tmp_path / "drive"
    mirror.copy(run, drive)
    stamps = {path: path.stat().st_mtime_ns for path in drive.rglob("*.jsonl")}
    (run / "run.json").write_text("[]")
    mirror.copy(run, drive)
    assert (drive / "run.json").read_text() == "[]"
    assert {path: path.stat().st_mtime_ns for path in drive.rglob("*.jsonl")} == stamps


def test_what_drive_lost_or_tore_is_not_trusted(tmp_path, run):
    drive = tmp_path / "drive"
    mirror.copy(run, drive)
    torn, empty = sorted((drive / "chunks").iterdir())
    torn.write_bytes(torn.read_bytes()[:-9])
    empty.write_bytes(b"")
    fresh = tmp_path / "fresh"
    mirror.restore(drive, fresh)
    checkpoint = checkpoints.verify(fresh / "chunks", IDS)
    assert checkpoint.requests_done == 0 and len(checkpoint.torn) == 2
    # A copy whose size is wrong is copied again.
    assert mirror.copy(run, drive).problem is None
    mirror.restore(drive, tmp_path / "second")
    assert checkpoints.verify(tmp_path / "second" / "chunks", IDS).requests_done == 4


def test_a_mirror_that_is_gone_never_ends_a_run_but_stops_a_blind_start(tmp_path, run):
    gone = tmp_path / "gone"
    gone.write_bytes(b"a file where the mount was")
    state = mirror.copy(run, gone)
    assert (state.copied, state.local) == (0, 3)
    assert "on this machine only" in str(state) and "tried again" in str(state)
    (tmp_path / "broken" / "chunks").mkdir(parents=True)
    (tmp_path / "broken" / "chunks" / "00000-00001.00000000.jsonl").symlink_to(gone / "x")
    assert mirror.restore(tmp_path / "broken", tmp_path / "fresh") == 0
