"""Keep one engine fed with chunks, and hand on each chunk when its last answer has come.

With a window of 1 chunks run one after another, each from an empty prefix cache, so that a
resumed run repeats an undisturbed one on any backend. With a larger window the engine holds so many
chunks' worth of requests at any time: only for engines whose answers do not depend on batching.
Requests are counted, not chunks: most of an open chunk is soon answered, and a window of open
chunks would leave the engine half empty while it waits for the longest answer of each.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

from colab_utils import checkpoints, records
from colab_utils.checkpoints import ChunkRange
from colab_utils.engine import Answer, AnsweringEngine
from colab_utils.errors import EngineFailed
from colab_utils.prompts import Prompt
from colab_utils.responses import Response
from colab_utils.run_directory import RunDirectory

# Chunks open at once, in windows. The longest answer of a chunk takes some 2.7 times a mean one, so
# fewer than that would keep requests back; a kill costs the answers of two more windows.
OPEN = 3


@dataclass
class Feed:
    """One chunk on its way: what was given to the engine and what has come back."""

    chunk: ChunkRange
    members: Sequence[Prompt]
    started: float
    answers: dict[str, Answer] = field(default_factory=dict)

    @cached_property
    def given(self) -> list[Prompt]:
        """Prompts that the engine gets; rejected ones never reach it."""
        return [prompt for prompt in self.members if prompt.rejected is None]

    def responses(self) -> list[Response]:
        """One response a member, in request order; raises `EngineFailed` if an answer is odd."""
        return [response(p, self.answers.get(p.request.request_id)) for p in self.members]


def choose_window(engine: AnsweringEngine, prompts: Sequence[Prompt], chunk_size: int) -> int:
    """Chunks' worth of requests that keep an engine full: what runs at once, and one to follow.

    Too few starve the engine; more that wait weaken the sharing of prefixes.
    """
    at_once = engine.sequences_at_once(prompts, answer_tokens=0)
    return math.ceil(at_once / chunk_size) + 1


def answered_chunks(
    engine: AnsweringEngine,
    chunks: Sequence[ChunkRange],
    prompts: Sequence[Prompt],
    *,
    window: int,
    on_given: Callable[[Feed], None],
    on_step: Callable[[list[Answer]], None],
) -> Iterator[Feed]:
    """Yield each chunk when its last answer has come.

    The engine gets the next chunk when the requests with it and that chunk's are at most
    `window` chunks' worth, and at most `OPEN` windows of chunks are open.
    `on_given` hears of a chunk before the engine does; `on_step` gets the answers of each step
    and may raise to end the run between two steps.
    """
    waiting = deque(chunks)
    owner: dict[str, Feed] = {}
    in_flight = 0
    most_requests = window * max((len(chunk) for chunk in chunks), default=0)
    most_chunks = 1 if window == 1 else OPEN * window
    while waiting or in_flight:
        while waiting and in_flight < most_chunks and len(owner) + len(waiting[0]) <= most_requests:
            chunk = waiting.popleft()
            feed = Feed(chunk, prompts[chunk.first : chunk.last + 1], time.monotonic())
            on_given(feed)
            if not feed.given:
                yield feed
                continue
            in_flight += 1
            for prompt in feed.given:
                owner[prompt.request.request_id] = feed
                engine.add(prompt.request.request_id, prompt.token_ids)
        if not in_flight:
            break
        answers = engine.step()
        on_step(answers)
        for answer in answers:
            feed = owner.pop(answer.request_id)
            feed.answers[answer.request_id] = answer
            if len(feed.answers) == len(feed.given):
                in_flight -= 1
                if window == 1:
                    # A chunk must not depend on what an earlier one left in the cache.
                    engine.reset_prefix_cache()
                yield feed


class ChunkWriter:
    """Commits chunks and keeps the timeline on a thread of its own, in the order given.

    A context manager. Disk work never holds up the engine; leaving waits until all of it is
    done, and an error of the disk ends the run at the next call.
    """

    def __init__(self, directory: RunDirectory, common: Callable[[], dict[str, Any]]) -> None:
        self._directory = directory
        self._common = common
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="chunks")
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> ChunkWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True)
        # Also after a stop, which says that what was finished is committed.
        self._check()

    def given(self, feed: Feed) -> None:
        """Record what the engine is about to get."""
        ids = [prompt.request.request_id for prompt in feed.given]
        self._submit(lambda: self._note("given", feed.chunk, {"requests": ids}))

    def commit(self, feed: Feed) -> None:
        """Make a finished chunk durable, then record it."""
        seconds = round(time.monotonic() - feed.started, 3)
        self._submit(lambda: self._commit(feed, seconds))

    def _commit(self, feed: Feed, seconds: float) -> None:
        path = checkpoints.commit(self._directory.chunks, feed.chunk, feed.responses())
        answers = feed.answers.values()
        numbers = {
            "file": path.name,
            "seconds": seconds,
            "prompt_tokens": sum(len(prompt.token_ids) for prompt in feed.given),
            "cached_tokens": sum(answer.cached_tokens for answer in answers),
            "output_tokens": sum(len(answer.token_ids) for answer in answers),
            "by_task": _by_task(feed),
        }
        self._note("committed", feed.chunk, numbers)

    def _note(self, event: str, chunk: ChunkRange, more: dict[str, Any]) -> None:
        line = {"event": event, "chunk": str(chunk), **more, **self._common()}
        records.append_line(self._directory.timeline, line)

    def _submit(self, work: Callable[[], None]) -> None:
        self._check()
        self._pending.append(self._pool.submit(work))

    def _check(self) -> None:
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()


def response(prompt: Prompt, answer: Answer | None) -> Response:
    """The response line of one request; raises `EngineFailed` when there is no sound answer."""
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
            **known, text="", output_token_ids=[], finish_reason="rejected", stop_reason=None,
            error=prompt.rejected, output_tokens=0,
        )  # fmt: skip
    if answer is None or answer.finish_reason not in ("stop", "length"):
        reason = answer.finish_reason if answer else "nothing"
        raise EngineFailed(
            f"the engine returned {reason} for request {request.request_id}",
            mend="see engine.log; start again to go on from the last committed chunk",
        )
    return Response(
        **known, text=answer.text, output_token_ids=answer.token_ids,
        finish_reason="stop" if answer.finish_reason == "stop" else "length",
        stop_reason=answer.stop_reason, error=None, output_tokens=len(answer.token_ids),
    )  # fmt: skip


def _by_task(feed: Feed) -> dict[str, list[int]]:
    """By task: prompt tokens submitted, and of them those that the prefix cache had."""
    found: dict[str, list[int]] = {}
    for prompt in feed.given:
        pair = found.setdefault(prompt.request.sample.task, [0, 0])
        pair[0] += len(prompt.token_ids)
        pair[1] += feed.answers[prompt.request.request_id].cached_tokens
    return found
