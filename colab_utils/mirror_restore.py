"""Bring a run back from a mirror, trusting nothing that its digest does not vouch for.

Nothing whole on this machine is overwritten. What is torn, empty or older on the mirror is left
there and named; its requests are computed again. A file that is read where this machine has never
written counts as confirmed: no cache of its own can have answered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict

from colab_utils import checkpoints, fingerprints, records
from colab_utils.errors import FingerprintMismatch, MirrorError, RecordError, WorkbenchError
from colab_utils.heartbeat import now
from colab_utils.mirror_files import MACHINES, Scanner, StoredName, is_chunk, stored_name
from colab_utils.mirror_ledger import (
    Ledger,
    kept_by_choice,
    leave_chosen_against,
    set_aside_by_choice,
)
from colab_utils.mirror_store import Store, machine_id
from colab_utils.run_directory import RunDirectory

_ATTEMPTS = 3
_SCORING = ("scoring.json", "verdicts.jsonl", "replays.jsonl")


class Restored(BaseModel):
    """What a mirror gave: paths brought here, names on it that are not whole and why, conflicts.

    `missing` are paths that this machine has and the mirror does not hold whole. `whole` counts
    the files of the run that the mirror holds whole, `confirmed` those of them that this reading
    has confirmed. `conflicts` are sentences.
    """

    model_config = ConfigDict(frozen=True)

    files: tuple[str, ...] = ()
    damaged: dict[str, str] = {}
    missing: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    whole: int = 0
    confirmed: int = 0


@dataclass
class Survey:
    """All that a mirror holds of a run: whole files with their bytes, and the damaged by name."""

    whole: dict[StoredName, bytes] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    machines: frozenset[str] = frozenset()

    def of(self, kind: str, path: str | None = None) -> list[StoredName]:
        """Whole files of one kind, and path if given; snapshots of one path oldest first."""
        those = (s for s in self.whole if s.kind == kind and path in (None, s.path))
        return sorted(those, key=lambda s: (s.path, s.stamp, s.digest, s.name))

    def record(self, chunk: str) -> dict[str, Any] | None:
        """A chunk's record, None where none is whole."""
        for stored in self.of("record", chunk):
            return dict(records.loads(self.whole[stored], where=stored.name))
        return None


def survey(store: Store) -> Survey:
    """Read everything of a run that a mirror holds, and judge each by the digest in its name.

    Raises `MirrorError` when the mirror does not answer, or gives none of its files.
    """
    listed = store.names()
    found = Survey(
        machines=frozenset(PurePosixPath(n).stem for n in listed if n.startswith(f"{MACHINES}/"))
    )
    unread = 0
    for stored in sorted(s for s in map(stored_name, listed) if s is not None):
        try:
            data = _read(store, stored.name)
        except MirrorError as error:
            if error.gone:
                raise
            unread += 1
            found.damaged[stored.name] = error.problem
            continue
        if stored.holds(data):
            found.whole[stored] = data
        else:
            found.damaged[stored.name] = _fault(data)
    if unread and not found.whole:
        raise MirrorError(
            f"gives none of its {unread} files ({next(iter(found.damaged.values()))})", gone=True
        )
    for stored in found.of("chunk"):
        record = found.record(stored.path)
        if record is not None and record["sha256"] != records.sha256_bytes(found.whole[stored]):
            del found.whole[stored]
            found.damaged[stored.name] = "is not what its record says"
    return found


def restore(run_dir: Path, store: Store, ledger: Ledger, machine: Mapping[str, str]) -> Restored:
    """Bring to `run_dir` what it lacks or holds torn; nothing whole there is overwritten.

    Raises `MirrorError` when the mirror can't be read, `FingerprintMismatch` when it holds answers
    made under another setting, and `RunDirectoryError` when the run directory can't be written.
    """
    found = survey(store)
    directory = RunDirectory(run_dir)
    brought: list[str] = []
    _bring_choices(found, directory, brought)
    run = _bring_run(found, directory, brought)
    _bring_chunks(found, directory, run, brought)
    leave_chosen_against(directory)
    _bring_snapshots(found, directory, brought)
    confirmed = note_found(run_dir, found, ledger, by=store.vouches or reader(found, machine))
    return Restored(
        files=tuple(brought),
        damaged=without_a_whole_copy(found),
        conflicts=tuple(_conflicts(directory)),
        whole=len({stored.path for stored in found.whole if stored.kind != "record"}),
        confirmed=confirmed,
    )


