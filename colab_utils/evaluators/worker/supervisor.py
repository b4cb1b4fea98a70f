"""One job: make its confinement, run the program in a child, collect, leave nothing behind.

The supervisor runs no program text itself. Three confinements (`job["confinement"]["level"]`):
strong, the namespaces of a bubblewrap that holds the place (`holder`); medium, another user
under Landlock and seccomp; weak, limits alone. A database query is no program: it keeps the
user who may read the database, without capabilities.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from . import channel, confine, job_code, job_finance, job_sanitise, job_sql, processes

RUNNERS: dict[str, Callable[[dict], dict]] = {
    "code": job_code.run,
    "finance": job_finance.run,
    "sanitise": job_sanitise.run,
    "sql": job_sql.run,
}
GRACE_SECONDS = 0.5


def serve(answer: socket.socket, server: int) -> None:
    """Read one job from `answer`, run it, write its result there."""
    os.setsid()
    confine.control(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        return
    confine.control(confine.PR_SET_DUMPABLE, 0)
    confine.control(confine.PR_SET_CHILD_SUBREAPER, 1)
    with answer.makefile("rb") as stream:
        job = json.loads(stream.readline())
    try:
        result = _run(job, answer.fileno())
    except OSError as error:
        # Of the confinement: what the program meets is caught where it runs.
        result = {"broken": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        answer.sendall(json.dumps(result).encode("ascii"))
    answer.close()


def _run(job: dict[str, Any], answer: int) -> dict[str, Any]:
    place = _PLACES[job["confinement"]["level"]](job["confinement"])
    try:
        began = time.monotonic()
        result = _run_in(place, job)
        result["seconds"] = round(time.monotonic() - began, 3)
        return result
    finally:
        place.leave()


def _run_in(place: "_Place", job: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    token_reading, token_writing = os.pipe()
    place.before_fork()
    pid = os.fork()
    if pid == 0:
        try:
            _child(place, job, writing, token_reading)
        finally:
            os._exit(1)
    os.close(writing)
    os.close(token_reading)
    token = channel.new_token()
    os.write(token_writing, token)
    os.close(token_writing)
    result = channel.collect(reading, token, job["limit_seconds"] + GRACE_SECONDS, place.has_room)
    status = processes.end(pid)
    if result.get("died") == "exit" and "detail" not in result:
        code = os.waitstatus_to_exitcode(status)
        result["detail"] = f"signal {-code}" if code < 0 else f"exit code {code}"
    return result


def _child(place: "_Place", job: dict[str, Any], writing: int, token_reading: int) -> None:
    """Everything the program's process does; never returns."""
    os.setsid()
    base_bytes = confine.address_space()
    run = RUNNERS[job["kind"]]
    try:
        place.enter(job["kind"] != "sql")
        confine.control(confine.PR_SET_DUMPABLE, 1)
        # A change of user forgets this, so it comes after.
        confine.control(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
        confine.close_others((writing, token_reading))
        confine.silence()
        confine.limit(job["limits"], job["limit_seconds"], base_bytes)
        _forget_worker()
    except (OSError, ValueError) as error:
        run = functools.partial(_say_broken, f"{type(error).__name__}: {error}")
    channel.run_and_send(writing, token_reading, run, job)
    os._exit(0)


def _forget_worker() -> None:
    """Programs find no module of the worker, so that none can be altered by its name."""
    package = __name__.split(".")[0]
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        del sys.modules[name]


def _say_broken(problem: str, job: dict[str, Any]) -> dict[str, Any]:
    return {"broken": problem}


class _Place:
    """Where a program runs; this one is the weak level's: a folder, and another user for root."""

    def __init__(self, confinement: dict[str, Any]) -> None:
        self.uid = confinement["uid"]
        self.given = confinement
        # Only its name is hidden from others: another user must be able to write there.
        self.folder = tempfile.mkdtemp(prefix="answer-", dir=confinement["scratch"])
        if self.uid:
            os.chown(self.folder, self.uid, self.uid)

    def before_fork(self) -> None:
        """What the supervisor itself must do for its children."""

    def has_room(self) -> bool:
        """Whether the program's files are within their bound."""
        return _bytes_in(self.folder) <= self.given["folder_bytes"]

    def enter(self, program: bool) -> None:
        """Confine the calling process, for good."""
        environment = {**self.given["environment"], "HOME": self.folder, "TMPDIR": self.folder}
        confine.settle(self.folder, environment)
        self.confine(program)

    def confine(self, program: bool) -> None:
        """Drop what the program must not have."""
        if program and self.uid:
            confine.become(self.uid)
        else:
            confine.drop_capabilities()

    def leave(self) -> None:
        """End what is left, and remove its files."""
        if self.uid:
            processes.end_user(self.uid)
            _remove_owned("/dev/shm", self.uid)
        else:
            processes.end_orphans()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Restricted(_Place):
    """The medium level: also Landlock and seccomp."""

    def confine(self, program: bool) -> None:
        """Landlock first, while every path can still be passed, and another user then.

        The interpreter may lie in a folder that only root can pass (root's home): that user may
        pass all folders, of which Landlock leaves the listed ones.
        """
        confine.restrict(self.given["readable"], [self.folder, *self.given["writable"]])
        confine.become(self.uid, keep=confine.CAP_DAC_READ_SEARCH)


class _Held(_Place):
    """The strong level: the namespaces that a bubblewrap has made, gone when it is ended."""

    def __init__(self, confinement: dict[str, Any]) -> None:
        self.uid = confinement["uid"]
        self.given = confinement
        told, tell = os.pipe()
        # cat answers when all is mounted, and ends with its standard input.
        self.holder = subprocess.Popen(
            [*confinement["holder"], "--info-fd", str(tell), "--", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(tell,),
        )
        os.close(tell)
        assert self.holder.stdin and self.holder.stdout and self.holder.stderr
        with contextlib.suppress(BrokenPipeError):
            self.holder.stdin.write(b"\n")
            self.holder.stdin.flush()
        if self.holder.stdout.read(1) != b"\n":
            complaint = self.holder.stderr.read().decode("utf-8", "replace").strip()
            self.holder.wait()
            raise OSError(f"bubblewrap: {complaint or 'did not start'}")
        self.init = int(json.loads(os.read(told, 1 << 16))["child-pid"])
        os.close(told)
        # Opened here: its number means another process to those who live in its namespace.
        self.space = {
            kind: confine.namespace(self.init, kind)
            for kind in ("pid", "net", "ipc", "uts", "mnt", "user")
        }

    def before_fork(self) -> None:
        """Children of this process are born into the place's process namespace."""
        if not self.uid:
            # Only there does a user who is not root have the right to join the others.
            confine.join(confine.owner(self.space["mnt"]))
        confine.join(self.space["pid"])

    def has_room(self) -> bool:
        """Its file systems are bounded by themselves."""
        return True

    def enter(self, program: bool) -> None:
        """Join, then give up what joining needed."""
        for kind in ("net", "ipc", "uts", "mnt"):
            confine.join(self.space[kind])
        if not self.uid:
            confine.join(self.space["user"])
        confine.settle(self.given["folder"], self.given["environment"])
        if program and self.uid:
            confine.become(self.uid)
        else:
            confine.drop_capabilities()

    def leave(self) -> None:
        """The kernel ends every process of a namespace whose first one is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.init, signal.SIGKILL)
        self.holder.kill()
        self.holder.wait()


_PLACES: dict[str, Callable[[dict[str, Any]], _Place]] = {
    "strong": _Held,
    "medium": _Restricted,
    "weak": _Place,
}


def _bytes_in(folder: str) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def _remove_owned(folder: str, uid: int) -> None:
    """Remove what a user left in a folder that all may write to."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == uid:
                    os.unlink(entry.path)
