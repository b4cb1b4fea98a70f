"""Answers that attack: at the strong and the medium level none passes, each leaves a right verdict,
no process lives on, and the evaluator goes on to the next answer."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from colab_utils.errors import SandboxUnavailable
from colab_utils.evaluators import execution_accuracy, program_value, sandbox, unit_tests
from colab_utils.evaluators.probing import probe
from colab_utils.evaluators.workers import Workers
from colab_utils.manifests import PROJECT

PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"
REFERENCE = {
    "code_prompt": "def task_func(x):\n",
    "entry_point": "task_func",
    "test": "import unittest\n\n\nclass TestCases(unittest.TestCase):\n"
    "    def test_one(self):\n        self.assertEqual(task_func(1), 2)\n"
    "    def test_two(self):\n        self.assertEqual(task_func(2), 4)\n",
}
RIGHT = "def task_func(x):\n    return 2 * x\n"
WRONG = "def task_func(x):\n    return 0\n"
FORGED = "{'ran': 2, 'succeeded': 2, 'problems': {}, 'failed': 0, 'altered': False}"
SECONDS = 3.0


def attack(*lines: str, then: str = "return 0") -> str:
    """A `task_func` that does something before it returns."""
    body = "".join(f"    {line}\n" for line in [*lines, then])
    return f"import os, sys, time, signal, socket\ndef task_func(x):\n{body}"


def everywhere(*lines: str) -> str:
    """An attack whose answer is right only if what it tries has worked."""
    return attack(*lines, then="return 2 * x")


# name -> program. None solves the task unless its attack works, so none may pass.
ATTACKS = {
    # Ending the process, its time or its space.
    "os._exit(0)": attack("os._exit(0)"),
    "os._exit(0) at import": WRONG + "import os\nos._exit(0)\n",
    "sys.exit": WRONG + "import sys\nsys.exit(0)\n",
    "SystemExit in a test": attack("raise SystemExit(0)"),
    "abort": attack("os.abort()"),
    "segmentation fault": attack("import ctypes", "ctypes.string_at(0)"),
    "endless loop": attack("while True: pass"),
    "endless loop at import": WRONG + "while True:\n    pass\n",
    "sleep": attack("time.sleep(1000)"),
    "signals ignored": attack(
        "for n in range(1, 64):",
        "    try: signal.signal(n, signal.SIG_IGN)",
        "    except (OSError, ValueError): pass",
        "while True: pass",
    ),
    "own alarm": attack("signal.alarm(1)", "time.sleep(1000)"),
    "stopped by itself": attack("os.getpid() and signal.raise_signal(signal.SIGSTOP)"),
    "deep recursion": "def task_func(x):\n    return task_func(x)\n",
    "recursion without limit": "import sys\nsys.setrecursionlimit(10**9)\n"
    "def task_func(x):\n    return task_func(x)\n",
    "nested source": "task_func = eval('(' * 5000 + ')' * 5000)\n",
    "memory": attack("bytearray(1 << 36)"),
    "memory in a list": attack("kept = []", "while True: kept.append(bytearray(1 << 24))"),
    "memory mapped": attack("import mmap", "mmap.mmap(-1, 1 << 40)"),
    "one big file": attack("open('big', 'wb').write(b'x' * (1 << 30))"),
    "many files": attack(
        "for n in range(10**6):", "    open(f'f{n}', 'wb').write(b'x' * (1 << 20))"
    ),
    "sparse file": attack("open('sparse', 'wb').truncate(1 << 40)"),
    "disk through shared memory": attack(
        "for n in range(10**4):",
        "    open(f'/dev/shm/f{n}', 'wb').write(b'x' * (1 << 20))",
        "    os.remove(f'/dev/shm/f{n}') if n > 400 else None",
    ),
    "output flood": attack("for n in range(10**6): print('x' * 1000)"),
    "output flood to descriptors": attack("while True: os.write(1, b'x' * 65536)"),
    "all descriptors": attack("kept = [open('/dev/null') for n in range(10**5)]"),
    "threads": attack(
        "import threading",
        "for n in range(10**5): threading.Thread(target=time.sleep, args=(99,)).start()",
    ),
    "gigabyte exception": attack("raise ValueError('x' * (1 << 30))"),
    "compressed bomb": attack(
        "import zlib",
        "data = zlib.compress(bytes(1 << 26))",
        "kept = [zlib.decompress(data) for n in range(1000)]",
    ),
    # Processes.
    "fork bomb": attack("while True: os.fork()"),
    "fork bomb in new sessions": attack(
        "while True:",
        "    try:",
        "        if os.fork() == 0: os.setsid()",
        "    except OSError: pass",
    ),
    "survivor": attack("if os.fork() == 0:", "    os.setsid()", "    time.sleep(1000)"),
    "double fork": attack(
        "if os.fork() == 0:",
        "    os.setsid()",
        "    if os.fork() == 0: time.sleep(1000)",
        "    os._exit(0)",
    ),
    "survivor by subprocess": attack(
        "import subprocess",
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)",
    ),
    "kill parent": everywhere("os.getppid() and os.system('kill -9 %d' % os.getppid())", "1 / 0"),
    "kill parent by the call": attack("import ctypes", "ctypes.CDLL(None).kill(os.getppid(), 9)"),
    "kill all by the call": attack("import ctypes", "ctypes.CDLL(None).kill(-1, 9)"),
    "kill the group": attack("import ctypes", "ctypes.CDLL(None).kill(0, 9)"),
    "kill low numbers": attack(
        "import ctypes",
        "for n in range(1, 5000): n != os.getpid() and ctypes.CDLL(None).kill(n, 9)",
    ),
    "trace the parent": everywhere(
        "import ctypes", "assert ctypes.CDLL(None).ptrace(16, os.getppid() or 1, 0, 0) == 0"
    ),
    # Files, secrets, network.
    "read the project": everywhere(f"open({str(PROJECT / 'README.md')!r}).read()"),
    "read the password file": everywhere("open('/etc/shadow').read()"),
    "read root's home": everywhere("os.listdir('/root/.ssh')"),
    "write to the system": everywhere("open('/usr/local/evil', 'w')"),
    "write to the interpreter": everywhere("open(os.__file__, 'a')"),
    "delete the worker": everywhere(f"os.remove({str(sandbox.WORKER / 'server.py')!r})"),
    "delete everything": everywhere("import shutil", f"shutil.rmtree({str(PROJECT / 'tests')!r})"),
    "symbolic link out": everywhere(
        f"os.symlink({str(PROJECT / 'README.md')!r}, 'link')", "open('link').read()"
    ),
    "hard link out": everywhere(f"os.link({str(PROJECT / 'README.md')!r}, 'link')"),
    "parent's root": everywhere(f"os.listdir('/proc/{os.getpid()}/root{PROJECT}')"),
    "parent's environment": everywhere(
        "seen = open(f'/proc/{os.getppid() or 10**7}/environ').read()"
    ),
    "parent's descriptors": everywhere("os.listdir(f'/proc/{os.getppid() or 10**7}/fd')"),
    "parent's memory": everywhere("open(f'/proc/{os.getppid() or 10**7}/mem', 'rb').read(1)"),
    "token in its environment": everywhere("os.environ['HF_TOKEN']"),
    "become root": everywhere("os.setuid(0)"),
    "mount": everywhere(
        "import ctypes", "assert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0"
    ),
    "chroot": everywhere("os.chroot('.')"),
    "network by address": everywhere("socket.create_connection(('192.0.2.1', 80), timeout=1)"),
    "network by datagram": everywhere(
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"
    ),
    "network by name": everywhere("socket.getaddrinfo('example.com', 80)"),
    "raw network": everywhere("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    # The tests and the result.
    "assertions switched off": WRONG + "import unittest\n"
    "unittest.TestCase.assertEqual = lambda *given, **named: None\n",
    "no tests run": WRONG + "import unittest\n"
    "unittest.TestSuite.run = lambda self, result: result\n",
    "no tests found": WRONG + "import unittest\n"
    "unittest.TestLoader.loadTestsFromTestCase = lambda *given: unittest.TestSuite()\n",
    "failures not kept": WRONG + "import unittest\n"
    "unittest.TestResult.addFailure = lambda *given: None\n",
    "skipped": "import unittest\ndef task_func(x):\n    raise unittest.SkipTest('no')\n",
    "expected to fail": WRONG + "import unittest\n"
    "unittest.TestCase.__unittest_expecting_failure__ = True\n",
    "equal to all": "class All(int):\n    def __eq__(self, other):\n        raise SystemExit(0)\n"
    "def task_func(x):\n    return All()\n",
    "tests replaced by a thread": WRONG + "import sys, threading, time\ndef later():\n"
    "    while '__test__' not in sys.modules: pass\n"
    "    sys.modules['__test__'].task_func = None\n"
    "threading.Thread(target=later, daemon=True).start()\n",
    "forged result": attack(
        "import json",
        f"forged = json.dumps({FORGED}).encode()",
        "for n in range(1, 64):",
        "    try: os.write(n, forged)",
        "    except OSError: pass",
        "os._exit(0)",
    ),
    "token sought on the stack": attack(
        "import json",
        f"body = json.dumps({FORGED}).encode()",
        "frame, found = sys._getframe(), []",
        "while frame:",
        "    found += [v for v in frame.f_locals.values() if isinstance(v, bytes)]",
        "    frame = frame.f_back",
        "import gc, functools",
        "for o in gc.get_objects():",
        "    if isinstance(o, functools.partial):",
        "        found += [v for v in o.args if isinstance(v, bytes)]",
        "for token in found:",
        "    for n in range(3, 64):",
        "        try: os.write(n, token + str(len(body)).zfill(10).encode() + body)",
        "        except OSError: pass",
        "os._exit(0)",
    ),
    "result closed": attack("os.closerange(3, 256)"),
    "exception that breaks": "class Bad(Exception):\n    def __str__(self):\n"
    "        raise SystemExit(0)\ndef task_func(x):\n    raise Bad\n",
    "audit hook": WRONG + "import sys, os\nsys.addaudithook(lambda *given: os._exit(0))\n",
    "atexit": attack("import atexit", "atexit.register(os._exit, 0)"),
    "import replaced": WRONG + "import builtins\n"
    "builtins.__import__ = lambda *given, **named: None\n",
    "json replaced": WRONG + "import json\njson.dumps = lambda *given, **named: "
    '\'{"ran": 2, "succeeded": 2, "problems": {}, "failed": 0, "altered": false}\'\n'
    "class TestCases: pass\n",
    "pickle that runs": attack(
        "import pickle",
        "class Runs:\n        def __reduce__(self): return (os.system, ('touch /tmp/ran',))",
        then="return Runs()",
    ),
}


@pytest.fixture(scope="module", params=["strong", "medium"])
def box(request):
    for candidate in sandbox.candidates():
        if candidate.level == request.param:
            os.environ["HF_TOKEN"] = "hf_canary"
            with Workers(PYTHON, candidate) as workers:
                yield workers
            del os.environ["HF_TOKEN"]
            return
    pytest.skip(f"this user can't have the {request.param} sandbox")


def judge(box: Workers, program: str):
    def run(job: dict, seconds: float) -> dict:
        return box.run(job, seconds=seconds)

    return unit_tests.judge(
        f"```python\n{program}\n```", REFERENCE, SECONDS, run, lambda text, entry_point: program
    )


def left_over() -> list[str]:
    """Processes of the programs' user that are there after they have had time to go."""
    for _ in range(50):
        found = subprocess.run(
            ["pgrep", "-U", str(sandbox.user_of(0))], capture_output=True, text=True, check=False
        )
        living = [pid for pid in found.stdout.split() if not _is_zombie(pid)]
        if not living:
            break
        time.sleep(0.1)
    return living