def confirm(
    run_dir: Path, store: Store, ledger: Ledger, machine: Mapping[str, str], *, plain: bool
) -> Restored:
    """Compare the run with its mirror, change neither, and note what this reading confirms.

    `plain` says that the mirror is a folder on this machine's own disk. Raises `MirrorError` when
    the mirror can't be read.
    """
    found = survey(store)
    by = (
        store.vouches
        or reader(found, machine)
        or ("read anew from a plain folder" if plain else None)
    )
    confirmed = note_found(run_dir, found, ledger, by=by)
    missing = [file.path for file in Scanner(run_dir).scan() if ledger.state(file) == "local"]
    return Restored(
        damaged=without_a_whole_copy(found),
        missing=tuple(missing),
        whole=len({stored.path for stored in found.whole if stored.kind != "record"}),
        confirmed=confirmed,
    )


def reader(found: Survey, machine: Mapping[str, str]) -> str | None:
    """What confirms the files of a survey; None where this machine has written there itself."""
    if machine_id(machine) in found.machines:
        return None
    return f"read by {machine['host']}, which had written nothing there"


def note_found(run_dir: Path, found: Survey, ledger: Ledger, *, by: str | None) -> int:
    """Note in the ledger what a mirror holds; return how many files `by` confirms now.

    A file that the ledger called copied and that is damaged or gone there is local again.
    """
    confirmed = 0
    kept = {}
    for stored, data in found.whole.items():
        if stored.kind == "record":
            continue
        # A chunk without its record would lose its writer: it is copied again, with it.
        if stored.kind == "chunk" and found.record(stored.path) is None:
            continue
        kept[stored.path, records.sha256_bytes(data)] = stored
    for (path, sha256), stored in kept.items():
        confirmed += by is not None
        ledger.note(path, sha256, "confirmed" if by else "copied", by or f"found as {stored.name}")
    for path, sha256 in ledger.held():
        if (path, sha256) not in kept and (run_dir / path).is_file():
            ledger.note(path, sha256, "local", "not whole on the mirror")
    return confirmed


def without_a_whole_copy(found: Survey) -> dict[str, str]:
    """The damaged names whose file the mirror does not hold whole under another name."""
    whole = {(s.kind, s.path, s.digest) for s in found.whole}
    return {
        name: why
        for name, why in sorted(found.damaged.items())
        if (s := stored_name(name)) is not None and (s.kind, s.path, s.digest) not in whole
    }


def _read(store: Store, name: str) -> bytes:
    for attempt in range(_ATTEMPTS):
        try:
            return store.read(name)
        except MirrorError as error:
            if error.gone or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _fault(data: bytes) -> str:
    if not data:
        return "is empty"
    return "is torn or older than its name says"


def _bring_choices(found: Survey, directory: RunDirectory, brought: list[str]) -> None:
    for stored in found.of("snapshot"):
        if stored.path.startswith("choices/"):
            _write_if_missing(directory, stored.path, found.whole[stored], brought)


def _bring_run(found: Survey, directory: RunDirectory, brought: list[str]) -> dict[str, Any] | None:
    """The run's record from all that is whole, here and there; its history is joined."""
    own = None
    try:
        own = directory.read_run()
    except WorkbenchError:
        checkpoints.move_aside(directory.run_json)
    bytes_there = [found.whole[stored] for stored in found.of("snapshot", "run.json")]
    there = [dict(records.loads(data, where="run.json on the mirror")) for data in bytes_there]
    known = [run for run in [own, *there] if run is not None]
    if not known:
        known = [_run_of(r) for s in found.of("chunk") if (r := found.record(s.path)) and r["run"]]
    if not known:
        return None
    for other in known[1:]:
        if other["run_fingerprint"] != known[0]["run_fingerprint"]:
            difference = fingerprints.first_difference(known[0]["run"], other["run"])
            raise FingerprintMismatch(
                f"run.json here and on the mirror, or two on the mirror, are of different settings "
                f"({difference or 'decoding'}), written by {_hosts(known[0])} and {_hosts(other)}",
                where=str(directory.path),
                mend="choose another mirror folder for one of them",
            )
    best = max(known, key=_age)
    segments = {records.dumps(s): s for run in known for s in run["segments"]}
    best = {**best, "segments": sorted(segments.values(), key=lambda s: str(s["started"]))}
    if best != own:
        text = json.dumps(best, ensure_ascii=True, allow_nan=False, indent=1)
        same = [data for data, run in zip(bytes_there, there, strict=True) if run == best]
        records.write_atomic(directory.run_json, [text.encode() + b"\n", *same][-1])
        brought.append("run.json")
    return best


def _age(run: Mapping[str, Any]) -> tuple[bool, str, int]:
    """What tells the newest record of a run: whether and when it ended, how many segments."""
    ended = run["completed"] or {}
    return bool(ended), str(ended.get("at", "")), len(run["segments"])


def _run_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """run.json as a chunk's record can give it, with the one segment that it tells of."""
    committed = record["timeline"][-1] if record["timeline"] else {}
    segment = {
        "started": committed.get("at", now()),
        "host": committed.get("host"),
        "pid": committed.get("pid"),
        "machine": "unknown (run.json was lost and made again from a chunk's record)",
    }
    return {**record["run"], "segments": [segment]}


