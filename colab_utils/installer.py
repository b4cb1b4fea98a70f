"""Runs uv: makes a virtual environment and installs a lock file into it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from colab_utils.errors import InterpreterError
from colab_utils.interpreters import CUDA_LIBRARIES, LockedPackage, read_lock

_PROGRESS_SECONDS = 5.0
_LOG_LINES = 4
# Words of uv's output, and the likely cause they stand for; the first that fits is told.
_CAUSES = (
    ("no space left", "the disk is full; free some space and start again"),
    ("hash mismatch", "a file offered is not the locked one; remove that source of packages"),
    (
        "no hashes were provided",
        "a file offered is not the locked one; remove that source of packages",
    ),
    ("no interpreter found", "this Python is not installed; name one that is"),
    ("no virtual environment or system python", "this Python is not installed; name one that is"),
    ("no wheels with a matching", "there is no wheel for this Python; use 3.11, 3.12 or 3.13"),
    ("network was disabled", "uv was told to stay offline; unset UV_OFFLINE"),
    ("no solution found", "no file fits this Python or machine; use Python 3.11, 3.12 or 3.13"),
    ("error sending request", "the package index is out of reach; check the network"),
    ("failed to fetch", "the package index is out of reach; check the network"),
    ("timed out", "the package index is out of reach; check the network"),
)


def install(
    lock: Path,
    folder: Path,
    *,
    python: str,
    download_python: bool,
    prefer_cpu_torch: bool,
    project: Path | None,
    log: Path,
    held: int,
    progress: Callable[[str], None],
) -> None:
    """Make a virtual environment in `folder`, with what `lock` names and `project`, editable.

    With `prefer_cpu_torch` a CPU build of torch is taken where one is offered, its file checked
    by the lock's hashes too, and the CUDA libraries in the lock are left out. uv's output is in
    `log`; it inherits the descriptor `held`, so that a file lock outlives our own death until
    uv has ended. Raises `InterpreterError` with its last lines and their likely cause.
    """
    interpreter = str(folder / "bin" / "python")
    locked = read_lock(lock)
    uv = _Uv(download_python, log, held, progress)
    uv.run("making the environment", "venv", "--allow-existing", "--python", python, str(folder))
    with tempfile.TemporaryDirectory() as name:
        torch, left_out = Path(name) / "torch.txt", Path(name) / "left-out.txt"
        into = ("pip", "install", "--python", interpreter, "--no-deps", "--require-hashes")
        names: list[str] = []
        if prefer_cpu_torch:
            # uv looks hashes up by the full version, local part included, so that the lock's
            # own line can't stand for a CPU build.
            torch.write_text(_cpu_torch_line(locked))
            try:
                uv.run("looking for a CPU build of torch", *into, "-r", str(torch))
                names = ["torch", *(p.name for p in locked if CUDA_LIBRARIES.match(p.name))]
            except InterpreterError:
                progress("none is offered: the index's torch is taken, with its CUDA libraries")
        left_out.write_text("\n".join(names))
        uv.run("installing packages", *into, "-r", str(lock), "--excludes", str(left_out))
    if project is not None:
        uv.run(
            "installing this project",
            *("pip", "install", "--python", interpreter, "--no-deps", "--editable", str(project)),
        )


def obtain_python(
    version: str, *, log: Path, held: int, progress: Callable[[str], None]
) -> Path | None:
    """A Python such as "3.10" that uv keeps, downloaded if need be; None when it can't be had."""
    uv = _Uv(True, log, held, progress)
    try:
        uv.run(f"getting Python {version}", "python", "install", version)
    except InterpreterError:
        return None
    found = uv.ask("python", "find", "--managed-python", version)
    return Path(found) if found else None


def _cpu_torch_line(locked: tuple[LockedPackage, ...]) -> str:
    torch = next(package for package in locked if package.name == "torch")
    return " ".join([f"torch=={torch.version}+cpu", *(f"--hash={h}" for h in torch.hashes)])


class _Uv:
    """uv with the settings that all of its calls share."""

    def __init__(
        self, download_python: bool, log: Path, held: int, progress: Callable[[str], None]
    ) -> None:
        self.log = log
        self.held = held
        self.progress = progress
        self.command = _uv_command()
        self.environment = {**os.environ, "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        for secret in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            self.environment.pop(secret, None)
        self.environment.setdefault("UV_PYTHON_DOWNLOADS", "auto" if download_python else "never")
        links = _pip_find_links()
        if links:
            self.environment.setdefault("UV_FIND_LINKS", ",".join(links))
        log.write_bytes(b"")

    def run(self, step: str, *arguments: str) -> None:
        started = time.monotonic()
        told_before = self.log.stat().st_size
        with open(self.log, "ab") as stream:
            child = subprocess.Popen(
                [*self.command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self.environment,
                pass_fds=(self.held,),
            )
        try:
            while True:
                self.progress(f"{step} ({time.monotonic() - started:.0f} s)")
                try:
                    code = child.wait(timeout=_PROGRESS_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
        if code != 0:
            raise self._failure(step, code, told_before)

    def ask(self, *arguments: str) -> str:
        """What a command of uv prints; empty when it fails."""
        asked = subprocess.run(
            [*self.command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )
        return asked.stdout.strip() if asked.returncode == 0 else ""

    def _failure(self, step: str, code: int, told_before: int) -> InterpreterError:
        text = self.log.read_bytes()[told_before:].decode("utf-8", "replace")
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        start = next((n for n, line in enumerate(lines) if line.startswith("error")), -_LOG_LINES)
        told = " / ".join(lines[start:][:_LOG_LINES]) or f"exit status {code}"
        cause = next((mend for words, mend in _CAUSES if words in text.lower()), "")
        return InterpreterError(
            f"{step} failed: {told}", where=str(self.log), mend=cause or "look into that log"
        )


def _uv_command() -> list[str]:
    if importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    found = shutil.which("uv")
    if found is None:
        raise InterpreterError(
            "uv is missing, which makes environments",
            where=sys.executable,
            mend="install it there: `python -m pip install uv`",
        )
    return [found]


def _pip_find_links() -> list[str]:
    """Folders or pages of wheels that this machine's pip also looks into; uv does not ask pip."""
    told = os.environ.get("PIP_FIND_LINKS")
    if told is None:
        asked = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", "global.find-links"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        told = asked.stdout if asked.returncode == 0 else ""
    return told.split()
