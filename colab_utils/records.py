"""Strict JSON and JSONL on disk: one way to read, one way to write, one digest.

A record ends at a newline byte and nowhere else (U+2028, U+0085 and form feeds are
ordinary characters). Files are UTF-8 without a byte order mark; NaN, Infinity and
doubled keys are refused; a lone surrogate travels as its JSON escape.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from colab_utils.errors import RecordError, RunDirectoryError

_SURROGATE = re.compile("[\ud800-\udfff]")
_BOM = b"\xef\xbb\xbf"


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """One line of strict JSON, UTF-8 text kept as it is, keys in the order given.

    Raises `ValueError` for NaN and infinities and `TypeError` for foreign types,
    which are faults of the caller.
    """
    text = json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys
    )
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def encode_line(record: dict[str, Any]) -> bytes:
    """The bytes of one JSONL record, its newline included."""
    return dumps(record).encode("utf-8") + b"\n"


def encode_lines(records: Iterable[dict[str, Any]]) -> bytes:
    """The bytes of a JSONL file."""
    return b"".join(encode_line(record) for record in records)


def sha256_bytes(data: bytes) -> str:
    """Hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in blocks of a mebibyte."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of a value's canonical JSON (sorted keys): the base of every fingerprint."""
    return sha256_bytes(dumps(value, sort_keys=True).encode("utf-8"))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refuse_doubled_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {doubled!r} stands twice")
    return record


# Made once: json.loads would make one for each line.
_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_refuse_doubled_keys)


def loads(data: bytes, *, where: str) -> Any:
    """Parse strict JSON bytes; `where` names the file and line for the error.

    Raises `RecordError` for a byte order mark, bad UTF-8, NaN, doubled keys or bad JSON.
    """
    if data.startswith(_BOM):
        raise RecordError(
            "starts with a byte order mark", where=where, mend="save it as UTF-8 without BOM"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(
            f"byte {error.start} is not UTF-8", where=where, mend="save the file as UTF-8"
        ) from error
    try:
        return _STRICT.decode(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"is not strict JSON ({error})", where=where) from error


def parse_lines(data: bytes, *, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, record) of JSONL bytes.

    A last line without a newline is accepted here; readers that must know whether a file
    is whole check `data.endswith(b"\\n")` themselves. Raises `RecordError` naming the line.
    """
    if data.startswith(_BOM):
        loads(data[:3], where=where)
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            if line or number <= data.count(b"\n"):
                raise RecordError("is an empty line", where=f"{where}, line {number}")
            continue
        record = loads(line, where=f"{where}, line {number}")
        if not isinstance(record, dict):
            raise RecordError("is not a JSON object", where=f"{where}, line {number}")
        yield number, record


def read_bytes(path: Path) -> bytes:
    """A file's bytes; raises `RecordError` in one sentence when it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise RecordError("does not exist", where=str(path)) from error
    except OSError as error:
        raise RecordError(f"cannot be read ({error.strerror})", where=str(path)) from error


def read_json(path: Path) -> Any:
    """Read one strict JSON file."""
    return loads(read_bytes(path), where=str(path))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a whole JSONL file as records, in order."""
    return [record for _, record in parse_lines(read_bytes(path), where=str(path))]


def read_log(path: Path) -> list[dict[str, Any]]:
    """Records of an append-only log (heartbeat, timeline); torn lines are left out.

    Only such logs may lose lines: nothing is decided by them but what is shown.
    """
    if not path.exists():
        return []
    found = []
    for line in read_bytes(path).split(b"\n")[:-1]:
        try:
            record = loads(line, where=str(path))
        except RecordError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def make_folder(path: Path) -> None:
    """Make a folder and those above it; raises `RunDirectoryError` when it can't be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def read_appended(path: Path) -> list[dict[str, Any]]:
    """Records of a file that is appended to, none when it is not there.

    A last line that a kill has torn is cut off the file; raises `RecordError` for any other.
    """
    if not path.exists():
        return []
    data = read_bytes(path)
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        write_atomic(path, whole)
    return [record for _, record in parse_lines(whole, where=str(path))]


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or absent: other name, fsync, rename, fsync of the folder.

    Raises `RunDirectoryError` naming the folder when the disk is full or read-only; the
    other name is removed then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        _fsync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise unwritable(path, error) from error


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one record to a log in a single write, so that a reader never sees a mixed line.

    Raises `RunDirectoryError` when the disk is full or the folder read-only.
    """
    line = encode_line(record)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # A kill or a full disk tore the last line: it must not spoil this one.
                line = b"\n" + line
            if os.write(descriptor, line) != len(line):
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> RunDirectoryError:
    """The one sentence for a path that cannot be written."""
    mends = {
        errno.ENOSPC: "free some disk space and start again",
        errno.EROFS: "choose a folder that can be written",
        errno.EACCES: "choose a folder that can be written",
        errno.EPERM: "choose a folder that can be written",
        errno.ENOTDIR: "choose a folder, not a file",
    }
    return RunDirectoryError(
        f"cannot be written ({error.strerror})",
        where=str(path),
        mend=mends.get(error.errno or 0, "check the disk and start again"),
    )


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
