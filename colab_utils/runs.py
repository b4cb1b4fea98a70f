"""The run loop, in the engine's own process: `python -m colab_utils.runs < spec.json`.

It joins samples, prompts, engine and checkpoints, holds the run directory's lock, and says
every `heartbeat_seconds` that it lives. It is started by `launch` and needs nothing of it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

from colab_utils import checkpoints, fingerprints, records
from colab_utils.checkpoints import ChunkRange
from colab_utils.colab import probe_gpu
from colab_utils.engine import (
    Answer,
    Engine,
    import_engine,
    set_engine_environment,
)
from colab_utils.errors import EngineFailed, RunDirectoryError, RunStopped, WorkbenchError
from colab_utils.heartbeat import Heartbeat, now
from colab_utils.lock import locked
from colab_utils.manifests import (
    load_dataset_manifest,
)
from colab_utils.prompts import Prompt, load_tokenizer, render_all, stop_token_ids
from colab_utils.responses import Response
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import RunSpec, begin_segment, complete, settings_before_loading
from colab_utils.samples import load_dataset
from colab_utils.weights import chat_template_text, check_weights


class _Progress:
    """Numbers of the moment, for the heartbeat."""

    def __init__(self, total: int, done: int) -> None:
        self.total = total
        self.done = done
        self.in_flight = 0
        self.output_tokens = 0
        self._done_before = done
        self._began = time.monotonic()

    def begin(self) -> None:
        """Speed and time left count from here: loading is no answering."""
        self._began = time.monotonic()

    def describe(self) -> dict[str, Any]:
        elapsed = max(time.monotonic() - self._began, 1e-9)
        fresh = self.done - self._done_before
        left = (self.total - self.done) * elapsed / fresh if fresh else None
        return {
            "done": self.done,
            "total": self.total,
            "in_flight": self.in_flight,
            "tokens_per_second": round(self.output_tokens / elapsed, 1),
            "seconds_left": None if left is None else round(left, 1),
        }


class _Stop:
    """SIGTERM ends the run between two engine steps, or at once before the loop begins."""

    def __init__(self) -> None:
        self.asked = False
        self.deferred = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if not self.deferred:
            self.check()

    def check(self) -> None:
        if self.asked:
            raise RunStopped("the run was stopped; finished chunks are committed")


def run(spec: RunSpec, heartbeat: Heartbeat, stop: _Stop) -> str:
    """Run or resume until every request has a response; return the responses' SHA-256.

    Raises `FingerprintMismatch` when the directory holds answers of another setting,
    `ChunkConflict`, `WeightsError` or `DataError` before the model is loaded, and
    `RunStopped` after SIGTERM.
    """
    directory = RunDirectory(spec.run_dir)
    dataset = load_dataset(load_dataset_manifest(spec.dataset_manifest))
    requests = dataset.smoke_requests() if spec.kind == "smoke" else dataset.requests()
    request_ids = [request.request_id for request in requests]
    digests = check_weights(spec.model_folder, spec.model)
    decoding = fingerprints.decoding_settings(
        spec.model, spec.experiment.decoding, engine=spec.experiment.engine, digests=digests
    )
    gpu = probe_gpu()
    settings = settings_before_loading(spec, decoding, dataset.manifest.sha256, gpu)
    earlier = directory.read_run()
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
    progress = _Progress(len(requests), checkpoint.requests_done)
    heartbeat.enter("importing", progress.describe)
    chunks = checkpoints.plan(len(requests), spec.operating.chunk_size, list(checkpoint.finished))
    if chunks:
        set_engine_environment(settings["device"], spec.operating)
        import_engine()
        tokenizer = load_tokenizer(spec.model_folder, spec.model)
        prompts = render_all(
            requests,
            spec.model,
            tokenizer,
            chat_template=chat_template_text(spec.model),
            max_tokens=spec.experiment.decoding.max_tokens,
        )
        heartbeat.enter("loading")
        with Engine(
            spec.model_folder,
            spec.model,
            spec.experiment.decoding,
            spec.operating,
            device=settings["device"],
            stop_token_ids=stop_token_ids(spec.model, tokenizer),
        ) as engine:
            settings.update(engine.describe())
            begin_segment(directory, spec, decoding, settings, len(requests), gpu)
            progress.begin()
            heartbeat.enter("running")
            stop.deferred = True
            for chunk in chunks:
                _run_chunk(directory, chunk, prompts, engine, progress, stop, spec)
                heartbeat.beat()
        checkpoint = checkpoints.verify(directory.chunks, request_ids)
    return complete(directory, checkpoint)


def _run_chunk(
    directory: RunDirectory,
    chunk: ChunkRange,
    prompts: Sequence[Prompt],
    engine: Engine,
    progress: _Progress,
    stop: _Stop,
    spec: RunSpec,
) -> None:
    started = time.monotonic()
    members = prompts[chunk.first : chunk.last + 1]
    given = [prompt for prompt in members if prompt.rejected is None]
    records.append_line(
        directory.timeline,
        {
            "event": "given",
            "at": now(),
            "chunk": str(chunk),
            "requests": [prompt.request.request_id for prompt in given],
            "pid": os.getpid(),
        },
    )
    for prompt in given:
        engine.add(prompt.request.request_id, prompt.token_ids)
    answers: dict[str, Answer] = {}
    progress.done += len(members) - len(given)
    while engine.in_flight:
        stop.check()
        for answer in engine.step():
            answers[answer.request_id] = answer
            progress.done += 1
            progress.output_tokens += len(answer.token_ids)
        progress.in_flight = engine.in_flight
    responses = [_response(p, answers.get(p.request.request_id)) for p in members]
    path = checkpoints.commit(directory.chunks, chunk, responses)
    # A chunk must not depend on what an earlier one left in the cache: a resume starts empty.
    engine.reset_prefix_cache()
    records.append_line(
        directory.timeline,
        {
            "event": "committed",
            "at": now(),
            "chunk": str(chunk),
            "file": path.name,
            "seconds": round(time.monotonic() - started, 3),
            "prompt_tokens": sum(len(prompt.token_ids) for prompt in given),
            "cached_tokens": sum(answer.cached_tokens for answer in answers.values()),
            "output_tokens": sum(len(answer.token_ids) for answer in answers.values()),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        },
    )


def _response(prompt: Prompt, answer: Answer | None) -> Response:
    request = prompt.request
    known: dict[str, Any] = {
        "request_id": request.request_id,
        "sample_id": request.sample.sample_id,
        "task": request.sample.task,
        "condition": request.condition,
        "prompt_tokens": len(prompt.token_ids),
        "prompt_sha256": prompt.sha256,
    }
    if prompt.rejected is not None:
        return Response(
            **known,
            text="",
            output_token_ids=[],
            finish_reason="rejected",
            stop_reason=None,
            error=prompt.rejected,
            output_tokens=0,
        )
    if answer is None or answer.finish_reason not in ("stop", "length"):
        reason = answer.finish_reason if answer else "nothing"
        raise EngineFailed(
            f"the engine returned {reason} for request {request.request_id}",
            mend="see engine.log; start again to go on from the last committed chunk",
        )
    return Response(
        **known,
        text=answer.text,
        output_token_ids=answer.token_ids,
        finish_reason="stop" if answer.finish_reason == "stop" else "length",
        stop_reason=answer.stop_reason,
        error=None,
        output_tokens=len(answer.token_ids),
    )


def main() -> int:
    """Entry of the engine process: the exit code is the error's, 0 when complete."""
    spec = RunSpec.model_validate_json(sys.stdin.buffer.read())
    directory = RunDirectory(spec.run_dir)
    stop = _Stop()
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
            except BaseException as error:
                heartbeat.enter("failed", cause=f"{type(error).__name__}: {error}"[:2000])
                raise
            heartbeat.enter("done")
            print(f"complete: responses.jsonl {digest}", flush=True)
    except WorkbenchError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