def _is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_does_not_pass_and_leaves_nothing(box, name):
    judgement = judge(box, ATTACKS[name])
    assert not judgement.passed
    assert judgement.outcome in ("wrong_answer", "error", "timeout", "unsafe")
    if os.getuid() == 0:
        assert left_over() == []
    assert (PROJECT / "README.md").exists() and not Path("/tmp/ran").exists()
    # The evaluator goes on to the next answer.
    assert judge(box, RIGHT).passed


def test_there_are_many_attacks():
    assert len(ATTACKS) >= 60


@pytest.mark.slow
def test_a_gigabyte_of_rows_ends_the_query_and_nothing_else(box, tmp_path):
    import sqlite3

    database = tmp_path / "small.sqlite"
    sqlite3.connect(database).execute("CREATE TABLE t (x)").connection.close()
    query = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
        "SELECT zeroblob(1000000 + i) FROM n"
    )

    def run(job: dict, seconds: float) -> dict:
        return box.run(job, seconds=seconds, readable=(database,))

    gold = {"rows": 1, "set": "", "multiset": "", "sequence": "", "query_seconds": 0.0}
    judgement = execution_accuracy.judge(query * 1, "SELECT 1", gold, database, 5.0, run)
    assert not judgement.passed
    assert execution_accuracy.gold_rows("SELECT 1", database, run)["rows"] == 1


