"""Ending what a program left behind."""

import contextlib
import os
import signal
import time

ORPHAN_SECONDS = 5.0


def end(pid: int) -> int:
    """Kill a child and its group; return the child's wait status."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def end_user(uid: int) -> None:
    """Kill every process of a user who has nothing but a program's processes.

    Done as that user: the kernel then signals all of them in one go, so that none can fork away.
    """
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(pid, 0)
    reap()


def end_orphans() -> None:
    """Kill what left the child's group: this process inherits it when its parents end.

    All are stopped before any is killed, round after round until none is new: killing one by
    one never ends a program that forks faster.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    while time.monotonic() < deadline:
        stopped: set[int] = set()
        while fresh := _descendants() - stopped:
            _signal_all(fresh, signal.SIGSTOP)
            stopped |= fresh
        _signal_all(stopped, signal.SIGKILL)
        if not reap():
            return
        time.sleep(0.001)


def reap() -> bool:
    """Take leave of ended children; whether any is left."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _children(pid: int) -> list[int]:
    """Children of every thread of a process; none when it is gone."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as stream:
                found += [int(word) for word in stream.read().split()]
    return found


def _descendants() -> set[int]:
    """All processes below this one, as far as /proc shows them while they fork."""
    found: set[int] = set()
    seen = set(_children(os.getpid()))
    while seen:
        found |= seen
        seen = {child for parent in seen for child in _children(parent)} - found
    return found


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
