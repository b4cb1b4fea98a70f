"""The three manifests: what pins one model, one data set, one experiment.

A manifest is a YAML file, read strictly: unknown or doubled keys, and values of another
type than declared, are refused with the file and the field named.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from colab_utils.errors import ManifestError

PROJECT = Path(__file__).resolve().parent.parent
MANIFESTS = PROJECT / "manifests"

Condition = Literal["EN", "KO", "MIX1", "MIX2", "MIX3"]
Component = Literal["C12", "C3"]
Task = Literal["code", "sql", "finance"]
CONDITIONS: tuple[Condition, ...] = ("EN", "KO", "MIX1", "MIX2", "MIX3")
TASKS: tuple[Task, ...] = ("code", "sql", "finance")

_SHA256 = r"^[0-9a-f]{64}$"
_NAME = r"^[a-z0-9][a-z0-9._-]*$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FileDigest(_Strict):
    """Size in bytes and SHA-256 of one file of a model repository."""

    size: int = Field(ge=0)
    sha256: str = Field(pattern=_SHA256)


class Architecture(_Strict):
    """What decides memory: the GPU fit is computed from this before a download."""

    family: Literal["llama", "qwen3", "exaone"]
    parameters: int = Field(gt=0)
    layers: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_size: int = Field(gt=0)


class Distribution(_Strict):
    """A Python distribution that carries the weights, for the embedded default."""

    package: str
    version: str
    file: str
    sha256: str = Field(pattern=_SHA256)


class ChatTemplateFile(_Strict):
    """A chat template kept beside the manifest, used in place of the tokenizer's own."""

    file: str
    sha256: str = Field(pattern=_SHA256)


class Turn(_Strict):
    """One chat turn put before all others."""

    role: str
    content: str


class StopToken(_Strict):
    """A token that ends an answer. `id` may be null until the tokenizer has been seen."""

    token: str = Field(min_length=1)
    id: int | None = Field(default=None, ge=0)


class SmokeRule(_Strict):
    """What the smoke gate forgives this model: at most `max_cut` of 15 answers cut by length."""

    max_cut: int = Field(default=0, ge=0, le=15)


class ModelManifest(_Strict):
    """One model, pinned.

    `max_num_batched_tokens` bounds one step of the engine on a GPU; it shapes what is compiled, so
    that a run keeps it. `locked` says that revision and file digests were confirmed with the hub;
    `unverified` names the fields that were read in public copies only.
    """

    name: str = Field(pattern=_NAME)
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str = Field(pattern=r"^([0-9a-f]{40}|[A-Za-z][\w./-]*)$")
    distribution: Distribution | None = None
    licence: str
    gated: bool
    locked: bool
    unverified: tuple[str, ...] = Field(default=(), strict=False)
    files: dict[str, FileDigest] = {}
    architecture: Architecture
    precision: Literal["bfloat16"]
    max_model_len: int = Field(gt=0)
    max_num_batched_tokens: int = Field(default=16384, ge=64)
    trust_remote_code: bool
    chat_template: Literal["tokenizer"] | ChatTemplateFile = "tokenizer"
    chat_template_kwargs: dict[str, str | bool | int] = {}
    system_preamble: str | None
    extra_turns: tuple[Turn, ...] = Field(default=(), strict=False)
    stop_tokens: tuple[StopToken, ...] = Field(strict=False, min_length=1)
    repetition_penalty: float = Field(gt=0)
    smoke: SmokeRule = SmokeRule()

    @model_validator(mode="after")
    def _locked_means_confirmed(self) -> ModelManifest:
        if self.locked and not (re.fullmatch("[0-9a-f]{40}", self.revision) and self.files):
            raise ValueError("locked: true needs a revision of 40 hex digits and the files")
        return self


class Databases(_Strict):
    """SQLite databases at `folder/db_id/db_id.sqlite`, each pinned."""

    folder: str
    sha256: dict[str, str]


class DatasetManifest(_Strict):
    """One data set, pinned: its file, its counts, and what its conditions mean."""

    name: str = Field(pattern=_NAME)
    file: str
    sha256: str = Field(pattern=_SHA256)
    samples: dict[str, int]
    conditions: tuple[Condition, ...] = Field(strict=False)
    components: dict[Component, str]
    switched: dict[Condition, list[Component]]
    base: Condition
    databases: Databases | None = None
    smoke_samples: tuple[str, ...] = Field(strict=False, min_length=3, max_length=3)
    licence: str
    provenance: str
    _path: Path = Path()

    @model_validator(mode="after")
    def _five_conditions(self) -> DatasetManifest:
        if self.conditions != CONDITIONS:
            raise ValueError(f"conditions must be {', '.join(CONDITIONS)}, in this order")
        return self

    @property
    def folder(self) -> Path:
        """The folder of the manifest, which its paths are relative to."""
        return self._path.parent

    @property
    def file_path(self) -> Path:
        """Absolute path of the data set file."""
        return (self.folder / self.file).resolve()


