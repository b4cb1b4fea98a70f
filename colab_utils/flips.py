"""What another batching changes: the answers of a run's replays, and the verdicts on them.

A scoring judges only those new answers that differ from the committed ones, by the same evaluator,
and keeps the pairs in `replays.jsonl` beside its verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from colab_utils import records, replay
from colab_utils.responses import Response, response_of
from colab_utils.run_directory import RunDirectory

_FILE = "replays.jsonl"


def judge_changed(
    run_dir: Path,
    folder: Path,
    judge: Callable[[Response], dict[str, Any]],
    verdicts: Mapping[str, Mapping[str, Any]],
) -> None:
    """Judge the changed answers of replays that this scoring has not judged yet.

    `verdicts` are those on the committed answers, by request id.
    """
    directory = RunDirectory(run_dir)
    lines = records.read_appended(folder / _FILE)
    known = {line["replay"] for line in lines}
    judged_before = len(lines)
    for number, record in enumerate(replay.read_all(directory)):
        if number in known:
            continue
        for answer in record["changed_answers"]:
            again = response_of(answer, where=str(directory.replays))
            before, after = verdicts[again.request_id], judge(again)
            lines.append(
                {
                    "replay": number,
                    "request_id": again.request_id,
                    "task": again.task,
                    "condition": again.condition,
                    "passed_before": before["passed"],
                    "passed": after["passed"],
                    "passed_upstream_before": before["passed_upstream"],
                    "passed_upstream": after["passed_upstream"],
                }
            )
    if len(lines) > judged_before:
        records.write_atomic(folder / _FILE, records.encode_lines(lines))


def flip_rows(run_dir: Path, folder: Path | None) -> list[dict[str, Any]]:
    """A row by replay, task and condition: requests, answers changed, verdicts changed.

    `folder` is the scoring's; verdicts changed are None where it has not judged that replay.
    """
    known: set[int] = set()
    changed: Counter[tuple[int, str, str]] = Counter()
    if folder is not None:
        for line in records.read_appended(folder / _FILE):
            known.add(line["replay"])
            key = (line["replay"], line["task"], line["condition"])
            changed[key] += line["passed"] != line["passed_before"]
    rows = []
    for number, record in enumerate(replay.read_all(RunDirectory(run_dir))):
        judged = number in known or not record["changed"]
        for cell in record["by"]:
            flips = changed[number, cell["task"], cell["condition"]]
            rows.append(
                {
                    "number": number,
                    "at": record["at"],
                    "task": cell["task"],
                    "condition": cell["condition"],
                    "requests": cell["requests"],
                    "answers_changed": cell["changed"],
                    "verdicts_changed": flips if judged else None,
                }
            )
    return rows
