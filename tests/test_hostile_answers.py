"""Answers that attack: each leaves a right verdict, and nothing else."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from colab_utils.errors import SandboxUnavailable
from colab_utils.evaluators import sandbox, unit_tests
from colab_utils.manifests import PROJECT

PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"
REFERENCE = {
    "code_prompt": "def task_func(x):\n",
    "entry_point": "task_func",
    "test": "import unittest\n\n\nclass TestCases(unittest.TestCase):\n"
    "    def test_one(self):\n        self.assertEqual(task_func(1), 2)\n"
    "    def test_two(self):\n        self.assertEqual(task_func(2), 4)\n",
}
WRONG = "def task_func(x):\n    return 0\n"
# name -> program; none of them solves the task, so none may pass.
ATTACKS = {
    "exit 0": "import os\ndef task_func(x):\n    os._exit(0)\n",
    "sys.exit": "import sys\n" + WRONG + "sys.exit(0)\n",
    "endless loop": "def task_func(x):\n    while True:\n        pass\n",
    "fork bomb": "import os\ndef task_func(x):\n    while True:\n        os.fork()\n",
    "memory": "def task_func(x):\n    return bytearray(1 << 36)\n",
    "disk": "def task_func(x):\n    open('/tmp/big', 'wb').write(b'x' * (1 << 30))\n",
    "output flood": "def task_func(x):\n    for i in range(10**6):\n        print('x' * 1000)\n",
    "deep recursion": "def task_func(x):\n    return task_func(x)\n",
    "kill parent": "import os, signal\ndef task_func(x):\n"
    "    os.kill(os.getppid(), signal.SIGKILL)\n",
    "kill all": "import os, signal\ndef task_func(x):\n    os.kill(-1, signal.SIGKILL)\n",
    "survivor": "import os, time\ndef task_func(x):\n    if os.fork() == 0:\n"
    "        os.setsid()\n        time.sleep(1000)\n    return 0\n",
    "unittest switched off": "import unittest\n"
    "unittest.TestCase.assertEqual = lambda *a, **k: None\n" + WRONG,
    "no tests run": "import unittest\nunittest.TestSuite.run = lambda self, result: result\n"
    + WRONG,
    "skipped": "import unittest\ndef task_func(x):\n    raise unittest.SkipTest('no')\n",
    "equal to all": "class All(int):\n    def __eq__(self, other):\n        raise SystemExit(0)\n"
    "def task_func(x):\n    return All()\n",
    "forged result": "import os, json\ndef task_func(x):\n"
    "    forged = json.dumps({'ran': 2, 'succeeded': 2, 'problems': {}}).encode()\n"
    "    for fd in range(1, 3):\n        os.write(fd, forged)\n    os._exit(0)\n",
    "network": "import socket\ndef task_func(x):\n"
    "    socket.create_connection(('192.0.2.1', 80), timeout=2)\n    return 2 * x\n",
    "parent's descriptors": "import os\ndef task_func(x):\n"
    "    os.listdir(f'/proc/{os.getppid()}/fd')\n    return 2 * x\n",
    "delete the worker": "import os\ndef task_func(x):\n"
    f"    os.remove({str(sandbox.WORKER / 'run_job.py')!r})\n    return 2 * x\n",
}


def judge(box: sandbox.Sandbox, program: str):
    def run(job: dict, seconds: float) -> dict:
        return box.run(PYTHON, job, seconds=seconds)

    return unit_tests.judge(
        f"```python\n{program}\n```", REFERENCE, 3.0, run, lambda text, entry_point: program
    )


@pytest.fixture(scope="module")
def box() -> sandbox.Sandbox:
    return sandbox.probe(PYTHON, allow_weak=False)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_does_not_pass_and_leaves_nothing(box, name):
    judgement = judge(box, ATTACKS[name])
    assert not judgement.passed
    assert judgement.outcome in ("wrong_answer", "error", "timeout", "unsafe")
    for _ in range(100):
        left = subprocess.run(["pgrep", "-f", "run_job.py"], capture_output=True, check=False)
        if not left.stdout:
            break
        time.sleep(0.1)
    assert left.stdout == b""
    # The evaluator goes on to the next answer.
    assert judge(box, "def task_func(x):\n    return 2 * x\n").passed


def test_secrets_and_files_are_out_of_reach(box, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    secret = tmp_path / "secret"
    secret.write_text("canary")
    os.chmod(secret, 0o644)
    program = (
        "import glob, os\ndef task_func(x):\n"
        "    seen = str(os.environ)\n"
        "    for path in glob.glob('/proc/*/environ'):\n"
        "        try:\n            seen += open(path).read()\n"
        "        except OSError:\n            pass\n"
        f"    assert 'canary' not in seen\n    assert not os.path.exists({str(secret)!r})\n"
        f"    assert not os.path.exists({str(PROJECT / 'README.md')!r})\n    return 2 * x\n"
    )
    judgement = judge(box, program)
    assert judgement.passed, judgement.detail


def test_weak_sandbox_is_taken_only_when_told_to(monkeypatch):
    monkeypatch.setattr(sandbox, "_bubblewrap", lambda: None)
    with pytest.raises(SandboxUnavailable, match="bubblewrap is not installed.*allow_weak"):
        sandbox.probe(PYTHON, allow_weak=False)
    weak = sandbox.probe(PYTHON, allow_weak=True)
    assert weak.level == "weak"
    assert judge(weak, "def task_func(x):\n    return 2 * x\n").passed
    assert judge(weak, ATTACKS["endless loop"]).outcome == "timeout"
