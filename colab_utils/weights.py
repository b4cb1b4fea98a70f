"""A model's folder: where it lies, whether it is whole, unquantised and the locked one.

Nothing here imports torch: checkpoints are judged by their own config and by the headers
of their safetensors files, before an engine is started.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from colab_utils import records
from colab_utils.errors import RecordError, WeightsError
from colab_utils.manifests import ChatTemplateFile, ModelManifest, manifest_path

_DIGESTS = ".digests.json"
_COMPLETE = ".complete"
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FLOATS = {"BF16", "F16", "F32"}
_MODEL_TYPES = {"llama": {"llama"}, "qwen3": {"qwen3"}, "exaone": {"exaone"}}
# Files beside weights that decide prompts or the model's shape.
_DECISIVE = (".json", ".safetensors", ".jinja", ".txt", ".model", ".py")

Progress = Callable[[str], None]


def model_folder(manifest: ModelManifest, cache: Path) -> Path:
    """Where a model's files lie under `cache`.

    Remote code is imported as a module named after the folder, so its name holds no dot.
    """
    name = manifest.repo.replace("/", "--").replace(".", "_")
    return cache / "models" / name / manifest.revision[:12].replace(".", "_")


def is_complete(folder: Path) -> bool:
    """Whether the folder was filled to the end by a download or an unpacking."""
    return (folder / _COMPLETE).is_file()


def mark_complete(folder: Path) -> None:
    """Say that the folder is whole; written last."""
    records.write_atomic(folder / _COMPLETE, b"")


def room_needed(manifest: ModelManifest, folder: Path) -> int:
    """Bytes that filling the folder still takes on disk: 2 a parameter and a twentieth more.

    None are needed when it is whole; what a broken download left there is not needed again.
    """
    if is_complete(folder):
        return 0
    return max(0, int(manifest.architecture.parameters * 2 * 1.05) - bytes_below(folder))


def remove_weights(manifest: ModelManifest, cache: Path) -> int:
    """Remove a model's folder from the cache; return how many bytes that frees.

    An embedded model's folder stays (0 bytes): it comes from the engine's own packages. Raises
    `WeightsError` when a link leads out of the cache, `RunDirectoryError` when the folder can't
    be removed.
    """
    folder = model_folder(manifest, cache)
    if manifest.distribution is not None or not folder.exists():
        return 0
    if folder.resolve() != cache.resolve() / folder.relative_to(cache):
        raise WeightsError(
            "is reached by a link that leads elsewhere, so nothing is removed",
            where=str(folder),
            mend="remove the weights by hand",
        )
    size = bytes_below(folder)
    try:
        # First of all: a half-removed folder must not pass for a whole one.
        (folder / _COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(folder)
    except OSError as error:
        raise records.unwritable(folder, error) from error
    return size


def check_weights(folder: Path, manifest: ModelManifest) -> dict[str, str]:
    """Check a model folder against itself and its manifest; return SHA-256 by file name.

    Raises `WeightsError`, naming the file, when the folder is empty, a shard is missing,
    truncated or unlisted, the checkpoint is quantised, remote code is needed and not
    allowed, the shape is not the manifest's, no chat template is there, or a locked digest
    differs.
    """
    config = _json_object(folder / "config.json", manifest)
    _refuse_quantised(folder, config)
    _check_shape(folder, config, manifest)
    if "auto_map" in config and not manifest.trust_remote_code:
        raise WeightsError(
            "needs the repository's own code (auto_map), the manifest forbids it",
            where=str(folder / "config.json"),
            mend="set trust_remote_code: true after reading that code",
        )
    _check_shards(folder)
    _check_chat_template(folder, manifest)
    digests = _digests(folder)
    for name, locked in manifest.files.items():
        if digests.get(name) != locked.sha256:
            found = "is missing" if name not in digests else f"has sha256 {digests[name]}"
            raise WeightsError(
                f"{found}, the manifest locks {locked.sha256}",
                where=str(folder / name),
                mend="delete the model folder and let it be fetched again",
            )
    return digests


def chat_template_text(manifest: ModelManifest) -> str | None:
    """Text of the manifest's own chat template, checked by digest; None for the tokenizer's."""
    template = manifest.chat_template
    if not isinstance(template, ChatTemplateFile):
        return None
    path = manifest_path(manifest.name, "models").parent / template.file
    data = records.read_bytes(path)
    if records.sha256_bytes(data) != template.sha256:
        raise WeightsError("has another sha256 than the manifest's chat_template", where=str(path))
    return data.decode("utf-8")


def _json_object(path: Path, manifest: ModelManifest) -> dict[str, Any]:
    try:
        # Hub files are foreign: plain JSON, not this project's strict kind.
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise WeightsError(
            f"is missing (model {manifest.name})",
            where=str(path),
            mend="delete its folder and start again: it is fetched anew",
        ) from error
    except (OSError, ValueError) as error:
        raise WeightsError(f"cannot be read ({error})", where=str(path)) from error
    if not isinstance(content, dict):
        raise WeightsError("is not a JSON object", where=str(path))
    return content


def _refuse_quantised(folder: Path, config: dict[str, Any]) -> None:
    for field in ("quantization_config", "compression_config", "quantization"):
        if config.get(field):
            settings = config[field] if isinstance(config[field], dict) else {}
            method = settings.get("quant_method") or settings.get("format") or "unnamed method"
            raise WeightsError(
                f"is quantised ({method}, field {field}) and the manifest says bfloat16",
                where=str(folder / "config.json"),
                mend="name the unquantised repository",
            )
    gguf = sorted(folder.glob("*.gguf"))
    if gguf:
        raise WeightsError(
            "is a GGUF checkpoint and the manifest says bfloat16",
            where=str(gguf[0]),
            mend="name the unquantised repository",
        )


def _check_shape(folder: Path, config: dict[str, Any], manifest: ModelManifest) -> None:
    shape = manifest.architecture
    heads = config.get("num_attention_heads")
    head_size = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else None)
    found = {
        "layers": config.get("num_hidden_layers", config.get("num_layers")),
        "kv_heads": config.get("num_key_value_heads", heads),
        "head_size": head_size,
    }
    for field, value in found.items():
        if value != getattr(shape, field):
            raise WeightsError(
                f"says {field} {value}, the manifest {getattr(shape, field)}",
                where=str(folder / "config.json"),
                mend=f"correct architecture.{field} of model {manifest.name}",
            )
    if config.get("model_type") not in _MODEL_TYPES[shape.family]:
        raise WeightsError(
            f"is a {config.get('model_type')} checkpoint, the manifest says {shape.family}",
            where=str(folder / "config.json"),
        )


def _check_shards(folder: Path) -> None:
    present = {path.name for path in folder.glob("*.safetensors")}
    if (folder / _INDEX).exists():
        weight_map = _weight_map(folder / _INDEX)
        listed = set(weight_map.values())
    else:
        weight_map, listed = {}, {_SINGLE}
    for name in sorted(listed - present):
        raise WeightsError(
            "is missing",
            where=str(folder / name),
            mend="delete its folder and start again: it is fetched anew",
        )
    for name in sorted(present - listed):
        raise WeightsError(
            "is not listed by the index, so it is of another checkpoint",
            where=str(folder / name),
            mend="remove it, or delete the folder and start again",
        )
    tensors: dict[str, set[str]] = {}
    for name in sorted(listed):
        tensors[name] = _check_safetensors(folder / name)
    for tensor, name in weight_map.items():
        if tensor not in tensors[name]:
            raise WeightsError(
                f"lacks the tensor {tensor} that the index places there", where=str(folder / name)
            )


def _weight_map(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError("is not a safetensors index", where=str(path)) from error
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in weight_map.values()
    ):
        raise WeightsError("names shards that are not file names", where=str(path))
    return weight_map


def _check_safetensors(path: Path) -> set[str]:
    """Tensor names of a whole shard: 8-byte little-endian header size, JSON header, data."""
    size = path.stat().st_size
    try:
        with open(path, "rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > size:
                raise ValueError("the header is longer than the file")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        kinds = {entry["dtype"]: tensor for tensor, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise WeightsError(
            f"is truncated or not a safetensors file ({error})",
            where=str(path),
            mend="delete its folder and start again: it is fetched anew",
        ) from error
    if size != 8 + length + end:
        raise WeightsError(
            f"is truncated: {size} bytes, its header promises {8 + length + end}",
            where=str(path),
            mend="delete its folder and start again: it is fetched anew",
        )
    for kind, tensor in kinds.items():
        if kind not in _FLOATS:
            raise WeightsError(
                f"holds {kind} values (tensor {tensor}): the checkpoint is quantised and the "
                "manifest says bfloat16",
                where=str(path),
                mend="name the unquantised repository",
            )
    return set(header)


def _check_chat_template(folder: Path, manifest: ModelManifest) -> None:
    if isinstance(manifest.chat_template, ChatTemplateFile):
        chat_template_text(manifest)
        return
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return
    if not _json_object(folder / "tokenizer_config.json", manifest).get("chat_template"):
        raise WeightsError(
            "holds no chat template",
            where=str(folder / "tokenizer_config.json"),
            mend="name a template file in the manifest's chat_template",
        )


def bytes_below(folder: Path) -> int:
    """Bytes below a folder that a child may be writing to; a link counts as itself."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.lstat().st_size
    return size


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 by file name; a file is read again only when its size or time has changed."""
    store = folder / _DIGESTS
    try:
        known = records.read_json(store) if store.exists() else {}
    except RecordError:
        known = {}
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in _DECISIVE or path.name.startswith("."):
            continue
        status = path.stat()
        stamp = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
        entry = known.get(path.name, {})
        if any(entry.get(key) != value for key, value in stamp.items()):
            entry = {**stamp, "sha256": records.sha256_file(path)}
        entries[path.name] = entry
    if entries != known and os.access(folder, os.W_OK):
        records.write_atomic(store, records.dumps(entries).encode())
    return {name: entry["sha256"] for name, entry in entries.items()}
