"""A mirror in a private data set on the Hugging Face Hub.

Runs in the mirroring process only, which gets the token by its environment. The files that are
new go in one commit, a minute apart at most, since the Hub limits commits an hour. What the Hub
answers of that commit's files (size, and the digest that its storage keeps) confirms them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile

from colab_utils import records
from colab_utils.errors import InputError, MirrorError

HUB = "hf://datasets/"
_BRANCH = "main"
# The hub's client raises its own errors, the disk's, and those of its HTTP library, which is
# another one in each major version.
_FAILURES = (Exception,)


class HubStore:
    """The run's `folder` in the data set `repository` (OWNER/NAME), which is made if need be.

    Raises `InputError` when the data set is public, `MirrorError` when the Hub can't be asked.
    """

    batch = 100
    pause_seconds = 60.0

    def __init__(self, repository: str, folder: str) -> None:
        self._repository = repository
        self._folder = folder
        self._api = HfApi()
        self._revision: str | None = None
        self._fetched: tuple[str, Path] | None = None
        # Removed with the process.
        self._space = tempfile.TemporaryDirectory(prefix="mirror-")
        try:
            self._api.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
            private = self._api.dataset_info(repository).private
        except _FAILURES as error:
            raise self._error(error) from error
        if private is not True:
            raise InputError(
                "is a public data set, and answers must not be published by a mirror",
                where=HUB + repository,
                mend="make it private on the Hub, or name another one",
            )

    @property
    def vouches(self) -> str | None:
        """The revision that was read: the Hub itself answers."""
        return f"read at revision {self._revision}" if self._revision else None

    def names(self) -> list[str]:
        """All names in the run's folder, at the newest revision."""
        try:
            self._revision = self._api.dataset_info(self._repository).sha
            files = self._files(self._revision)
        except EntryNotFoundError:
            # The folder comes with the first file.
            return []
        except _FAILURES as error:
            raise self._error(error) from error
        return [file.path.removeprefix(f"{self._folder}/") for file in files]

    def read(self, name: str) -> bytes:
        """One file's bytes at the revision that was listed last; the whole folder comes at once."""
        if self._revision is None:
            self.names()
        if self._fetched is None or self._fetched[0] != self._revision:
            target = Path(self._space.name) / str(self._revision)
            try:
                snapshot_download(
                    self._repository, repo_type="dataset", revision=self._revision,
                    allow_patterns=f"{self._folder}/*", local_dir=target,
                )  # fmt: skip
            except _FAILURES as error:
                raise self._error(error) from error
            self._fetched = str(self._revision), target
        try:
            return (self._fetched[1] / self._folder / name).read_bytes()
        except OSError as error:
            raise MirrorError(error.strerror or str(error), where=self._where(name)) from error

    def put(self, files: Mapping[str, bytes]) -> str | None:
        """Commit all files at once, then compare what the Hub says of them with what they are."""
        operations = [
            CommitOperationAdd(path_in_repo=f"{self._folder}/{name}", path_or_fileobj=data)
            for name, data in files.items()
        ]
        try:
            oid = self._api.create_commit(
                self._repository, operations, repo_type="dataset", revision=_BRANCH,
                commit_message=f"{self._folder}: {len(files)} files",
            ).oid  # fmt: skip
            found = self._api.get_paths_info(
                self._repository, [o.path_in_repo for o in operations],
                repo_type="dataset", revision=oid,
            )  # fmt: skip
        except _FAILURES as error:
            raise self._error(error) from error
        there = {info.path: info for info in found if isinstance(info, RepoFile)}
        for name, data in files.items():
            info = there.get(f"{self._folder}/{name}")
            if info is None or not _is_of(info, data):
                raise MirrorError("is not what was committed", where=self._where(name))
        return f"commit {oid}"

    def _files(self, revision: str | None) -> list[RepoFile]:
        tree = self._api.list_repo_tree(
            self._repository, self._folder, recursive=True, revision=revision, repo_type="dataset"
        )
        return [entry for entry in tree if isinstance(entry, RepoFile)]

    def _where(self, name: str = "") -> str:
        return f"{HUB}{self._repository}/{self._folder}/{name}"

    def _error(self, error: Exception) -> MirrorError:
        if isinstance(error, RepositoryNotFoundError):
            cause = "the Hub does not give it to this token, or there is no token"
        elif isinstance(error, HfHubHTTPError):
            cause = f"the Hub answered {error.response.status_code}"
        else:
            cause = f"the Hub could not be reached ({type(error).__name__})"
        return MirrorError(cause, where=self._where(), gone=True)


def _is_of(info: RepoFile, data: bytes) -> bool:
    """Whether the Hub's size and digest of a file are those of `data`."""
    if info.size != len(data):
        return False
    if info.lfs is not None:
        return bool(info.lfs.sha256 == records.sha256_bytes(data))
    # Git's name of a file's content.
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    return bool(info.blob_id == blob)
