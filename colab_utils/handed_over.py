"""A run that somebody handed over: a ZIP, a folder on Drive, or one that can't be written.

Scoring and reports write beside the answers and read them many times, so such a run is first copied
to its own place below the project's `runs`: `EXPERIMENT/MODEL/KIND`, as its run.json says. A ZIP
is foreign: only plain files below its run directory are taken, under names that stay there.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from colab_utils import colab, records
from colab_utils.errors import ParameterError, RunDirectoryError
from colab_utils.manifests import PROJECT
from colab_utils.run_directory import RunDirectory

Say = Callable[[str], None]
RUNS = PROJECT / "runs"
# A run of 2,560 requests has some hundred files; run.json has kilobytes.
_MOST_FILES = 100_000
_MOST_RECORD_BYTES = 1 << 26
_NAME = re.compile(r"[\w][\w.-]*")
_KINDS = ("smoke", "full")
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def local_run(given: str, *, parameter: str, say: Say = print) -> Path:
    """The run directory to work in: `given` itself, or its copy below the project's `runs`.

    Copied is what lies on Drive (mounted where need be), in a ZIP or in a folder that can't be
    written; one that was copied before is not copied again. Raises `ParameterError` for what is
    no run or not safe to unpack, `RunDirectoryError` when its place holds other answers or the
    disk is full, `InputError` when Drive can't be mounted.
    """
    path = _as_spelt(PROJECT / given)
    if path.is_relative_to(colab.DRIVE):
        colab.require_drive()
        path = _as_spelt(path)
    if path.suffix.lower() == ".zip" and path.is_file():
        with _zip_source(path) as source:
            return _copied(source, say)
    on_drive = path.resolve().is_relative_to(colab.DRIVE)
    if path.is_dir() and (on_drive or not os.access(path, os.W_OK)):
        return _copied(_folder_source(path), say)
    return colab.local_folder(given, parameter=parameter)


@dataclass(frozen=True)
class _Source:
    """Files of a run by their path in the run directory, with sizes in bytes; how to read one."""

    where: str
    files: dict[str, int]
    open: Callable[[str], IO[bytes]]

    def read_record(self) -> dict[str, Any]:
        """run.json; raises `RecordError`, or `ParameterError` for one that names no place."""
        where = f"{self.where}, run.json"
        if self.files["run.json"] > _MOST_RECORD_BYTES:
            raise ParameterError("is no run's record (too large)", where=where)
        with self.open("run.json") as stream:
            run = records.loads(stream.read(_MOST_RECORD_BYTES), where=where)
        if not isinstance(run, dict):
            raise ParameterError("is no run's record", where=where)
        for field in ("experiment", "model", "kind"):
            text = run.get(field)
            if not isinstance(text, str) or not _NAME.fullmatch(text):
                raise ParameterError(
                    f"names no {field}", where=where, mend="give the run directory that was made"
                )
        if run["kind"] not in _KINDS:
            raise ParameterError(f"is of the kind {run['kind']!r}", where=where)
        return run

    def answers(self) -> Any:
        """What tells one state of a run from another: settings, completion, committed chunks."""
        return _answers(self.read_record(), self.files)


def _answers(run: dict[str, Any], files: Any) -> tuple[Any, ...]:
    completed = run.get("completed") or {}
    chunks = sorted(name for name in files if name.startswith("chunks/"))
    digest = completed.get("responses_sha256") if isinstance(completed, dict) else None
    return run.get("run_fingerprint"), digest, None if digest else chunks


def _copied(source: _Source, say: Say) -> Path:
    runs = RUNS
    run = source.read_record()
    place = runs / run["experiment"] / run["model"] / run["kind"]
    if place.exists() and any(place.iterdir()):
        here = RunDirectory(place).read_run()
        names = (path.relative_to(place).as_posix() for path in place.glob("chunks/*"))
        if here is not None and _answers(here, names) == source.answers():
            say(f"{source.where} was copied to {place} before")
            return place
        raise RunDirectoryError(
            f"holds other answers than {source.where}",
            where=str(place),
            mend="move that folder away, then start again",
        )
    records.make_folder(runs)
    needed = sum(source.files.values())
    free = shutil.disk_usage(runs).free
    if needed > free:
        raise RunDirectoryError(
            f"{source.where} holds {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free",
            where=str(runs),
            mend="free some disk space and start again",
        )
    say(f"copying {source.where} to {place}")
    with tempfile.TemporaryDirectory(dir=runs, prefix=".copying-") as folder:
        whole = Path(folder) / "run"
        _write(source, whole)
        # Not one of this project's runs: refused before it stands in its place.
        RunDirectory(whole).read_run()
        records.make_folder(place.parent)
        try:
            whole.rename(place)
        except OSError as error:
            raise records.unwritable(place, error) from error
    return place


def _write(source: _Source, folder: Path) -> None:
    for name, size in source.files.items():
        target = folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open(name) as stream, open(target, "xb") as out:
                shutil.copyfileobj(stream, out)
        except _ZIP_ERRORS as error:
            raise _damaged(f"{source.where}, {name}", error) from error
        except OSError as error:
            raise RunDirectoryError(
                f"cannot be copied to {folder.parent} ({error.strerror})",
                where=f"{source.where}, {name}",
                mend="check that it can be read and that the disk has room, then start again",
            ) from error
        if target.stat().st_size != size:
            raise ParameterError(
                f"has {target.stat().st_size} bytes instead of {size}",
                where=f"{source.where}, {name}",
                mend="get the file again",
            )


def _folder_source(folder: Path) -> _Source:
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    if "run.json" not in files:
        mend = "name a run directory"
        if any(re.fullmatch(r"run\.\d{8}T\d{6}Z\.[0-9a-f]{16}\.json", name) for name in files):
            mend = (
                "this is a mirror's folder: a smoke or full run with that MIRROR restores the run"
            )
        raise ParameterError("holds no run", where=str(folder), mend=mend)
    return _Source(str(folder), files, lambda name: open(folder / name, "rb"))


@contextmanager
def _zip_source(path: Path) -> Iterator[_Source]:
    try:
        archive = zipfile.ZipFile(path)
    except (*_ZIP_ERRORS, OSError) as error:
        raise _damaged(str(path), error) from error
    with archive:
        entries = _safe_entries(archive, str(path))
        homes = [name.removesuffix("run.json") for name in entries if _is_record(name)]
        if len(homes) != 1:
            found = ", ".join(sorted(home or "." for home in homes)[:3])
            raise ParameterError(
                f"holds {len(homes)} runs ({found})" if homes else "holds no run (no run.json)",
                where=str(path),
                mend="make a ZIP of one run directory",
            )
        below = {n.removeprefix(homes[0]): e for n, e in entries.items() if n.startswith(homes[0])}
        sizes = {name: entry.file_size for name, entry in below.items()}
        try:
            yield _Source(str(path), sizes, lambda name: archive.open(below[name]))
        except _ZIP_ERRORS as error:
            raise _damaged(str(path), error) from error


def _is_record(name: str) -> bool:
    return name == "run.json" or name.endswith("/run.json")


def _safe_entries(archive: zipfile.ZipFile, where: str) -> dict[str, zipfile.ZipInfo]:
    """Plain files by name in composed form; raises `ParameterError` for what no run holds."""
    entries = archive.infolist()
    if len(entries) > _MOST_FILES:
        raise ParameterError(f"holds {len(entries)} files, which is no run", where=where)
    names = Counter(unicodedata.normalize("NFC", entry.filename) for entry in entries)
    safe = {}
    for entry in entries:
        name = unicodedata.normalize("NFC", entry.filename)
        problem = _problem(name, entry, names[name])
        if problem:
            raise ParameterError(
                f"{problem}, so nothing is unpacked",
                where=f"{where}, {name!r:.80}",
                mend="make a plain ZIP of the run directory",
            )
        # What macOS adds beside the files.
        if not entry.is_dir() and not name.startswith("__MACOSX/"):
            safe[name] = entry
    return safe


def _problem(name: str, entry: zipfile.ZipInfo, count: int) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or ":" in name or "\0" in entry.orig_filename:
        return "is an absolute name or one of another system"
    if ".." in path.parts:
        return "leads out of its folder"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a special file"
    if entry.flag_bits & 0x1:
        return "is encrypted"
    return "stands there twice" if count > 1 else ""


def _damaged(where: str, error: Exception) -> ParameterError:
    return ParameterError(
        f"is damaged or no ZIP file ({error})", where=where, mend="get the file again"
    )


def _as_spelt(path: Path) -> Path:
    """The path as the disk spells it: Hangul may be composed there or decomposed."""
    spellings = (unicodedata.normalize(form, str(path)) for form in ("NFC", "NFD"))
    return next((p for p in (path, *map(Path, spellings)) if os.path.exists(p)), path)
