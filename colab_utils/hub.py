"""The only process that sees the Hugging Face token: downloads and locks.

Run as `python -m colab_utils.hub fetch|lock MANIFEST_JSON [FOLDER]`; `fetch` and `weights`
start it. The token comes by the environment and is neither printed nor written.
"""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from colab_utils import records
from colab_utils.errors import DownloadFailed, WorkbenchError
from colab_utils.manifests import ModelManifest
from colab_utils.weights import mark_complete, room_needed

# Safetensors only: pickles run code when read, and other formats would double the download.
PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.py"]

# The hub's client raises its own errors, the disk's, and those of its HTTP library, which is
# another one in each major version.
_FAILURES = (Exception,)


def fetch(manifest: ModelManifest, folder: Path) -> None:
    """Download one model at its revision into `folder`; a broken download goes on where it was.

    Raises `DownloadFailed` with the cause and the next step.
    """
    free = shutil.disk_usage(_existing(folder)).free
    needed = room_needed(manifest, folder)
    if free < needed:
        raise DownloadFailed(
            f"{free / 1e9:.1f} GB are free and the model needs {needed / 1e9:.1f} GB",
            where=str(folder),
            mend="free some space or choose another cache folder",
        )
    try:
        snapshot_download(
            manifest.repo,
            revision=manifest.revision,
            local_dir=folder,
            allow_patterns=PATTERNS,
            ignore_patterns=["original/*", "*/*"],
        )
    except _FAILURES as error:
        raise _explained(manifest, error) from error
    mark_complete(folder)


def lock(manifest: ModelManifest) -> dict[str, object]:
    """Revision and file digests as the hub says: `revision`, `gated`, `files` {name: size, sha256}.

    Files that are not in large-file storage have no SHA-256 there and are left out; their
    digests enter the fingerprint when the model is on disk.
    """
    try:
        info = HfApi().model_info(manifest.repo, revision=manifest.revision, files_metadata=True)
    except _FAILURES as error:
        raise _explained(manifest, error) from error
    files = {
        sibling.rfilename: {"size": sibling.lfs.size, "sha256": sibling.lfs.sha256}
        for sibling in info.siblings or []
        if sibling.lfs is not None
        and "/" not in sibling.rfilename
        and sibling.rfilename.endswith((".safetensors", ".json", ".model"))
    }
    return {"revision": info.sha, "gated": bool(info.gated), "files": files}


def _explained(manifest: ModelManifest, error: Exception) -> DownloadFailed:
    where = f"model {manifest.name} ({manifest.repo})"
    if isinstance(error, GatedRepoError):
        return DownloadFailed(
            "is gated and the token gives no access, or there is none",
            where=where,
            mend="accept its licence on the hub, then set HF_TOKEN (in Colab: the secret HF_TOKEN)",
        )
    if isinstance(error, RevisionNotFoundError):
        return DownloadFailed(f"has no revision {manifest.revision}", where=where)
    if isinstance(error, RepositoryNotFoundError):
        return DownloadFailed("is not on the hub, or needs a token", where=where)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS):
        return DownloadFailed(
            f"cannot be written to disk ({error.strerror})",
            where=where,
            mend="free some space or choose another cache folder; what was fetched is kept",
        )
    return DownloadFailed(
        f"could not be reached ({type(error).__name__})",
        where=where,
        mend="check the network and start again; what was fetched is kept",
    )


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def main(arguments: list[str]) -> int:
    """Entry of the download process."""
    manifest = ModelManifest.model_validate_json(arguments[1])
    try:
        if arguments[0] == "lock":
            print(records.dumps(lock(manifest)))
        else:
            fetch(manifest, Path(arguments[2]))
    except WorkbenchError as error:
        print(str(error), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
