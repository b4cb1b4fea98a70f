"""A run followed to its end from a notebook or a shell, with one line of progress."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from colab_utils import launch
from colab_utils.launch import last_log_lines, status_text
from colab_utils.mirror_launch import RunMirror
from colab_utils.mirror_ledger import MirrorReader
from colab_utils.progress import ProgressLine
from colab_utils.run_directory import RunDirectory, RunStatus
from colab_utils.run_record import RunSpec
from colab_utils.supervision import supervise

Say = Callable[[str], None]


def follow(
    directory: Path,
    child: subprocess.Popen[bytes] | None = None,
    *,
    say: Say = print,
) -> RunStatus:
    """Watch a run to its end with one line of progress; attaches when `child` is None.

    What befalls its mirror is said once. Raises what `launch.watch` raises.
    """
    line = _Line(directory, say)
    return line.end(launch.watch(directory, child, show=line.show))


def run_to_end(
    spec: RunSpec, engine_python: Path, mirror: RunMirror | None, say: Say
) -> subprocess.Popen[bytes] | None:
    """Start a run, follow it and start it again when it stands still; the process that mirrors it.

    Raises what `supervision.supervise` raises.
    """
    line = _Line(spec.run_dir, say)
    copying: list[subprocess.Popen[bytes]] = []

    def started(pid: int) -> None:
        if mirror is not None:
            copying.append(mirror.start(pid))

    line.end(supervise(spec, engine_python, show=line.show, say=say, started=started))
    return copying[-1] if copying else None


class _Line:
    """The line that shows a run, and sentences of what has to be known once."""

    def __init__(self, directory: Path, say: Say) -> None:
        self._directory = RunDirectory(directory)
        self._say = say
        self._line = ProgressLine()
        self._mirror = MirrorReader(directory)

    def show(self, status: RunStatus) -> None:
        for text in self._mirror.news():
            self._say(text)
        state = self._mirror.state()
        text = status_text(status)
        if status.stalled:
            text += f"; {self._directory.log.name} ends: {last_log_lines(self._directory)}"
        counts = f"; {state.counts}" if state is not None else ""
        self._line.show(text + counts, key=(status.phase, status.done, status.stalled))

    def end(self, status: RunStatus) -> RunStatus:
        self._line.end(status_text(status))
        return status
