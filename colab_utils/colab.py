"""The only module that knows Colab: Drive, secrets, the GPU probe, where things lie.

`google.colab` is imported inside functions, and only in a cell that a person's front end runs: a
kernel that papermill started, a job or a shell has no front end that answers, and gets paths and
environment from its parent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from colab_utils.errors import InputError, ParameterError
from colab_utils.front_end import somebody_can_click
from colab_utils.manifests import PROJECT

_PROBE_SECONDS = 60
DRIVE = Path("/content/drive")
# What drive.mount says, and what helps; the first that is found counts.
_MOUNT_MENDS = (
    ("initial read of root folder", "move files out of My Drive's top folder and run again"),
    ("credential propagation", "run the cell again and allow access in the window that opens"),
    ("must not already contain files", "move away what lies in /content/drive and run again"),
    ("domain policy", "use an account whose organisation allows Drive for desktop"),
)


def in_colab() -> bool:
    """Whether this process runs on a Colab machine."""
    return "COLAB_RELEASE_TAG" in os.environ


def local_folder(folder: str, *, parameter: str) -> Path:
    """A folder to work in: absolute, or below the project's own folder.

    Raises `ParameterError` for a file, and for a folder on Drive's mount.
    """
    try:
        path = (PROJECT / folder).resolve()
        is_file = path.is_file()
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"is no folder's name ({error})", where=f"parameter {parameter}"
        ) from error
    if is_file:
        raise ParameterError(
            "is a file", where=f"parameter {parameter}", mend="give a folder's name"
        )
    refuse_drive(path, where=f"parameter {parameter}")
    return path


def refuse_drive(path: Path, *, where: str) -> None:
    """Raise `ParameterError` for a path on Drive's mount, where nothing is worked on."""
    if path.is_relative_to(DRIVE):
        raise ParameterError(
            "is on Drive, whose mount caches and can lose writes",
            where=where,
            mend="work in a local folder and copy results to Drive",
        )


def mount_drive(timeout_seconds: int = 120) -> Path:
    """Mount Drive and return its root; call it from the interface's kernel.

    Raises `InputError` in one sentence when this is not Colab or the mount fails.
    """
    if not in_colab():
        raise InputError("Drive can be mounted on Colab only", mend="leave the mirror empty")
    if not somebody_can_click():
        raise InputError(
            "Drive is not mounted, and only a cell of the open notebook can mount it",
            mend="mount it there first (`colab.mount_drive()`), or leave the mirror empty",
        )
    from google.colab import drive, errors
    from pexpect.exceptions import ExceptionPexpect

    try:
        drive.mount(str(DRIVE), timeout_ms=timeout_seconds * 1000)
    # Its own words, the front end's refusal, and the terminal program that it drives.
    except (ValueError, OSError, AssertionError, errors.Error, ExceptionPexpect) as error:
        said = str(error).strip().split("\n")[0]
        known = [mend for text, mend in _MOUNT_MENDS if text in said]
        raise InputError(
            f"Drive could not be mounted ({said or type(error).__name__})",
            mend=f"{known[0] if known else 'run the cell again'}, or go on without Drive: results "
            "then live as long as this machine",
        ) from error
    return DRIVE / "MyDrive"


def require_drive() -> None:
    """Mount Drive unless it is there; raises as `mount_drive` does."""
    # A mount that has died answers with an error, which os.path takes for "not there".
    if not os.path.isdir(DRIVE / "MyDrive"):
        mount_drive()


def hub_token() -> str | None:
    """The Hugging Face token: HF_TOKEN first, then Colab's secret; None when there is none.

    The secret can be read from the interface's kernel only, where it waits ten seconds at
    most; a refusal or a missing secret counts as no token.
    """
    return find_token()[0]


def find_token(*, in_cell: bool = True) -> tuple[str | None, str]:
    """The Hugging Face token as `hub_token` finds it, or None with a sentence that says why not.

    Outside of a running cell (`in_cell` False), and in a kernel that papermill runs, no front end
    answers Colab, so it is not asked.
    """
    token = os.environ.get("HF_TOKEN", "").strip()
    if token:
        return token, ""
    if not in_colab():
        return None, "HF_TOKEN is not set: set it before this kernel starts, for gated models."
    if not in_cell:
        return None, "Run the cell again with this experiment, so that Colab is asked for HF_TOKEN."
    if not somebody_can_click():
        return None, (
            "Colab gives the secret HF_TOKEN to cells of the open notebook only: set HF_TOKEN in "
            "the environment of a batch or a shell."
        )
    try:
        from google.colab import errors, userdata
    except ImportError:
        return None, "This kernel cannot ask for Colab's secrets: set HF_TOKEN in its environment."
    try:
        token = str(userdata.get("HF_TOKEN")).strip()
    except userdata.SecretNotFoundError:
        return None, "Colab has no secret HF_TOKEN: add it under the key on the left, with access."
    except userdata.NotebookAccessError:
        return None, (
            "This notebook has no access to the secret HF_TOKEN: switch it on under the key on the "
            "left, then run the cell again."
        )
    except userdata.TimeoutException:
        return None, (
            "Colab did not answer for the secret HF_TOKEN: run this cell in the open notebook, not "
            "in a batch, or set HF_TOKEN in the environment."
        )
    except errors.Error as error:
        return None, f"Colab did not give the secret HF_TOKEN ({error}): run the cell again."
    return (token, "") if token else (None, "The secret HF_TOKEN is empty: put the token in it.")


def probe_gpu() -> dict[str, Any] | None:
    """Name, driver, memory in bytes and compute capability of the first GPU; None without one.

    Asks `nvidia-smi`: a CUDA call here would break the engine's start. Raises `InputError`
    when it is there and fails, which is not the same as no GPU.
    """
    if shutil.which("nvidia-smi") is None:
        return None
    query = "name,driver_version,memory.total,compute_cap"
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
        name, driver, mebibytes, capability = [
            field.strip() for field in answer.stdout.split("\n")[0].split(",")
        ]
        return {
            "name": name,
            "driver": driver,
            "memory_bytes": int(mebibytes) << 20,
            "compute_capability": float(capability),
        }
    except (subprocess.SubprocessError, ValueError) as error:
        raise InputError(
            f"nvidia-smi is there and does not describe a GPU ({error})",
            mend="restart the runtime, or look at what nvidia-smi prints",
        ) from error
