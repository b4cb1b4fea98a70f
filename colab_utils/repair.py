"""Make a damaged run whole again as far as that can be had; nothing is ever deleted.

What is torn is brought back from the mirror, or made again from what is whole, or moved to
`set-aside/`, where the next start of the run, or of its scoring, finds a gap and fills it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from colab_utils import checkpoints, records, verification
from colab_utils.errors import ParameterError, WorkbenchError
from colab_utils.heartbeat import now
from colab_utils.lock import busy
from colab_utils.mirror_launch import mirror_of_ledger
from colab_utils.mirror_ledger import read_ledger, set_aside_by_choice
from colab_utils.responses import parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.verification import Problem, Verification

Say = Callable[[str], None]


def repair(run_dir: Path, *, keep: str = "", say: Say = print) -> Verification:
    """Mend what can be mended and say so; returns what is still wrong.

    `keep` is the digest of the chunk to trust where two answer the same requests. Raises
    `RunnerBusy` while the run goes on, `ParameterError` for a `keep` that settles no conflict,
    and what `verification.verify` raises.
    """
    directory = RunDirectory(run_dir)
    if directory.runner() is not None:
        raise busy(directory)
    if keep:
        _choose(directory, keep, say)
    mirror = mirror_of_ledger(run_dir)
    if mirror is not None:
        mirror.restore(say)
    found = verification.verify(run_dir, say=say)
    for problem in found.problems:
        path = directory.path / problem.file
        if problem.file.startswith(("chunks/", "replays/")) and path.is_file():
            say(f"{problem}; moved to {checkpoints.move_aside(path).relative_to(run_dir)}")
        elif problem.file.startswith("scoring/"):
            folder = directory.path / Path(*Path(problem.file).parts[:2])
            if folder.is_dir():
                aside = checkpoints.move_aside(folder).relative_to(run_dir)
                say(f"{problem}; moved to {aside}: score the run again")
    _rebuild(directory, found.problems, say)
    return verification.verify(run_dir, say=say)


def _choose(directory: RunDirectory, keep: str, say: Say) -> None:
    """Record which of two chunks counts, and move the other aside if it is here."""
    aside = set_aside_by_choice(directory.path)
    here = {
        p.name for p in directory.chunks.glob("*.jsonl") if checkpoints.CHUNK_NAME.fullmatch(p.name)
    }
    pairs = checkpoints.conflicts(here)
    pairs += [tuple(line["conflict"]) for line in read_ledger(directory.path) if "conflict" in line]
    open_pairs = {tuple(sorted(pair)) for pair in pairs if not aside & set(pair)}
    kept = {name for pair in open_pairs for name in pair if name.split(".")[1] == keep}
    if not kept:
        known = sorted({name.split(".")[1] for pair in open_pairs for name in pair})
        raise ParameterError(
            f"{keep} is the digest of no chunk that is in conflict",
            where="keep",
            mend=f"give one of {', '.join(known)}"
            if known
            else "leave it out: nothing is in conflict",
        )
    others = sorted({n for pair in open_pairs if kept & set(pair) for n in pair} - kept)
    record = {"at": now(), "keep": sorted(kept), "aside": others}
    folder = directory.path / "choices"
    number = len(list(folder.glob("*.json"))) if folder.is_dir() else 0
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, indent=1)
    records.write_atomic(folder / f"{number:03d}.json", text.encode() + b"\n")
    for name in others:
        if (directory.chunks / name).exists():
            checkpoints.move_aside(directory.chunks / name)
    say(f"{', '.join(sorted(kept))} counts; {', '.join(others)} is set aside")


def _rebuild(directory: RunDirectory, problems: tuple[Problem, ...], say: Say) -> None:
    """Chunks from responses.jsonl, or that from the chunks, whichever is whole."""
    try:
        run = directory.read_run()
    except WorkbenchError as error:
        say(f"{error} It can't be made again from what is here.")
        return
    if run is None or not run.get("completed"):
        return
    digest = run["completed"]["responses_sha256"]
    ids = verification.request_ids(directory.path, run, [])
    checkpoint = checkpoints.verify(directory.chunks, ids)
    gaps = checkpoints.plan(len(ids), run["chunk_size"], list(checkpoint.finished))
    if directory.is_complete():
        data = records.read_bytes(directory.responses)
        responses = parse_responses(data, where=str(directory.responses))
        for gap in gaps:
            path = checkpoints.commit(directory.chunks, gap, responses[gap.first : gap.last + 1])
            say(f"chunks/{path.name}: made again from responses.jsonl")
        return
    joined = b"".join(checkpoint.finished[c].read_bytes() for c in sorted(checkpoint.finished))
    if not gaps and records.sha256_bytes(joined) == digest:
        if directory.responses.exists():
            checkpoints.move_aside(directory.responses)
        checkpoints.join(checkpoint, directory.responses)
        say("responses.jsonl: made again from the chunks")
    elif gaps:
        requests = sum(map(len, gaps))
        say(f"{requests} answers are gone: start the run again to compute them")