class Decoding(_Strict):
    """Settings that decide the answer. Greedy, one answer: others are not offered."""

    temperature: Literal[0]
    n: Literal[1]
    seed: int = Field(ge=0)
    max_tokens: int = Field(gt=0)


class Contrast(_Strict):
    """A declared comparison: accuracy under `condition` less accuracy under `base`."""

    name: str
    condition: Condition
    base: Condition
    family: Literal["primary", "secondary"]


class ExperimentManifest(_Strict):
    """Models x data set x decoding under one engine lock, with its comparisons declared.

    Another precision than the models' BF16 is a declared other decoding, for the reference engine
    on cards that have no BF16.
    """

    name: str = Field(pattern=_NAME)
    dataset: str
    models: tuple[str, ...] = Field(strict=False, min_length=1)
    engine: Literal["vllm", "transformers"]
    precision: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    engine_lock: Literal[
        "requirements-cpu.txt", "requirements-colab.txt", "requirements-colab-cuda12.txt"
    ]
    decoding: Decoding
    contrasts: tuple[Contrast, ...] = Field(strict=False)
    alpha: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _distinct(self) -> ExperimentManifest:
        names = [contrast.name for contrast in self.contrasts]
        if len(set(names)) != len(names) or len(set(self.models)) != len(self.models):
            raise ValueError("models and contrast names must each be distinct")
        if self.engine == "vllm" and self.precision != "bfloat16":
            raise ValueError(f"precision {self.precision} needs engine: transformers")
        for contrast in self.contrasts:
            if contrast.condition == contrast.base:
                raise ValueError(f"contrast {contrast.name!r} compares a condition with itself")
        return self


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses doubled keys, which PyYAML would let win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


Manifest = TypeVar("Manifest", ModelManifest, DatasetManifest, ExperimentManifest)


def list_manifests(kind: Literal["models", "datasets", "experiments"]) -> list[str]:
    """Names of the manifests of one kind, sorted."""
    return sorted(path.stem for path in (MANIFESTS / kind).glob("*.yaml"))


def load_model_manifest(name_or_path: str | Path) -> ModelManifest:
    """Read one model manifest by name (`manifests/models/NAME.yaml`) or path."""
    manifest, path = _load(name_or_path, "models", ModelManifest)
    if isinstance(manifest.chat_template, ChatTemplateFile):
        template = path.parent / manifest.chat_template.file
        if not template.is_file():
            raise ManifestError(
                f"names {template.name}, which does not exist",
                where=f"{path}, field chat_template.file",
            )
    return manifest


def load_dataset_manifest(name_or_path: str | Path) -> DatasetManifest:
    """Read one data set manifest by name (`manifests/datasets/NAME.yaml`) or path."""
    manifest, path = _load(name_or_path, "datasets", DatasetManifest)
    manifest._path = path.resolve()
    return manifest


def load_experiment_manifest(name_or_path: str | Path) -> ExperimentManifest:
    """Read one experiment manifest by name (`manifests/experiments/NAME.yaml`) or path."""
    return _load(name_or_path, "experiments", ExperimentManifest)[0]


def manifest_path(name_or_path: str | Path, kind: str) -> Path:
    """Where a manifest lies: a path is taken as it is, a name is looked up in `manifests/`."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        return Path(name_or_path)
    return MANIFESTS / kind / f"{text}.yaml"


def _load(name_or_path: str | Path, kind: str, model: type[Manifest]) -> tuple[Manifest, Path]:
    path = manifest_path(name_or_path, kind)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        known = ", ".join(sorted(p.stem for p in (MANIFESTS / kind).glob("*.yaml")))
        reason = getattr(error, "strerror", None) or error
        raise ManifestError(
            f"cannot be read ({reason})", where=str(path), mend=f"known {kind}: {known}"
        ) from error
    if data.startswith(b"\xef\xbb\xbf"):
        raise ManifestError(
            "starts with a byte order mark", where=str(path), mend="save it as UTF-8 without BOM"
        )
    try:
        content = yaml.load(data.decode("utf-8"), Loader=_StrictLoader)
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"byte {error.start} is not UTF-8", where=str(path), mend="save the file as UTF-8"
        ) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise ManifestError(f"is not YAML ({detail})", where=str(path)) from error
    if not isinstance(content, dict):
        raise ManifestError("is not a mapping of fields", where=str(path))
    return validated(model, content, where=str(path)), path


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], content: dict[Any, Any], *, where: str) -> Model:
    """Validate `content`; raises `ManifestError` that names the first wrong field of `where`."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        problem = {
            "extra_forbidden": "is not a field of this manifest",
            "missing": "is missing",
        }.get(first["type"])
        if problem is None:
            problem = f"{first['msg']} (found {first['input']!r:.80})"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ManifestError(problem + more, where=f"{where}, field {field}") from error
