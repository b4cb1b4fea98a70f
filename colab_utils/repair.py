"""Mend a run directory: restore, rebuild, or move aside so that the next start makes it again.

Nothing is deleted. What is moved aside lies in a folder `set-aside` beside its place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from colab_utils import checkpoints, records
from colab_utils.checkpoints import ChunkRange
from colab_utils.errors import ChunkConflict, ParameterError, RecordError, WorkbenchError
from colab_utils.heartbeat import now
from colab_utils.lock import busy
from colab_utils.mirror_files import is_chunk
from colab_utils.mirror_ledger import seen_conflicts
from colab_utils.mirror_store import machine
from colab_utils.responses import check_request_ids, parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import complete
from colab_utils.verification import Findings, look, mirror_for

Say = Callable[[str], None]


def repair(run_dir: Path, *, mirror: str = "", keep: str = "", say: Say = print) -> list[str]:
    """Mend what can be mended; return the lines that are still wrong, which are said too.

    From `mirror` comes what is missing or torn here. `keep` is the digest (its first digits) of the
    chunk that counts where a range of requests has two; the other is moved aside. Raises
    `RunnerBusy` while the run goes on, `ChunkConflict` when a choice is needed and none is made,
    `ParameterError` when `keep` names no chunk of a conflict.
    """
    directory = RunDirectory(run_dir)
    if directory.runner() is not None:
        raise busy(directory)
    there = mirror_for(run_dir, mirror)
    if there is not None:
        try:
            there.restore(say)
        except ChunkConflict:
            if not keep:
                raise
    if keep:
        _choose(directory, keep, say)
    found = look(run_dir)
    _mend_chunks(directory, found, say)
    _mend_responses(directory, look(run_dir), say)
    for path, problem in look(run_dir).problems:
        if path.startswith(("scoring/", "replays/")) and (run_dir / path).exists():
            _aside(directory, path, problem, say)
    left = look(run_dir).lines
    for line in left:
        say(f"still wrong: {line}")
    if not left:
        say(f"{run_dir}: nothing is wrong any more")
    return left


def _choose(directory: RunDirectory, keep: str, say: Say) -> None:
    """Record the user's choice, which mirrors carry on, and move the other chunks aside."""
    own = [p.name for p in directory.chunks.glob("*.jsonl") if is_chunk(f"chunks/{p.name}")]
    pairs = {*checkpoints.conflicts(own), *seen_conflicts(directory.path)}
    kept = {name for pair in pairs for name in pair if name.split(".")[1].startswith(keep)}
    if len(kept) != 1:
        raise ParameterError(
            f"{keep!r} names {len(kept) or 'no'} chunks of a conflict in {directory.path}",
            where="keep",
            mend="give the eight digits before .jsonl of the chunk that counts",
        )
    (name,) = kept
    if not (directory.chunks / name).exists():
        raise ParameterError(
            f"{name} is not on this machine", where="keep", mend="name the mirror that holds it"
        )
    others = sorted({other for pair in pairs if name in pair for other in pair} - {name})
    choice = {"kept": name, "aside": others, "at": now(), "host": machine()["host"]}
    target = directory.path / "choices" / f"{name.removesuffix('.jsonl')}.json"
    records.write_atomic(target, records.encode_line(choice))
    for other in others:
        if (directory.chunks / other).exists():
            checkpoints.move_aside(directory.chunks / other)
        say(f"{name} counts; {other} is aside")


def _mend_chunks(directory: RunDirectory, found: Findings, say: Say) -> None:
    """Torn chunks are moved aside; from whole responses.jsonl chunks are cut again."""
    checkpoint = found.checkpoint
    if checkpoint is None or found.request_ids is None or found.run is None:
        return
    for path, reason in checkpoint.torn.items():
        _aside(directory, f"chunks/{path.name}", reason, say)
    if not directory.is_complete():
        return
    ids = found.request_ids
    try:
        answers = parse_responses(records.read_bytes(directory.responses), where="responses.jsonl")
        check_request_ids([answer.request_id for answer in answers], ids, "responses.jsonl")
    except RecordError as error:
        say(f"chunks can't be cut from responses.jsonl: {error}")
        return
    size = int(found.run["chunk_size"])
    for chunk in _grid(checkpoints.plan(len(ids), size, list(checkpoint.finished)), size):
        made = checkpoints.commit(directory.chunks, chunk, answers[chunk.first : chunk.last + 1])
        say(f"chunks/{made.name}: cut again from responses.jsonl")


def _grid(chunks: list[ChunkRange], size: int) -> list[ChunkRange]:
    """Gaps cut where the run itself cuts, at multiples of its chunk size."""
    found = []
    for chunk in chunks:
        first = chunk.first
        while first <= chunk.last:
            last = min(chunk.last, (first // size + 1) * size - 1)
            found.append(ChunkRange(first, last))
            first = last + 1
    return found


def _mend_responses(directory: RunDirectory, found: Findings, say: Say) -> None:
    """Join the chunks again where all are whole and responses.jsonl is not what they say."""
    checkpoint, ids = found.checkpoint, found.request_ids
    wrong = [problem for path, problem in found.problems if path == directory.responses.name]
    if checkpoint is None or ids is None or found.run is None or not wrong:
        return
    if directory.responses.exists():
        _aside(directory, directory.responses.name, wrong[0], say)
    left = len(ids) - checkpoint.requests_done
    if left:
        say(f"{left} requests have no answer here; the next start computes them again")
        return
    try:
        digest = complete(directory, checkpoint)
    except WorkbenchError as error:
        say(f"responses.jsonl is not joined: {error}")
        return
    say(f"responses.jsonl: joined again from the chunks ({digest[:12]})")


def _aside(directory: RunDirectory, path: str, problem: str, say: Say) -> None:
    moved = checkpoints.move_aside(directory.path / path)
    say(f"{path}: {problem}; moved to {moved.relative_to(directory.path)}")
