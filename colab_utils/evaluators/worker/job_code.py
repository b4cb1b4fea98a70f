"""Code: run a solution and its unit tests in one module, as bigcodebench 0.2.5 does."""

import builtins
import os
import random
import sys
import time
import types
import unittest

from . import surroundings
from .text import describe, short


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


def seed() -> None:
    """The same random numbers at each start, so that scoring again gives the same verdicts."""
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


def run(job: dict) -> dict:
    """What the tests said: `ran`, `succeeded`, `failed`, `problems` by test, `altered`.

    The module is named `__test__`, knows `sys`, `os` and `environ`, and joins `sys.modules`
    after it has run; time is UTC and plots have no screen.
    """
    os.environ.update(TZ="UTC", OMP_NUM_THREADS="1", MPLBACKEND="Agg",
                      TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")  # fmt: skip
    time.tzset()
    seed()
    surroundings.install()
    before = machinery()
    module = types.ModuleType("__test__")
    module.__dict__.update(__builtins__=builtins, __file__="__test__.py", __package__=None,
                           __doc__=None, sys=sys, os=os, environ=os.environ)  # fmt: skip
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
