"""Set vLLM beside Hugging Face transformers: the same run loop, requests and manifests.

    .venv/bin/python benchmarks/engines.py                    # embedded model, on the CPU
    PYTHONPATH=.:benchmarks python benchmarks/engines.py --shape 0.6B --samples 52   # on a GPU

Prints for each engine the seconds from the first chunk given to the last committed and the answer
tokens a second, and how many answers agree: whole, and for their first tokens. The first line of
JSON names the machine and the versions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from colab_utils import launch, records
from colab_utils.colab import probe_gpu
from colab_utils.engine import Operating
from colab_utils.fetch import ensure_weights
from colab_utils.manifests import (
    MANIFESTS,
    PROJECT,
    load_experiment_manifest,
    load_model_manifest,
)
from colab_utils.responses import Response, parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import RunSpec

ENGINES = ("vllm", "transformers")


def embedded(folder: Path) -> RunSpec:
    """The embedded experiment's full run."""
    model = load_model_manifest("smollm2-135m-instruct")
    python = PROJECT / ".envs" / "engine" / "bin" / "python"
    weights = ensure_weights(
        model, cache=PROJECT / ".cache", engine_python=python, token=None, say=print
    )
    return RunSpec(
        kind="full", run_dir=folder, model_folder=weights, model=model,
        dataset_manifest=MANIFESTS / "datasets" / "embedded.yaml",
        experiment=load_experiment_manifest("embedded"),
        operating=Operating(max_num_batched_tokens=2048), require_smoke=False, warnings=(),
        replay=0,
    )  # fmt: skip


def made_up_study(folder: Path, shape: str, samples: int, max_tokens: int) -> RunSpec:
    """Random weights, whose answers nearly all reach `max_tokens`."""
    import made_up

    work = folder.parent
    made_up.write_model(work / shape, shape)
    dataset = made_up.write_dataset(work / f"data-{samples}", samples)
    spec = made_up.run_spec(folder, work / shape, dataset, shape, Operating())
    decoding = spec.experiment.decoding.model_copy(update={"max_tokens": max_tokens})
    experiment = spec.experiment.model_copy(update={"decoding": decoding})
    return spec.model_copy(update={"experiment": experiment})


def interpreter(folder: Path) -> Path:
    """This interpreter with this process's import path, which an engine's start takes away."""
    script = folder / "python"
    path = shlex.quote(os.environ.get("PYTHONPATH", ""))
    script.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    return script


def answered(spec: RunSpec, engine: str, python: Path) -> tuple[dict[str, Response], float]:
    """Run to the end with one engine; answers by request, and the seconds of answering."""
    experiment = spec.experiment.model_copy(update={"engine": engine})
    run_dir = spec.run_dir.with_name(f"{spec.run_dir.name}-{engine}")
    spec = spec.model_copy(update={"experiment": experiment, "run_dir": run_dir})
    directory = RunDirectory(run_dir)
    launch.watch(run_dir, launch.start(spec, python))
    lines = records.read_log(directory.timeline)
    moments = [datetime.fromisoformat(line["at"]) for line in lines]
    path = directory.responses
    found = {r.request_id: r for r in parse_responses(path.read_bytes(), where=str(path))}
    run = directory.read_run()
    assert run is not None
    print(json.dumps({"engine": engine, "settings": run["run"], "segment": run["segments"][0]}))
    return found, (max(moments) - min(moments)).total_seconds()


def agreement(one: dict[str, Response], other: dict[str, Response]) -> dict[str, Any]:
    """How many answers are the same, and where the others part: the median token."""
    pairs = [(one[name].output_token_ids, other[name].output_token_ids) for name in one]
    parts = sorted(
        next(
            (n for n, (a, b) in enumerate(zip(x, y, strict=False)) if a != b),
            len(min(x, y, key=len)),
        )
        for x, y in pairs
        if x != y
    )
    return {
        "requests": len(pairs),
        "same": len(pairs) - len(parts),
        "agreement": round(1 - len(parts) / len(pairs), 3),
        "first_difference_median_token": parts[len(parts) // 2] if parts else None,
    }


def main() -> None:
    """Answer with both engines and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=("tiny", "0.6B", "8B"))
    parser.add_argument("--samples", type=int, default=52)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="write the results there too")
    given = parser.parse_args()
    results: dict[str, Any] = {
        "machine": platform.platform(), "processor": platform.machine(), "gpu": probe_gpu(),
    }  # fmt: skip
    print(json.dumps(results))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        if given.shape:
            spec = made_up_study(folder, given.shape, given.samples, given.max_tokens)
            python = interpreter(Path(temporary))
        else:
            spec = embedded(folder)
            python = PROJECT / ".envs" / "engine" / "bin" / "python"
        found = {}
        for engine in ENGINES:
            found[engine], seconds = answered(spec, engine, python)
            tokens = sum(answer.output_tokens for answer in found[engine].values())
            results[engine] = {
                "seconds": round(seconds, 1), "answer_tokens": tokens,
                "tokens_per_second": round(tokens / seconds, 1),
            }  # fmt: skip
            print(f"{engine}: {json.dumps(results[engine])}", flush=True)
    rates = [results[engine]["tokens_per_second"] for engine in ENGINES]
    results["vllm / transformers"] = round(rates[0] / rates[1], 1)
    results["answers"] = agreement(found["vllm"], found["transformers"])
    print(json.dumps({key: results[key] for key in ("vllm / transformers", "answers")}))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
