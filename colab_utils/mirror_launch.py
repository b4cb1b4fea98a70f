"""A run's mirror as a notebook or shell sees it: restore, start copying, tell, wait, confirm.

Everything that touches a mirror happens in a child process, because a mount may hang for ever in
a call that nothing interrupts; here it is waited for with a bound.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from colab_utils import colab, errors, records
from colab_utils.checkpoints import CHOOSE
from colab_utils.errors import ChunkConflict, MirrorError, ParameterError, RunDirectoryError
from colab_utils.launch import without_secrets
from colab_utils.manifests import PROJECT
from colab_utils.mirror_hub import HUB
from colab_utils.mirror_ledger import MirrorReader, MirrorState, names, read_ledger
from colab_utils.mirror_restore import Restored
from colab_utils.mirroring import MirrorSpec
from colab_utils.run_directory import RunDirectory

Say = Callable[[str], None]
_ANSWER_SECONDS = 600.0
_FINISH_SECONDS = 60.0
_SAY_SECONDS = 10.0


@dataclass(frozen=True)
class RunMirror:
    """Where one run is mirrored: `mirror` as the user named it, `folder` its place in there."""

    mirror: str
    folder: str
    run_dir: Path
    token: str | None

    def restore(self, say: Say) -> None:
        """Bring back what this machine lacks, and say what came and what is not whole there.

        Raises `RunDirectoryError` when the mirror does not answer and this machine has no run to
        go on with, `ChunkConflict` when a range of requests has two digests, and what
        `mirror_restore.restore` raises. Does nothing while the run goes on.
        """
        directory = RunDirectory(self.run_dir)
        if directory.runner() is not None:
            return
        try:
            found = self._ask("restore", say)
        except MirrorError as error:
            if not directory.run_json.exists():
                raise RunDirectoryError(
                    f"cannot be read ({error.problem})",
                    where=self._place,
                    mend="mount it again, or start without a mirror",
                ) from error
            say(
                f"Warning: mirror {self._place} does not answer ({error.problem}); the run goes on "
                "from what this machine has."
            )
            return
        say(f"mirror {self._place}: {len(found.files)} files restored, {found.whole} are there")
        for text in damage(found):
            say(f"Warning: {text}.")
        if found.conflicts:
            raise ChunkConflict("; ".join(found.conflicts), where=str(self.run_dir), mend=CHOOSE)

    def start(self, engine_pid: int | None) -> subprocess.Popen[bytes]:
        """Start the process that copies; it serves `engine_pid` and ends by itself."""
        with open(self.run_dir / "mirror.log", "ab") as log:
            child = self._child(log, subprocess.STDOUT)
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin:
            child.stdin.write(self._spec("copy", engine_pid).model_dump_json().encode())
        return child

    def finish(
        self, child: subprocess.Popen[bytes], seconds: float = _FINISH_SECONDS
    ) -> MirrorState:
        """Wait until all is copied, `seconds` at most; the process goes on trying after that.

        Raises `ChunkConflict` when a range of requests has two digests.
        """
        reader = MirrorReader(self.run_dir)
        deadline = time.monotonic() + seconds
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        state = reader.state()
        if state is None or state.mirror != self._place:
            # It ended, or hung, before it could say anything.
            local = MirrorReader.all_paths(self.run_dir)
            state = MirrorState(self._place, local, (), (), f"see {self.run_dir / 'mirror.log'}")
        if child.poll() not in (None, 0) and state.problem is None and state.local:
            log = self.run_dir / "mirror.log"
            state = replace(state, problem=f"its process ended with {child.returncode}: see {log}")
        if state.conflicts:
            raise ChunkConflict("; ".join(state.conflicts), where=str(self.run_dir), mend=CHOOSE)
        return state

    def confirm(self, say: Say) -> Restored:
        """Read all that the mirror holds and note what that confirms; raises `MirrorError`."""
        return self._ask("confirm", say)

    @property
    def _place(self) -> str:
        return self._spec("copy", None).place

    def _spec(self, verb: Literal["copy", "restore", "confirm"], pid: int | None) -> MirrorSpec:
        return MirrorSpec(
            verb=verb, mirror=self.mirror, folder=self.folder, run_dir=self.run_dir, engine_pid=pid
        )

    def _child(self, out: Any, err: int) -> subprocess.Popen[bytes]:
        environment = without_secrets()
        environment.pop("MPLBACKEND", None)
        environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        if self.token is not None:
            environment["HF_TOKEN"] = self.token
        return subprocess.Popen(
            [sys.executable, "-m", "colab_utils.mirroring"],
            stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment,
            start_new_session=True, cwd=PROJECT,
        )  # fmt: skip

    def _ask(self, verb: Literal["restore", "confirm"], say: Say) -> Restored:
        child = self._child(subprocess.PIPE, subprocess.PIPE)
        said: bytes | None = self._spec(verb, None).model_dump_json().encode()
        began = time.monotonic()
        try:
            while True:
                try:
                    out, err = child.communicate(said, timeout=_SAY_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    # What was said is on its way already.
                    said = None
                waited = time.monotonic() - began
                say(f"mirror {self._place}: reading for {waited:.0f} s")
                if waited > _ANSWER_SECONDS:
                    raise MirrorError(f"has not answered for {waited:.0f} s", where=self._place)
        finally:
            # Not waited for: a process that hangs in a mount does not even die.
            if child.poll() is None:
                child.kill()
        if child.returncode != 0:
            last = err.decode(errors="replace").strip().rpartition("\n")[2]
            raise MirrorError(f"its process failed: {last}", where=self._place)
        answer = records.loads(out.splitlines()[-1], where="mirroring process")
        if "error" in answer:
            kind = getattr(errors, answer["error"])
            raise kind(answer["problem"], where=answer["where"], mend=answer["mend"])
        return Restored.model_validate(answer["done"])


def mirror_of(mirror: str, run_dir: Path, runs: Path) -> RunMirror | None:
    """The mirror of a run that lies in the folder `runs`; None for an empty text.

    `mirror` is a folder (relative: in the project's) or `hf://datasets/OWNER/NAME`. Drive is
    mounted where need be. Raises `ParameterError` for a text that is neither.
    """
    if not mirror:
        return None
    folder = run_dir.relative_to(runs).as_posix()
    if mirror.startswith(HUB):
        if mirror.removeprefix(HUB).strip("/").count("/") != 1:
            raise ParameterError(
                f"is {mirror}", where="parameter mirror", mend=f"give {HUB}OWNER/NAME, or a folder"
            )
        return RunMirror(mirror.rstrip("/"), folder, run_dir, colab.hub_token())
    if "://" in mirror:
        raise ParameterError(
            f"is {mirror}", where="parameter mirror", mend=f"give a folder or {HUB}OWNER/NAME"
        )
    root = PROJECT / mirror
    if root.is_relative_to(colab.DRIVE):
        colab.require_drive()
    return RunMirror(str(root), folder, run_dir, None)


def known_mirror(run_dir: Path) -> str | None:
    """The mirror that a run's ledger names last, None where it has none."""
    lines = read_ledger(run_dir)
    return str(lines[-1]["mirror"]) if lines else None


def mirror_of_ledger(run_dir: Path) -> RunMirror | None:
    """The mirror that a run was copied to last, None where it has none.

    Raises `ParameterError` where the run's folder has been moved since, so that nobody knows
    which part of the mirror is its own.
    """
    place = known_mirror(run_dir)
    if place is None:
        return None
    run_dir = run_dir.resolve()
    # runs/EXPERIMENT/MODEL/KIND
    runs = run_dir.parents[2]
    folder = f"/{run_dir.relative_to(runs).as_posix()}"
    if not place.endswith(folder):
        raise ParameterError(
            f"was mirrored to {place}, which is not the place of {folder[1:]}",
            where=str(run_dir),
            mend="give the folder its old name again",
        )
    return mirror_of(place.removesuffix(folder), run_dir, runs)


def damage(found: Restored) -> list[str]:
    """What a mirror does not hold whole, in a sentence each; only a few are named."""
    told = []
    by_reason: dict[str, list[str]] = {}
    for name, why in found.damaged.items():
        by_reason.setdefault(why, []).append(name)
    for why, those in by_reason.items():
        told.append(
            f"{names(those)} on the mirror {why}, so nothing of it is trusted: it is copied again "
            "from this machine, or computed again"
        )
    if found.missing:
        told.append(f"{names(found.missing)} is not whole on the mirror")
    return told
