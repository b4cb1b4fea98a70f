"""A model folder is judged by its own files, before any engine is started."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
from pydantic import ValidationError

from colab_utils.errors import FitError, WeightsError
from colab_utils.fit import (
    CARDS,
    OVERHEAD_BYTES,
    gpu_fit,
    require_fit,
    sequences_in_a_step,
    verdicts_by_card,
)
from colab_utils.manifests import (
    ExperimentManifest,
    ModelManifest,
    load_experiment_manifest,
    load_model_manifest,
)
from colab_utils.weights import check_weights, model_folder


def safetensors(path: Path, tensors: dict[str, str]) -> None:
    """A whole safetensors file of one-value tensors: 8-byte size, JSON header, data."""
    sizes = {"BF16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1, "U8": 1}
    header, offset = {}, 0
    for name, kind in tensors.items():
        header[name] = {
            "dtype": kind, "shape": [1], "data_offsets": [offset, offset + sizes[kind]],
        }  # fmt: skip
        offset += sizes[kind]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * offset)


@pytest.fixture
def manifest() -> ModelManifest:
    return load_model_manifest("qwen3-8b")


@pytest.fixture
def folder(tmp_path, manifest) -> Path:
    shape = manifest.architecture
    config = {
        "model_type": "qwen3", "num_hidden_layers": shape.layers, "head_dim": shape.head_size,
        "num_attention_heads": 32, "num_key_value_heads": shape.kv_heads,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    safetensors(tmp_path / "a.safetensors", {"one": "BF16"})
    safetensors(tmp_path / "b.safetensors", {"two": "BF16"})
    index = {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def change_config(folder: Path, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_whole_folder_gives_digests(folder, manifest):
    digests = check_weights(folder, manifest)
    assert {"config.json", "a.safetensors", "b.safetensors"} <= digests.keys()
    assert check_weights(folder, manifest) == digests


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: [p.unlink() for p in f.iterdir()], "config.json: is missing"),
        (lambda f: (f / "b.safetensors").unlink(), "b.safetensors: is missing"),
        (
            lambda f: (f / "b.safetensors").write_bytes((f / "b.safetensors").read_bytes()[:-1]),
            "b.safetensors: is truncated",
        ),
        (lambda f: (f / "b.safetensors").write_bytes(b""), "b.safetensors: is truncated"),
        (lambda f: safetensors(f / "c.safetensors", {"x": "BF16"}), "c.safetensors: is not listed"),
        (lambda f: safetensors(f / "b.safetensors", {"x": "BF16"}), "lacks the tensor two"),
        (lambda f: safetensors(f / "b.safetensors", {"two": "F8_E4M3"}), "holds F8_E4M3 values"),
        (lambda f: safetensors(f / "b.safetensors", {"two": "I32"}), "holds I32 values"),
        (lambda f: (f / "m.gguf").write_bytes(b"GGUF"), "is a GGUF checkpoint"),
        (lambda f: change_config(f, num_hidden_layers=2), "says layers 2, the manifest 36"),
        (lambda f: change_config(f, model_type="llama"), "is a llama checkpoint"),
        (lambda f: change_config(f, auto_map={}), "needs the repository's own code"),
        (lambda f: (f / "tokenizer_config.json").write_text("{}"), "holds no chat template"),
        (lambda f: (f / "config.json").write_text("{"), "config.json: cannot be read"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text("{}"),
            "is not a safetensors index",
        ),
    ],
)
def test_a_spoiled_folder_is_named(folder, manifest, spoil, message):
    spoil(folder)
    with pytest.raises(WeightsError, match=message):
        check_weights(folder, manifest)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "bitsandbytes", "compressed-tensors"])
def test_quantised_checkpoints_are_refused_by_their_own_config(folder, manifest, method):
    change_config(folder, quantization_config={"quant_method": method})
    with pytest.raises(WeightsError, match=rf"is quantised \({method}.*bfloat16"):
        check_weights(folder, manifest)


def test_a_locked_digest_must_hold(folder, manifest):
    digest = check_weights(folder, manifest)["a.safetensors"]
    locked = {"a.safetensors": {"size": 1, "sha256": digest}}
    same = ModelManifest.model_validate(manifest.model_dump() | {"files": locked})
    assert check_weights(folder, same)
    locked["a.safetensors"]["sha256"] = "0" * 64
    other = ModelManifest.model_validate(manifest.model_dump() | {"files": locked})
    with pytest.raises(WeightsError, match="a.safetensors: has sha256 .*the manifest locks"):
        check_weights(folder, other)


def test_the_local_folder_has_no_dot(manifest, tmp_path):
    exaone = load_model_manifest("exaone-3.5-2.4b-instruct")
    assert "." not in str(model_folder(exaone, Path("/cache")))


def test_fit_follows_from_the_manifest(manifest):
    l4 = 23034 << 20
    fit = gpu_fit(manifest, l4)
    assert fit.weights_bytes == 2 * 8190735360
    assert fit.kv_bytes_per_token == 147456
    assert fit.kv_room_bytes == int(l4 * 0.85) - fit.weights_bytes - OVERHEAD_BYTES
    assert fit.fits and fit.sequences == fit.longest // manifest.max_model_len
    gpu = {"name": "NVIDIA L4", "memory_bytes": l4, "compute_capability": 8.9}
    plain = load_experiment_manifest("embedded")
    assert require_fit(manifest, plain, gpu, 0.85) == fit
    t4 = {"name": "Tesla T4", "memory_bytes": 15360 << 20, "compute_capability": 7.5}
    with pytest.raises(FitError, match=r"Tesla T4 has no BF16 .*L4.* engine: transformers"):
        require_fit(manifest, plain, t4, 0.85)
    with pytest.raises(FitError, match=r"holds 17\d\d\d tokens.*max_model_len to 17"):
        long = ModelManifest.model_validate(manifest.model_dump() | {"max_model_len": 32768})
        require_fit(long, plain, gpu, 0.85)


@pytest.mark.parametrize(
    ("model", "card", "sequences"),
    [
        ("qwen3-8b", "L4", 64),
        ("qwen3-8b", "H200", 512),
        ("llama-3.2-3b-instruct", "L4", 512),
        ("hyperclovax-seed-0.5b", "A100 80 GB", 512),
    ],
)
def test_the_cards_room_decides_how_many_sequences_run_at_once(model, card, sequences):
    memory = CARDS[card][0] << 20
    assert sequences_in_a_step(load_model_manifest(model), memory) == sequences


def test_the_reference_engine_has_a_place_on_a_t4():
    small = load_model_manifest("llama-3.2-3b-instruct")
    t4 = {"name": "Tesla T4", "memory_bytes": 15360 << 20, "compute_capability": 7.5}
    content = load_experiment_manifest("embedded-transformers").model_dump()

    def declared(**changed: str) -> ExperimentManifest:
        return ExperimentManifest.model_validate(content | changed)

    half = require_fit(small, declared(precision="float16"), t4, 0.85)
    with pytest.raises(FitError, match=r"needs 12\.9 GB for weights"):
        require_fit(small, declared(precision="float32"), t4, 0.85)
    with pytest.raises(FitError, match="has no BF16"):
        require_fit(small, declared(), t4, 0.85)
    assert half.weights_bytes == 2 * small.architecture.parameters
    with pytest.raises(ValidationError, match="precision float16 needs engine: transformers"):
        declared(engine="vllm", precision="float16")


def test_fit_by_card_and_as_vllm_found_it(manifest):
    table = verdicts_by_card(manifest)
    assert "T4: none, no BF16" in table and "L4: 2;" in table
    long = ModelManifest.model_validate(manifest.model_dump() | {"max_model_len": 32768})
    assert re.search(r"L4: none, fits with max_model_len 17\d\d\d;", verdicts_by_card(long))
    # vLLM 0.26 on an H200 gave Qwen3's 0.6B shape a KV cache of 1,096,432 tokens at 0.85.
    shape = {"family": "qwen3", "parameters": 596_049_920, "layers": 28, "kv_heads": 8,
             "head_size": 128}  # fmt: skip
    small = ModelManifest.model_validate(manifest.model_dump() | {"architecture": shape})
    assert gpu_fit(small, CARDS["H200"][0] << 20).longest == pytest.approx(1_096_432, rel=0.05)
