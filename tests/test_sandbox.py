"""What the worker lets a program do to its verdict: nothing, in any sandbox."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from contextlib import closing
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
    "    def test_one(self):\n        got = task_func(1)\n        self.assertEqual(got, 2)\n"
    "    def test_two(self):\n        got = task_func(2)\n        self.assertEqual(got, 4)\n",
}
RIGHT = "def task_func(x):\n    return 2 * x\n"
# Forks into a group of its own again and again, faster than one could kill them one by one.
BOMB = (
    "import os\n\n\ndef explode():\n    while True:\n        try:\n"
    "            if os.fork() == 0:\n                os.setsid()\n"
    "        except OSError:\n            pass\n"
)
FORGED = {"ran": 2, "succeeded": 2, "problems": {}, "failed": 0, "altered": False}


@pytest.fixture(params=["strong", "medium", "weak"], scope="module")
def box(request):
    for candidate in sandbox.candidates():
        if candidate.level == request.param:
            with Workers(PYTHON, candidate) as workers:
                yield workers
            return
    pytest.skip(f"this user can't have the {request.param} sandbox")


@pytest.fixture(scope="module")
def strongest():
    with Workers(PYTHON, probe(PYTHON, allow_weak=False)) as workers:
        yield workers


def judge(box: Workers, program: str, seconds: float = 3.0, reference: dict = REFERENCE):
    def run(job: dict, limit: float) -> dict:
        return box.run(job, seconds=limit)

    return unit_tests.judge(
        f"```python\n{program}\n```", reference, seconds, run, lambda text, entry_point: program
    )


def left_over() -> list[str]:
    """Processes of the programs that are still there after they have had time to go."""
    mine = ["-U", str(sandbox.user_of(0))] if os.getuid() == 0 else ["-f", "worker/__main__.py"]
    for _ in range(50):
        found = subprocess.run(["pgrep", *mine], capture_output=True, text=True, check=False)
        living = [pid for pid in found.stdout.split() if not is_zombie(pid)]
        if not living:
            break
        time.sleep(0.1)
    return living


def is_zombie(pid: str) -> bool:
    """Whether a process is dead and merely waits for its parent to notice, or is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


# The second one knows the shape of a result: a token, the length in ten digits, the JSON.
@pytest.mark.parametrize("head", ["b''", "b'0' * 32 + str(len(body)).zfill(10).encode()"])
def test_writing_a_verdict_to_every_descriptor_forges_nothing(box, head):
    program = (
        "import json, os\n"
        f"body = json.dumps({FORGED!r}).encode()\n"
        f"forged = {head} + body\n"
        "for fd in range(3, 256):\n    try:\n        os.write(fd, forged)\n"
        "    except OSError:\n        pass\n"
        "os._exit(0)\n"
    )
    judgement = judge(box, program)
    assert (judgement.passed, judgement.passed_upstream) == (False, False)
    assert judgement.outcome == "unsafe"


def test_assertions_switched_off_while_a_test_runs_do_not_count(box):
    program = (
        "import unittest\ndef task_func(x):\n"
        "    unittest.TestCase.assertEqual = lambda *given, **named: None\n    return 0\n"
    )
    judgement = judge(box, program)
    assert not judgement.passed and judgement.outcome == "unsafe"


def test_a_test_result_altered_from_within_does_not_pass(box):
    program = (
        "import sys\ndef task_func(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        result = frame.f_locals.get('result')\n"
        "        if hasattr(result, 'failures'):\n"
        "            result.addFailure = result.addError = lambda *given: None\n"
        "        frame = frame.f_back\n    return 0\n"
    )
    assert not judge(box, program).passed


def test_a_right_answer_may_leave_a_child_that_holds_the_channel(box):
    child = "import os, time\nif os.fork() == 0:\n    time.sleep(300)\n    os._exit(0)\n"
    judgement = judge(box, child + RIGHT, seconds=20.0)
    assert judgement.passed, judgement.detail
    assert left_over() == []


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        (BOMB + "\n\ndef task_func(x):\n    explode()\n", "timeout"),
        (BOMB + "\n\nif os.fork() == 0:\n    explode()\n\n\n" + RIGHT, None),
    ],
)
def test_a_fork_bomb_of_many_groups_leaves_nothing(box, program, outcome):
    judgement = judge(box, program, seconds=2.0)
    assert outcome in (None, judgement.outcome)
    assert left_over() == []
    assert judge(box, RIGHT).passed


