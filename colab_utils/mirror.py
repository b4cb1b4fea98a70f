"""A run directory's closed files on another disk (Drive's mount, say), and back again.

Work is local; files are copied once they can't change any more. A mounted Drive caches writes
and can lose them, so a copy counts as *copied*, never as confirmed, and a restored chunk is
judged by its own digest like any other.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from colab_utils import records
from colab_utils.errors import RunDirectoryError

# Written all the time, or of this machine only.
_NOT_COPIED = {"lock", "heartbeat.jsonl", "timeline.jsonl", "engine.log"}


@dataclass(frozen=True)
class MirrorState:
    """Files that are copied, those that are local only, and why the last copy failed, if so."""

    copied: int
    local: int
    problem: str | None

    def __str__(self) -> str:
        if self.problem is not None:
            return (
                f"mirror: {self.copied} files copied, {self.local} on this machine only "
                f"({self.problem}); it is tried again"
            )
        return f"mirror: {self.copied} files copied (not confirmed by Drive itself)"


def copy(run_dir: Path, mirror: Path) -> MirrorState:
    """Copy what is new in `run_dir` to `mirror`; a failure is told, never raised.

    A chunk's name holds its digest, so that a copy never changes; other files are copied
    again when their size or content differs.
    """
    sources = [path for path in sorted(run_dir.rglob("*")) if _belongs(path, run_dir)]
    copied = 0
    problem = None
    for source in sources:
        target = mirror / source.relative_to(run_dir)
        try:
            if not _same(source, target):
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_name(f".{target.name}.part")
                shutil.copyfile(source, part)
                part.replace(target)
            copied += 1
        except OSError as error:
            problem = f"{mirror}: {error.strerror or error}"
            break
    return MirrorState(copied, len(sources) - copied, problem)


def restore(mirror: Path, run_dir: Path) -> int:
    """Bring back run.json, chunks and responses that this machine lacks; return how many came.

    Nothing local is overwritten. Raises `RunDirectoryError` when the mirror can't be read:
    going on without it would compute again what is there.
    """
    count = 0
    try:
        sources = [
            mirror / "run.json",
            mirror / "responses.jsonl",
            *sorted((mirror / "chunks").glob("*.jsonl")),
        ]
        for source in sources:
            target = run_dir / source.relative_to(mirror)
            if source.is_file() and not target.exists():
                records.write_atomic(target, source.read_bytes())
                count += 1
    except OSError as error:
        raise RunDirectoryError(
            f"cannot be read ({error.strerror or error})",
            where=str(mirror),
            mend="mount it again, or start without a mirror",
        ) from error
    return count


def _belongs(path: Path, run_dir: Path) -> bool:
    parts = path.relative_to(run_dir).parts
    hidden = any(part.startswith(".") for part in parts)
    unfinished = path.name.endswith(".part.jsonl")
    return path.is_file() and not hidden and not unfinished and path.name not in _NOT_COPIED


def _same(source: Path, target: Path) -> bool:
    if not target.is_file() or target.stat().st_size != source.stat().st_size:
        return False
    if source.parent.name == "chunks":
        return True
    return records.sha256_file(source) == records.sha256_file(target)
