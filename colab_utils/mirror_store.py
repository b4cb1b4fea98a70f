"""Where mirrored files lie: the few things a mirror must be able to do, and a folder that does.

A mounted Drive caches writes, may vanish, and promises nothing on rename or fsync. So nothing
rests on either: a file is written under another name and renamed where that can be had, else
written at once, and read back; its name holds its digest, which a reader checks.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from colab_utils import records
from colab_utils.errors import MirrorError

# The mount itself is away, as Drive's is after some hours; one file's fault is any other.
_GONE = {
    errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EHOSTDOWN, errno.ETIMEDOUT,
}  # fmt: skip
# Kinds of file systems whose answers come from this machine's own disk or memory.
_LOCAL_KINDS = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}


class Store(Protocol):
    """What a mirror can do. Names are relative, with `/`; every method may raise `MirrorError`.

    `batch` files at most are given to one `put`, `pause_seconds` lie between two of them.
    """

    batch: int
    pause_seconds: float

    @property
    def vouches(self) -> str | None:
        """What makes its reads a proof on any machine, None where a cache may answer."""
        ...

    def names(self) -> list[str]:
        """All names that are there now."""
        ...

    def read(self, name: str) -> bytes:
        """One file's bytes."""
        ...

    def put(self, files: Mapping[str, bytes]) -> str | None:
        """Bring files there; returns what confirms them, None where nothing does yet."""
        ...


class Files:
    """The few calls that a folder mirror rests on; a test replaces them to inject faults."""

    def device(self, folder: Path) -> int:
        """Number of the file system that holds a folder."""
        return os.stat(folder).st_dev

    def list(self, folder: Path) -> list[tuple[str, bool]]:
        """(name, whether it is a folder) of all that lies in a folder."""
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.is_dir()) for entry in entries)

    def make_folder(self, folder: Path) -> None:
        """Make one folder, whose parent is there; one that exists is fine."""
        with suppress(FileExistsError):
            folder.mkdir()

    def read(self, path: Path) -> bytes:
        """All bytes of a file."""
        return path.read_bytes()

    def write(self, path: Path, data: bytes) -> None:
        """Write a file from its beginning."""
        with open(path, "wb") as stream:
            stream.write(data)
            stream.flush()
            # It promises nothing here, and a disk that is full says so at this moment.
            os.fsync(stream.fileno())

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name, over one that may be there."""
        os.replace(path, target)

    def remove(self, path: Path) -> None:
        """Remove a file of our own that is not finished."""
        path.unlink()


class FolderStore:
    """A folder, mounted or plain: `root` is what the user named, `folder` the run's place in it.

    `root` must be there: making it again where a mount has vanished would write to this
    machine's own disk.
    """

    batch = 1
    pause_seconds = 0.0

    def __init__(self, root: Path, folder: str, files: Files | None = None) -> None:
        self._root = root
        self._folder = root / folder
        self._files = files or Files()
        self._device: int | None = None

    @property
    def vouches(self) -> str | None:
        """None: a mount reads from its cache."""
        return None

    def names(self) -> list[str]:
        """All names below the run's folder, none where it is not there yet."""
        try:
            self._require_mounted()
            return self._below(self._folder, "")
        except OSError as error:
            raise self._error(error) from error

    def read(self, name: str) -> bytes:
        """One file's bytes."""
        try:
            return self._files.read(self._folder / name)
        except OSError as error:
            raise self._error(error, name) from error

    def put(self, files: Mapping[str, bytes]) -> str | None:
        """Write files that are not there whole; a mounted folder itself confirms nothing."""
        for name, data in files.items():
            try:
                self._require_mounted()
                self._put(self._folder / name, data)
            except OSError as error:
                raise self._error(error, name) from error
        return None

    def _put(self, path: Path, data: bytes) -> None:
        with suppress(FileNotFoundError):
            if self._files.read(path) == data:
                return
        part = path.with_name(f".{path.name}.{socket.gethostname()}.part")
        try:
            try:
                self._files.write(part, data)
            except FileNotFoundError:
                self._make_folders(path.parent)
                self._files.write(part, data)
            try:
                self._files.rename(part, path)
            except OSError:
                self._files.write(path, data)
        finally:
            with suppress(OSError):
                self._files.remove(part)
        back = self._files.read(path)
        if back != data:
            raise OSError(errno.EBADMSG, f"reads back {len(back)} other bytes than were written")

    def _make_folders(self, folder: Path) -> None:
        missing = [folder, *folder.parents]
        for path in reversed(missing[: missing.index(self._root)]):
            self._files.make_folder(path)

    def _below(self, folder: Path, prefix: str) -> list[str]:
        names: list[str] = []
        try:
            entries = self._files.list(folder)
        except FileNotFoundError:
            return names
        for name, is_folder in entries:
            if is_folder:
                names += self._below(folder / name, f"{prefix}{name}/")
            else:
                names.append(prefix + name)
        return names

    def _require_mounted(self) -> None:
        device = self._files.device(self._root)
        if self._device is None:
            self._device = device
        if device != self._device:
            raise OSError(errno.ENOTCONN, "is not mounted any more")

    def _error(self, error: OSError, name: str = "") -> MirrorError:
        # Where the folder that the user named can't be looked at, the whole mount is away.
        gone = error.errno in _GONE or not name or error.filename == str(self._root)
        return MirrorError(error.strerror or str(error), where=str(self._folder / name), gone=gone)


def machine() -> dict[str, str]:
    """What tells one machine from another: its host name and the start of its kernel."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    return {"host": socket.gethostname(), "boot": boot}


def machine_id(described: Mapping[str, str]) -> str:
    """Sixteen hex digits that stand for a machine."""
    return records.sha256_json(dict(described))[:16]


def is_plain_folder(folder: Path) -> bool:
    """Whether a folder lies on this machine's own disk, and on no mount that may cache for others.

    Raises `MirrorError` where the system's list of mounts can't be read.
    """
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError as error:
        raise MirrorError("the list of mounts can't be read", where=str(folder)) from error
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].replace("\\040", " "))
        if folder.resolve().is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split()[0]
    return kind in _LOCAL_KINDS
