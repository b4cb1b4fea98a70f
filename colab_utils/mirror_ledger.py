"""`mirror.jsonl`: what is known of each file's copy, written beside the run, read by anyone.

A file is *local* (on this machine only), *copied* (written to the mirror, which may still lose
it) or *confirmed* (its size and digest were seen there in a way that no cache can answer). The
last line on a file's path and digest counts; `by` says what made it so. Problems and conflicts
are lines too, each written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from colab_utils import checkpoints, records
from colab_utils.errors import RecordError
from colab_utils.heartbeat import now
from colab_utils.mirror_files import ClosedFile, Scanner, is_double
from colab_utils.run_directory import RunDirectory

State = Literal["local", "copied", "confirmed"]
_NAMED = 3


@dataclass(frozen=True)
class MirrorState:
    """A run's files by the state of their copies, what keeps them from it, and conflicts.

    Paths are relative to the run directory. `problem` is None while the mirror answers;
    `conflicts` are sentences.
    """

    mirror: str
    local: tuple[str, ...]
    copied: tuple[str, ...]
    confirmed: tuple[str, ...]
    problem: str | None = None
    conflicts: tuple[str, ...] = ()

    @property
    def is_safe(self) -> bool:
        """Whether every file is confirmed and no range has two digests."""
        return not (self.local or self.copied or self.conflicts)

    @property
    def counts(self) -> str:
        """How many files are in each state."""
        return (
            f"mirror: {len(self.confirmed)} files confirmed, {len(self.copied)} copied, "
            f"{len(self.local)} on this machine only"
        )

    def __str__(self) -> str:
        counts = f"{self.counts} ({self.mirror})"
        if self.copied:
            counts += f"; not confirmed yet: {names(self.copied)}"
        if self.local:
            counts += f"; not safe: {names(self.local)}"
        if self.problem is not None:
            counts += f" (it fails: {self.problem}; it is tried again)"
        return "; ".join([counts, *self.conflicts])


class Ledger:
    """The journal of one run's copies on one mirror, for its one writer at a time."""

    def __init__(self, run_dir: Path, mirror: str) -> None:
        self._path = ledger_path(run_dir)
        self.mirror = mirror
        self._states: dict[tuple[str, str], State] = {}
        self._problem: str | None = None
        self._conflicts: set[tuple[str, ...]] = set()
        for line in read_ledger(run_dir):
            if line.get("mirror") == mirror:
                self._take(line)

    def state(self, file: ClosedFile) -> State:
        """What is known of a file as it is now."""
        return self._states.get((file.path, file.sha256), "local")

    def held(self) -> list[tuple[str, str]]:
        """(path, SHA-256) of all that was copied or confirmed."""
        return [key for key, state in self._states.items() if state != "local"]

    @property
    def problem(self) -> str | None:
        """What keeps files from the mirror, None while it answers."""
        return self._problem

    @property
    def conflicts(self) -> set[tuple[str, ...]]:
        """Pairs of chunk names that answer the same requests."""
        return set(self._conflicts)

    def note(self, path: str, sha256: str, state: State, by: str) -> None:
        """Record a file's state; one that is known already is not written again."""
        if self._states.get((path, sha256)) == state:
            return
        # A later copy takes nothing from what was confirmed; only a loss does.
        if state == "copied" and self._states.get((path, sha256)) == "confirmed":
            return
        self._write({"file": path, "sha256": sha256, "state": state, "by": by})

    def note_problem(self, cause: str | None) -> None:
        """Record that the mirror does not take or give files, once; None: it does again."""
        if cause != self._problem:
            self._write({"problem": cause})

    def note_start(self, pid: int) -> None:
        """Record that a process copies from now on."""
        self._write({"started": pid})

    def note_conflict(self, pair: Sequence[str], sentence: str) -> None:
        """Record two chunks that answer the same requests, once."""
        if tuple(sorted(pair)) not in self._conflicts:
            self._write({"conflict": sorted(pair), "sentence": sentence})

    def _write(self, content: dict[str, Any]) -> None:
        line = {**content, "mirror": self.mirror, "at": now()}
        records.append_line(self._path, line)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if "file" in line:
            self._states[line["file"], line["sha256"]] = line["state"]
        elif "problem" in line:
            self._problem = line["problem"]
        elif "conflict" in line:
            self._conflicts.add(tuple(line["conflict"]))


