"""Make a damaged run whole again as far as that can be had; nothing is ever deleted.

What is torn is moved to `set-aside/`, then brought back from the mirror, or made again from what
is whole; else the next start of the run, or of its scoring, finds a gap and fills it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from colab_utils import checkpoints, record_checks, records, verification
from colab_utils.errors import ChunkConflict, ParameterError
from colab_utils.heartbeat import now
from colab_utils.lock import busy
from colab_utils.mirror_files import is_chunk
from colab_utils.mirror_launch import RunMirror, mirror_of_ledger
from colab_utils.mirror_ledger import (
    leave_chosen_against,
    read_choices,
    read_ledger,
    set_aside_by_choice,
)
from colab_utils.responses import parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.verification import Problem, Verification

Say = Callable[[str], None]


def repair(run_dir: Path, *, keep: str = "", say: Say = print) -> Verification:
    """Mend what can be mended and say so; returns what is still wrong.

    `keep` is the digest of the chunk to trust where two answer the same requests. Raises
    `RunnerBusy` while the run goes on, `ParameterError` for a `keep` that settles no conflict,
    and what `verification.verify` and `RunMirror.restore` raise.
    """
    directory = RunDirectory(run_dir)
    if directory.runner() is not None:
        raise busy(directory)
    mirror = mirror_of_ledger(run_dir)
    for fault in list(record_checks.choice_faults(run_dir)):
        _aside(directory, Problem(*fault), say)
    _leave_chosen_against(directory, say)
    if mirror is not None and (keep or verification.read_record(directory, []) is None):
        # A choice made elsewhere comes first; without run.json nothing else can be judged.
        _restore(mirror, say)
    if keep:
        _choose(directory, keep, say)
    scored = _set_aside(directory, verification.verify(run_dir, say=say).problems, say)
    if mirror is not None:
        _restore(mirror, say)
    _rebuild(directory, say)
    left = verification.verify(run_dir, say=say)
    _say_next(directory, left.problems, scored, say)
    return left


def _aside(directory: RunDirectory, problem: Problem, say: Say) -> None:
    moved = checkpoints.move_aside(directory.path / problem.file)
    say(f"{problem}; moved to {moved.relative_to(directory.path)}")


def _set_aside(directory: RunDirectory, problems: Sequence[Problem], say: Say) -> list[Path]:
    """Move what is torn out of the run; return the scorings' folders that went."""
    moved = []
    for problem in problems:
        parts = Path(problem.file).parts
        path = directory.path / problem.file
        alone = "second copy" in problem.what or path.name == "replays.jsonl"
        if parts[0] == "scoring" and not alone:
            folder = directory.path / Path(*parts[:2])
            # Verdicts without their record are taken over by the next scoring.
            if folder.is_dir() and (folder / "scoring.json").exists():
                _aside(directory, Problem("/".join(parts[:2]), f"{path.name} {problem.what}"), say)
                moved.append(folder)
        elif (len(parts) > 1 or alone) and path.is_file():
            _aside(directory, problem, say)
    if any(p.file == "responses.jsonl" and "ended with" in p.what for p in problems):
        text = "is not what the run ended with"
        _aside(directory, Problem("responses.jsonl", text), say)
    return moved


def _restore(mirror: RunMirror, say: Say) -> None:
    try:
        mirror.restore(say)
    except ChunkConflict:
        # Both chunks are here now, and the verification that follows names them.
        return


def _leave_chosen_against(directory: RunDirectory, say: Say) -> None:
    """Put out of the run what a choice was made against, a killed repair's choice included."""
    for moved, why in leave_chosen_against(directory).items():
        say(f"{why}; moved to {moved.relative_to(directory.path)}")


