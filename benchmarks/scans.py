"""Seconds and peak memory of a resume's scan, the database and the report, 10^3 to 10^5 responses.

Each size and measure runs in a process of its own, so that peaks are not mixed. `--plot FILE.png`
draws them; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from colab_utils import checkpoints
from colab_utils.manifests import CONDITIONS, PROJECT
from colab_utils.responses import Response

sys.path.insert(0, str(PROJECT / "tests"))
import run_directories

SIZES = (1_000, 3_200, 10_000, 32_000, 100_000)
CHUNK, TOKENS = 32, 150


def request_ids(size: int) -> list[str]:
    """Sample-major ids, five a sample."""
    return [f"sample-{n // 5:05d}/{CONDITIONS[n % 5]}" for n in range(size)]


def write_chunks(folder: Path, size: int) -> None:
    """Committed chunks of `size` made-up responses."""
    ids = request_ids(size)
    for chunk in checkpoints.plan(size, CHUNK):
        members = [
            Response(
                request_id=name, sample_id=name.split("/")[0], task="code", condition="KO",
                text="답 " * TOKENS, output_token_ids=list(range(TOKENS)), finish_reason="stop",
                stop_reason=None, error=None, prompt_tokens=400, output_tokens=TOKENS,
                prompt_sha256="0" * 64,
            )
            for name in ids[chunk.first : chunk.last + 1]
        ]  # fmt: skip
        checkpoints.commit(folder, chunk, members)


def write_run(folder: Path, size: int) -> None:
    """A finished and scored run of `size` made-up responses."""
    cell = {"text": "답 " * TOKENS, "output_token_ids": list(range(TOKENS))}
    samples = {
        f"sample-{number:05d}": (
            ("code", "sql", "finance")[number % 3],
            {
                condition: {**cell, "outcome": "wrong_answer" if (number + at) % 3 else "passed"}
                for at, condition in enumerate(CONDITIONS)
            },
        )
        for number in range(size // 5)
    }
    run_directories.write_run(folder, samples)


def measure(what: str, folder: Path, size: int) -> None:
    """Do one thing once and print seconds and peak memory as JSON."""
    began = time.perf_counter()
    if what == "scan":
        found = checkpoints.verify(folder, request_ids(size))
        assert found.requests_done == size
    elif what == "database":
        from colab_utils.store import build_database

        build_database(folder)
    else:
        from colab_utils.report import make_report

        make_report(folder)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": round(seconds, 2), "peak_mib": round(peak)}), flush=True)


def draw(results: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Seconds against responses, both logarithmic; a straight line of slope one is linear."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for what, by_size in results.items():
        axes.loglog(list(by_size), [m["seconds"] for m in by_size.values()], "o-", label=what)
    axes.set_xlabel("responses")
    axes.set_ylabel("seconds")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """One line a measure and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    results: dict[str, dict[int, dict[str, float]]] = {}
    for what, write in (("scan", write_chunks), ("database", write_run), ("report", write_run)):
        results[what] = {}
        for size in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                write(Path(folder), size)
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", what, folder, str(size)],
                    check=True, stdout=subprocess.PIPE,
                )  # fmt: skip
            results[what][size] = json.loads(done.stdout.splitlines()[-1])
            print(f"{what}, {size} responses: {results[what][size]}", flush=True)
    if given.plot:
        draw(results, given.plot)
    print(
        json.dumps({"machine": platform.platform(), "python": platform.python_version(), **results})
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
