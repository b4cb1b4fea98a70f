"""How a result leaves the program's process: behind a random token, its length before it.

Only what follows the token counts, so that writing to every descriptor forges nothing. The
token is made after the fork and is no variable of any frame while the program runs. A program
that searches its own memory could still find it: tests must run in the answer's process.
"""

import collections
import functools
import gc
import json
import os
import secrets
import select
import time
from collections.abc import Callable, Iterable, Iterator

MAX_RESULT_BYTES = 4 << 20
TOKEN_BYTES = 32
LENGTH_DIGITS = 10


def _refuse(value: object) -> object:
    raise TypeError


# json's encoder in C, with what json.dumps gives it: it looks nothing up when it is called.
_ENCODE = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, _refuse, json.encoder.encode_basestring_ascii, None, ": ", ", ", False, False, True
)


def new_token() -> bytes:
    """A token that can't be guessed."""
    return secrets.token_bytes(TOKEN_BYTES)


def run_and_send(channel: int, token_channel: int, run: Callable[[dict], dict], job: dict) -> None:
    """Run the job and write its result; nothing on the stack of `run` names the token."""
    collections.deque(_frozen(map(_sender(channel, token_channel), map(run, [job]))), maxlen=0)


def _sender(channel: int, token_channel: int) -> Callable[[dict], None]:
    token = os.read(token_channel, TOKEN_BYTES)
    os.close(token_channel)
    # Taken now: a program may replace what these modules hold.
    return functools.partial(_send, channel, token, os.write, _ENCODE)


def _frozen(results: Iterator[None]) -> Iterator[None]:
    # What is frozen is not among the objects that the garbage collector lists.
    gc.freeze()
    return results


def _send(
    channel: int,
    token: bytes,
    write: Callable[[int, bytes], int],
    encode: Callable[[dict, int], Iterable[str]],
    result: dict,
) -> None:
    body = "".join(encode(result, 0)).encode("ascii")
    data = token + str(len(body)).zfill(LENGTH_DIGITS).encode("ascii") + body
    try:
        while data:
            data = data[write(channel, data) :]
    except OSError:
        return


def collect(channel: int, token: bytes, seconds: float, check: Callable[[], bool]) -> dict:
    """What the program's process sent before it ended or its time was over.

    The length stands before the result: processes that the program left may hold the pipe open.
    `check` is asked now and then; when it says no, the program is stopped (`died: disk`).
    """
    deadline = time.monotonic() + seconds
    try:
        head = _receive(channel, TOKEN_BYTES + LENGTH_DIGITS, deadline, check)
        if not head:
            return {"died": "exit"}
        if not head.startswith(token) or not head[TOKEN_BYTES:].isdigit():
            return {"died": "forged"}
        size = int(head[TOKEN_BYTES:])
        body = _receive(channel, size, deadline, check) if size <= MAX_RESULT_BYTES else b""
    except TimeoutError:
        return {"died": "timeout"}
    except OverflowError:
        return {"died": "disk"}
    if len(body) < size:
        return {"died": "exit", "detail": "its result was too long or cut"}
    result = json.loads(body)
    return result if isinstance(result, dict) else {"died": "exit"}


def _receive(channel: int, size: int, deadline: float, check: Callable[[], bool]) -> bytes:
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not select.select([channel], [], [], min(left, 0.5))[0]:
            if not check():
                raise OverflowError
            continue
        block = os.read(channel, min(size - len(data), 1 << 16))
        if not block:
            break
        data += block
    return data
