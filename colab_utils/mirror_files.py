"""Which files of a run go to a mirror, and under which names.

Every name there holds the digest of what the file holds, so that two machines never overwrite
one another and a torn, empty or older file is told apart by reading it. A chunk keeps its own
name and gets a *record* beside it: its whole digest, its lines of the timeline, which say who
wrote it, and what run.json says of the settings. Any other file goes as a *snapshot*, `run.json`
for instance as `run.20261201T100000Z.3f9a0c12d4e5f607.json`. A report and its database are not
copied: they are made from answers and verdicts in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from colab_utils import records
from colab_utils.checkpoints import CHUNK_NAME
from colab_utils.errors import WorkbenchError
from colab_utils.run_directory import RunDirectory

_PATTERNS = (
    "run.json", "chunks/*.jsonl", "responses.jsonl", "replays/*.json", "choices/*.json",
    "scoring/*/verdicts.jsonl", "scoring/*/scoring.json", "scoring/*/replays.jsonl",
)  # fmt: skip
_STAMP = "%Y%m%dT%H%M%SZ"
_SNAPSHOT = re.compile(r"(.+)\.(\d{8}T\d{6}Z)\.([0-9a-f]{16})(\.[a-z]+)")
_RECORD = re.compile(r"(chunks/.+)\.record\.([0-9a-f]{16})\.json")
# Drive gives a second file of one name a number: "name (1).jsonl", or behind the ending.
_DOUBLE = re.compile(r" \(\d+\)(?=(\.[^./ ]*)?$)")

MACHINES = "machines"


@dataclass(frozen=True, order=True)
class ClosedFile:
    """A file of a run as it is now: its path in the run directory, SHA-256 and time (seconds)."""

    path: str
    sha256: str
    written: float

    @property
    def name(self) -> str:
        """Its name on a mirror."""
        if is_chunk(self.path):
            return self.path
        stem, ending = self.path.rsplit(".", 1)
        stamp = datetime.fromtimestamp(self.written, UTC).strftime(_STAMP)
        return f"{stem}.{stamp}.{self.sha256[:16]}.{ending}"


@dataclass(frozen=True, order=True)
class StoredName:
    """A name met on a mirror: which file of the run it holds, and the digest it promises.

    `stamp` is when a snapshot was taken, in seconds; 0 for the other kinds.
    """

    kind: Literal["chunk", "record", "snapshot"]
    path: str
    digest: str
    stamp: float
    name: str

    def holds(self, data: bytes) -> bool:
        """Whether `data` is what the name promises."""
        return records.sha256_bytes(data).startswith(self.digest)


def is_chunk(path: str) -> bool:
    """Whether a path in a run directory is a chunk's."""
    folder, _, name = path.rpartition("/")
    return folder == "chunks" and CHUNK_NAME.fullmatch(name) is not None


def stored_name(name: str) -> StoredName | None:
    """What a name on a mirror says; None for one that is not of this project, or not finished."""
    if PurePosixPath(name).name.startswith(".") or ".." in PurePosixPath(name).parts:
        return None
    plain = _DOUBLE.sub("", name)
    if is_chunk(plain):
        return StoredName("chunk", plain, plain.rsplit(".", 2)[1], 0, name)
    if match := _RECORD.fullmatch(plain):
        return StoredName("record", f"{match[1]}.jsonl", match[2], 0, name)
    match = _SNAPSHOT.fullmatch(plain)
    if match is None or not _wanted(match[1] + match[4]):
        return None
    try:
        stamp = datetime.strptime(match[2], _STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return StoredName("snapshot", match[1] + match[4], match[3], stamp, name)


def record_name(chunk: str, record: bytes) -> str:
    """The name on a mirror of a chunk's record."""
    return f"{chunk.removesuffix('.jsonl')}.record.{records.sha256_bytes(record)[:16]}.json"


def chunk_record(directory: RunDirectory, file: ClosedFile, *, whole: bool) -> bytes | None:
    """A chunk's record from run.json and the timeline; None while its lines are not there yet.

    With `whole` False the lines are not waited for: a killed run may never have written them.
    """
    name = PurePosixPath(file.path).name
    lines = timeline_of(name, records.read_log(directory.timeline))
    try:
        run = directory.read_run()
    except WorkbenchError:
        # A run.json that this machine's disk has torn must not keep an answer from the mirror.
        run = None
    if whole and (not lines or run is None):
        return None
    if run is not None:
        # What grows with the run is in its snapshots; the rest can make run.json again.
        run = {**run, "segments": [], "completed": None}
    return records.encode_line({"file": name, "sha256": file.sha256, "timeline": lines, "run": run})


def timeline_of(name: str, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The two lines of the timeline that tell of a chunk: given last, and committed."""
    given: dict[str, Any] | None = None
    for line in lines:
        if line.get("event") == "given" and line.get("chunk") == name.split(".")[0]:
            given = line
        if line.get("event") == "committed" and line.get("file") == name:
            return [line] if given is None else [given, line]
    return []


class Scanner:
    """Lists a run's closed files; a file is read again only when it has changed."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[str, tuple[tuple[int, int, int], str]] = {}

    def scan(self) -> list[ClosedFile]:
        """The closed files of this moment, by path; a chunk that is torn here is left out."""
        found = []
        for pattern in _PATTERNS:
            for path in sorted(self._run_dir.glob(pattern)):
                name = path.relative_to(self._run_dir).as_posix()
                if path.name.startswith(".") or path.parent.name == "set-aside":
                    continue
                try:
                    file = self._closed(path, name)
                except OSError:
                    # Replaced or moved away this moment; the next look decides.
                    continue
                if file is not None:
                    found.append(file)
        return found

    def _closed(self, path: Path, name: str) -> ClosedFile | None:
        stat = path.stat()
        mark = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        known = self._known.get(name)
        if known is None or known[0] != mark:
            known = (mark, records.sha256_file(path))
            self._known[name] = known
        file = ClosedFile(name, known[1], int(stat.st_mtime))
        stored = stored_name(file.name)
        if stored is None or not file.sha256.startswith(stored.digest):
            return None
        return file


def _wanted(path: str) -> bool:
    pure = PurePosixPath(path)
    return any(
        len(pure.parts) == len(PurePosixPath(pattern).parts) and pure.match(pattern)
        for pattern in _PATTERNS
    )
