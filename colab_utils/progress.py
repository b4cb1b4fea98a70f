"""One line that says where a long step stands: in place in a notebook or terminal, else sparse."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from colab_utils.front_end import running_kernel

# Set for kernels whose output is followed in a terminal, where a replaced line is not seen.
PLAIN = "COLAB_UTILS_PLAIN_PROGRESS"

_SPARSE_SECONDS = 10.0


class ProgressLine:
    """Shows the newest state of one step.

    In an IPython kernel and on a terminal the line is replaced; elsewhere (a log file) a new
    line is printed when `key` changes, and otherwise every ten seconds at most.
    """

    def __init__(self) -> None:
        self._display: Any = notebook_display()
        self._tty = sys.stdout.isatty()
        self._key: object = None
        self._shown = 0.0
        self._last = ""

    def show(self, text: str, key: object = None, more: str = "") -> None:
        """Show `text`; `key` names its phase, `more` stands below it in a notebook."""
        now = time.monotonic()
        fresh = key != self._key
        if text == self._last or (not fresh and not self._tty and now - self._shown < self._pause):
            return
        self._key, self._shown, self._last = key, now, text
        if self._display is not None:
            whole = f"{text}\n{more}" if more else text
            self._display.update({"text/plain": whole}, raw=True)
        elif self._tty:
            print(f"\r\x1b[2K{text}", end="", flush=True)
        else:
            print(text, flush=True)

    def end(self, text: str) -> None:
        """Show the last state and leave it standing."""
        self.show(text, key=object())
        if self._tty and self._display is None:
            print(flush=True)

    @property
    def _pause(self) -> float:
        return 1.0 if self._display is not None else _SPARSE_SECONDS


def seconds_text(seconds: float | None) -> str:
    """`75.2` as `1 min 15 s`; an unknown time as `unknown`."""
    if seconds is None:
        return "unknown"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def notebook_display() -> Any:
    """An output area of this IPython kernel that is updated in place; None outside of one."""
    if running_kernel() is None or os.environ.get(PLAIN):
        return None
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)
