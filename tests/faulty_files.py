"""The calls that a folder mirror rests on, with one fault at one step."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colab_utils.mirror_store import Files

ERRORS = {
    "ENOTCONN": errno.ENOTCONN, "EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS,
}  # fmt: skip
# What the cache of a mount shows as written, and what came of it behind.
LIES = ("empty", "torn", "older", "doubled", "lost")
WRITES = ("make_folder", "write", "rename")
ONLY_WRITES = ("ENOSPC", "EROFS")


@dataclass
class FaultyFiles(Files):
    """Does what `Files` does, but step number `at` meets `fault`.

    A fault of `ERRORS` lasts for `steps` further calls (None: for good, at every call that it can
    befall). A lie is told of the file that is finished at that step: later reads by this object
    show it whole, as a mount's cache does, while the disk holds something else. `slow` waits for
    `gate`.
    """

    fault: str = ""
    at: int = -1
    steps: int | None = 0
    calls: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Event = field(default_factory=threading.Event)
    cache: dict[Path, bytes] = field(default_factory=dict)
    over: bool = False

    def _met(self, call: str, path: Path, act: Callable[[], Any]) -> Any:
        number = len(self.calls)
        self.calls.append(call)
        if self.over or number < self.at or self.at < 0:
            return act()
        if self.fault in ERRORS:
            if self.steps is not None and number > self.at + self.steps:
                return act()
            if self.fault in ONLY_WRITES and call not in WRITES:
                return act()
            if self.fault == "ENOSPC" and call == "write":
                # A full disk keeps what it could take.
                path.write_bytes(b"{")
            code = ERRORS[self.fault]
            raise OSError(code, os.strerror(code), str(path))
        if self.fault == "slow" and number == self.at:
            self.waiting.set()
            assert self.gate.wait(60)
        return act()

    def device(self, folder: Path) -> int:
        return int(self._met("device", folder, lambda: super(FaultyFiles, self).device(folder)))

    def list(self, folder: Path) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = self._met(
            "list", folder, lambda: super(FaultyFiles, self).list(folder)
        )
        return found

    def make_folder(self, folder: Path) -> None:
        self._met("make_folder", folder, lambda: super(FaultyFiles, self).make_folder(folder))

    def read(self, path: Path) -> bytes:
        cached = self.cache.get(path)
        if cached is not None:
            return cached
        data: bytes = self._met("read", path, lambda: super(FaultyFiles, self).read(path))
        return data

    def write(self, path: Path, data: bytes) -> None:
        self._met("write", path, lambda: super(FaultyFiles, self).write(path, data))

    def rename(self, path: Path, target: Path) -> None:
        number = len(self.calls)
        self._met("rename", path, lambda: super(FaultyFiles, self).rename(path, target))
        if self.fault in LIES and number == self.at and not self.over:
            self.cache[target] = target.read_bytes()
            spoil(target, self.fault)

    def remove(self, path: Path) -> None:
        self._met("remove", path, lambda: super(FaultyFiles, self).remove(path))


def spoil(path: Path, how: str) -> None:
    """Do to a file what Drive has been seen to do."""
    data = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "torn":
        path.write_bytes(data[: len(data) // 2])
    elif how == "older":
        path.write_bytes(data.replace(b"a", b"b") + b" ")
    elif how == "doubled":
        path.rename(path.with_name(f"{path.stem} (1){path.suffix}"))
    elif how == "lost":
        path.unlink()
