"""Check all that a run directory holds against its digests and fingerprints; change nothing.

Each thing that is wrong is one line. A mirror is read too when it is named, and what this reading
confirms is noted in the run's ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colab_utils import checkpoints, fingerprints, records
from colab_utils.answers import dataset_requests
from colab_utils.checkpoints import Checkpoint
from colab_utils.errors import ChunkConflict, MirrorError, VerificationFailed, WorkbenchError
from colab_utils.judging import answer_digest
from colab_utils.mirror_launch import RunMirror, damage, mirror_of
from colab_utils.mirror_ledger import MirrorReader, open_conflicts
from colab_utils.responses import Response, parse_responses, response_of
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import prompts_digest
from colab_utils.scoring_verbs import dataset_of
from colab_utils.verdicts import load_scoring

Say = Callable[[str], None]


@dataclass
class Findings:
    """What a look at a run directory found.

    `problems` are lines by the path that is wrong (relative to the run directory), `checked` what
    was looked at. `checkpoint` is None where the chunks could not be judged, `answers` holds the
    responses of whole chunks, or of `responses.jsonl` where the chunks are not all there.
    """

    problems: list[tuple[str, str]] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    run: dict[str, Any] | None = None
    request_ids: Sequence[str] | None = None
    checkpoint: Checkpoint | None = None
    answers: dict[str, Response] = field(default_factory=dict)

    def add(self, path: str, problem: str) -> None:
        """Note one thing that is wrong."""
        self.problems.append((path, problem))

    @property
    def lines(self) -> list[str]:
        """One line for each thing that is wrong."""
        return [f"{path}: {problem}" for path, problem in self.problems]


def verify(run_dir: Path, *, mirror: str = "", say: Say = print) -> str:
    """Check a run, and its mirror if one is named; return the line that says what was checked.

    Says a line for each thing that is wrong, then raises `VerificationFailed`.
    """
    found = look(run_dir)
    lines = found.lines
    there = mirror_for(run_dir, mirror)
    if there is not None:
        lines += _mirror_lines(run_dir, there, say, found)
    for line in lines:
        say(line)
    if lines:
        raise VerificationFailed(
            f"{len(lines)} things are wrong", where=str(run_dir),
            mend="see the lines above; `repair RUN_DIR` restores what can be had and moves the "
            "rest aside, so that the next start makes it again",
        )  # fmt: skip
    line = f"{', '.join(found.checked)}: nothing is wrong"
    say(line)
    return line


def mirror_for(run_dir: Path, mirror: str) -> RunMirror | None:
    """The mirror of a run that lies in RUNS/EXPERIMENT/MODEL/KIND; None for an empty text."""
    path = run_dir.resolve()
    return mirror_of(mirror, path, path.parents[2])


def look(run_dir: Path) -> Findings:
    """Judge everything in a run directory; raises nothing that its content can cause."""
    found = Findings()
    directory = RunDirectory(run_dir)
    _look_at_run(directory, found)
    _look_at_chunks(directory, found)
    _look_at_responses(directory, found)
    _look_at_replays(directory, found)
    _look_at_scorings(directory, found)
    return found


def _look_at_run(directory: RunDirectory, found: Findings) -> None:
    try:
        run = directory.read_run()
    except WorkbenchError as error:
        found.add("run.json", error.problem)
        return
    if run is None:
        found.add("run.json", "does not exist, so nobody knows under which settings this was made")
        return
    found.run = run
    found.checked.append("run.json")
    for key, settings in (("decoding_fingerprint", "decoding"), ("run_fingerprint", "run")):
        if run[key] != fingerprints.fingerprint(run[settings]):
            found.add("run.json", f"{key} is not that of its field {settings}")
    if run["run"].get("decoding_fingerprint") != run["decoding_fingerprint"]:
        found.add("run.json", "its field run is of another decoding_fingerprint")
    try:
        dataset = dataset_of(directory.path)
    except WorkbenchError as error:
        found.add("run.json", f"its data set can't be had, so request ids are not checked: {error}")
        return
    if dataset.manifest.sha256 != run["run"]["dataset_sha256"]:
        found.add("run.json", "was made with another data set than the manifest pins now")
        return
    found.request_ids = [r.request_id for r in dataset_requests(directory.path, dataset)]
    if run["requests"] != len(found.request_ids):
        found.add(
            "run.json", f"says {run['requests']} requests, there are {len(found.request_ids)}"
        )


def _look_at_chunks(directory: RunDirectory, found: Findings) -> None:
    ids = found.request_ids
    if ids is None:
        return
    try:
        checkpoint = checkpoints.verify(directory.chunks, ids)
    except ChunkConflict as error:
        found.add("chunks", f"{error.problem}; {error.mend}")
        return
    for sentence in open_conflicts(directory.path):
        found.add("chunks", f"{sentence}; {checkpoints.CHOOSE}")
    for path, reason in checkpoint.torn.items():
        found.add(f"chunks/{path.name}", reason)
    found.checkpoint = checkpoint
    done = checkpoint.requests_done
    found.checked.append(f"{len(checkpoint.finished)} chunks ({done} of {len(ids)} requests)")
    for chunk in sorted(checkpoint.finished):
        path = checkpoint.finished[chunk]
        for response in parse_responses(path.read_bytes(), where=str(path)):
            found.answers[response.request_id] = response


def _look_at_responses(directory: RunDirectory, found: Findings) -> None:
    run, path = found.run, directory.responses
    completed = (run or {}).get("completed")
    if not path.exists():
        if completed:
            found.add(path.name, "does not exist, and run.json says that the run was completed")
        return
    data = records.read_bytes(path)
    if run is not None and not completed:
        found.add(path.name, "is there, and run.json does not say that the run was completed")
    if completed and records.sha256_bytes(data) != completed["responses_sha256"]:
        found.add(path.name, "is not what the run wrote (another sha256 than run.json says)")
        return
    if found.request_ids is None:
        return
    if found.checkpoint is not None and len(found.answers) == len(found.request_ids):
        joined = b"".join(
            found.checkpoint.finished[chunk].read_bytes()
            for chunk in sorted(found.checkpoint.finished)
        )
        if joined != data:
            found.add(path.name, "is not the chunks in request order")
            return
    elif completed:
        missing = len(found.request_ids) - len(found.answers)
        found.add("chunks", f"{missing} requests of a completed run have no whole chunk")
    try:
        answers = parse_responses(data, where=path.name)
    except WorkbenchError as error:
        found.add(path.name, str(error))
        return
    found.answers = {**{r.request_id: r for r in answers}, **found.answers}
    prompts = (run or {}).get("prompts_sha256")
    if prompts and prompts != prompts_digest(r.prompt_sha256 for r in answers):
        found.add(path.name, "was made from other prompts than run.json says (prompts_sha256)")
    found.checked.append(f"{path.name} ({records.sha256_bytes(data)[:12]})")


def _look_at_replays(directory: RunDirectory, found: Findings) -> None:
    paths = sorted(directory.replays.glob("*.json"))
    for path in paths:
        name = f"replays/{path.name}"
        try:
            record = records.read_json(path)
            changed = [response_of(line, where=name) for line in record["changed_answers"]]
        except (WorkbenchError, KeyError, TypeError) as error:
            found.add(name, f"is not a replay's record ({error})")
            continue
        if record["changed"] != len(changed) or record["requests"] != len(record["request_ids"]):
            found.add(name, "its counts are not those of what it holds")
        if not found.answers:
            continue
        for response in changed:
            answer = found.answers.get(response.request_id)
            if answer is None or answer.prompt_sha256 != response.prompt_sha256:
                found.add(name, f"{response.request_id} is of another prompt than the run's")
    if paths:
        found.checked.append(f"{len(paths)} replays")


def _look_at_scorings(directory: RunDirectory, found: Findings) -> None:
    verdicts = 0
    folders = sorted(path.parent for path in directory.path.glob("scoring/*/scoring.json"))
    for folder in folders:
        name = f"scoring/{folder.name}"
        try:
            scoring = load_scoring(folder)
            lines = records.read_jsonl(folder / "verdicts.jsonl")
        except WorkbenchError as error:
            found.add(name, str(error))
            continue
        verdicts += len(lines)
        _look_at_verdicts(name, scoring.responses_sha256, scoring.incomplete, lines, found)
    if folders:
        found.checked.append(f"{len(folders)} scorings ({verdicts} verdicts)")


def _look_at_verdicts(
    name: str,
    responses_sha256: str,
    incomplete: Sequence[str],
    lines: Sequence[dict[str, Any]],
    found: Findings,
) -> None:
    completed = (found.run or {}).get("completed") or {}
    if not incomplete and responses_sha256 != completed.get("responses_sha256"):
        found.add(name, "judges other answers than the run's (responses_sha256)")
    if not found.answers:
        return
    judged = [line["request_id"] for line in lines]
    for line in lines:
        answer = found.answers.get(line["request_id"])
        if answer is None:
            found.add(name, f"judges {line['request_id']}, which has no answer here")
        elif line.get("answer_sha256") not in (None, answer_digest(answer)):
            found.add(name, f"its verdict on {line['request_id']} is on another answer")
    if found.request_ids is not None:
        unjudged = set(found.request_ids) - set(judged) - set(incomplete)
        if unjudged:
            found.add(name, f"has no verdict on {len(unjudged)} requests, {min(unjudged)} first")


def _mirror_lines(run_dir: Path, mirror: RunMirror, say: Say, found: Findings) -> list[str]:
    try:
        read = mirror.confirm(say)
    except MirrorError as error:
        return [f"mirror: {error.problem}"]
    state = MirrorReader(run_dir).state()
    say(str(state))
    found.checked.append(f"the mirror ({read.whole} files whole, {read.confirmed} confirmed now)")
    if state is not None and state.copied:
        say(
            "Files that are copied only were read through the mount that wrote them, which proves "
            "nothing: verify again on another machine (in Colab: a new runtime)."
        )
    return [f"mirror: {line}" for line in damage(read)]
