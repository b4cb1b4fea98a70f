"""Is a run what it says it is? Every file of it against digests, ids and fingerprints.

Reads only. Logs, and what is made from answers and verdicts in seconds (report, database), are
not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colab_utils import checkpoints, fingerprints, records
from colab_utils import replay as replaying
from colab_utils.answers import dataset_requests
from colab_utils.checkpoints import Checkpoint
from colab_utils.errors import ChunkConflict, RunDirectoryError, WorkbenchError
from colab_utils.judging import answer_digest
from colab_utils.mirror_launch import RunMirror, damage
from colab_utils.mirror_ledger import MirrorReader
from colab_utils.responses import Response, parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.scoring_verbs import dataset_of
from colab_utils.verdicts import load_scorings

Say = Callable[[str], None]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the file, relative to the run directory, and what."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


@dataclass(frozen=True)
class Verification:
    """What was checked, in one line, and each thing that is wrong."""

    checked: str
    problems: tuple[Problem, ...]


def verify(run_dir: Path, *, mirror: RunMirror | None = None, say: Say = print) -> Verification:
    """Check a run's record, chunks, answers, replays and verdicts, and its mirror if one is given.

    An unfinished run is no problem, nor is a scoring of other answers that were there before.
    Raises `RunDirectoryError` for a folder that holds no run, and `MirrorError` when the mirror
    does not answer.
    """
    directory = RunDirectory(run_dir)
    if not directory.run_json.exists() and not directory.chunks.is_dir():
        raise RunDirectoryError("holds no run", where=str(run_dir), mend="name a run directory")
    problems: list[Problem] = []
    run = _run_record(directory, problems)
    ids = request_ids(run_dir, run, problems)
    checkpoint = _chunks(directory, ids, problems)
    answers = _responses(directory, run, checkpoint, ids, problems)
    replays = _replays(directory, answers, problems)
    verdicts = _scorings(directory, answers, problems)
    there = ""
    if mirror is not None:
        found = mirror.confirm(say)
        problems += [Problem("mirror", text) for text in damage(found)]
        state = MirrorReader(run_dir).state()
        there = f", {state.counts}" if state else ""
    finished = len(checkpoint.finished) if checkpoint else 0
    done = checkpoint.requests_done if checkpoint else 0
    checked = (
        f"{finished} chunks with {done} of {len(ids)} answers, {replays} replays, {verdicts} "
        f"verdicts{there}"
    )
    return Verification(checked, tuple(problems))


def request_ids(run_dir: Path, run: dict[str, Any] | None, problems: list[Problem]) -> list[str]:
    """The run's requests in order: by its data set, or, where that can't be had, by its answers."""
    try:
        if run is not None:
            dataset = dataset_of(run_dir)
            if dataset.manifest.sha256 == run["run"]["dataset_sha256"]:
                return [request.request_id for request in dataset_requests(run_dir, dataset)]
            problems.append(Problem("run.json", "pins another data set than is here now"))
    except WorkbenchError as error:
        problems.append(Problem("run.json", f"its data set can't be had ({error.problem})"))
    directory = RunDirectory(run_dir)
    if not directory.responses.exists():
        return []
    try:
        data = records.read_bytes(directory.responses)
        return [r.request_id for r in parse_responses(data, where=str(directory.responses))]
    except WorkbenchError:
        # It is named where the answers are checked.
        return []


def _run_record(directory: RunDirectory, problems: list[Problem]) -> dict[str, Any] | None:
    try:
        run = directory.read_run()
    except WorkbenchError as error:
        problems.append(Problem("run.json", error.problem))
        return None
    if run is None:
        problems.append(Problem("run.json", "is missing"))
        return None
    for name, content in (("run_fingerprint", "run"), ("decoding_fingerprint", "decoding")):
        if fingerprints.fingerprint(run[content]) != run[name]:
            text = f"{name} is not the digest of the settings under {content!r}"
            problems.append(Problem("run.json", text))
    return run


def _chunks(
    directory: RunDirectory, ids: Sequence[str], problems: list[Problem]
) -> Checkpoint | None:
    try:
        checkpoint = checkpoints.verify(directory.chunks, ids)
    except ChunkConflict as conflict:
        problems.append(Problem("chunks", f"{conflict.problem}; {conflict.mend}"))
        return None
    problems += [Problem(f"chunks/{path.name}", why) for path, why in checkpoint.torn.items()]
    return checkpoint


def _responses(
    directory: RunDirectory,
    run: dict[str, Any] | None,
    checkpoint: Checkpoint | None,
    ids: Sequence[str],
    problems: list[Problem],
) -> dict[str, Response]:
    """Answers by request: those of responses.jsonl when it is right, else those of whole chunks."""
    chunks = checkpoint.finished if checkpoint else {}
    joined = b"".join(chunks[chunk].read_bytes() for chunk in sorted(chunks))
    completed = (run or {}).get("completed")
    if completed:
        digest = completed["responses_sha256"]
        if checkpoint is not None and not checkpoint.torn:
            for gap in checkpoints.plan(len(ids), max(len(ids), 1), list(chunks)):
                text = f"no chunk answers requests {gap}, though the run was complete"
                problems.append(Problem("chunks", text))
            if records.sha256_bytes(joined) != digest and checkpoint.requests_done == len(ids):
                problems.append(Problem("run.json", "the chunks give other answers than it says"))
        why = _wrong_answers(directory, digest)
        if why is not None:
            problems.append(Problem("responses.jsonl", why))
        else:
            joined = records.read_bytes(directory.responses)
    elif directory.responses.exists() and run is not None:
        problems.append(Problem("responses.jsonl", "is there, though the run is not complete"))
    parsed = parse_responses(joined, where=str(directory.responses))
    return {response.request_id: response for response in parsed}


def _wrong_answers(directory: RunDirectory, digest: str) -> str | None:
    if not directory.responses.exists():
        return "is missing, though the run was complete"
    if records.sha256_file(directory.responses) != digest:
        return "is not what the run ended with (another sha256 than run.json says)"
    return None


def _replays(directory: RunDirectory, answers: dict[str, Response], problems: list[Problem]) -> int:
    paths = sorted(directory.replays.glob("*.json"))
    for path in paths:
        for why in _replay_faults(path, answers):
            problems.append(Problem(f"replays/{path.name}", why))
    return len(paths)


def _replay_faults(path: Path, answers: dict[str, Response]) -> Iterator[str]:
    try:
        record = replaying.read(path)
    except WorkbenchError as error:
        yield error.problem
        return
    unknown = [name for name in record["request_ids"] if answers and name not in answers]
    if unknown:
        yield f"replays {unknown[0]!r}, which the run did not answer"
    for line in record["changed_answers"]:
        known = answers.get(line["request_id"])
        if known is not None and known.prompt_sha256 != line["prompt_sha256"]:
            yield f"{known.request_id} was asked with another prompt"


def _scorings(
    directory: RunDirectory, answers: dict[str, Response], problems: list[Problem]
) -> int:
    try:
        scorings = load_scorings(directory.path)
    except WorkbenchError as error:
        file = Path(error.where.split(",")[0])
        inside = file.is_relative_to(directory.path)
        name = str(file.relative_to(directory.path)) if inside else "scoring"
        problems.append(Problem(name, error.problem))
        return 0
    judged = 0
    for scoring in scorings:
        name = f"scoring/{scoring.evaluator_fingerprint[:12]}/verdicts.jsonl"
        data = records.read_bytes(directory.path / name)
        if scoring.verdicts_sha256 not in (None, records.sha256_bytes(data)):
            problems.append(Problem(name, "is not what the scoring ended with"))
            continue
        for _, line in records.parse_lines(data, where=name):
            judged += 1
            known = answers.get(line["request_id"])
            if known is None:
                if answers:
                    text = f"judges {line['request_id']!r}, which the run did not answer"
                    problems.append(Problem(name, text))
            elif line.get("answer_sha256") not in (None, answer_digest(known)):
                problems.append(Problem(name, f"judges another answer to {line['request_id']}"))
    return judged