def test_skipped_tests_pass_for_upstream_only(box):
    program = "import unittest\ndef task_func(x):\n    raise unittest.SkipTest('no')\n"
    judgement = judge(box, program)
    assert (judgement.passed, judgement.passed_upstream) == (False, True)


def test_a_program_has_no_input_and_what_it_prints_goes_nowhere(box):
    program = (
        "def task_func(x):\n    try:\n        input()\n    except EOFError:\n"
        "        print('{}' * 10**6)\n        return 2 * x\n"
    )
    assert judge(box, program).passed


def test_upstreams_conditions_hold(box):
    program = (
        "import os, time\nassert __name__ == '__test__'\nassert os.environ['TZ'] == 'UTC'\n"
        "assert time.timezone == 0\nassert os.environ['MPLBACKEND'] == 'Agg'\n"
        "assert sys is not None and environ is os.environ\nassert os.listdir('.') == []\n"
    )
    assert judge(box, program + RIGHT).passed


def test_imports_of_the_stub_are_forgiven(box):
    reference = {**REFERENCE, "code_prompt": "import math\ndef task_func(x):\n"}
    program = "def task_func(x):\n    return math.prod([2, x])\n"
    assert not judge(box, program).passed
    assert judge(box, program, reference=reference).passed


def test_a_sandbox_in_which_nothing_can_be_imported_is_refused(tmp_path):
    # A Python whose library only root can enter: what is loaded works, nothing else does.
    blind = tmp_path / "python"
    blind.write_text(
        f'#!/bin/sh\n[ "$2" = -c ] && exec {PYTHON} "$@"\n'
        f"exec {PYTHON} -c 'import runpy, sys; sys.argv = sys.argv[2:]; "
        "import shutil, tempfile, socket, subprocess, unittest, ctypes, secrets, sqlite3, pickle; "
        'import random, select, resource, importlib, pathlib; runpy.run_path("PATCH"); '
        'runpy.run_path(sys.argv[0], run_name="__main__")\' "$@"\n'.replace(
            "PATCH", str(tmp_path / "patch.py")
        )
    )
    (tmp_path / "patch.py").write_text(
        "import builtins\nreal = builtins.__import__\n"
        "def refuse(name, *rest, **named):\n    if name == 'colorsys':\n"
        "        raise ImportError(name)\n    return real(name, *rest, **named)\n"
        "builtins.__import__ = refuse\n"
    )
    blind.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match="no sandbox here.*colorsys"):
        probe(blind, allow_weak=True)


@pytest.fixture
def database(tmp_path) -> Path:
    """A database that only this user may read, as Drive's mount makes them."""
    path = tmp_path / "item.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE item (name TEXT, price REAL)")
        connection.executemany("INSERT INTO item VALUES (?, ?)", [("a", 1.0), (None, 2.0)])
        connection.execute("INSERT INTO item VALUES (CAST(x'ff41' AS TEXT), 3.0)")
        connection.commit()
    os.chmod(path, 0o600)
    os.chmod(tmp_path, 0o700)
    return path


