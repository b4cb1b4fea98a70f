"""Copy a run's closed files to a mirror, and look there for what another machine has written.

Work is local. A file is copied once it can't change any more, or as a snapshot of what it holds
now; what was copied is noted in the ledger, and what keeps a file from it is told, never raised:
a run goes on without its mirror.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from colab_utils import checkpoints, records
from colab_utils.errors import MirrorError, RecordError, WorkbenchError
from colab_utils.mirror_files import (
    MACHINES,
    ClosedFile,
    Scanner,
    StoredName,
    chunk_record,
    is_chunk,
    record_name,
    stored_name,
)
from colab_utils.mirror_ledger import Ledger, State, set_aside_by_choice
from colab_utils.mirror_store import Store, machine_id
from colab_utils.run_directory import RunDirectory

_LOOK_SECONDS = 60.0


@dataclass(frozen=True)
class _Parcel:
    """One closed file and all that goes to the mirror for it, by name there."""

    file: ClosedFile
    parts: dict[str, bytes]


class Copier:
    """Brings one run's closed files to one mirror, a step at a time.

    `machine` describes this machine (`mirror_store.machine`).
    """

    def __init__(
        self, run_dir: Path, store: Store, ledger: Ledger, machine: Mapping[str, str]
    ) -> None:
        self._directory = RunDirectory(run_dir)
        self._store = store
        self._ledger = ledger
        self._machine = machine
        self._scanner = Scanner(run_dir)
        self._marked = False
        self._put_at = float("-inf")
        self._looked_at = float("-inf")

    def step(self, *, alive: bool) -> bool:
        """Copy what is new; return whether nothing is left to copy and the mirror answers.

        While the run is `alive` a store's pause between two puts is kept, and a chunk waits for
        its lines of the timeline. Raises nothing that a mirror or a disk can cause.
        """
        try:
            waiting, cause = self._copy(alive)
            if cause is None and not waiting:
                self._look_for_conflicts(alive)
        except MirrorError as error:
            waiting, cause = True, error.problem
        except WorkbenchError as error:
            # The ledger or the run directory itself: nothing is noted that was not done.
            waiting, cause = True, f"{error.where}: {error.problem}"
        try:
            if cause is not None or not waiting:
                self._ledger.note_problem(cause)
        except WorkbenchError as error:
            print(error, flush=True)
        return cause is None and not waiting

    def _copy(self, alive: bool) -> tuple[bool, str | None]:
        """Whether files wait for a later step, and the first cause why some could not go."""
        files = [f for f in self._scanner.scan() if self._ledger.state(f) == "local"]
        if not files:
            return False, None
        if alive and time.monotonic() - self._put_at < self._store.pause_seconds:
            return True, None
        waiting, cause = False, None
        parcels = []
        for file in files:
            try:
                parcel = self._parcel(file, alive)
            except RecordError as error:
                # This machine's own disk does not give it; the others still go.
                cause = cause or f"{error.where}: {error.problem}"
                continue
            if parcel is None:
                waiting = True
            else:
                parcels.append(parcel)
        for group in _groups(parcels, self._store.batch):
            try:
                self._put(group)
            except MirrorError as error:
                cause = cause or error.problem
                if error.gone:
                    break
        return waiting, cause

    def _put(self, group: list[_Parcel]) -> None:
        parts = {name: data for parcel in group for name, data in parcel.parts.items()}
        if not self._marked:
            # First, so that a reader knows whose cache may answer for the files after it.
            described = records.encode_line(dict(self._machine))
            parts = {f"{MACHINES}/{machine_id(self._machine)}.json": described, **parts}
        self._put_at = time.monotonic()
        confirmed_by = self._store.put(parts)
        self._marked = True
        state: State = "copied" if confirmed_by is None else "confirmed"
        by = confirmed_by or f"written by {self._machine['host']}"
        for parcel in group:
            self._ledger.note(parcel.file.path, parcel.file.sha256, state, by)

    def _parcel(self, file: ClosedFile, alive: bool) -> _Parcel | None:
        """All that goes for one file; None where it has changed or its record is not there yet."""
        data = records.read_bytes(self._directory.path / file.path)
        if records.sha256_bytes(data) != file.sha256:
            return None
        parts = {file.name: data}
        if is_chunk(file.path):
            record = chunk_record(self._directory, file, whole=alive)
            if record is None:
                return None
            parts[record_name(file.path, record)] = record
        return _Parcel(file, parts)

    def _look_for_conflicts(self, alive: bool) -> None:
        """Note whole chunks there that answer requests which this machine answers otherwise."""
        moment = time.monotonic()
        if alive and moment - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = moment
        stored = [s for s in map(stored_name, self._store.names()) if s is not None]
        aside = set_aside_by_choice(self._directory.path)
        own = {path.name for path in self._directory.chunks.glob("*.jsonl") if _is_own(path)}
        there = {_name(s): s for s in stored if s.kind == "chunk"}
        for pair in checkpoints.conflicts((own | there.keys()) - aside):
            if tuple(sorted(pair)) in self._ledger.conflicts:
                continue
            theirs = [there[name] for name in pair if name not in own]
            if all(s.holds(self._store.read(s.name)) for s in theirs):
                timeline = records.read_log(self._directory.timeline)
                for chunk in theirs:
                    timeline += self._timeline(chunk, stored)
                sentence = checkpoints.conflict_sentence(*pair, timeline)
                self._ledger.note_conflict(pair, sentence)

    def _timeline(self, chunk: StoredName, stored: list[StoredName]) -> list[dict[str, object]]:
        for record in stored:
            if record.kind == "record" and record.path == chunk.path:
                data = self._store.read(record.name)
                if record.holds(data):
                    return list(records.loads(data, where=record.name)["timeline"])
        return []


def _name(stored: StoredName) -> str:
    return PurePosixPath(stored.path).name


def _is_own(path: Path) -> bool:
    return is_chunk(f"chunks/{path.name}")


def _groups(parcels: list[_Parcel], size: int) -> Iterator[list[_Parcel]]:
    for first in range(0, len(parcels), size):
        yield parcels[first : first + size]
