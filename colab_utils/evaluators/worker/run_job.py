"""Run one job of an evaluator and say how it ended. Standard library only; `python -I run_job.py`.

The job comes as JSON on standard input, the result leaves as JSON on standard output. The
program itself runs in a forked child that has neither: it has empty standard input, output
that goes nowhere, and a pipe of its own to this process. What comes through the pipe counts
only behind a random token, so that writing to every descriptor forges nothing. As root the
child becomes another user first, so that it can neither signal nor look into this process.
"""

import contextlib
import ctypes
import io
import json
import os
import pickle
import resource
import select
import signal
import sqlite3
import sys
import time
import types
import unittest
from typing import Any

MAX_RESULT_BYTES = 4 << 20
MAX_TEXT = 2000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
LENGTH_DIGITS = 10
GRACE_SECONDS = 1.0
ORPHAN_SECONDS = 5.0


def short(text: str) -> str:
    """At most MAX_TEXT characters, so that a program cannot flood the result."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def describe(error: BaseException) -> str:
    """Class and message of an exception that foreign code may have made."""
    try:
        return short(f"{type(error).__name__}: {error}")
    except BaseException:
        return short(type(error).__name__)


# ------------------------------------------------------------------------------------- code


class Counting(unittest.TestResult):
    """Counts what really ran; upstream looks at failures and errors only."""

    def __init__(self) -> None:
        super().__init__()
        self.succeeded = 0

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.succeeded += 1


def machinery() -> list[tuple[str, str, int]]:
    """Identity of what runs and judges tests; a program that alters it is not judged by it."""
    kinds = (Counting, unittest.TestCase, unittest.TestSuite, unittest.TestLoader,
             unittest.TestResult)  # fmt: skip
    return [
        (kind.__name__, name, id(value)) for kind in kinds for name, value in vars(kind).items()
    ]


class Discard(io.StringIO):
    """Standard output that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)

    def readable(self) -> bool:
        return False


def run_code(job: dict) -> dict:
    """Run solution and unit tests in one module, as bigcodebench 0.2.5 does.

    The module is named `__test__`, knows `sys`, `os` and `environ`, and joins `sys.modules`
    after it has run; time is UTC and plots have no screen.
    """
    os.environ.update(TZ="UTC", OMP_NUM_THREADS="1", MPLBACKEND="Agg", TF_CPP_MIN_LOG_LEVEL="3")
    time.tzset()
    before = machinery()
    module = types.ModuleType("__test__")
    module.__dict__.update(sys=sys, os=os, environ=os.environ)
    result = Counting()
    loader = unittest.TestLoader()
    try:
        exec(compile(job["program"], "__test__.py", "exec"), module.__dict__)
        sys.modules["__test__"] = module
        suite = loader.loadTestsFromTestCase(module.TestCases)
        suite.run(result)
    except BaseException as error:
        return {"ran": 0, "succeeded": 0, "problems": {"ALL": describe(error)}, "altered": False}
    problems = {
        str(getattr(test, "_testMethodName", test)): short(text.strip().rpartition("\n")[2])
        for test, text in [*result.failures, *result.errors]
    }
    return {
        "ran": result.testsRun,
        "succeeded": result.succeeded,
        "problems": problems,
        "failed": len(result.failures),
        "altered": machinery() != before,
    }


# ---------------------------------------------------------------------------------- finance


def plain_value(value: Any) -> dict:
    """A returned value as JSON, its Python type named; the scoring side never sees the object."""
    kind = short(type(value).__name__)
    if value is None or isinstance(value, bool):
        return {"type": kind, "value": value}
    if isinstance(value, (list, tuple)):
        first = plain_value(value[0]) if len(value) else None
        nested = isinstance(value[0], (list, tuple)) if len(value) else False
        return {"type": kind, "first": None if nested else first}
    if isinstance(value, str):
        return {"type": "str", "value": short(value)}
    if isinstance(value, int):
        return {"type": kind, "number": str(value) if abs(value) < 10**300 else "inf"}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"type": kind}
    try:
        # An array of one element compares like that element.
        single = value.item() if getattr(value, "ndim", 0) else value
        return {"type": kind, "number": repr(float(single))}
    except (AttributeError, TypeError, ValueError, OverflowError):
        return {"type": kind}


def run_finance(job: dict) -> dict:
    """Call `solution()` of a program whose `print` does nothing, as FinanceReasoning does.

    Upstream sends the value through a queue, so one that can't be pickled is lost.
    """
    namespace = {"print": lambda *arguments, **more: None}
    try:
        exec(compile(job["program"], "solution.py", "exec"), namespace)
        value = namespace["solution"]()
        pickle.dumps(value)
        return {"returned": plain_value(value)}
    except BaseException as error:
        return {"error": describe(error)}


# -------------------------------------------------------------------------------------- sql

READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def authorise(action: int, first: object, second: object, database: object, trigger: object) -> int:
    """Reading only: no ATTACH, no PRAGMA, no write, no extension."""
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY


