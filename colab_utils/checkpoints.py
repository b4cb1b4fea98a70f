"""Chunk files: commit, verify, resume, join.

A chunk is a range of consecutive requests in one file, `chunks/FIRST-LAST.DIGEST.jsonl`,
that is whole or absent and never changes. Its bytes follow from its responses alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from colab_utils import records
from colab_utils.errors import ChunkConflict, RecordError
from colab_utils.responses import Response, check_request_ids, parse_responses

CHUNK_NAME = re.compile(r"(\d{5,})-(\d{5,})\.([0-9a-f]{8})\.jsonl")
CHOOSE = "choose one: `repair RUN_DIR --keep DIGEST`; the other is moved aside, never deleted"
_SET_ASIDE = "set-aside"
_NUMBER = re.compile(r"(\d+)-")


@dataclass(frozen=True, order=True)
class ChunkRange:
    """Requests `first` to `last`, both included, counted from 0."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first:05d}-{self.last:05d}"


@dataclass(frozen=True)
class Checkpoint:
    """What a folder of chunks holds: whole chunks by range, and the torn ones with the reason."""

    finished: dict[ChunkRange, Path]
    torn: dict[Path, str]

    @property
    def requests_done(self) -> int:
        """Number of requests that have a response."""
        return sum(len(chunk) for chunk in self.finished)


def plan(total: int, chunk_size: int, finished: Sequence[ChunkRange] = ()) -> list[ChunkRange]:
    """Ranges still to be run: the gaps between `finished`, cut every `chunk_size` requests."""
    chunks: list[ChunkRange] = []
    start = 0
    for done in [*sorted(finished), ChunkRange(total, total)]:
        chunks += [
            ChunkRange(first, min(first + chunk_size, done.first) - 1)
            for first in range(start, done.first, chunk_size)
        ]
        start = done.last + 1
    return chunks


def commit(folder: Path, chunk: ChunkRange, responses: Sequence[Response]) -> Path:
    """Write one finished chunk, whole or not at all, and return its path.

    Raises `RunDirectoryError` when the folder cannot be written.
    """
    data = b"".join(response.line() for response in responses)
    path = folder / f"{chunk}.{records.sha256_bytes(data)[:8]}.jsonl"
    records.write_atomic(path, data)
    return path


def verify(folder: Path, request_ids: Sequence[str] | None) -> Checkpoint:
    """Read every chunk in `folder` and judge it by its own digest, line count and request ids.

    Without `request_ids` (the data set can't be had) a chunk's ids only have to be different.
    Changes nothing. Raises `ChunkConflict` when two whole chunks cover the same request:
    which of the two answers counts is the user's choice.
    """
    whole: list[tuple[ChunkRange, Path]] = []
    torn: dict[Path, str] = {}
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        match = CHUNK_NAME.fullmatch(path.name)
        if match is None:
            torn[path] = "its name is not FIRST-LAST.DIGEST.jsonl"
            continue
        if int(match[2]) < int(match[1]):
            torn[path] = "its name says that it ends before it begins"
            continue
        chunk = ChunkRange(int(match[1]), int(match[2]))
        try:
            _verify_chunk(path, match[3], chunk, request_ids)
        except RecordError as error:
            torn[path] = error.problem
            continue
        whole.append((chunk, path))
    whole.sort()
    for first, second in conflicts([path.name for _, path in whole]):
        timeline = records.read_log(folder.parent / "timeline.jsonl")
        raise ChunkConflict(
            conflict_sentence(first, second, timeline), where=str(folder), mend=CHOOSE
        )
    return Checkpoint(dict(whole), torn)


def range_of(name: str) -> ChunkRange:
    """The requests that a chunk's name says it answers; the name must be a chunk's."""
    first, last = name.split(".")[0].split("-")
    return ChunkRange(int(first), int(last))


def conflicts(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of chunk names that answer a request both, in request order."""
    ordered = sorted((range_of(name), name) for name in set(names))
    return [
        (name, other)
        for (chunk, name), (following, other) in pairwise(ordered)
        if following.first <= chunk.last
    ]


def conflict_sentence(first: str, second: str, timeline: Sequence[dict[str, Any]]) -> str:
    """Which requests two chunks both answer, and who wrote each, as the timeline says."""
    one, two = range_of(first), range_of(second)
    return (
        f"{first} ({_writer(first, timeline)}) and {second} ({_writer(second, timeline)}) both "
        f"answer requests {max(one.first, two.first)} to {min(one.last, two.last)}"
    )


def _writer(name: str, timeline: Sequence[dict[str, Any]]) -> str:
    for line in reversed(timeline):
        if line.get("event") == "committed" and line.get("file") == name:
            return f"process {line.get('pid')} on {line.get('host')}, {line.get('at')}"
    return "writer unknown"


def set_aside(checkpoint: Checkpoint) -> None:
    """Move torn chunks into `set-aside/`, keeping them; their requests will be run again."""
    for path in checkpoint.torn:
        move_aside(path)


def move_aside(path: Path) -> Path:
    """Move a file or folder into `set-aside/` beside it, under a name of its own; return that."""
    folder = path.parent / _SET_ASIDE
    folder.mkdir(exist_ok=True)
    # Behind the newest: a number that is free again may be followed by one that is not.
    numbers = [int(found[1]) for p in folder.iterdir() if (found := _NUMBER.match(p.name))]
    count = max(numbers, default=-1) + 1
    return path.rename(folder / f"{count:03d}-{path.name}")


def join(checkpoint: Checkpoint, target: Path) -> str:
    """Write `responses.jsonl`, the chunks in request order; return its SHA-256.

    The digest names the answers.
    """
    data = b"".join(checkpoint.finished[c].read_bytes() for c in sorted(checkpoint.finished))
    records.write_atomic(target, data)
    return records.sha256_bytes(data)


def _verify_chunk(
    path: Path, digest: str, chunk: ChunkRange, request_ids: Sequence[str] | None
) -> None:
    data = records.read_bytes(path)
    if records.sha256_bytes(data)[:8] != digest:
        raise RecordError("its bytes do not match its digest", where=str(path))
    found = [response.request_id for response in parse_responses(data, where=str(path))]
    if request_ids is None:
        if len(set(found)) != len(chunk):
            raise RecordError("does not answer as many requests as its name says", where=str(path))
        return
    expected = request_ids[chunk.first : chunk.last + 1]
    if len(expected) != len(chunk):
        raise RecordError("its range is not one of this run", where=str(path))
    check_request_ids(found, expected, str(path))
