"""The whole job on the embedded model, through papermill: smoke, full run, scoring, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colab_utils import workbench
from colab_utils.manifests import PROJECT
from colab_utils.notebooks import execute
from colab_utils.progress import PLAIN, seconds_text
from colab_utils.run_directory import RunDirectory
from colab_utils.scoring import latest_scoring

EXPERIMENT = "embedded"
MODEL = "smollm2-135m-instruct"


def demo(runs: str = "runs", say: Callable[[str], None] = print) -> None:
    """Run the four notebooks on the embedded default and print where the results are.

    A step whose result is there is not done again, and says so. Raises what a step raises.
    """
    began = time.monotonic()
    workbench.setup(EXPERIMENT, say=say)
    workbench.setup_evaluator(say=say)
    smoke_dir = workbench.run_dir(runs, EXPERIMENT, MODEL, "smoke")
    full_dir = workbench.run_dir(runs, EXPERIMENT, MODEL, "full")
    os.environ[PLAIN] = "1"
    run = {
        "EXPERIMENT": EXPERIMENT,
        "MODEL": MODEL,
        "RUNS": str(full_dir.parent.parent.parent),
        "CACHE": str(PROJECT / ".cache"),
    }
    scored = {"RUN_DIR": str(full_dir)}
    steps: list[tuple[str, dict[str, Any], Callable[[], bool]]] = [
        ("smoke", run, RunDirectory(smoke_dir).is_complete),
        ("full_run", run, RunDirectory(full_dir).is_complete),
        ("scoring", scored, lambda: _is_scored(full_dir)),
        ("report", {"RUN_DIRS": [str(full_dir)]}, lambda: _is_reported(full_dir)),
    ]
    for name, parameters, is_done in steps:
        output = full_dir.parent / "notebooks" / f"{name}.ipynb"
        if output.exists() and is_done():
            say(f"{name}: already done, nothing to do")
            continue
        say(f"{name}: notebooks/{name}.ipynb, written to {output}")
        execute(name, output, parameters)
    say(f"\nThe whole job is done ({seconds_text(time.monotonic() - began)} this time):")
    say(f"  report    {full_dir / 'report' / 'report.html'}")
    say(f"  answers   {full_dir / 'responses.jsonl'}")
    say(f"  database  {full_dir / 'results.sqlite'}")


def _is_scored(directory: Path) -> bool:
    scoring = latest_scoring(directory)
    run = RunDirectory(directory).read_run()
    if scoring is None or run is None:
        return False
    return bool(scoring.scoring.responses_sha256 == run["completed"]["responses_sha256"])


def _is_reported(directory: Path) -> bool:
    report = directory / "report" / "report.html"
    scoring = latest_scoring(directory)
    if scoring is None or not report.exists():
        return False
    return report.stat().st_mtime >= scoring.verdicts_path.stat().st_mtime
