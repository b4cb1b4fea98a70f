"""A run directory with answers of the test's choosing, as the engine process would leave it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from colab_utils import records
from colab_utils.samples import Dataset, Request

# Sixteen well-behaved answers a task are made of these.
CODE = "```python\ndef task_func(x):\n    return 2 * x\n```"
SQL = "```sql\nSELECT COUNT(*) FROM item\n```"
FINANCE = "```python\ndef solution():\n    return 50.0\n```"
RIGHT = {"code": CODE, "sql": SQL, "finance": FINANCE}


def answered_run(
    folder: Path,
    dataset: Dataset,
    answer: Callable[[Request], str],
    *,
    rejected: tuple[str, ...] = (),
) -> Path:
    """Write run.json and responses.jsonl in which `answer` gives every request's text."""
    lines = []
    for request in dataset.requests():
        out = request.request_id in rejected
        lines.append(
            {
                "request_id": request.request_id,
                "sample_id": request.sample.sample_id,
                "task": request.sample.task,
                "condition": request.condition,
                "text": "" if out else answer(request),
                "output_token_ids": [],
                "finish_reason": "rejected" if out else "stop",
                "stop_reason": None,
                "error": "too long" if out else None,
                "prompt_tokens": 10,
                "output_tokens": 0,
                "prompt_sha256": hashlib.sha256(request.request_id.encode()).hexdigest(),
            }
        )
    data = records.encode_lines(lines)
    folder.mkdir(parents=True)
    (folder / "responses.jsonl").write_bytes(data)
    run = {
        "format": 1,
        "kind": "full",
        "dataset": dataset.manifest.name,
        "decoding_fingerprint": "0" * 64,
        "decoding": {},
        "run_fingerprint": "0" * 64,
        "run": {"dataset_sha256": dataset.manifest.sha256},
        "requests": len(lines),
        "completed": {"responses_sha256": records.sha256_bytes(data)},
    }
    (folder / "run.json").write_bytes(records.encode_line(run))
    return folder
