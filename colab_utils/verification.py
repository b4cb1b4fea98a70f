"""Is a run what it says it is? Every file of it against digests, ids and fingerprints.

Reads only. Logs, and what is made from answers and verdicts in seconds (report, database), are
not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from colab_utils import checkpoints, fingerprints, record_checks, records
from colab_utils.answers import dataset_requests
from colab_utils.checkpoints import CHOOSE, CHUNK_NAME, Checkpoint, range_of
from colab_utils.errors import ChunkConflict, RunDirectoryError, WorkbenchError
from colab_utils.mirror_launch import damage, mirror_of_ledger
from colab_utils.mirror_ledger import MirrorReader, open_conflicts
from colab_utils.record_checks import Known
from colab_utils.responses import Response, parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import prompts_digest
from colab_utils.scoring_verbs import dataset_of

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


class _Completed(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    responses_sha256: str


class _Settings(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    dataset_sha256: str


class _Record(BaseModel):
    """What readers take from run.json, each with its kind."""

    model_config = ConfigDict(extra="ignore", strict=True)

    kind: Literal["smoke", "full"]
    decoding_fingerprint: str
    decoding: dict[str, Any]
    run_fingerprint: str
    run: _Settings
    requests: int
    completed: _Completed | None = None
    prompts_sha256: str | None = None
    chunk_size: int = 1
    dataset_manifest: str | None = None
    segments: list[dict[str, Any]] = []


def verify(run_dir: Path, *, mirror: bool = False, say: Say = print) -> Verification:
    """Check a run's record, chunks, answers, replays, choices and verdicts.

    With `mirror` the mirror that the run was copied to last is read whole as well; that it has
    none, or that it does not answer, is a problem then. An unfinished run is none. Raises
    `RunDirectoryError` for a folder that holds no run.
    """
    directory = RunDirectory(run_dir)
    if not directory.run_json.exists() and not directory.chunks.is_dir():
        raise RunDirectoryError("holds no run", where=str(run_dir), mend="name a run directory")
    problems: list[Problem] = []
    run = read_record(directory, problems)
    ids = request_ids(run_dir, run, problems)
    checkpoint = _chunks(directory, ids, problems)
    answers = _responses(directory, run, checkpoint, ids, problems)
    dataset_sha256 = run["run"]["dataset_sha256"] if run else None
    known = Known(answers, _all_ids(run, ids, answers), dataset_sha256)
    replays = sorted(directory.replays.glob("*.json"))
    scorings = sorted(p for p in run_dir.glob("scoring/*") if p.is_dir() and p.name != "set-aside")
    faults = [
        *(fault for path in replays for fault in record_checks.replay_faults(path, known)),
        *(f for folder in scorings for f in record_checks.scoring_faults(run_dir, folder, known)),
        *record_checks.second_copies(run_dir),
    ]
    named = {problem.file for problem in problems} | {f"replays/{path.name}" for path in replays}
    problems += [
        Problem(file, what)
        for file, what in faults
        if "second copy" not in what or file not in named
    ]
    there = _mirror(run_dir, problems, say) if mirror else ""
    finished = len(checkpoint.finished) if checkpoint else 0
    done = checkpoint.requests_done if checkpoint else 0
    total = run["requests"] if run else "an unknown number of"
    verdicts = sum(_lines(folder / "verdicts.jsonl") for folder in scorings)
    checked = (
        f"{finished} chunks with {done} of {total} answers, {len(replays)} replays, {verdicts} "
        f"verdicts{there}"
    )
    return Verification(checked, tuple(problems))


def read_record(directory: RunDirectory, problems: list[Problem]) -> dict[str, Any] | None:
    """run.json, None where it can't be trusted in form; what is wrong with it joins `problems`."""
    try:
        run = directory.read_run()
        if run is not None:
            _Record.model_validate(run)
    except WorkbenchError as error:
        problems.append(Problem("run.json", error.problem))
        return None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        problems.append(Problem("run.json", f"field {field}: {first['msg']}"))
        return None
    if run is None:
        problems.append(Problem("run.json", "is missing"))
        return None
    for name, content in (("run_fingerprint", "run"), ("decoding_fingerprint", "decoding")):
        if fingerprints.fingerprint(run[content]) != run[name]:
            text = f"{name} is not the digest of the settings under {content!r}"
            problems.append(Problem("run.json", text))
    for name in ("kind", "decoding_fingerprint"):
        if run["run"].get(name, run[name]) != run[name]:
            problems.append(Problem("run.json", f"{name} is another than under 'run'"))
    return run


def request_ids(
    run_dir: Path, run: dict[str, Any] | None, problems: list[Problem]
) -> list[str] | None:
    """The run's requests in order: by its data set, or by its answers where those are whole.

    None where neither can be had: chunks are judged by themselves then.
    """
    try:
        if run is not None and run.get("dataset_manifest"):
            dataset = dataset_of(run_dir)
            if dataset.manifest.sha256 == run["run"]["dataset_sha256"]:
                found = [request.request_id for request in dataset_requests(run_dir, dataset)]
                if len(found) != run["requests"]:
                    text = f"says {run['requests']} requests, its data set has {len(found)}"
                    problems.append(Problem("run.json", text))
                return found
            text = "pins another data set than is here now, so request ids are not checked"
            problems.append(Problem("run.json", text))
        elif run is not None:
            text = "does not name its data set, so request ids are not checked"
            problems.append(Problem("run.json", text))
    except WorkbenchError as error:
        text = f"its data set can't be had ({error.problem}), so request ids are not checked"
        problems.append(Problem("run.json", text))
    directory = RunDirectory(run_dir)
    if run is None or not directory.is_complete():
        return None
    data = records.read_bytes(directory.responses)
    try:
        return [r.request_id for r in parse_responses(data, where=str(directory.responses))]
    except WorkbenchError:
        # It is named where the answers are checked.
        return None