class MirrorReader:
    """A run's mirror as a reader of its folder sees it: the state, and what is new to tell."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._scanner = Scanner(run_dir)
        self._seen = len(read_ledger(run_dir))

    @staticmethod
    def all_paths(run_dir: Path) -> tuple[str, ...]:
        """Paths of all files of a run that belong on a mirror."""
        return tuple(file.path for file in Scanner(run_dir).scan())

    def state(self) -> MirrorState | None:
        """The state on the mirror used last; None where the run has none."""
        lines = read_ledger(self._run_dir)
        if not lines:
            return None
        ledger = Ledger(self._run_dir, str(lines[-1]["mirror"]))
        by_state: dict[str, list[str]] = {"local": [], "copied": [], "confirmed": []}
        for file in self._scanner.scan():
            by_state[ledger.state(file)].append(file.path)
        return MirrorState(
            mirror=ledger.mirror,
            local=tuple(by_state["local"]),
            copied=tuple(by_state["copied"]),
            confirmed=tuple(by_state["confirmed"]),
            problem=ledger.problem,
            conflicts=tuple(open_conflicts(self._run_dir)),
        )

    def news(self) -> list[str]:
        """Sentences on what has happened since the last call; each comes once."""
        lines = read_ledger(self._run_dir)
        fresh, self._seen = lines[self._seen :], len(lines)
        told = []
        for line in fresh:
            if "conflict" in line:
                told.append(f"Warning: {line['sentence']}.")
            elif "problem" in line:
                told.append(self._problem_sentence(line))
        return told

    def _problem_sentence(self, line: dict[str, Any]) -> str:
        if line["problem"] is None:
            return f"mirror {line['mirror']} answers again; what was missing there is copied."
        state = self.state()
        local = state.local if state else ()
        unsafe = (
            f"{len(local)} files are on this machine only ({names(local)})"
            if local
            else "what is finished from now on is on this machine only"
        )
        return (
            f"Warning: mirror {line['mirror']} fails ({line['problem']}), so {unsafe}; the run "
            "goes on, and it is copied when the mirror answers again."
        )


def ledger_path(run_dir: Path) -> Path:
    """Where a run's ledger lies."""
    return run_dir / "mirror.jsonl"


def read_ledger(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's ledger; what is torn or says nothing of a mirror is left out.

    Left out, a file counts as local and is copied again, and a conflict is found again.
    """
    return [line for line in records.read_log(ledger_path(run_dir)) if _is_sound(line)]


def _is_sound(line: dict[str, Any]) -> bool:
    texts = {"mirror": line.get("mirror")}
    if "file" in line:
        texts |= {name: line.get(name) for name in ("file", "sha256")}
        known = line.get("state") in get_args(State)
    elif "conflict" in line:
        pair = line["conflict"]
        texts["sentence"] = line.get("sentence")
        known = isinstance(pair, list) and all(isinstance(name, str) for name in pair)
    else:
        known = "started" in line or isinstance(line.get("problem", 0), str | None)
    return known and all(isinstance(text, str) for text in texts.values())


def open_conflicts(run_dir: Path) -> list[str]:
    """Sentences on chunk ranges with two digests that were seen on a mirror, none chosen yet."""
    aside = set_aside_by_choice(run_dir)
    return [
        line["sentence"]
        for line in read_ledger(run_dir)
        if "conflict" in line and not aside & set(line["conflict"])
    ]


def set_aside_by_choice(run_dir: Path) -> set[str]:
    """Names of the chunks that a user's choice has put out of the run.

    Raises `RecordError` for a choice that can't be read.
    """
    counting = _counting(run_dir)
    kept = {name for choice in counting for name in choice["keep"]}
    # What two machines chose against one another is no choice: the conflict is open again.
    return {name for choice in counting for name in choice["aside"]} - kept


def kept_by_choice(run_dir: Path) -> set[str]:
    """Names of the chunks that a user has chosen; raises as `set_aside_by_choice` does."""
    counting = _counting(run_dir)
    aside = {name for choice in counting for name in choice["aside"]}
    return {name for choice in counting for name in choice["keep"]} - aside


def leave_chosen_against(directory: RunDirectory) -> dict[Path, str]:
    """Move out of the run what a choice between chunks was made against; where it is now, and why.

    Answers that were joined before the choice go with the chunk: they are joined again.
    """
    moved = {}
    for name in sorted(set_aside_by_choice(directory.path)):
        if (directory.chunks / name).exists():
            moved[checkpoints.move_aside(directory.chunks / name)] = f"{name} was not chosen"
    if directory.responses.exists():
        joined = records.read_bytes(directory.responses)
        for name in sorted(kept_by_choice(directory.path)):
            chosen = directory.chunks / name
            if chosen.exists() and records.read_bytes(chosen) not in joined:
                why = f"responses.jsonl: was joined before {name} was chosen"
                moved[checkpoints.move_aside(directory.responses)] = why
                break
    return moved


def _counting(run_dir: Path) -> list[dict[str, list[str]]]:
    """The choices that no later one replaces."""
    choices = read_choices(run_dir)
    replaced = {name for choice in choices.values() for name in choice["replaces"]}
    return [choice for name, choice in choices.items() if name not in replaced]


def read_choices(run_dir: Path) -> dict[str, dict[str, list[str]]]:
    """A run's choices by file name: chunks to `keep`, to leave `aside`, choices it `replaces`.

    Raises `RecordError` for a file that is none.
    """
    paths = sorted((run_dir / "choices").glob("*.json"))
    return {path.name: read_choice(path) for path in paths if not is_double(path.name)}


def read_choice(path: Path) -> dict[str, list[str]]:
    """One choice; raises `RecordError` for a file that is none or whose digest has changed."""
    data = records.read_bytes(path)
    choice = records.loads(data, where=str(path))
    for field in ("keep", "aside", "replaces"):
        those = choice.get(field) if isinstance(choice, dict) else None
        if not isinstance(those, list) or not all(isinstance(name, str) for name in those):
            raise RecordError("is no choice between two chunks", where=str(path))
    if path.name.split(".")[1:2] != [records.sha256_bytes(data)[:8]]:
        raise RecordError("its bytes do not match its digest", where=str(path))
    return dict(choice)


def names(paths: Sequence[str]) -> str:
    """A few names and a number: `a, b, c and 4 more`."""
    shown = ", ".join(paths[:_NAMED])
    more = len(paths) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown
