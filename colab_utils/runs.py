"""The run loop, in the engine's own process: `python -m colab_utils.runs < spec.json`.

It joins samples, prompts, engine and checkpoints, holds the run directory's lock, and says
every `heartbeat_seconds` that it lives. It is started by `launch` and needs nothing of it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from typing import Any

from colab_utils import checkpoints, fingerprints
from colab_utils.checkpoints import Checkpoint
from colab_utils.colab import probe_gpu
from colab_utils.engine_modes import COMPILED, EAGER, MODES, Mode, mode_named
from colab_utils.errors import RunDirectoryError, RunStopped, WorkbenchError
from colab_utils.heartbeat import Heartbeat
from colab_utils.invariance import can_be_invariant
from colab_utils.lock import locked
from colab_utils.manifests import load_dataset_manifest
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import RunSpec, complete, engine_device, settings_before_loading
from colab_utils.samples import load_dataset
from colab_utils.session import NextMode, Progress, Session, Stop, Work
from colab_utils.weights import check_weights


def run(spec: RunSpec, heartbeat: Heartbeat, stop: Stop) -> str:
    """Run or resume until every request has a response; return the responses' SHA-256.

    Raises `FingerprintMismatch` when the directory holds answers of another setting,
    `ChunkConflict`, `WeightsError` or `DataError` before the model is loaded, `RunStopped` after
    SIGTERM, and `NextMode` when answers depend on batching in the mode that was tried.
    """
    began = time.monotonic()
    directory = RunDirectory(spec.run_dir)
    dataset = load_dataset(load_dataset_manifest(spec.dataset_manifest))
    requests = dataset.smoke_requests() if spec.kind == "smoke" else dataset.requests()
    request_ids = [request.request_id for request in requests]
    digests = check_weights(spec.model_folder, spec.model)
    decoding = fingerprints.decoding_settings(spec.model, spec.experiment, digests=digests)
    gpu = probe_gpu()
    earlier = directory.read_run()
    mode, invariant = _mode(spec, gpu, earlier)
    settings = settings_before_loading(
        spec, decoding, dataset.manifest.sha256, gpu, batch_invariant=invariant
    )
    if earlier is not None:
        where = str(directory.path)
        fingerprints.refuse_difference(earlier["decoding"], decoding, where=where)
        known = {key: earlier["run"].get(key) for key in settings}
        fingerprints.refuse_difference(known, settings, where=where)
    checkpoint = checkpoints.verify(directory.chunks, request_ids)
    if earlier is None and checkpoint.finished:
        raise RunDirectoryError(
            "holds chunks and no run.json, so nobody knows under which settings they were made",
            where=str(directory.path),
            mend="restore run.json, or choose another run directory",
        )
    for path, reason in checkpoint.torn.items():
        print(f"{path.name} is set aside and will be run again: {reason}", flush=True)
    checkpoints.set_aside(checkpoint)
    progress = Progress(len(requests), checkpoint.requests_done)
    work = _remaining(directory, checkpoint, spec, len(requests))
    if work.chunks or work.replayed:
        heartbeat.enter("importing", progress.describe)
        session = Session(
            spec, directory, dataset, requests, progress, stop, heartbeat, mode, began
        )
        checkpoint = session.run(work, decoding, settings, gpu, resumed=earlier is not None)
    return complete(directory, checkpoint)


def _remaining(directory: RunDirectory, checkpoint: Checkpoint, spec: RunSpec, total: int) -> Work:
    chunks = checkpoints.plan(total, spec.operating.chunk_size, list(checkpoint.finished))
    if not spec.replay_chunks:
        first = (
            spec.kind == "full" and spec.replay > 0 and not any(directory.replays.glob("*.json"))
        )
        found = list(checkpoint.finished.values())
        return Work(chunks, list(range(total)) if first else [], found)
    if chunks:
        raise RunDirectoryError(
            "is not complete, so there is nothing to replay yet",
            where=str(directory.path),
            mend="run it to its end first",
        )
    finished = sorted(checkpoint.finished)
    picked = finished[:: max(1, len(finished) // spec.replay_chunks)][: spec.replay_chunks]
    return Work([], [n for chunk in picked for n in range(chunk.first, chunk.last + 1)], [])


def _mode(
    spec: RunSpec, gpu: dict[str, Any] | None, earlier: dict[str, Any] | None
) -> tuple[Mode, bool]:
    """The mode to try now, and whether batch invariance is asked of it."""
    if engine_device() == "cpu" or spec.experiment.engine == "transformers":
        # Neither has batch-invariant kernels, and the CPU gains nothing from compilation.
        return EAGER, False
    if earlier is not None:
        return mode_named(earlier["run"]["mode"]), bool(earlier["run"]["batch_invariant"])
    if not can_be_invariant(gpu) or len(spec.self_tests) >= len(MODES):
        return COMPILED, False
    return MODES[len(spec.self_tests)], True


def _start_again(spec: RunSpec, test: dict[str, Any]) -> None:
    """Replace this process by a fresh one that tries the next mode: vLLM gives no memory back."""
    tests = (*spec.self_tests, test)
    warnings = spec.warnings
    if len(tests) == len(MODES):
        warnings = (
            *warnings,
            "answers depend on batching in every mode of this engine and device: chunks run one "
            "after another, and differences between conditions carry the replay's flip rate",
        )
    again = spec.model_copy(update={"self_tests": tests, "warnings": warnings})
    with tempfile.TemporaryFile() as file:
        file.write(again.model_dump_json().encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
    sys.stdout.flush()
    # What the driver holds open would keep the GPU's memory.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.execv(sys.executable, [sys.executable, "-m", "colab_utils.runs"])


def run_process(spec: RunSpec) -> int:
    """All that the engine process does; the exit code is the error's, 0 when complete."""
    directory = RunDirectory(spec.run_dir)
    stop = Stop()
    try:
        with (
            locked(directory),
            Heartbeat(directory.heartbeat, spec.operating.heartbeat_seconds) as heartbeat,
        ):
            try:
                digest = run(spec, heartbeat, stop)
            except RunStopped:
                heartbeat.enter("stopped")
                raise
            except WorkbenchError as error:
                heartbeat.enter("failed", error=str(error), exit_code=error.exit_code)
                raise
            except NextMode:
                heartbeat.enter("starting")
                raise
            except BaseException as error:
                heartbeat.enter("failed", cause=f"{type(error).__name__}: {error}"[:2000])
                raise
            heartbeat.enter("done")
            print(f"complete: responses.jsonl {digest}", flush=True)
    except NextMode as following:
        _start_again(spec, following.test)
    except WorkbenchError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_process(RunSpec.model_validate_json(sys.stdin.buffer.read())))
