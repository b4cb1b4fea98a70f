"""Seconds and peak memory of a resume's scan over 10^3 to 10^5 committed responses.

Each size runs in a process of its own, so that peaks are not mixed.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from colab_utils import checkpoints
from colab_utils.responses import Response

SIZES = (1_000, 3_200, 10_000, 32_000, 100_000)
CHUNK, TOKENS = 32, 150


def write(folder: Path, size: int) -> list[str]:
    """Committed chunks of `size` made-up responses; returns their request ids."""
    ids = [f"sample-{number // 5:05d}/{number % 5}" for number in range(size)]
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
    return ids


def scan(folder: Path, size: int) -> None:
    """Verify the chunks and print what that took."""
    ids = [f"sample-{number // 5:05d}/{number % 5}" for number in range(size)]
    began = time.perf_counter()
    found = checkpoints.verify(folder, ids)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{found.requests_done} responses: {seconds:.2f} s, peak {peak:.0f} MiB", flush=True)


def main() -> None:
    """One line a size."""
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), size)
            subprocess.run([sys.executable, __file__, folder, str(size)], check=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        scan(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
