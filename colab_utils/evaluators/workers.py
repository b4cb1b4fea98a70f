"""Runs jobs in the evaluator's interpreter: fork servers with the libraries loaded, by need.

One server has the libraries that references and tests import. Those that start threads when
they are loaded (TensorFlow) must not be forked from with others: they have a server of their own.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from colab_utils import records
from colab_utils.errors import EvaluatorFailed, RecordError
from colab_utils.evaluators.sandbox import ENVIRONMENT, PATH, WORKER, Sandbox

START_SECONDS = 300.0
ANSWER_SECONDS = 30.0
_MAX_ANSWER = 8 << 20
_APART = ("tensorflow", "keras")
_NEEDS_APART = re.compile(rf"\b(?:import|from)\s+(?:{'|'.join(_APART)})\b")


class Workers:
    """Runs jobs under one interpreter and sandbox; a context that leaves no process behind.

    `modules` are imported once, before the first job that can use them.
    """

    def __init__(self, python: Path, sandbox: Sandbox, modules: Sequence[str] = ()) -> None:
        self.python = python
        self.sandbox = sandbox
        apart = [name for name in modules if name.split(".")[0] in _APART]
        self._modules = {
            "common": [name for name in modules if name not in apart],
            "apart": list(modules) if apart else [],
        }
        self._servers: dict[str, _Server] = {}
        self._lock = threading.Lock()
        self._closed = False
        # The sandboxed user passes through it, to a folder of its own.
        self._scratch = Path(tempfile.mkdtemp(prefix="evaluator-"))
        os.chmod(self._scratch, 0o711)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the servers and what they run, and remove the scratch folder."""
        with self._lock:
            self._closed = True
            for server in self._servers.values():
                server.close()
            self._servers.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def start(self) -> None:
        """Start the common server now; raises `EvaluatorFailed` when the interpreter fails."""
        self._server("common")

    @property
    def missing(self) -> dict[str, str]:
        """Modules that could not be imported, with the reason; so far as a server has started."""
        return {n: why for s in self._servers.values() for n, why in s.failed.items()}

    def run(
        self,
        job: dict[str, Any],
        *,
        seconds: float,
        slot: int = 0,
        readable: Sequence[Path] = (),
    ) -> dict[str, Any]:
        """Run one job and return the worker's result.

        `seconds` bounds the program, `slot` numbers concurrent callers (each gets a user of its
        own), `readable` are files that the job may read, at their own paths. A program that
        ended its process gives `{"died": ...}`; raises `EvaluatorFailed` when the sandbox or
        the server does not work, after one try with a new server.
        """
        full = {
            **job,
            "limit_seconds": seconds,
            "limits": vars(self.sandbox.limits),
            "confinement": self.sandbox.confinement(
                self.python, slot=slot, scratch=self._scratch, readable=readable
            ),
        }
        line = records.dumps(full).encode() + b"\n"
        apart = bool(self._modules["apart"]) and bool(_NEEDS_APART.search(job.get("program", "")))
        kind = "apart" if apart else "common"
        answer = self._server(kind).ask(line, seconds + ANSWER_SECONDS)
        if answer is None:
            answer = self._server(kind).ask(line, seconds + ANSWER_SECONDS)
        if answer is None:
            raise EvaluatorFailed(
                f"the worker gave no result{self._complaint(kind)}", where=str(self.python)
            )
        try:
            result = records.loads(answer, where="the worker's answer")
        except RecordError as error:
            raise EvaluatorFailed("the worker's answer is no JSON", where=str(WORKER)) from error
        if "broken" in result:
            raise EvaluatorFailed(
                f"the {self.sandbox.level} sandbox does not work here ({result['broken']})",
                where=str(self.python),
            )
        return dict(result)

    def _server(self, kind: str) -> _Server:
        with self._lock:
            if self._closed:
                raise EvaluatorFailed("was closed while a program ran", where=str(self.python))
            server = self._servers.get(kind)
            if server is None or not server.alive:
                server = _Server(self.python, self._modules[kind], self._scratch)
                self._servers[kind] = server
            return server

    def _complaint(self, kind: str) -> str:
        lines = self._servers[kind].log_lines()
        return f" ({lines[-1]})" if lines else ""


class _Server:
    """One fork server process and the socket that jobs go through."""

    def __init__(self, python: Path, modules: Sequence[str], scratch: Path) -> None:
        self.failed: dict[str, str] = {}
        ours, theirs = socket.socketpair()
        self._control = ours
        self._sending = threading.Lock()
        self._home = Path(tempfile.mkdtemp(prefix="server-", dir=scratch))
        self._log = self._home / "log.txt"
        with open(self._log, "wb") as log, theirs:
            try:
                self._process = subprocess.Popen(
                    [str(python), "-I", str(WORKER / "__main__.py"), str(theirs.fileno()),
                     *modules],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                    pass_fds=(theirs.fileno(),), cwd=self._home, start_new_session=True,
                    env={**ENVIRONMENT, "PATH": f"{python.parent}:{PATH}", "MPLBACKEND": "Agg",
                         "TF_CPP_MIN_LOG_LEVEL": "3", "HOME": str(self._home),
                         "TMPDIR": str(self._home)},
                )  # fmt: skip
            except OSError as error:
                raise EvaluatorFailed(
                    f"can't be started ({error.strerror})", where=str(python)
                ) from error
        ours.settimeout(START_SECONDS)
        try:
            with ours.makefile("rb") as stream:
                told = records.loads(stream.readline(), where="the server's greeting")
        except (TimeoutError, RecordError) as error:
            lines = self.log_lines()
            self.close()
            raise EvaluatorFailed(
                f"the worker did not start ({lines[-1] if lines else 'it said nothing'})",
                where=str(python),
                mend="name a working Python of 3.10 or newer",
            ) from error
        self.failed = told["failed"]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, job: bytes, seconds: float) -> bytes | None:
        """The supervisor's answer; None when it or the server is gone."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                try:
                    with self._sending:
                        socket.send_fds(self._control, [b"j"], [theirs.fileno()])
                except OSError:
                    self.close()
                    return None
            ours.settimeout(seconds)
            data = b""
            try:
                ours.sendall(job)
                while len(data) <= _MAX_ANSWER and (block := ours.recv(1 << 16)):
                    data += block
            except TimeoutError:
                return b'{"died":"timeout"}'
            except OSError:
                return None
            return data or None

    def log_lines(self) -> list[str]:
        """What the server complained of."""
        with suppress(OSError):
            text = self._log.read_bytes()[-4000:].decode("utf-8", "replace")
            return [line for line in text.split("\n") if line.strip()]
        return []

    def close(self) -> None:
        self._control.close()
        if self.alive:
            # Supervisors end with the server, their programs with them.
            self._process.kill()
        self._process.wait()


def imported_modules(programs: Iterable[str]) -> list[str]:
    """Modules that trusted programs import, sorted; what does not parse adds none."""
    names: set[str] = set()
    for program in programs:
        with suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(program)):
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module)
    return sorted(names)
