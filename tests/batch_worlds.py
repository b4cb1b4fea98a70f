"""What batch tests run on: an experiment of tiny models with manifests, weights and a data set."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from builders import TinyModel, experiment, small_lines, write_dataset

from colab_utils import weights
from colab_utils.manifests import ModelManifest, load_model_manifest
from colab_utils.run_directory import RunDirectory


@dataclass(frozen=True)
class World:
    """Folders of one experiment, `small`, and the paths of its models' manifests by name."""

    folder: Path
    experiment: Path
    models: dict[str, Path]

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def batch(self) -> Path:
        return self.runs / "small" / "batch"

    def run(self, model: str, kind: str = "full") -> RunDirectory:
        return RunDirectory(self.runs / "small" / model / kind)

    def weights(self, model: str) -> Path:
        return weights.model_folder(load_model_manifest(self.models[model]), self.cache)

    def values(self, *models: str, **more: Any) -> dict[str, Any]:
        """Parameters of a batch over `models`, all when none is named."""
        names = models or tuple(self.models)
        return {
            "experiment": str(self.experiment),
            "models": [str(self.models[name]) for name in names],
            "runs": str(self.runs),
            "cache": str(self.cache),
            **more,
        }


def make_world(
    folder: Path, manifests: dict[str, dict[str, Any]], *, samples_a_task: int = 1
) -> World:
    """An experiment of models whose manifests are those of llama-3.2-3b-instruct, changed."""
    real = load_model_manifest("llama-3.2-3b-instruct")
    paths = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, changed in manifests.items():
        content = real.model_dump(mode="json") | {"name": name} | changed
        paths[name] = _write(folder / f"{name}.yaml", content)
    dataset = write_dataset(folder / "data", small_lines(samples_a_task))
    content = experiment(real, max_tokens=8).model_dump(mode="json")
    content |= {"models": list(manifests), "dataset": str(dataset)}
    return World(folder, _write(folder / "small.yaml", content), paths)


def tiny_manifest(model: TinyModel, repo: str) -> dict[str, Any]:
    """Fields of a tiny checkpoint's manifest; random weights end no answer by themselves."""
    content = model.manifest.model_dump(mode="json")
    return {key: value for key, value in content.items() if key != "name"} | {
        "repo": repo, "smoke": {"max_cut": 15},
    }  # fmt: skip


def put_weights(world: World, name: str, checkpoint: Path) -> Path:
    """Copy a checkpoint to where a download would have put it."""
    folder = world.weights(name)
    shutil.copytree(checkpoint, folder)
    weights.mark_complete(folder)
    return folder


def manifest_of(world: World, name: str) -> ModelManifest:
    return load_model_manifest(world.models[name])


def _write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    return path
