"""What the picker shows at one moment, as plain data: no widgets here."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Literal

from colab_utils.errors import WorkbenchError
from colab_utils.jobs import Job

Tone = Literal["good", "bad", "plain"]
_TINT = {"good": "52,168,83", "bad": "234,67,53", "plain": "128,128,128"}


@dataclass(frozen=True)
class Message:
    """What is said below the buttons: how something ended, and what to do about it."""

    tone: Tone
    title: str
    text: str
    mend: str = ""

    def html(self) -> str:
        """The message as HTML, all text escaped."""
        mend = f"<div><b>What to do:</b> {escape(self.mend)}</div>" if self.mend else ""
        text = escape(self.text).replace("\n", "<br>")
        return (
            f'<div style="border-left:4px solid rgb({_TINT[self.tone]});padding:2px 0 2px 10px;'
            'margin:6px 0;line-height:1.5;overflow-wrap:anywhere">'
            f"<div><b>{escape(self.title)}</b></div><div>{text}</div>{mend}</div>"
        )


@dataclass(frozen=True)
class View:
    """All that is shown at one moment.

    `enabled` names the buttons that can be pressed, `next` the one that is recommended. `total` 0
    hides the bar. `figure` is a PNG, empty for none.
    """

    table: str
    enabled: frozenset[str]
    next: str = ""
    going: str = ""
    progress: str = ""
    done: int = 0
    total: int = 0
    message: Message | None = None
    figure: bytes = b""
    hint: str = ""
    notices: tuple[str, ...] = field(default=())


def refused(title: str, error: WorkbenchError) -> Message:
    """What is said when something could not even be started."""
    return Message("bad", title, _cause(error.where, error.problem), error.mend)


def ended(job: Job) -> Message:
    """What is said of a job that is over."""
    title = f"{job.spec.title}: {job.outcome}"
    if job.outcome == "done":
        return Message("good", title, job.text)
    tone: Tone = "plain" if job.outcome == "stopped" else "bad"
    return Message(tone, title, _cause(job.where, job.problem), job.mend)


def figure(job: Job) -> bytes:
    """A report's picture as PNG, empty where there is none (any more)."""
    path = Path(job.figure)
    return path.read_bytes() if job.figure and path.exists() else b""


def _cause(where: str, problem: str) -> str:
    return f"{where}: {problem}" if where else problem
