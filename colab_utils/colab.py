"""The only module that knows Colab: Drive, secrets, the GPU probe, where things lie.

`google.colab` is imported inside functions, and only in the interface's kernel: a kernel
that papermill started has no Colab front end and gets paths and environment from its parent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from colab_utils.errors import InputError, ParameterError

DRIVE = Path("/content/drive")


def in_colab() -> bool:
    """Whether this process runs on a Colab machine."""
    return "COLAB_RELEASE_TAG" in os.environ


def run_root(folder: str) -> Path:
    """Folder of all runs: on Colab below `/content` unless absolute, for Drive is no place
    to work in; elsewhere below the current folder.

    Raises `ParameterError` for a folder on Drive's mount.
    """
    path = Path(folder)
    if not path.is_absolute():
        path = (Path("/content") if in_colab() else Path.cwd()) / path
    if path.is_relative_to(DRIVE):
        raise ParameterError(
            "is on Drive, whose mount caches and can lose writes",
            where="parameter runs",
            mend="work in a local folder and copy results to Drive",
        )
    return path


def mount_drive(timeout_seconds: int = 120) -> Path:
    """Mount Drive and return its root; call it from the interface's kernel.

    Raises `InputError` in one sentence when this is not Colab or the mount fails.
    """
    if not in_colab():
        raise InputError("Drive can be mounted on Colab only", mend="leave DRIVE_FOLDER empty")
    from google.colab import drive

    try:
        drive.mount(str(DRIVE), timeout_ms=timeout_seconds * 1000)
    except (ValueError, OSError) as error:
        raise InputError(
            f"Drive could not be mounted ({error})",
            mend="run the cell again, or go on without Drive: results then live as long as this "
            "machine",
        ) from error
    return DRIVE / "MyDrive"


def copy_results(run_dir: Path, drive_folder: Path) -> list[Path]:
    """Copy a run directory's closed files to Drive, each once; return what was copied.

    A copy that a mount has accepted may still be lost: the local files stay the original.
    """
    copied = []
    for source in sorted(path for path in run_dir.rglob("*") if path.is_file()):
        target = drive_folder / source.relative_to(run_dir)
        if source.name in ("lock", "heartbeat.jsonl") or source.name.startswith("."):
            continue
        if target.exists() and target.stat().st_size == source.stat().st_size:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        copied.append(target)
    return copied


def hub_token() -> str | None:
    """The Hugging Face token: HF_TOKEN first, then Colab's secret; None when there is none.

    The secret can be read from the interface's kernel only, where it waits ten seconds at
    most; a refusal or a missing secret counts as no token.
    """
    token = os.environ.get("HF_TOKEN", "").strip()
    if token or not in_colab():
        return token or None
    try:
        from google.colab import userdata
    except ImportError:
        return None
    refusals = tuple(
        getattr(userdata, name)
        for name in ("SecretNotFoundError", "NotebookAccessError", "TimeoutException")
        if hasattr(userdata, name)
    )
    try:
        return str(userdata.get("HF_TOKEN")).strip() or None
    except refusals:
        return None


def probe_gpu() -> dict[str, Any] | None:
    """Name, driver, memory in bytes and compute capability of the first GPU; None without one.

    Asks `nvidia-smi`: a CUDA call here would break the engine's start.
    """
    if shutil.which("nvidia-smi") is None:
        return None
    query = "name,driver_version,memory.total,compute_cap"
    answer = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    fields = [field.strip() for field in answer.stdout.split("\n")[0].split(",")]
    if answer.returncode != 0 or len(fields) != 4:
        return None
    name, driver, mebibytes, capability = fields
    return {
        "name": name,
        "driver": driver,
        "memory_bytes": int(mebibytes) << 20,
        "compute_capability": float(capability),
    }
