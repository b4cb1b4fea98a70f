"""The picker: choose a model, press a button, see how far it is. Text where there are no widgets.

How the buttons and a watching cell work together. A kernel runs one cell at a time, and what a
click sends is handled differently by its releases while a cell runs: ipykernel 6 (Colab's) lets it
wait until the cell has ended; 7.0 hands it to a subshell, another thread of the kernel; 7.4 handles
it on the kernel's event loop, where a cell that awaits lets it in. All must work, so:

- a button starts its verb as a process (`jobs`) and returns at once: no callback runs long, and
  neither a kernel restart nor a closed tab ends what it started;
- between cells a task on the kernel's own event loop reads the files once a second and updates the
  widgets, in the same thread as cells and most callbacks;
- `await watch()` keeps its cell running to the end (Colab may take an idle machine away), awaits
  between two looks, and updates the widgets; an interrupt stops the run. On ipykernel 7 it also
  waits for a first click, and Stop works meanwhile. On ipykernel 6 it disables the buttons while it
  runs and says that an interrupt stops; with nothing to watch it says what to do and returns.
  Pumping that kernel's queue from inside a cell would run other cells' requests inside this one,
  so that is not done;
- one lock is held whenever files are read into widgets, and what the front end writes (the two
  choices) is written only by callbacks, so that two threads never write one widget.

Whether anybody can click is told by the request that runs the cell: papermill and nbclient forbid
input, notebooks with a person allow it.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from dataclasses import replace
from typing import Any, get_args

from colab_utils import jobs
from colab_utils.errors import ParameterError, WorkbenchError
from colab_utils.front_end import handles_clicks_in_a_cell, somebody_can_click
from colab_utils.job_record import TITLES, Action, Job, JobProgress, JobSpec
from colab_utils.manifests import list_manifests
from colab_utils.model_table import html_table, text_table
from colab_utils.parameters import PickerParameters, checked
from colab_utils.picker_selection import Selection
from colab_utils.picker_widgets import (
    BUTTONS,
    Front,
    Handlers,
    Message,
    View,
    ended,
    figure,
    refused,
)
from colab_utils.progress import ProgressLine

ACTIONS: tuple[Action, ...] = get_args(Action)
_REFRESH_SECONDS = 1.0
_POLL_SECONDS = 0.5
_WAITING = (
    "Waiting for a button above. (If a click does nothing here, interrupt this cell, click, and "
    "run it again.)"
)
_NOTHING = (
    "Nothing is going on. Press a button above, then run this cell: it watches to the end and "
    "keeps the machine from being taken as idle."
)
_INTERRUPT = "A cell is watching: interrupt it to stop. Buttons work again when it has ended."
_shown: list[Picker] = []


def show(**values: Any) -> Picker:
    """Show the experiment's models, with buttons where somebody can press them, else as text.

    Takes the fields of `PickerParameters`. With `action` its first step is started at once and
    `Picker.watch` does the others. What is going on already is attached to. Raises
    `ParameterError`, `ManifestError`, and with `action` what the start raises.
    """
    parameters = checked(PickerParameters, values)
    for old in _shown:
        old.close()
    _shown.clear()
    picker = Picker(parameters)
    _shown.append(picker)
    picker.open()
    return picker


class Picker:
    """One shown picker; made by `show`."""

    def __init__(self, parameters: PickerParameters) -> None:
        self._parameters = parameters
        actions = _actions(parameters.action)
        self._selection = Selection(parameters)
        # Told now: what is shown later may be another model, which this is not for.
        self._queue = [self._selection.spec(action) for action in actions]
        self._lock = threading.RLock()
        self._children: list[subprocess.Popen[bytes]] = []
        self._complaint: WorkbenchError | None = None
        self._stopping: Job | None = None
        self._watching = False
        self._shown: Job | None = None
        self._front: Front | None = None
        self._refresher: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Show the table, and start the first action that was asked for."""
        selection = self._selection
        going = selection.going()
        if going is not None and selection.row_of(going):
            selection.model = going.spec.model
        if somebody_can_click():
            self._front = self._make_front()
        if self._front is None:
            print(self._text(going))
        else:
            self._front.display(self._text(going))
            self._refresher = asyncio.get_running_loop().create_task(self._refresh_forever())
        if self._queue and going is None:
            self._start(self._queue.pop(0))
        self.refresh()

    def close(self) -> None:
        """Take the widgets away and end the refreshing; what is going on goes on."""
        if self._refresher is not None:
            self._refresher.cancel()
        if self._front is not None:
            self._front.close()
            self._front = None

    def press(self, button: str) -> None:
        """What a button does; an error is shown in the picker."""
        with self._lock:
            self._complaint = None
            try:
                if button == "stop":
                    self._stop()
                else:
                    self._start(self._selection.spec(_actions(button)[0]))
            except WorkbenchError as error:
                self._complaint = error
            self.refresh()

    def refresh(self, progress: JobProgress | None = None) -> None:
        """Read where things stand and show it."""
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]
            try:
                view = self._look(progress)
            except WorkbenchError as error:
                # A file that cannot be read must not leave the picker standing still.
                view = self._plain_view(refused("A file here cannot be read", error))
            if self._front is not None:
                self._front.render(view)

    async def watch(self) -> None:
        """Await until what is going on has ended, and do what `action` still asks for.

        An interrupt stops the run. A failure is told in one sentence; without widgets it is
        raised, so that a batch ends with its exit code.
        """
        while True:
            job = self._selection.going()
            if job is None and self._queue:
                self._start(self._queue.pop(0))
                continue
            if job is None:
                job = await self._wait_for_a_click()
            if job is None:
                return
            over = await self._follow(job)
            self._tell(over)
            if over.outcome != "done" or not self._queue:
                return

    async def _wait_for_a_click(self) -> Job | None:
        if self._front is None or not handles_clicks_in_a_cell():
            print(_NOTHING if self._front else _no_buttons(self._parameters))
            return None
        print(_WAITING)
        try:
            while (job := self._selection.going()) is None:
                self.refresh()
                await asyncio.sleep(_POLL_SECONDS)
        except (KeyboardInterrupt, asyncio.CancelledError):
            print("Nothing was going on, so nothing was stopped.")
            return None
        return job

    async def _follow(self, job: Job) -> Job:
        line = ProgressLine()

        def show(progress: JobProgress) -> None:
            line.show(f"{job.spec.title}: {progress.text}", key=progress.done)
            self.refresh(progress)

        self._watching = True
        try:
            over = await jobs.follow(job, show)
        finally:
            self._watching = False
        line.end(f"{job.spec.title}: {over.outcome}")
        self.refresh()
        return over

    def _tell(self, job: Job) -> None:
        if job.error is None:
            print(job.text)
            return
        self._queue.clear()
        if self._front is None:
            raise job.error
        print(job.error)

    def _make_front(self) -> Front | None:
        selection = self._selection
        chosen = (selection.experiment, selection.experiment_file)
        experiments = [(name, name) for name in list_manifests("experiments")]
        if chosen not in experiments:
            experiments.insert(0, chosen)
        handlers = Handlers(self.press, self._choose_model, self._choose_experiment)
        try:
            return Front(experiments, chosen[1], selection.names, selection.model, handlers)
        except ImportError:
            print("ipywidgets is not installed here, so there are no buttons.")
            return None

    def _choose_model(self, name: str) -> None:
        with self._lock:
            self._selection.model, self._complaint = name, None
            self._selection.reload()
            self.refresh()

    def _choose_experiment(self, name: str) -> None:
        with self._lock:
            self._complaint = None
            try:
                self._selection.choose_experiment(name, in_cell=False)
            except WorkbenchError as error:
                self._complaint = error
            if self._front is not None:
                selection = self._selection
                self._front.offer(selection.experiment_file, selection.names, selection.model)
            self.refresh()

    def _start(self, spec: JobSpec) -> None:
        self._children.append(jobs.start(spec, self._selection.token_for(spec)))

    def _stop(self) -> None:
        going = self._selection.going()
        if going is None:
            return
        if _same(going, self._stopping):
            jobs.end_by_force(going)
            return
        self._stopping = going
        jobs.stop(going)

    def _look(self, progress: JobProgress | None) -> View:
        going = self._selection.going()
        if not _same(going, self._shown):
            if self._shown is not None:
                # How that ended is the news now.
                self._complaint = None
            self._shown, self._stopping = going, None
            self._selection.reload()
        message, picture = self._message(going)
        view = replace(self._plain_view(message), figure=picture)
        if going is None:
            row = self._selection.row
            return replace(view, enabled=frozenset(row.can), next=row.next)
        progress = progress or jobs.progress(going)
        text = progress.text
        if _same(going, self._stopping):
            text = f"stopping; press Stop again to end it by force ({text})"
        deaf = self._watching and not handles_clicks_in_a_cell()
        live = (self._selection.row_of(going), _state(going, progress))
        return replace(
            view,
            table=html_table(self._selection.rows, self._selection.model, live),
            enabled=frozenset() if deaf else frozenset({"stop"}),
            going=f"{going.spec.title}:",
            progress=text,
            done=progress.done,
            total=progress.total,
            hint=_INTERRUPT if deaf else "",
        )

    def _plain_view(self, message: Message | None) -> View:
        selection = self._selection
        return View(
            table=html_table(selection.rows, selection.model),
            enabled=frozenset(),
            message=message,
            notices=selection.notices,
        )

    def _message(self, going: Job | None) -> tuple[Message | None, bytes]:
        """How the chosen model's last job ended, and its figure."""
        selection = self._selection
        if self._complaint is not None:
            return refused(f"{selection.model}: this was not done", self._complaint), b""
        if going is not None and selection.row_of(going) == selection.model:
            return None, b""
        try:
            last = jobs.last(selection.runs, selection.experiment, selection.model)
        except WorkbenchError as error:
            return refused("How the last step ended cannot be read", error), b""
        return (None, b"") if last is None or last.alive else (ended(last), figure(last))

    def _text(self, going: Job | None) -> str:
        selection = self._selection
        lines = [f"Experiment {selection.experiment}", text_table(selection.rows)]
        lines += selection.notices
        if going is not None:
            lines.append(f"{going.spec.title}: {jobs.progress(going).text}")
        return "\n".join(lines)

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            self.refresh()


def _actions(text: str) -> list[Action]:
    found: list[Action] = []
    for word in text.replace(",", " ").split():
        named = [action for action in ACTIONS if action == word]
        if not named:
            raise ParameterError(
                f"{word!r} is no action", where="parameter action", mend=f"say {', '.join(ACTIONS)}"
            )
        found += named
    return found


def _no_buttons(parameters: PickerParameters) -> str:
    """What to do where no button can be pressed."""
    lines = ["There are no buttons here. Set the parameter ACTION to one or more of these:"]
    lines += [f"  {action:9} {BUTTONS[action][1]}" for action in ACTIONS]
    lines.append(
        f"or, in a shell: python -m colab_utils smoke --experiment {parameters.experiment} "
        f"--model {parameters.model}; then run, score, report (--help tells more)"
    )
    return "\n".join(lines)


def _state(job: Job, progress: JobProgress) -> str:
    """What stands in the table while a job is going on."""
    doing = f"{progress.done:,}/{progress.total:,}" if progress.total else "going on"
    return f"{TITLES[job.spec.action]} {doing}{' stalled' if progress.stalled else ''}"


def _same(one: Job | None, other: Job | None) -> bool:
    return (one and one.spec) == (other and other.spec)