def fetch(uri: str, query: str, seconds: float, max_rows: int) -> tuple:
    """Rows of one query on a read-only connection, or why there are none."""
    connection = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
    # Cells that are not UTF-8 are read without loss; sqlite3's default would fail on them.
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    connection.execute("PRAGMA query_only = 1")
    connection.set_authorizer(authorise)
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 10000)
    try:
        rows = connection.execute(query).fetchmany(max_rows + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        if time.monotonic() > deadline:
            return None, "timeout", f"ended after {seconds} s"
        kind = "unsafe" if "not authorized" in str(error) else "error"
        return None, kind, describe(error)
    finally:
        connection.close()
    if len(rows) > max_rows:
        return None, "error", f"more than {max_rows} rows"
    return rows, "rows", f"{len(rows)} rows"


def run_sql(job: dict) -> dict:
    """Compare the rows of each query with the gold rows as sets, as BIRD does."""
    limits = (job["seconds"], job["max_rows"])
    gold, how, detail = fetch(job["database_uri"], job["gold"], *limits)
    if gold is None:
        return {"gold": {"how": how, "detail": detail}, "queries": []}
    expected = set(gold)
    queries = []
    for query in job["queries"]:
        rows, how, detail = fetch(job["database_uri"], query, *limits)
        same = rows is not None and set(rows) == expected
        queries.append({"how": how, "detail": detail, "same": same})
    return {"gold": {"how": "rows", "empty": not gold}, "queries": queries}


# ------------------------------------------------------------------------------------ worker

RUNNERS = {"code": run_code, "finance": run_finance, "sql": run_sql}


def limit(job: dict) -> None:
    """Bounds of the program's process: memory, file size, open files, processes, core, CPU."""
    for name, value in (
        (resource.RLIMIT_AS, job["memory_bytes"]),
        (resource.RLIMIT_FSIZE, job["file_bytes"]),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_NPROC, job["processes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(job["limit_seconds"]) + 5),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def become(uid: int) -> None:
    """As root, another user for good; else nothing."""
    if uid and os.getuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def control(option: int, value: int) -> None:
    """Set one of the kernel's options for this process."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def run_child(job: dict, channel: int, token: bytes) -> None:
    """Everything the program's process does; never returns."""
    os.setsid()
    # A query is no program, and its database may be readable for this user only.
    if job["kind"] != "sql":
        become(job["uid"])
    control(PR_SET_DUMPABLE, 1)
    # A change of user forgets this, so it comes after.
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    limit(job)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), Discard(), Discard()
    sys.setrecursionlimit(1000)
    try:
        result = RUNNERS[job["kind"]](job)
    except BaseException as error:
        result = {"error": describe(error)}
    body = json.dumps(result).encode("ascii")
    data = token + str(len(body)).zfill(LENGTH_DIGITS).encode("ascii") + body
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(channel, data) :]
    os._exit(0)


def receive(channel: int, size: int, deadline: float) -> bytes:
    """Up to `size` bytes; fewer when the writers are gone. Raises TimeoutError at the deadline."""
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([channel], [], [], left)[0]:
            raise TimeoutError
        block = os.read(channel, min(size - len(data), 1 << 16))
        if not block:
            break
        data += block
    return data


def collect(channel: int, token: bytes, seconds: float) -> dict:
    """What the child sent before it ended or its time was over.

    The length stands before the result: processes that the program left may hold the pipe open.
    """
    deadline = time.monotonic() + seconds
    try:
        head = receive(channel, len(token) + LENGTH_DIGITS, deadline)
        if not head:
            return {"died": "exit"}
        if not head.startswith(token) or not head[len(token) :].isdigit():
            return {"died": "forged"}
        size = int(head[len(token) :])
        body = receive(channel, size, deadline) if size <= MAX_RESULT_BYTES else b""
    except TimeoutError:
        return {"died": "timeout"}
    if len(body) < size:
        return {"died": "exit", "detail": "its result was too long or cut"}
    result = json.loads(body)
    return result if isinstance(result, dict) else {"died": "exit"}


def end_child(pid: int) -> int:
    """Kill the child and its group; return the child's wait status."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def children(pid: int) -> list[int]:
    """Children of every thread of a process; none when it is gone."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as stream:
                found += [int(word) for word in stream.read().split()]
    return found


def descendants() -> set[int]:
    """All processes below this one, as far as /proc shows them while they fork."""
    found: set[int] = set()
    seen = set(children(os.getpid()))
    while seen:
        found |= seen
        seen = {child for parent in seen for child in children(parent)} - found
    return found


def end_orphans() -> None:
    """Kill what left the child's group: this process inherits it when its parents end.

    All are stopped before any is killed, round after round until none is new: killing one by
    one never ends a program that forks faster.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    while time.monotonic() < deadline:
        stopped: set[int] = set()
        while new := descendants() - stopped:
            send_to_all(new, signal.SIGSTOP)
            stopped |= new
        send_to_all(stopped, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def send_to_all(pids: set[int], number: int) -> None:
    """One signal to each; those already gone are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def main() -> None:
    """Run the job on standard input and write one JSON line."""
    job = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    control(PR_SET_DUMPABLE, 0)
    control(PR_SET_CHILD_SUBREAPER, 1)
    token = os.urandom(16).hex().encode("ascii")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.close(out)
        run_child(job, writing, token)
    os.close(writing)
    began = time.monotonic()
    result = collect(reading, token, job["limit_seconds"] + GRACE_SECONDS)
    status = end_child(pid)
    if job["end_orphans"]:
        end_orphans()
    if result.get("died") == "exit" and "detail" not in result:
        code = os.waitstatus_to_exitcode(status)
        result["detail"] = f"signal {-code}" if code < 0 else f"exit code {code}"
    result["seconds"] = round(time.monotonic() - began, 3)
    os.write(out, json.dumps(result).encode("ascii"))


if __name__ == "__main__":
    main()
