"""Builds finished, scored run directories from a table of outcomes, with the real file formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colab_utils import records
from colab_utils.manifests import CONDITIONS

DATASET_SHA256 = "d" * 64
EVALUATOR = "e" * 12 + "0" * 52
MODEL = {
    "name": "tiny-1", "repo": "example/tiny", "revision": "1" * 40, "licence": "apache-2.0",
    "gated": False, "locked": True, "unverified": [],
}  # fmt: skip
CONTRASTS = [
    {"name": "KO - EN", "condition": "KO", "base": "EN", "family": "primary"},
    {"name": "MIX1 - KO", "condition": "MIX1", "base": "KO", "family": "primary"},
    {"name": "MIX2 - KO", "condition": "MIX2", "base": "KO", "family": "primary"},
    {"name": "MIX3 - KO", "condition": "MIX3", "base": "KO", "family": "primary"},
    {"name": "MIX3 - EN", "condition": "MIX3", "base": "EN", "family": "secondary"},
]
SWITCHED = {"MIX1": ["C12"], "MIX2": ["C3"], "MIX3": ["C12", "C3"]}

Cell = str | dict[str, Any]
"""An outcome, `rejected`, `unjudged`, or a dict of `outcome` and fields that replace defaults."""


def row(outcomes: str) -> dict[str, Cell]:
    """Five cells from five letters: p passed, w wrong, e error, t timeout, n no answer,
    x wrong extraction, u unsafe, f reference error, r rejected, - not judged, and a space
    for no response."""
    words = {
        "p": "passed", "w": "wrong_answer", "e": "error", "t": "timeout", "n": "no_answer",
        "x": "wrong_extraction", "u": "unsafe", "f": "reference_error", "r": "rejected",
        "-": "unjudged",
    }  # fmt: skip
    return {
        condition: words[letter]
        for condition, letter in zip(CONDITIONS, outcomes, strict=False)
        if letter != " "
    }


def write_run(
    folder: Path,
    samples: Mapping[str, tuple[str, Mapping[str, Cell]]],
    *,
    scored: bool = True,
    **fields: Any,
) -> Path:
    """Write run.json and responses.jsonl (and one scoring) for `{sample_id: (task, cells)}`.

    `fields` replace those of run.json; a `model` of a dict updates the model manifest.
    """
    lines = [
        _response(sample_id, task, condition, cell)
        for sample_id, (task, cells) in samples.items()
        for condition, cell in cells.items()
    ]
    data = records.encode_lines(lines)
    model = MODEL | fields.pop("model", {})
    experiment = {"name": "trial", "contrasts": CONTRASTS, "alpha": 0.05}
    experiment |= fields.pop("experiment", {})
    settings: dict[str, Any] = {
        "batch_invariant": True, "gpu": "NVIDIA L4", "device": "cuda",
        "versions": {"vllm": "0.33.0", "torch": "2.14.0", "transformers": "5.15.0"},
    } | fields.pop("run", {})  # fmt: skip
    run = {
        "format": 1, "kind": "full", "experiment": experiment["name"], "model": model["name"],
        "dataset": "problems", "decoding_fingerprint": records.sha256_json(model),
        "decoding": {"decoding": {"temperature": 0, "n": 1, "seed": 0, "max_tokens": 256}},
        "run_fingerprint": records.sha256_json([model, settings]), "run": settings,
        "requests": len(lines), "chunk_size": 32, "require_smoke": True,
        "manifests": {
            "model": model,
            "dataset": {"name": "problems", "sha256": DATASET_SHA256, "base": "KO",
                        "switched": SWITCHED, "conditions": list(CONDITIONS),
                        "components": {"C12": "the question", "C3": "the constraint"},
                        "licence": "CC BY 4.0", "provenance": "made up"},
            "experiment": experiment,
        },
        "warnings": [],
        "segments": [{"started": "2026-12-01T10:00:00+00:00", "host": "colab", "pid": 1,
                      "machine": "Linux x86_64, 8 CPUs"}],
        "completed": {"at": "2026-12-01T11:00:00+00:00",
                      "responses_sha256": records.sha256_bytes(data), "seconds": 3600.0},
    } | fields  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_bytes(records.encode_line(run))
    (folder / "responses.jsonl").write_bytes(data)
    if scored:
        write_scoring(folder, samples)
    return folder


def write_scoring(
    folder: Path,
    samples: Mapping[str, tuple[str, Mapping[str, Cell]]],
    *,
    fingerprint: str = EVALUATOR,
    completed: str | None = "2026-12-01T12:00:00+00:00",
    **fields: Any,
) -> Path:
    """Write one scoring of the answers that lie in `folder`."""
    verdicts = []
    missing = []
    for sample_id, (_, cells) in samples.items():
        for condition, cell in cells.items():
            request_id = f"{sample_id}/{condition}"
            verdict = _verdict(request_id, cell)
            if verdict is None:
                missing.append(request_id)
            else:
                verdicts.append(verdict)
    scoring = {
        "format": 1, "evaluator_fingerprint": fingerprint,
        "evaluator": {"rules": {"code": "1"}, "interpreter": "3.10.13"},
        "sandbox": {"level": "strong", "what": "bubblewrap"},
        "responses_sha256": records.sha256_file(folder / "responses.jsonl"),
        "dataset_sha256": DATASET_SHA256, "requests": len(verdicts) + len(missing),
        "incomplete": missing, "excluded": [], "completed": completed,
    } | fields  # fmt: skip
    target = folder / "scoring" / fingerprint[:12]
    target.mkdir(parents=True, exist_ok=True)
    (target / "scoring.json").write_bytes(records.encode_line(scoring))
    (target / "verdicts.jsonl").write_bytes(records.encode_lines(verdicts))
    return target


def _response(sample_id: str, task: str, condition: str, cell: Cell) -> dict[str, Any]:
    fields = dict(cell) if isinstance(cell, dict) else {"outcome": cell}
    rejected = fields["outcome"] == "rejected"
    text = fields.get("text", "" if rejected else "answer")
    tokens = fields.get("output_token_ids", [] if rejected else [1, 2, 3])
    return {
        "request_id": f"{sample_id}/{condition}", "sample_id": sample_id, "task": task,
        "condition": condition, "text": text, "output_token_ids": tokens,
        "finish_reason": "rejected" if rejected else fields.get("finish_reason", "stop"),
        "stop_reason": None, "error": fields.get("error", "too long" if rejected else None),
        "prompt_tokens": 10, "output_tokens": len(tokens), "prompt_sha256": "a" * 64,
    }  # fmt: skip


def _verdict(request_id: str, cell: Cell) -> dict[str, Any] | None:
    fields = dict(cell) if isinstance(cell, dict) else {"outcome": cell}
    outcome = fields["outcome"]
    if outcome == "unjudged":
        return None
    outcome = "no_answer" if outcome == "rejected" else outcome
    passed = outcome == "passed"
    return {
        "request_id": request_id, "passed": passed,
        "passed_upstream": fields.get("passed_upstream", passed), "outcome": outcome,
        "detail": fields.get("detail", ""), "extracted": fields.get("extracted", "x = 1"),
        "evaluator": {"name": "rule", "version": "1"}, "seconds": 0.25,
        "extra": fields.get("extra"),
    }  # fmt: skip
