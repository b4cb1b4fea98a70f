"""Answer some requests of a run again under another batching, and keep what changed.

Where answers are batch-invariant none may change. Where they are not, the share that does is the
noise that every difference between conditions has to be read against.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from colab_utils import records
from colab_utils.engine import Answer, AnsweringEngine
from colab_utils.errors import RecordError
from colab_utils.feeding import response
from colab_utils.heartbeat import now
from colab_utils.prompts import Prompt
from colab_utils.responses import Response, response_of
from colab_utils.run_directory import RunDirectory


def choose(prompts: Sequence[Prompt], count: int, *, seed: str) -> list[Prompt]:
    """`count` requests in an order of their own, the same for the same seed text."""
    usable = [prompt for prompt in prompts if prompt.rejected is None]
    return random.Random(seed).sample(usable, min(count, len(usable)))


def replay(
    engine: AnsweringEngine,
    prompts: Sequence[Prompt],
    committed: Mapping[str, Response],
    on_step: Callable[[list[Answer]], None],
) -> dict[str, Any]:
    """Give all prompts to the engine at once and compare token ids with the committed answers.

    Returns the record that `write` keeps: counts by task and condition, and the new answers that
    differ, as response lines, so that scoring can judge them.
    """
    engine.reset_prefix_cache()
    found: dict[str, Answer] = {}
    for prompt in prompts:
        engine.add(prompt.request.request_id, prompt.token_ids)
    while engine.in_flight:
        answers = engine.step()
        found |= {answer.request_id: answer for answer in answers}
        on_step(answers)
    again = [response(prompt, found[prompt.request.request_id]) for prompt in prompts]
    changed = [
        new for new in again if new.output_token_ids != committed[new.request_id].output_token_ids
    ]
    of_all = Counter((new.task, new.condition) for new in again)
    of_changed = Counter((new.task, new.condition) for new in changed)
    return {
        "at": now(),
        "requests": len(again),
        "changed": len(changed),
        "order": "shuffled, all given at once, from an empty prefix cache",
        "request_ids": [new.request_id for new in again],
        "by": [
            {"task": task, "condition": condition, "requests": count,
             "changed": of_changed[task, condition]}
            for (task, condition), count in sorted(of_all.items())
        ],
        "changed_answers": [new.model_dump(mode="json") for new in changed],
    }  # fmt: skip


def write(directory: RunDirectory, record: Mapping[str, Any]) -> None:
    """Keep one replay as a file that never changes, numbered after those that are there."""
    number = 1 + max((int(path.stem) for path in directory.replays.glob("*.json")), default=-1)
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, indent=1)
    records.write_atomic(directory.replays / f"{number:03d}.json", text.encode() + b"\n")


def read_all(directory: RunDirectory) -> list[dict[str, Any]]:
    """All replays of a run, the oldest first; raises `RecordError` for one that can't be read."""
    return [read(path) for path in sorted(directory.replays.glob("*.json"))]


def read(path: Path) -> dict[str, Any]:
    """One replay; raises `RecordError` for a file that is none."""
    record = records.read_json(path)
    kinds = {"requests": int, "changed": int, "request_ids": list, "by": list,
             "changed_answers": list}  # fmt: skip
    if not isinstance(record, dict) or not all(
        isinstance(record.get(name), kind) for name, kind in kinds.items()
    ):
        raise RecordError("is no replay", where=str(path))
    for line in record["changed_answers"]:
        response_of(line, where=str(path))
    return record
