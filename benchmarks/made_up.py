"""A made-up study of the real one's size: a random-weight model and 512 samples of five surfaces.

Answer lengths are fixed in advance, so that every way of feeding an engine writes the same number
of tokens. All of it follows from fixed seeds. Runs in the engine interpreter.
"""

from __future__ import annotations

import json
import random
import sqlite3
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from colab_utils import records
from colab_utils.engine import Engine, Operating
from colab_utils.manifests import CONDITIONS, ExperimentManifest, ModelManifest
from colab_utils.run_record import RunSpec

VOCABULARY = 151936
SPECIALS = ("<|im_start|>", "<|im_end|>")
# layers, hidden, intermediate, heads, KV heads, head size, tied embeddings: those of Qwen3.
SHAPES = {
    "tiny": (2, 256, 512, 4, 2, 64, True),
    "0.6B": (28, 1024, 3072, 16, 8, 128, True),
    "8B": (36, 4096, 12288, 32, 8, 128, False),
}
# task, samples of 512, characters of shared context: a byte-level vocabulary makes one token each.
TASKS = (("code", 148, 200, 600), ("sql", 140, 800, 2500), ("finance", 224, 300, 1500))
MAX_TOKENS, MEDIAN_TOKENS = 512, 150


def write_model(folder: Path, shape: str) -> None:
    """A Qwen3 checkpoint of random BF16 weights, kept if it is there."""
    if (folder / "whole").exists():
        return
    import torch
    from safetensors.torch import save_file

    layers, hidden, inner, heads, kv_heads, head, tied = SHAPES[shape]
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY,
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head,
        "max_position_embeddings": 40960, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16", "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(1)

    def matrix(rows: int, columns: int) -> Any:
        values = torch.randn(rows, columns, generator=generator, device=device) * 0.02
        return values.to(torch.bfloat16).cpu()

    def ones(size: int) -> Any:
        return torch.ones(size, dtype=torch.bfloat16)

    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, hidden)}
    if not tied:
        tensors["lm_head.weight"] = matrix(VOCABULARY, hidden)
    tensors["model.norm.weight"] = ones(hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        tensors |= {
            prefix + "input_layernorm.weight": ones(hidden),
            prefix + "post_attention_layernorm.weight": ones(hidden),
            attention + "q_norm.weight": ones(head),
            attention + "k_norm.weight": ones(head),
            attention + "q_proj.weight": matrix(heads * head, hidden),
            attention + "k_proj.weight": matrix(kv_heads * head, hidden),
            attention + "v_proj.weight": matrix(kv_heads * head, hidden),
            attention + "o_proj.weight": matrix(hidden, heads * head),
            mlp + "gate_proj.weight": matrix(inner, hidden),
            mlp + "up_proj.weight": matrix(inner, hidden),
            mlp + "down_proj.weight": matrix(hidden, inner),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "whole").write_text("")


def _write_tokenizer(folder: Path) -> None:
    """A tokenizer with as many entries as the model has rows; text is encoded byte by byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: number for number, char in enumerate(alphabet)}
    for number in range(len(vocabulary), VOCABULARY - len(SPECIALS)):
        vocabulary[f"\u0120w{number}"] = number
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template
    ).save_pretrained(folder)


def write_dataset(folder: Path, samples: int = 512) -> Path:
    """The data set's file, database and manifest; returns the manifest's path."""
    database = folder / "databases" / "shop" / "shop.sqlite"
    database.parent.mkdir(parents=True, exist_ok=True)
    database.unlink(missing_ok=True)
    sqlite3.connect(database).execute("CREATE TABLE item (name TEXT)").connection.close()
    chance = random.Random(20)
    kinds = [(task, low, high) for task, count, low, high in TASKS for _ in range(count)]
    chance.shuffle(kinds)
    references = {
        "code": {"code_prompt": "def task_func(x):\n", "entry_point": "task_func",
                 "test": "import unittest\n\n\nclass TestCases(unittest.TestCase):\n"
                 "    def test_one(self):\n        self.assertEqual(task_func(1), 1)\n",
                 "canonical_solution": "    return x\n"},
        "sql": {"db_id": "shop", "gold_sql": "SELECT COUNT(*) FROM item"},
        "finance": {"ground_truth": 1.0, "python_solution": "def solution():\n    return 1.0\n"},
    }  # fmt: skip

    def text(length: int) -> str:
        return "".join(chance.choices(string.ascii_letters + "    ", k=length))

    lines: list[dict[str, Any]] = [
        {
            "sample_id": f"{task}-{number:03d}", "task": task, "benchmark": f"made-up-{task}",
            "surfaces": {c: "x" + text(chance.randint(40, 200)) for c in CONDITIONS},
            "context": text(chance.randint(low, high)), "reference": references[task], "meta": {},
        }
        for number, (task, low, high) in enumerate(kinds[:samples])
    ]  # fmt: skip
    data = records.encode_lines(lines)
    (folder / "made-up.jsonl").write_bytes(data)
    counts: dict[str, int] = {}
    first: dict[str, str] = {}
    for line in lines:
        counts[line["benchmark"]] = counts.get(line["benchmark"], 0) + 1
        first.setdefault(line["task"], line["sample_id"])
    manifest = {
        "name": "made-up", "file": "made-up.jsonl", "sha256": records.sha256_bytes(data),
        "samples": counts, "conditions": list(CONDITIONS), "components": {"C12": "-", "C3": "-"},
        "switched": {"MIX1": ["C12"], "MIX2": ["C3"], "MIX3": ["C12", "C3"]}, "base": "KO",
        "databases": {"folder": "databases", "sha256": {"shop": records.sha256_file(database)}},
        "smoke_samples": [first[task] for task, *_ in TASKS], "licence": "CC0-1.0",
        "provenance": "random text",
    }  # fmt: skip
    path = folder / "made-up.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path


def answer_lengths(request_ids: Sequence[str]) -> dict[str, int]:
    """Answer tokens by request: log-normal, 8 to `MAX_TOKENS`."""
    chance = random.Random(21)
    return {
        name: min(MAX_TOKENS, max(8, round(MEDIAN_TOKENS * chance.lognormvariate(0, 0.6))))
        for name in request_ids
    }


def fix_lengths(lengths: dict[str, int]) -> None:
    """Make every engine of this process write exactly so many tokens for each request."""
    plain = Engine.add

    def add(
        self: Engine, request_id: str, token_ids: Sequence[int], *, max_tokens: int | None = None
    ) -> None:
        params = self._params
        params.ignore_eos, params.stop_token_ids = True, []
        params._all_stop_token_ids = set()
        params.max_tokens = lengths[request_id]
        plain(self, request_id, token_ids, max_tokens=max_tokens)

    Engine.add = add  # type: ignore[method-assign]


def run_spec(
    run_dir: Path, model_folder: Path, dataset: Path, shape: str, operating: Operating
) -> RunSpec:
    """What the engine process is told."""
    layers, *_, kv_heads, head, _ = SHAPES[shape]
    model = ModelManifest.model_validate(
        {
            "name": f"random-{shape.lower()}", "repo": "made/up", "revision": "main",
            "licence": "none", "gated": False, "locked": False, "precision": "bfloat16",
            "architecture": {"family": "qwen3", "parameters": parameters(shape), "layers": layers,
                             "kv_heads": kv_heads, "head_size": head},
            "max_model_len": 4096, "trust_remote_code": False, "system_preamble": "x",
            "stop_tokens": [{"token": "<|im_end|>"}], "repetition_penalty": 1.0,
        }
    )  # fmt: skip
    experiment = ExperimentManifest.model_validate(
        {
            "name": "made-up", "dataset": "made-up", "models": [model.name], "engine": "vllm",
            "engine_lock": "requirements-colab.txt", "contrasts": [], "alpha": 0.05,
            "decoding": {"temperature": 0, "n": 1, "seed": 0, "max_tokens": MAX_TOKENS},
        }
    )  # fmt: skip
    return RunSpec(
        kind="full", run_dir=run_dir, model_folder=model_folder, model=model,
        dataset_manifest=dataset, experiment=experiment, operating=operating,
        require_smoke=False, warnings=(), replay=0,
    )  # fmt: skip


def parameters(shape: str) -> int:
    """Weights of a shape, as `write_model` writes them."""
    layers, hidden, inner, heads, kv_heads, head, tied = SHAPES[shape]
    layer = hidden * head * (2 * heads + 2 * kv_heads) + 3 * hidden * inner + 2 * hidden + 2 * head
    return layers * layer + VOCABULARY * hidden * (1 if tied else 2) + hidden
