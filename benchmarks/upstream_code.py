"""Judge replies to code tasks with bigcodebench itself; run by the evaluator interpreter.

Reads JSON lines {id, text, code_prompt, entry_point, test} from standard input and writes one
line {id, passed, status, seconds} each, in the order in which they end. The chain is upstream's
own: `sanitize`, the stub, a `pass`, the solution, then `untrusted_check`. Nothing here keeps a
program in: run it in a sandbox.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import types
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

LIMIT_MB, STACK_MB = 30 * 1024, 10


def import_upstream() -> None:
    """Import the package without what it needs for downloads only: none happen here."""
    for name in ("datasets", "tempdir", "wget"):
        stand_in = types.ModuleType(name)
        setattr(stand_in, "load_dataset", None)  # noqa: B010  (mypy knows no such attribute)
        sys.modules.setdefault(name, stand_in)
    importlib.import_module("bigcodebench.eval")
    importlib.import_module("bigcodebench.sanitize")


def judge(line: dict[str, Any], loop_seconds: float) -> dict[str, Any]:
    """Upstream's verdict of one reply."""
    upstream = importlib.import_module("bigcodebench.eval")
    sanitize = importlib.import_module("bigcodebench.sanitize").sanitize
    # The flat 240 s only decide how long an endless loop is waited for.
    upstream.TIMEOUT_LIMIT = loop_seconds
    began = time.perf_counter()
    solution = sanitize(line["text"], line["entry_point"])
    sanitised = time.perf_counter()
    program = line["code_prompt"] + "\n    pass\n" + solution
    status, details = upstream.untrusted_check(
        program, line["test"], line["entry_point"], LIMIT_MB, LIMIT_MB, STACK_MB, 1, 20
    )
    return {
        "id": line["id"],
        "passed": status == "pass",
        "status": status,
        "details": {name: text[-300:] for name, text in details.items()},
        "sanitise_seconds": round(sanitised - began, 3),
        "seconds": round(time.perf_counter() - sanitised, 3),
    }


def main() -> None:
    """Judge what stands on standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--loop-seconds", type=float, default=240.0)
    parser.add_argument("--preload", default="", help="modules to import before forking")
    given = parser.parse_args()
    lines = [json.loads(line) for line in sys.stdin.buffer.read().split(b"\n") if line]
    import_upstream()
    for name in filter(None, given.preload.split(",")):
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
    with ProcessPoolExecutor(given.workers) as pool:
        for future in as_completed(pool.submit(judge, line, given.loop_seconds) for line in lines):
            print(json.dumps(future.result()), flush=True)


if __name__ == "__main__":
    main()