def _chunks(
    directory: RunDirectory, ids: Sequence[str] | None, problems: list[Problem]
) -> Checkpoint | None:
    faults = list(record_checks.choice_faults(directory.path))
    problems += [Problem(file, what) for file, what in faults]
    try:
        checkpoint = checkpoints.verify(directory.chunks, ids)
    except ChunkConflict as conflict:
        problems.append(Problem("chunks", f"{conflict.problem}; {conflict.mend}"))
        return None
    problems += [Problem(f"chunks/{path.name}", why) for path, why in checkpoint.torn.items()]
    if not faults:
        # Of two machines: the other's chunk lies on the mirror only.
        for sentence in open_conflicts(directory.path):
            problems.append(Problem("chunks", f"{sentence}; {CHOOSE}"))
    return checkpoint


def joined(checkpoint: Checkpoint) -> bytes:
    """The answers of whole chunks in request order."""
    return b"".join(checkpoint.finished[c].read_bytes() for c in sorted(checkpoint.finished))


def _responses(
    directory: RunDirectory,
    run: dict[str, Any] | None,
    checkpoint: Checkpoint | None,
    ids: Sequence[str] | None,
    problems: list[Problem],
) -> dict[str, Response]:
    """Answers by request: those of responses.jsonl when it is right, else those of whole chunks."""
    of_chunks = joined(checkpoint) if checkpoint else b""
    answers = of_chunks
    completed = (run or {}).get("completed")
    if run is not None and completed:
        full = False
        if checkpoint is not None:
            full = checkpoint.requests_done == run["requests"]
            problems += _gaps(checkpoint, run["requests"])
        file = records.read_bytes(directory.responses) if directory.responses.exists() else None
        digest = completed["responses_sha256"]
        if file is None:
            problems.append(Problem("responses.jsonl", "is missing, though the run was complete"))
        elif records.sha256_bytes(file) == digest:
            answers = file
        elif full and file == of_chunks:
            text = "completed.responses_sha256 is not that of responses.jsonl and of the chunks"
            problems.append(Problem("run.json", f"{text}, which agree"))
        else:
            text = "is not what the run ended with (another sha256 than run.json says)"
            problems.append(Problem("responses.jsonl", text))
        if full and file != of_chunks and records.sha256_bytes(of_chunks) != digest:
            text = "give other answers than run.json says the run ended with"
            problems.append(Problem("chunks", text))
    elif run is not None and directory.responses.exists():
        text = "is there, though run.json does not say that the run has ended"
        problems.append(Problem("responses.jsonl", text))
    try:
        parsed = parse_responses(answers, where=str(directory.responses))
    except WorkbenchError as error:
        problems.append(Problem("responses.jsonl", error.problem))
        return {}
    if answers is not of_chunks and ids not in (None, [r.request_id for r in parsed]):
        text = "does not answer the data set's requests in their order"
        problems.append(Problem("responses.jsonl", text))
    asked = (run or {}).get("prompts_sha256")
    prompts = prompts_digest(response.prompt_sha256 for response in parsed)
    if run is not None and asked and len(parsed) == run["requests"] and prompts != asked:
        problems.append(Problem("run.json", "the answers are to other prompts (prompts_sha256)"))
    return {response.request_id: response for response in parsed}


def _gaps(checkpoint: Checkpoint, total: int) -> list[Problem]:
    """Requests that no chunk answers, not even a torn one, which is named itself."""
    torn = [range_of(path.name) for path in checkpoint.torn if CHUNK_NAME.fullmatch(path.name)]
    covered = {
        n for c in [*checkpoint.finished, *torn] for n in range(c.first, min(c.last + 1, total))
    }
    left = [number for number in range(total) if number not in covered]
    if not left:
        return []
    text = f"no chunk answers {len(left)} requests (the first is {left[0]}), though the run ended"
    return [Problem("chunks", text)]


def _all_ids(
    run: dict[str, Any] | None, ids: Sequence[str] | None, answers: dict[str, Response]
) -> Collection[str] | None:
    if ids is not None:
        return set(ids)
    return answers.keys() if run is not None and len(answers) == run["requests"] else None


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _mirror(run_dir: Path, problems: list[Problem], say: Say) -> str:
    """Read the mirror whole; what it lacks joins `problems`. Returns counts for the last line."""
    try:
        there = mirror_of_ledger(run_dir)
        if there is None:
            problems.append(Problem("mirror", "the run was never copied to one"))
            return ""
        found = there.confirm(say)
    except WorkbenchError as error:
        problems.append(Problem("mirror", f"{error.where} {error.problem}"))
        return ""
    problems += [Problem("mirror", text) for text in damage(found)]
    state = MirrorReader(run_dir).state()
    counts = state.counts if state else ""
    return f", {counts}, {len(found.damaged)} damaged there"
