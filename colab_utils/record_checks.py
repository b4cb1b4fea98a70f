"""What is wrong in the files around a run's answers: replays, choices, scorings, second copies.

Each function yields (file relative to the run directory, what is wrong) and raises nothing that a
file's content can cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from colab_utils import records
from colab_utils import replay as replaying
from colab_utils.errors import RecordError, WorkbenchError
from colab_utils.judging import answer_digest
from colab_utils.mirror_files import is_double
from colab_utils.mirror_ledger import read_choice
from colab_utils.responses import Response
from colab_utils.verdicts import Scoring, load_scoring

Fault = tuple[str, str]


@dataclass(frozen=True)
class Known:
    """What can be compared with: answers by request in request order, and all request ids.

    `answers` may be fewer than the run's where some are damaged; `ids` is None where neither the
    data set nor whole answers can be had. `dataset_sha256` is None where run.json does not say.
    """

    answers: Mapping[str, Response]
    ids: Collection[str] | None
    dataset_sha256: str | None

    def unknown(self, request_ids: Collection[str]) -> list[str]:
        """Those that are no requests of the run."""
        return [] if self.ids is None else [name for name in request_ids if name not in self.ids]


def second_copies(run_dir: Path) -> Iterator[Fault]:
    """Files that carry a number because their name was taken; a chunk's own check names those."""
    for pattern in ("*.json*", "replays/*", "choices/*", "scoring/*/*"):
        for path in sorted(run_dir.glob(pattern)):
            if is_double(path.name) and path.is_file() and path.parent.name != "set-aside":
                name = path.relative_to(run_dir).as_posix()
                yield name, "is a second copy under a name that is none of a run's"


def choice_faults(run_dir: Path) -> Iterator[Fault]:
    """Choices between two chunks that can't be read."""
    for path in sorted((run_dir / "choices").glob("*.json")):
        if is_double(path.name):
            continue
        try:
            read_choice(path)
        except RecordError as error:
            yield f"choices/{path.name}", error.problem


def replay_faults(path: Path, known: Known) -> Iterator[Fault]:
    """What is wrong with one replay: form, counts, ids, prompts."""
    name = f"replays/{path.name}"
    if not path.stem.isdecimal():
        yield name, "its name is not NUMBER.json"
        return
    try:
        record = replaying.read(path)
    except WorkbenchError as error:
        yield name, error.problem
        return
    ids, changed = record["request_ids"], record["changed_answers"]
    if (record["requests"], record["changed"]) != (len(ids), len(changed)):
        yield name, "its counts are not those of what it holds"
    if not all(isinstance(one, str) for one in ids):
        yield name, "its request_ids are not texts"
        return
    if unknown := known.unknown(ids):
        yield name, f"replays {unknown[0]!r}, which is no request of the run"
    for line in changed:
        if line["request_id"] not in ids:
            yield name, f"{line['request_id']} changed, and was not replayed"
        answer = known.answers.get(line["request_id"])
        if answer is not None and answer.prompt_sha256 != line["prompt_sha256"]:
            yield name, f"{line['request_id']} was asked with another prompt"


def scoring_faults(run_dir: Path, folder: Path, known: Known) -> Iterator[Fault]:
    """What is wrong with one scoring's folder: record, digests, and each verdict's answer."""
    name = folder.relative_to(run_dir).as_posix()
    verdicts = folder / "verdicts.jsonl"
    if not (folder / "scoring.json").exists():
        if verdicts.exists() and not (folder / "verdicts.part.jsonl").exists():
            text = "is missing; score the run again, which takes these verdicts over"
            yield f"{name}/scoring.json", text
        return
    try:
        scoring = load_scoring(folder)
    except WorkbenchError as error:
        file = Path(error.where.split(",")[0]).name
        yield f"{name}/{file}", error.problem
        return
    if scoring.evaluator_fingerprint != records.sha256_json(scoring.evaluator):
        text = "evaluator_fingerprint is not the digest of the settings under 'evaluator'"
        yield f"{name}/scoring.json", text
    if known.dataset_sha256 not in (None, scoring.dataset_sha256):
        yield f"{name}/scoring.json", "judges by another data set than the run's"
    data = records.read_bytes(verdicts)
    if scoring.verdicts_sha256 not in (None, records.sha256_bytes(data)):
        yield f"{name}/verdicts.jsonl", "is not what the scoring ended with"
        return
    lines = {v["request_id"]: v for _, v in records.parse_lines(data, where=str(verdicts))}
    digests = {request_id: line.get("answer_sha256") for request_id, line in lines.items()}
    yield from ((f"{name}/{file}", text) for file, text in _against(scoring, digests, known))
    yield from _judged_replays(folder / "replays.jsonl", f"{name}/replays.jsonl", known)


def _against(
    scoring: Scoring, digests: Mapping[str, object], known: Known
) -> Iterator[tuple[str, str]]:
    """A scoring against the answers; each kind of fault once, with the first and the number."""
    if unknown := known.unknown(digests):
        yield "verdicts.jsonl", f"judges {_some(unknown)}, which the data set does not ask"
    others = [
        request_id
        for request_id, digest in digests.items()
        if (answer := known.answers.get(request_id)) is not None
        and digest not in (None, answer_digest(answer))
    ]
    if others:
        yield "verdicts.jsonl", f"judges another answer to {_some(others)}"
    left = [name for name in known.answers if name not in {*digests, *scoring.incomplete}]
    if left:
        yield "verdicts.jsonl", f"has no verdict on {_some(left)}"
    if others or left or not digests.keys() <= known.answers.keys():
        return
    judged = b"".join(a.line() for name, a in known.answers.items() if name in digests)
    if scoring.responses_sha256 != records.sha256_bytes(judged):
        text = "responses_sha256 is not that of the answers that it judges"
        yield "scoring.json", text


def _judged_replays(path: Path, name: str, known: Known) -> Iterator[Fault]:
    if not path.exists():
        return
    needed = {"replay", "request_id", "task", "condition", "passed", "passed_before"}
    try:
        lines = records.read_jsonl(path)
    except WorkbenchError as error:
        yield name, error.problem
        return
    for number, line in enumerate(lines, start=1):
        if not needed <= line.keys():
            yield name, f"line {number} is no verdict on a replayed answer"
        elif known.unknown([line["request_id"]]):
            yield name, f"judges {line['request_id']!r}, which is no request of the run"


def _some(request_ids: list[str]) -> str:
    more = f" and {len(request_ids) - 1} more" if len(request_ids) > 1 else ""
    return f"{request_ids[0]!r}{more}"
