"""One start of the engine, in the engine process: load, self-test, chunks, replay."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from colab_utils import checkpoints
from colab_utils import replay as replaying
from colab_utils.checkpoints import Checkpoint, ChunkRange
from colab_utils.engine import (
    Answer,
    AnsweringEngine,
    Engine,
    import_engine,
    set_engine_environment,
)
from colab_utils.engine_modes import Mode
from colab_utils.errors import EngineFailed, RunStopped
from colab_utils.feeding import ChunkWriter, answered_chunks, choose_window
from colab_utils.heartbeat import Heartbeat, now
from colab_utils.invariance import self_test
from colab_utils.prompts import Prompt, load_tokenizer, render_all, stop_token_ids
from colab_utils.responses import parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import RunSpec, begin_segment, prompts_digest
from colab_utils.samples import Dataset, Request
from colab_utils.transformers_engine import TransformersEngine, import_transformers
from colab_utils.weights import chat_template_text


class Progress:
    """Numbers of the moment, for the heartbeat."""

    def __init__(self, total: int, done: int) -> None:
        self.total = total
        self.done = done
        self.in_flight = 0
        self.output_tokens = 0
        self._done_before = done
        self._began = time.monotonic()
        self._stepped: float | None = None

    def begin(self) -> None:
        """Speed and time left count from here: loading is no answering."""
        self._began = time.monotonic()

    def step(self) -> None:
        """The engine finished a step."""
        self._stepped = time.monotonic()

    def describe(self) -> dict[str, Any]:
        elapsed = max(time.monotonic() - self._began, 1e-9)
        fresh = self.done - self._done_before
        left = (self.total - self.done) * elapsed / fresh if fresh else None
        step: dict[str, Any] = {}
        if self._stepped is not None:
            step["step_seconds"] = round(time.monotonic() - self._stepped, 1)
        return {
            **step,
            "done": self.done,
            "total": self.total,
            "in_flight": self.in_flight,
            "tokens_per_second": round(self.output_tokens / elapsed, 1),
            "seconds_left": None if left is None else round(left, 1),
        }


class Stop:
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


@dataclass(frozen=True)
class Work:
    """Chunks to be answered, positions of the requests to choose a replay from, whole chunks."""

    chunks: list[ChunkRange]
    replayed: list[int]
    finished: list[Path]


class Session:
    """One start of the engine: load, self-test, chunks, replay.

    Its seconds count from `began`, a moment of `time.monotonic`.
    """

    def __init__(
        self,
        spec: RunSpec,
        directory: RunDirectory,
        dataset: Dataset,
        requests: Sequence[Request],
        progress: Progress,
        stop: Stop,
        heartbeat: Heartbeat,
        mode: Mode,
        began: float,
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._dataset = dataset
        self._requests = requests
        self._progress = progress
        self._stop = stop
        self._heartbeat = heartbeat
        self._mode = mode
        self._seconds: dict[str, float] = {}
        self._since = began

    def run(
        self,
        work: Work,
        decoding: dict[str, Any],
        settings: dict[str, Any],
        gpu: dict[str, Any] | None,
        *,
        resumed: bool,
    ) -> Checkpoint:
        """Do the work; raises `NextMode` when answers depend on batching in this mode."""
        spec, invariant = self._spec, bool(settings["batch_invariant"])
        self._lap("check")
        set_engine_environment(
            settings["device"], spec.operating, self._mode,
            batch_invariant=invariant, compile_cache=spec.model_folder.parent / "compiled",
        )  # fmt: skip
        reference = spec.experiment.engine == "transformers"
        import_transformers() if reference else import_engine()
        self._lap("import")
        tokenizer = load_tokenizer(spec.model_folder, spec.model)
        self._lap("tokenizer")
        render = partial(
            render_all,
            model=spec.model,
            tokenizer=tokenizer,
            chat_template=chat_template_text(spec.model),
            max_tokens=spec.experiment.decoding.max_tokens,
        )
        prompts = render(self._requests)
        self._lap("prompts")
        self._heartbeat.enter("loading")
        with self._engine(tokenizer) as engine:
            self._lap("load")
            tests = list(spec.self_tests)
            window = 1
            if invariant:
                # A smoke's requests are too few to fill a batch.
                beside = prompts if spec.kind == "full" else render(self._dataset.requests())
                # A replay asks how many answers change, so it goes on where some do.
                committed = self._committed(work.finished) if work.chunks else {}
                tests.append(self._test(engine, beside, committed, resumed=resumed))
                window = spec.operating.window or choose_window(
                    engine, prompts, spec.operating.chunk_size
                )
            settings.update(engine.describe())
            facts = {
                "self_tests": tests, "window": window, "chunk_size": spec.operating.chunk_size,
                "max_num_seqs": spec.operating.max_num_seqs,
                "kv_room_tokens": engine.kv_room_tokens(), "seconds": self._seconds,
            }  # fmt: skip
            begin_segment(
                self._directory, spec, decoding, settings, len(self._requests), gpu, facts,
                prompts_digest(prompt.sha256 for prompt in prompts),
            )  # fmt: skip
            self._stop.deferred = True
            self._progress.begin()
            self._heartbeat.enter("running")
            self._answer(engine, work.chunks, prompts, window)
            ids = [request.request_id for request in self._requests]
            checkpoint = checkpoints.verify(self._directory.chunks, ids)
            if work.replayed:
                self._heartbeat.enter("replaying")
                self._replay(engine, [prompts[n] for n in work.replayed], checkpoint)
        return checkpoint

    def _engine(self, tokenizer: Any) -> Engine | TransformersEngine:
        spec = self._spec
        stops = stop_token_ids(spec.model, tokenizer)
        if spec.experiment.engine == "transformers":
            return TransformersEngine(
                spec.model_folder, spec.model, spec.experiment,
                tokenizer=tokenizer, stop_token_ids=stops,
            )  # fmt: skip
        return Engine(
            spec.model_folder, spec.model, spec.experiment.decoding, spec.operating,
            mode=self._mode, stop_token_ids=stops,
        )  # fmt: skip

    def _lap(self, name: str) -> None:
        moment = time.monotonic()
        self._seconds[name] = round(moment - self._since, 2)
        self._since = moment

    def _committed(self, chunks: Iterable[Path]) -> dict[str, list[int]]:
        """Token ids of the answers in chunks, by request; those of rejected prompts are none."""
        return {
            answer.request_id: answer.output_token_ids
            for path in chunks
            for answer in parse_responses(path.read_bytes(), where=str(path))
            if answer.finish_reason != "rejected"
        }

    def _test(
        self,
        engine: AnsweringEngine,
        prompts: Sequence[Prompt],
        committed: Mapping[str, list[int]],
        *,
        resumed: bool,
    ) -> dict[str, Any]:
        self._heartbeat.enter("testing")
        test = self_test(engine, prompts, mode=self._mode.name, committed=committed)
        print(test, flush=True)
        self._lap("self_test")
        if test.committed_differ:
            raise EngineFailed(
                f"{test.committed_differ} of {test.committed} committed answers that were asked "
                "again begin otherwise, so this run's answers would come from two kinds of sums",
                where=str(self._directory.path),
                mend="go on on a machine and with an engine like the first, or choose another run "
                "directory",
            )
        if test.holds:
            return test.record()
        if resumed:
            raise EngineFailed(
                f"answers depend on batching here ({test}), and this run's were made where they "
                "do not",
                where=str(self._directory.path),
                mend="go on on a machine like the first, or choose another run directory",
            )
        raise NextMode(test.record())

    def _answer(
        self,
        engine: AnsweringEngine,
        chunks: Sequence[ChunkRange],
        prompts: Sequence[Prompt],
        window: int,
    ) -> None:
        progress, host, pid = self._progress, socket.gethostname(), os.getpid()

        def on_step(answers: list[Answer]) -> None:
            self._stop.check()
            self._note_step()
            progress.done += len(answers)
            progress.output_tokens += sum(len(answer.token_ids) for answer in answers)
            progress.in_flight = engine.in_flight

        def who() -> dict[str, Any]:
            return {"at": now(), "pid": pid, "host": host}

        with ChunkWriter(self._directory, who) as writer:
            for feed in answered_chunks(
                engine, chunks, prompts, window=window, on_given=writer.given, on_step=on_step
            ):
                progress.done += len(feed.members) - len(feed.given)
                writer.commit(feed)
                self._heartbeat.beat()

    def _note_step(self) -> None:
        # A step of the reference engine is a whole batch, which may take any time.
        if self._spec.experiment.engine == "vllm":
            self._progress.step()

    def _on_replayed(self) -> None:
        self._stop.check()
        self._note_step()

    def _replay(
        self, engine: AnsweringEngine, candidates: Sequence[Prompt], checkpoint: Checkpoint
    ) -> None:
        count = len(candidates) if self._spec.replay_chunks else self._spec.replay
        number = len(list(self._directory.replays.glob("*.json")))
        prompts = replaying.choose(candidates, count, seed=f"{self._spec.model.name} {number}")
        wanted = {prompt.request.request_id for prompt in prompts}
        committed = {
            answer.request_id: answer
            for path in checkpoint.finished.values()
            for answer in parse_responses(path.read_bytes(), where=str(path))
            if answer.request_id in wanted
        }
        record = replaying.replay(engine, prompts, committed, lambda answers: self._on_replayed())
        replaying.write(self._directory, record)
        print(f"replay: {record['changed']} of {record['requests']} answers changed", flush=True)


class NextMode(Exception):
    """Answers depend on batching in the mode that was tried; `test` says how many did."""

    def __init__(self, test: dict[str, Any]) -> None:
        super().__init__(test)
        self.test = test