def _choose(directory: RunDirectory, keep: str, say: Say) -> None:
    """Record which of two chunks counts, and move the other aside if it is here."""
    pairs = _open_pairs(directory)
    kept = {name for pair in pairs for name in pair if name.split(".")[1] == keep}
    if not kept:
        known = sorted({name.split(".")[1] for pair in pairs for name in pair})
        raise ParameterError(
            f"{keep} is the digest of no chunk that is in conflict",
            where="keep",
            mend=f"give one of {', '.join(known)}"
            if known
            else "leave it out: nothing is in conflict",
        )
    missing = sorted(name for name in kept if not (directory.chunks / name).exists())
    if missing:
        raise ParameterError(
            f"{missing[0]} is not on this machine, nor whole on a mirror that answers",
            where="keep",
            mend="choose the other, or repair when the mirror answers",
        )
    others = sorted({name for pair in pairs if kept & set(pair) for name in pair} - kept)
    both = kept | set(others)
    earlier = [
        name
        for name, choice in read_choices(directory.path).items()
        if both & {*choice["keep"], *choice["aside"]}
    ]
    record = {"at": now(), "keep": sorted(kept), "aside": others, "replaces": earlier}
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, indent=1).encode() + b"\n"
    # Two machines may choose: a name of its own, so that a mirror holds both.
    name = f"{keep}.{records.sha256_bytes(text)[:8]}.json"
    records.write_atomic(directory.path / "choices" / name, text)
    say(f"{', '.join(sorted(kept))} counts; {', '.join(others)} is set aside")
    _leave_chosen_against(directory, say)


def _open_pairs(directory: RunDirectory) -> set[tuple[str, ...]]:
    """Chunks that answer the same requests, here or as the mirror's ledger says; none chosen."""
    here = [p.name for p in directory.chunks.glob("*.jsonl") if is_chunk(f"chunks/{p.name}")]
    noted = [line["conflict"] for line in read_ledger(directory.path) if "conflict" in line]
    aside = set_aside_by_choice(directory.path)
    pairs = {tuple(sorted(pair)) for pair in [*checkpoints.conflicts(here), *noted]}
    return {pair for pair in pairs if not aside & set(pair)}


def _rebuild(directory: RunDirectory, say: Say) -> None:
    """Chunks from responses.jsonl, or that from the chunks, whichever is whole."""
    run = verification.read_record(directory, [])
    if run is None or not run.get("completed"):
        return
    ids = verification.request_ids(directory.path, run, [])
    try:
        checkpoint = checkpoints.verify(directory.chunks, ids)
    except ChunkConflict:
        # Which of two counts is the user's choice, and comes first.
        return
    total = run["requests"]
    size = run.get("chunk_size", total)
    gaps = checkpoints.plan(total, size, list(checkpoint.finished))
    answers = verification.joined(checkpoint)
    if directory.is_complete():
        responses = parse_responses(
            records.read_bytes(directory.responses), where=str(directory.responses)
        )
        for gap in gaps:
            path = checkpoints.commit(directory.chunks, gap, responses[gap.first : gap.last + 1])
            say(f"chunks/{path.name}: made again from responses.jsonl")
    elif gaps or directory.responses.exists():
        return
    elif records.sha256_bytes(answers) == run["completed"]["responses_sha256"]:
        checkpoints.join(checkpoint, directory.responses)
        say("responses.jsonl: made again from the chunks")


def _say_next(
    directory: RunDirectory, left: Sequence[Problem], scored: Sequence[Path], say: Say
) -> None:
    """What the user has to do now, a line for each verb."""
    files = {problem.file for problem in left}
    if any(problem.what.endswith(checkpoints.CHOOSE) for problem in left):
        return
    if verification.read_record(directory, []) is None:
        say(
            "next: put run.json back from a copy; without it nobody knows under which settings "
            "the chunks were made (or run in another directory)"
        )
    elif files & {"chunks", "responses.jsonl"} or any("completed." in p.what for p in left):
        say("next: `run` again; it computes what is missing and joins the answers")
    if any(not path.exists() for path in scored) or any(f.startswith("scoring/") for f in files):
        say("next: `score` again; verdicts are made anew where none are left")
