"""What can be known before anything is loaded: manifests, data, environment, fit, disk, power."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from colab_utils import colab, environments
from colab_utils.engine import Operating
from colab_utils.errors import WorkbenchError
from colab_utils.fit import INSTEAD, gpu_fit, lacks_bf16, verdicts_by_card
from colab_utils.manifests import (
    PROJECT,
    ExperimentManifest,
    ModelManifest,
    load_dataset_manifest,
    load_experiment_manifest,
    load_model_manifest,
)
from colab_utils.paired import detectable_difference
from colab_utils.samples import Dataset, load_dataset
from colab_utils.weights import check_weights, is_complete, model_folder
from colab_utils.workbench import ENGINE_FOLDER

DISCORDANT_SHARE = 0.15
POWER = 0.8


@dataclass(frozen=True)
class Finding:
    """One line of the check: what was looked at, how it stands, in words."""

    subject: str
    state: Literal["ok", "warning", "error"]
    text: str


def check(experiment: str, *, cache: Path, runs: Path) -> list[Finding]:
    """Look at all that an experiment needs, loading and writing nothing.

    Everything is looked at, also after an error; raises `ManifestError` only when the
    experiment manifest itself cannot be read.
    """
    manifest = load_experiment_manifest(experiment)
    gpu = colab.probe_gpu()
    findings = [Finding("experiment", "ok", f"{manifest.name}: {len(manifest.models)} model(s)")]
    findings += _dataset(manifest)
    findings.append(_engine(manifest))
    findings.append(_gpu(gpu, manifest))
    needed = 0
    for name in manifest.models:
        try:
            model = load_model_manifest(name)
            findings += _model(model, gpu, cache)
            if not is_complete(model_folder(model, cache)):
                needed = max(needed, model.architecture.parameters * 2)
        except WorkbenchError as error:
            findings.append(Finding(f"model {name}", "error", str(error)))
    findings.append(_disk(runs, needed))
    return findings


def _dataset(manifest: ExperimentManifest) -> list[Finding]:
    try:
        dataset = load_dataset(load_dataset_manifest(manifest.dataset))
    except WorkbenchError as error:
        return [Finding("data set", "error", str(error))]
    requests = len(dataset.requests())
    text = f"{dataset.manifest.name}: {len(dataset.samples)} samples, {requests} requests a model"
    return [Finding("data set", "ok", text), Finding("power", "ok", power_text(dataset, manifest))]


def power_text(dataset: Dataset, manifest: ExperimentManifest) -> str:
    """The smallest difference between two conditions that this many samples can detect."""
    family = sum(contrast.family == "primary" for contrast in manifest.contrasts) or 1
    parts = []
    for alpha, label in ((manifest.alpha, "one contrast"), (manifest.alpha / family, "the first "
        f"of {family} under Holm")):  # fmt: skip
        points = detectable_difference(
            len(dataset.samples), discordant_share=DISCORDANT_SHARE, power=POWER, alpha=alpha
        )
        size = "none" if points is None else f"{points:.1f} points"
        parts.append(f"{size} ({label}, alpha {alpha:.4g})")
    return (
        f"detectable with {len(dataset.samples)} samples at {POWER:.0%} power and "
        f"{DISCORDANT_SHARE:.0%} discordant pairs: " + ", ".join(parts)
    )


def _engine(manifest: ExperimentManifest) -> Finding:
    try:
        found = environments.check_engine(
            ENGINE_FOLDER / "bin" / "python", PROJECT / manifest.engine_lock
        )
    except WorkbenchError as error:
        return Finding("engine", "error", str(error))
    return Finding("engine", "ok", f"{manifest.engine_lock}, digest {found['digest'][:12]}")


def _gpu(gpu: dict[str, Any] | None, manifest: ExperimentManifest) -> Finding:
    if manifest.engine_lock == environments.CPU_LOCK:
        return Finding("GPU", "ok", "not needed: the experiment runs on the CPU")
    if gpu is None:
        return Finding("GPU", "error", "none; choose a GPU runtime (an L4 or newer)")
    text = f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.1f} GiB, driver {gpu['driver']}"
    if lacks_bf16(manifest, gpu["compute_capability"]):
        return Finding("GPU", "error", f"{text}: has no BF16; {INSTEAD}")
    fitting = environments.choose_lock(gpu["driver"])
    if fitting != manifest.engine_lock:
        return Finding("GPU", "error", f"{text}: needs {fitting}, not {manifest.engine_lock}")
    return Finding("GPU", "ok", text)


def _model(model: ModelManifest, gpu: dict[str, Any] | None, cache: Path) -> list[Finding]:
    subject = f"model {model.name}"
    findings = []
    if not model.locked:
        unverified = ", ".join(model.unverified)
        findings.append(Finding(subject, "warning", f"not locked; unverified: {unverified}"))
    if gpu is not None:
        fit = gpu_fit(
            model,
            gpu["memory_bytes"],
            gpu_memory_utilization=Operating().gpu_memory_utilization,
        )
        text = (
            f"weights {fit.weights_bytes / 1e9:.1f} GB, {fit.sequences} sequences of "
            f"{model.max_model_len} tokens at once"
        )
        findings.append(Finding(subject, "ok" if fit.fits else "error", text))
    else:
        findings.append(Finding(subject, "ok", verdicts_by_card(model)))
    folder = model_folder(model, cache)
    if not is_complete(folder):
        gigabytes = model.architecture.parameters * 2 / 1e9
        findings.append(Finding(subject, "ok", f"to be fetched: {gigabytes:.1f} GB"))
    else:
        check_weights(folder, model)
        findings.append(Finding(subject, "ok", "weights are there and whole"))
    return findings


def _disk(runs: Path, needed: int) -> Finding:
    folder = runs.resolve()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Finding("disk", "error", f"{folder} is not a folder that can be written")
    free = shutil.disk_usage(folder).free
    # A gigabyte beside the weights: environments' caches, logs, the runs themselves.
    state: Literal["ok", "error"] = "ok" if free > needed * 1.05 + 1e9 else "error"
    return Finding(
        "disk", state, f"{free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB to be fetched for weights"
    )
