"""A run directory with chunks, a record and a timeline, as an engine process leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from test_chunks import IDS, commit, response

from colab_utils import checkpoints, records
from colab_utils.checkpoints import ChunkRange
from colab_utils.mirror import Copier
from colab_utils.mirror_ledger import Ledger, MirrorReader, MirrorState
from colab_utils.mirror_restore import Restored, restore
from colab_utils.mirror_store import Files, FolderStore
from colab_utils.run_directory import RunDirectory

HERE = {"host": "here", "boot": "1"}
THERE = {"host": "there", "boot": "2"}
FOLDER = "trial/tiny/full"


def write_run_json(
    run_dir: Path, *, host: str = "here", completed: Any = None, **more: Any
) -> None:
    settings = {"gpu": None, "batch_invariant": False, "dataset_sha256": "d" * 64} | more
    run = {
        "format": 1, "kind": "full", "decoding_fingerprint": "a" * 64, "decoding": {},
        "run_fingerprint": records.sha256_json(settings), "run": settings,
        "requests": len(IDS), "chunk_size": 2,
        "segments": [{"started": "2026-12-01T10:00:00+00:00", "host": host, "pid": 7}],
        "completed": completed,
    }  # fmt: skip
    records.write_atomic(run_dir / "run.json", json.dumps(run).encode())


def add_chunk(run_dir: Path, first: int, *, text: str = "답\u2028", host: str = "here") -> Path:
    """Commit requests `first` and the next, and note it as the engine process does."""
    path = commit(run_dir / "chunks", first, first + 1, text)
    chunk = str(ChunkRange(first, first + 1))
    who = {"at": "2026-12-01T10:00:00+00:00", "pid": 7, "host": host}
    timeline = RunDirectory(run_dir).timeline
    records.append_line(timeline, {"event": "given", "chunk": chunk, **who})
    line = {"event": "committed", "chunk": chunk, "file": path.name, **who}
    records.append_line(timeline, line)
    return path


def make_run(folder: Path, chunks: int = 2, **more: Any) -> Path:
    """A run of ten requests of which `chunks` pairs are answered."""
    write_run_json(folder, **more)
    for number in range(chunks):
        add_chunk(folder, 2 * number)
    beat = {"at": "2026-12-01T10:00:00+00:00", "pid": 7, "phase": "running", "phase_seconds": 1.0}
    records.append_line(folder / "heartbeat.jsonl", beat)
    return folder


def copier(run: Path, root: Path, files: Files | None = None, machine: Any = None) -> Copier:
    """What copies `run` to the folder `root`, as a fresh process would."""
    root.mkdir(exist_ok=True)
    store = FolderStore(root, FOLDER, files)
    return Copier(run, store, Ledger(run, f"{root}/{FOLDER}"), machine or HERE)


def bring(root: Path, run: Path, files: Files | None = None, machine: Any = None) -> Restored:
    """Restore `run` from the folder `root`, by default on another machine."""
    store = FolderStore(root, FOLDER, files)
    run.mkdir(exist_ok=True)
    return restore(run, store, Ledger(run, f"{root}/{FOLDER}"), machine or THERE)


def state(run: Path) -> MirrorState:
    """The counts that a reader sees."""
    found = MirrorReader(run).state()
    assert found is not None
    return found


def answers(run: Path) -> dict[str, bytes]:
    """The whole chunks of a run by name; torn ones fail the test's claim that none is trusted."""
    checkpoint = checkpoints.verify(run / "chunks", IDS)
    assert not checkpoint.torn
    return {path.name: path.read_bytes() for path in checkpoint.finished.values()}


__all__ = ["IDS", "response"]
