"""The process functions as bigcodebench 0.2.5 leaves them to programs, quirk for quirk.

Source: `safe_environment`, `swallow_io` and `reliability_guard` of its eval/utils.py. They decide
verdicts (a Popen without arguments has pipes there, a `kill` command does nothing), so programs
meet the same here. What keeps a program in is the sandbox, not this.
"""

import builtins
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any


def install() -> None:
    """Replace the process functions of this process, for good."""
    vars(builtins).update(exit=None, quit=None)
    started: list[int] = []
    _restrict_signals(started)
    _restrict_commands()
    vars(subprocess).update(
        Popen=_with_pipes(_popen_of(started)),
        run=_with_pipes(_unless_kill_is_first(subprocess.run)),
    )


def _restrict_signals(started: list[int]) -> None:
    """Signals reach this process and what `Popen` started; to others they are lost silently."""
    kill, killpg = os.kill, os.killpg
    own, own_group = os.getpid(), os.getpgrp()

    def kill_own(pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.getpgid(pid)
            if pid == own or pid in started:
                kill(pid, number)

    def kill_own_group(group: int, number: int) -> None:
        if group == own_group or group in {os.getpgid(pid) for pid in started}:
            killpg(group, number)

    os.kill, os.killpg = kill_own, kill_own_group


def _restrict_commands() -> None:
    """Commands that hold the word kill (or ps, for `check_output`) are not run."""
    system, popen = os.system, os.popen
    call, check_output = subprocess.call, subprocess.check_output

    def system_without_kill(command: Any) -> int:
        return 0 if "kill" in command else system(command)

    def popen_without_kill(command: Any) -> Any:
        return popen("echo Intercepted" if "kill" in command else command)

    def call_without_kill(command: Any, *rest: Any, **named: Any) -> int:
        return 0 if "kill" in command else call(command, *rest, **named)

    def check_output_without_ps(command: Any, *rest: Any, **named: Any) -> Any:
        return b"" if "ps" in command else check_output(command, *rest, **named)

    def nothing(*given: Any, **named: Any) -> None:
        return None

    os.system = system_without_kill
    os.popen = popen_without_kill  # type: ignore[assignment]
    subprocess.call = call_without_kill  # type: ignore[assignment]
    subprocess.check_output = check_output_without_ps  # type: ignore[assignment]
    os.execv = os.execvp = os.execvpe = nothing  # type: ignore[assignment]


def _popen_of(started: list[int]) -> type[subprocess.Popen]:
    class Popen(subprocess.Popen):
        """In a session of its own; a timeout of `communicate` is no error; SIGTERM only."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{**named, "preexec_fn": os.setsid})
            started.append(self.pid)

        def communicate(self, *given: Any, **named: Any) -> Any:
            try:
                return super().communicate(*given, **named)
            except subprocess.TimeoutExpired:
                return None, None

        def kill(self) -> None:
            os.kill(self.pid, signal.SIGTERM)

        def terminate(self) -> None:
            os.kill(self.pid, signal.SIGTERM)

    return Popen


def _with_pipes(start: Callable[..., Any]) -> Callable[..., Any]:
    def started_with_pipes(*given: Any, **named: Any) -> Any:
        if named.get("capture_output"):
            named.pop("stdout", None)
            named.pop("stderr", None)
        else:
            named.setdefault("stdout", subprocess.PIPE)
            named.setdefault("stderr", subprocess.PIPE)
        return start(*given, **named)

    return started_with_pipes


def _unless_kill_is_first(run: Callable[..., Any]) -> Callable[..., Any]:
    def run_unless_kill(*given: Any, **named: Any) -> Any:
        if "kill" in given[0]:
            return subprocess.CompletedProcess(given, 0, b"", b"")
        return run(*given, **named)

    return run_unless_kill