@pytest.mark.parametrize(
    ("reply", "gold", "passed", "upstream", "outcome"),
    [
        ("SELECT price FROM item ORDER BY 1 DESC", "SELECT price FROM item", 1, 1, "passed"),
        ("SELECT name FROM item", "SELECT name FROM item", 1, 1, "passed"),
        ("SELECT 1", "SELECT 1.0", 1, 1, "passed"),
        ("SELECT '1'", "SELECT 1", 0, 0, "wrong_answer"),
        ("SELECT NULL UNION ALL SELECT NULL", "SELECT NULL", 1, 1, "passed"),
        ("SELECT price, name FROM item", "SELECT name, price FROM item", 0, 0, "wrong_answer"),
        ("SELECT 1;", "SELECT 1", 1, 1, "passed"),
        ("SELECT 1; SELECT 1", "SELECT 1", 1, 0, "passed"),
        ("```sql\nSELECT 1\n```", "SELECT 1", 1, 0, "passed"),
        ("", "SELECT 1", 0, 0, "no_answer"),
        ("", "SELECT 1 WHERE 0", 0, 1, "no_answer"),
        ("DELETE FROM item", "SELECT 1 WHERE 0", 0, 1, "no_answer"),
        ("DROP TABLE item", "SELECT 1", 0, 0, "no_answer"),
        ("WITH a AS (SELECT 1) DELETE FROM item", "SELECT 1", 0, 0, "unsafe"),
        ("SELECT load_extension('x')", "SELECT 1", 0, 0, "unsafe"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
         "SELECT 1", 0, 0, "timeout"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
         "SELECT 1", 0, 0, "error"),
        ("SELECT '\ud800'", "SELECT 1", 0, 0, "error"),
        ("SELECT 1\x00", "SELECT 1", 0, 0, "error"),
    ],
)  # fmt: skip
def test_queries_are_judged_by_their_rows_and_never_write(
    strongest, database, reply, gold, passed, upstream, outcome
):
    before = database.read_bytes()

    def run(job: dict, limit: float) -> dict:
        return strongest.run(job, seconds=limit, readable=(database,))

    rows = execution_accuracy.gold_rows(gold, database, run)
    judgement = execution_accuracy.judge(reply, gold, rows, database, 3.0, run)
    found = (judgement.passed, judgement.passed_upstream, judgement.outcome)
    assert found == (bool(passed), bool(upstream), outcome), judgement.detail
    assert database.read_bytes() == before


@pytest.mark.parametrize(
    ("program", "gold", "right"),
    [
        ("return 99.8", 100, True),
        ("return 99.79", 100, False),
        ("return -100.2", -100, True),
        ("return 1e-9", 0, False),
        ("return True", 1, True),
        ("return 1.0", True, True),
        ("return None", 0, False),
        ("return float('nan')", 5, False),
        ("return [5, 'x']", 5, True),
        ("return ['5']", 5, False),
        ("return [[5]]", 5, False),
        ("return '[[5]]'", 5, False),
        ("return '$1,052'", 1052, True),
        ("return b'5'", 5, False),
        ("return 10 ** 400", 5, False),
        ("from decimal import Decimal\n    return Decimal('5')", 5, True),
        ("from fractions import Fraction\n    return Fraction(5)", 5, True),
        ("import numpy\n    return numpy.array([5.0])", 5, True),
        ("import numpy\n    return numpy.array([5.0, 6.0])", 5, False),
        ("return (number for number in [5])", 5, False),
        ("class Five(float):\n        pass\n    return Five(5)", 5, False),
        ("print('x')\n    return 5", 5, True),
        ("raise SystemExit(5)", 5, False),
        ("return '\\ud800'", 5, False),
    ],
)
def test_returned_values_are_judged_as_upstream_does(strongest, program, gold, right):
    def run(job: dict, limit: float) -> dict:
        return strongest.run(job, seconds=limit)

    reply = f"```python\ndef solution():\n    {program}\n```"
    judgement = program_value.judge(reply, gold, 5.0, run)
    assert (judgement.passed, judgement.passed_upstream) == (right, right), judgement.detail


@pytest.mark.parametrize("level", ["strong", "medium", "weak"])
def test_nothing_of_a_program_is_left_in_the_temporary_folder(level, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    os.chmod(tmp_path, 0o755)
    program = "open('left', 'w').write('x')\n" + RIGHT
    candidate = next((c for c in sandbox.candidates() if c.level == level), None)
    if candidate is None:
        pytest.skip(f"this user can't have the {level} sandbox")
    with Workers(PYTHON, candidate) as workers:
        assert judge(workers, program).passed
    assert list(tmp_path.iterdir()) == []