def _hosts(run: Mapping[str, Any]) -> str:
    found = [f"process {s.get('pid')} on {s.get('host')}" for s in run["segments"]]
    return ", ".join(found[:2]) or "an unknown writer"


def _bring_chunks(
    found: Survey, directory: RunDirectory, run: dict[str, Any] | None, brought: list[str]
) -> None:
    aside = set_aside_by_choice(directory.path)
    known = {line.get("file") for line in records.read_log(directory.timeline)}
    for stored in found.of("chunk"):
        name = PurePosixPath(stored.path).name
        record = found.record(stored.path)
        if name in aside:
            continue
        made_under = record["run"] if record else None
        if run and made_under and made_under["run_fingerprint"] != run["run_fingerprint"]:
            found.damaged[stored.name] = "was made under another setting"
            del found.whole[stored]
            continue
        _write_if_missing(directory, stored.path, found.whole[stored], brought)
        if record and name not in known:
            known.add(name)
            for line in record["timeline"]:
                records.append_line(directory.timeline, line)


def _bring_snapshots(found: Survey, directory: RunDirectory, brought: list[str]) -> None:
    """The newest whole snapshot of every other file that is not here."""
    out = _out_by_choice(found, directory)
    newest = {s.path: s for s in found.of("snapshot") if s.path != "run.json" and s not in out}
    for folder in sorted(
        {str(PurePosixPath(p).parent) for p in newest if p.startswith("scoring/")}
    ):
        record, verdicts, replays = (f"{folder}/{name}" for name in _SCORING)
        newest.pop(record, None)
        newest.pop(verdicts, None)
        newest |= _scoring_pair(found, directory, record, verdicts, out)
        if record not in newest and not (directory.path / record).exists():
            newest.pop(replays, None)
    for path, stored in newest.items():
        if not (directory.path / path).exists():
            target = directory.path / path
            records.write_atomic(target, found.whole[stored])
            # So that its name on the mirror stays the same.
            os.utime(target, (stored.stamp, stored.stamp))
            brought.append(path)


def _scoring_pair(
    found: Survey, directory: RunDirectory, record: str, verdicts: str, out: set[StoredName]
) -> dict[str, StoredName]:
    """The newest record of a scoring with the verdicts that it ended with, by path; else nothing.

    One without the other says nothing, and a scoring that went on later has several of each under
    one fingerprint. What is here already is one half of the pair, or all of it.
    """

    def newest_first(path: str) -> list[tuple[dict[str, StoredName], bytes]]:
        if (directory.path / path).exists():
            return [({}, records.read_bytes(directory.path / path))]
        there = [stored for stored in found.of("snapshot", path) if stored not in out]
        return [({path: stored}, found.whole[stored]) for stored in reversed(there)]

    judged = newest_first(verdicts)
    for said, text in newest_first(record):
        try:
            wanted = records.loads(text, where=record).get("verdicts_sha256")
        except (RecordError, AttributeError):
            # Torn here: its repair comes first.
            continue
        for lines, data in judged:
            if wanted in (None, records.sha256_bytes(data)):
                return {**said, **lines}
    return {}


def _out_by_choice(found: Survey, directory: RunDirectory) -> set[StoredName]:
    """Snapshots of answers that were joined before another chunk was chosen, and verdicts on them.

    They stay on the mirror; here the answers are joined again, and judged again.
    """
    chosen = [
        records.read_bytes(directory.chunks / name)
        for name in kept_by_choice(directory.path)
        if (directory.chunks / name).exists()
    ]
    answers = found.of("snapshot", "responses.jsonl")
    out = {s for s in answers if any(chunk not in found.whole[s] for chunk in chosen)}
    digests = {records.sha256_bytes(found.whole[stored]) for stored in out}
    for stored in found.of("snapshot"):
        if PurePosixPath(stored.path).name == "scoring.json":
            scoring = records.loads(found.whole[stored], where=stored.name)
            if scoring["responses_sha256"] in digests:
                out.add(stored)
    return out


def _write_if_missing(directory: RunDirectory, path: str, data: bytes, brought: list[str]) -> None:
    target = directory.path / path
    if target.exists():
        if records.read_bytes(target) == data:
            return
        checkpoints.move_aside(target)
    records.write_atomic(target, data)
    brought.append(path)


def _conflicts(directory: RunDirectory) -> Iterable[str]:
    timeline = records.read_log(directory.timeline)
    own = [p.name for p in directory.chunks.glob("*.jsonl") if is_chunk(f"chunks/{p.name}")]
    for pair in checkpoints.conflicts(own):
        yield checkpoints.conflict_sentence(*pair, timeline)
