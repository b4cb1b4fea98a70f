"""The live table of a batch: in place in a notebook or terminal, a line a change elsewhere."""

from __future__ import annotations

import html
import io
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from colab_utils.launch import status_text
from colab_utils.progress import notebook_display, seconds_text
from colab_utils.run_directory import RunStatus

COLUMNS = ("model", "phase", "done", "tokens/s", "left", "last sign of life")
_NOTEBOOK_SECONDS = 1.0
_WIDTH = 110


@dataclass(frozen=True)
class Row:
    """One model: its state in the batch, and its run's status while one is going on."""

    model: str
    state: str
    status: RunStatus | None = None

    @property
    def phase(self) -> str:
        """The batch's phase, and what the engine does in it."""
        return self.state if self.status is None else f"{self.state}: {self.status.phase}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Texts in the order of `COLUMNS`; empty where nothing is known."""
        if self.status is None:
            return (self.model, self.phase, "", "", "", "")
        beat, silent = self.status.beat, self.status.silent_seconds
        running = self.status.phase == "running"
        return (
            self.model,
            self.phase,
            f"{self.status.done}/{self.status.total}" if self.status.total else "",
            f"{beat.get('tokens_per_second', 0)}" if running else "",
            seconds_text(beat.get("seconds_left")) if running else "",
            "" if silent is None else f"{seconds_text(max(0.0, silent))} ago",
        )


class LiveTable:
    """Shows the rows' newest state; a context manager, since a terminal's table must be ended."""

    def __init__(self) -> None:
        self._display = notebook_display()
        self._live: Live | None = None
        if self._display is None and sys.stdout.isatty():
            self._live = Live(auto_refresh=False)
        self._seen: dict[str, str] = {}
        self._shown = 0.0

    def __enter__(self) -> LiveTable:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, rows: Sequence[Row]) -> None:
        """Show `rows`; in a plain log, those whose phase has changed, one line each."""
        fresh = [row for row in rows if self._seen.get(row.model) != row.phase]
        self._seen = {row.model: row.phase for row in rows}
        if self._display is not None:
            now = time.monotonic()
            if fresh or now - self._shown >= _NOTEBOOK_SECONDS:
                self._shown = now
                self._display.update({"text/plain": as_text(rows), "text/html": as_html(rows)},
                                     raw=True)  # fmt: skip
        elif self._live is not None:
            self._live.update(_table(rows), refresh=True)
        else:
            for row in fresh:
                print(_line(row), flush=True)


def as_text(rows: Sequence[Row]) -> str:
    """The table in characters."""
    console = Console(file=io.StringIO(), width=_WIDTH, force_jupyter=False, color_system=None)
    with console.capture() as captured:
        console.print(_table(rows))
    return captured.get()


def as_html(rows: Sequence[Row]) -> str:
    """The table for a notebook; names and texts are escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.cells) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _table(rows: Sequence[Row]) -> Table:
    table = Table()
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if number >= 2 else "left")
    for row in rows:
        # Text as it is: a bracket in a name is no markup.
        table.add_row(*(Text(cell) for cell in row.cells))
    return table


def _line(row: Row) -> str:
    if row.status is None:
        return f"{row.model}: {row.state}"
    return f"{row.model}: {row.state}: {status_text(row.status)}"
