"""What tests build: tiny models with real manifests, small data sets, run specs."""

from __future__ import annotations

import sqlite3
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from colab_utils import records
from colab_utils.engine import Operating
from colab_utils.manifests import (
    CONDITIONS,
    ExperimentManifest,
    ModelManifest,
    load_model_manifest,
)
from colab_utils.run_record import RunSpec

TINY_FAMILY = {
    "llama-3.2-3b-instruct": "llama",
    "qwen3-8b": "qwen3",
    "exaone-3.5-2.4b-instruct": "exaone",
    "hyperclovax-seed-0.5b": "hyperclovax",
}
HEAD_SIZE = {"llama": 64, "qwen3": 128, "exaone": 80, "hyperclovax": 128}


@dataclass(frozen=True)
class TinyModel:
    """A random two-layer checkpoint and the real model's manifest with its shape."""

    folder: Path
    manifest: ModelManifest


def tiny_model(name: str, engine_python: Path, parent: Path) -> TinyModel:
    """The checkpoint of `tiny_checkpoints.py` for the real manifest `name`.

    Only the shape and the stop tokens' ids differ from the real manifest: a byte-level
    vocabulary has other ids.
    """
    family = TINY_FAMILY[name]
    folder = parent / family
    script = Path(__file__).with_name("tiny_checkpoints.py")
    subprocess.run([str(engine_python), str(script), family, str(folder)], check=True)
    real = load_model_manifest(name).model_dump()
    real["architecture"] |= {
        "parameters": 1_000_000, "layers": 2, "kv_heads": 2, "head_size": HEAD_SIZE[family],
    }  # fmt: skip
    real["stop_tokens"] = [{"token": stop["token"]} for stop in real["stop_tokens"]]
    real["max_model_len"] = 2048
    return TinyModel(folder, ModelManifest.model_validate(real))


def code_line(number: int, surface: str = "Write task_func that doubles its argument.") -> dict:
    """A code sample's line."""
    stub = "def task_func(x):\n"
    return {
        "sample_id": f"code-{number}", "task": "code", "benchmark": "small-code",
        "surfaces": {c: f"{surface} ({c} {number})" for c in CONDITIONS}, "context": stub,
        "reference": {
            "code_prompt": stub, "entry_point": "task_func",
            "test": "import unittest\n\n\nclass TestCases(unittest.TestCase):\n"
            "    def test_two(self):\n        self.assertEqual(task_func(2), 4)\n",
            "canonical_solution": "    return 2 * x\n",
        },
        "meta": {},
    }  # fmt: skip


def sql_line(number: int) -> dict:
    """A SQL sample's line, on the database `shop`."""
    return {
        "sample_id": f"sql-{number}", "task": "sql", "benchmark": "small-sql",
        "surfaces": {c: f"item이 몇 개? How many items? ({c} {number})" for c in CONDITIONS},
        "context": "CREATE TABLE item (name TEXT, price INTEGER);",
        "reference": {"db_id": "shop", "gold_sql": "SELECT COUNT(*) FROM item"}, "meta": {},
    }  # fmt: skip


def finance_line(number: int) -> dict:
    """A finance sample's line."""
    return {
        "sample_id": f"finance-{number}", "task": "finance", "benchmark": "small-finance",
        "surfaces": {c: f"이익률은? What is the margin in percent? ({c})" for c in CONDITIONS},
        "context": f"Revenue 200, cost {100 + number}.",
        "reference": {
            "ground_truth": (100 - number) / 2,
            "python_solution": f"def solution():\n    return {(100 - number) / 2}\n",
        },
        "meta": {},
    }  # fmt: skip


def small_lines(samples_a_task: int = 1) -> list[dict]:
    """`samples_a_task` samples of each task."""
    lines = []
    for number in range(samples_a_task):
        lines += [code_line(number), sql_line(number), finance_line(number)]
    return lines


def write_dataset(folder: Path, lines: list[dict], **changed: Any) -> Path:
    """Write a data set file, its database and its manifest; `changed` fields override."""
    database = folder / "databases" / "shop" / "shop.sqlite"
    database.parent.mkdir(parents=True, exist_ok=True)
    if not database.exists():
        connection = sqlite3.connect(database)
        connection.executescript(
            "CREATE TABLE item (name TEXT, price INTEGER);"
            "INSERT INTO item VALUES ('ink', 3), ('ink', 3), ('pen', NULL);"
        )
        connection.close()
    data = records.encode_lines(lines)
    (folder / "small.jsonl").write_bytes(data)
    counts: dict[str, int] = {}
    for line in lines:
        counts[line["benchmark"]] = counts.get(line["benchmark"], 0) + 1
    manifest = {
        "name": "small", "file": "small.jsonl", "sha256": records.sha256_bytes(data),
        "samples": counts, "conditions": list(CONDITIONS),
        "components": {"C12": "terms of the statement", "C3": "the answer requirement"},
        "switched": {"MIX1": ["C12"], "MIX2": ["C3"], "MIX3": ["C12", "C3"]}, "base": "KO",
        "databases": {"folder": "databases", "sha256": {"shop": records.sha256_file(database)}},
        "smoke_samples": ["code-0", "sql-0", "finance-0"], "licence": "CC0-1.0",
        "provenance": "made by tests",
    } | changed  # fmt: skip
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(manifest, allow_unicode=True), encoding="utf-8")
    return path


def experiment(model: ModelManifest, *, max_tokens: int = 24) -> ExperimentManifest:
    """An experiment of one model under the CPU lock."""
    return ExperimentManifest.model_validate(
        {
            "name": "small", "dataset": "small", "models": [model.name], "engine": "vllm",
            "engine_lock": "requirements-cpu.txt",
            "decoding": {"temperature": 0, "n": 1, "seed": 0, "max_tokens": max_tokens},
            "contrasts": [
                {"name": "KO - EN", "condition": "KO", "base": "EN", "family": "primary"}
            ],
            "alpha": 0.05,
        }
    )  # fmt: skip


def run_spec(
    run_dir: Path,
    model: TinyModel,
    dataset_manifest: Path,
    *,
    kind: str = "full",
    chunk_size: int = 5,
    max_tokens: int = 24,
    replay: int = 0,
    replay_chunks: int = 0,
) -> RunSpec:
    """What the engine process is told."""
    return RunSpec(
        kind=kind,
        run_dir=run_dir,
        model_folder=model.folder,
        model=model.manifest,
        dataset_manifest=dataset_manifest,
        experiment=experiment(model.manifest, max_tokens=max_tokens),
        operating=Operating(
            chunk_size=chunk_size, heartbeat_seconds=1, max_num_batched_tokens=2048
        ),
        require_smoke=False,
        warnings=(),
        replay=replay,
        replay_chunks=replay_chunks,
    )