def test_a_returned_object_is_never_unpickled_here(box):
    program = (
        "import os\nclass Runs(float):\n    def __reduce__(self):\n"
        "        return (os.system, ('touch /tmp/ran',))\n"
        "def solution():\n    return Runs(5)\n"
    )

    def run(job: dict, seconds: float) -> dict:
        return box.run(job, seconds=seconds)

    program_value.judge(f"```python\n{program}```", 5, 5.0, run)
    assert not Path("/tmp/ran").exists()


def test_secrets_and_files_are_out_of_reach(box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("canary")
    os.chmod(secret, 0o644)
    program = (
        "import glob, os\ndef task_func(x):\n"
        "    seen = str(os.environ)\n"
        "    for path in glob.glob('/proc/*/environ'):\n"
        "        try:\n            seen += open(path).read()\n"
        "        except OSError:\n            pass\n"
        "    assert 'canary' not in seen\n"
        f"    for path in ({str(secret)!r}, {str(PROJECT / 'README.md')!r}):\n"
        "        try:\n            open(path)\n        except OSError:\n            continue\n"
        "        raise AssertionError(path)\n"
        "    return 2 * x\n"
    )
    judgement = judge(box, program)
    assert judgement.passed, judgement.detail


def test_levels_are_tried_from_strong_to_weak_and_weak_only_when_told(monkeypatch):
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: None)
    if os.getuid() == 0:
        assert probe(PYTHON, allow_weak=False).level == "medium"
    monkeypatch.setattr(
        sandbox, "candidates", lambda: [sandbox.Sandbox("weak", "process limits only")]
    )
    with pytest.raises(SandboxUnavailable, match="bubblewrap is not installed.*allow_weak"):
        probe(PYTHON, allow_weak=False)
    if os.getuid() == 0 and not _passable(PYTHON.resolve()):
        # Another user can't even start that interpreter's library: said, never guessed around.
        with pytest.raises(SandboxUnavailable, match="every user may read"):
            probe(PYTHON, allow_weak=True)
        return
    weak = probe(PYTHON, allow_weak=True)
    assert weak.level == "weak"
    with Workers(PYTHON, weak) as workers:
        assert judge(workers, RIGHT).passed
        assert judge(workers, ATTACKS["endless loop"]).outcome == "timeout"


def _passable(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.parents)


def print_outcomes() -> None:
    """A table of the attacks and what was said of each, by sandbox level."""
    candidates = reversed(sandbox.candidates())
    strongest = {one.level: one for one in candidates if one.level != "weak"}
    levels = {level: strongest[level] for level in ("strong", "medium") if level in strongest}
    print(f"| attack | {' | '.join(levels)} |\n| --- |{' --- |' * len(levels)}")
    said: dict[str, list[str]] = {name: [] for name in ATTACKS}
    for candidate in levels.values():
        with Workers(PYTHON, candidate) as workers:
            for name, program in ATTACKS.items():
                said[name].append(judge(workers, program).outcome)
    for name, outcomes in said.items():
        print(f"| {name} | {' | '.join(outcomes)} |")
    for level, outcomes in zip(levels, zip(*said.values(), strict=True), strict=True):
        passed, left = outcomes.count("passed"), len(left_over()) if os.getuid() == 0 else "?"
        print(f"\n{level}: {len(outcomes)} attacks, {passed} passed, {left} processes left")


if __name__ == "__main__":
    print_outcomes()
