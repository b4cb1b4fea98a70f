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
from typing import Any, get_args

from colab_utils import colab, jobs
from colab_utils.errors import InputError, ParameterError, WorkbenchError
from colab_utils.front_end import handles_clicks_in_a_cell, somebody_can_click
from colab_utils.jobs import Action, Job, JobProgress, JobSpec
from colab_utils.manifests import (
    PROJECT,
    list_manifests,
    load_experiment_manifest,
    manifest_path,
)
from colab_utils.model_table import ModelRow, html_table, model_rows, text_table
from colab_utils.parameters import PickerParameters, checked
from colab_utils.picker_view import Message, View, ended, figure, refused
from colab_utils.picker_widgets import BUTTONS, Front, Handlers
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
        self._queue = _actions(parameters.action)
        self._runs = colab.local_folder(parameters.runs, parameter="runs")
        self._cache = colab.local_folder(parameters.cache, parameter="cache")
        self._notices: list[str] = []
        self._gpu = self._probe()
        self._token: str | None = None
        self._lock = threading.RLock()
        self._children: list[subprocess.Popen[bytes]] = []
        self._complaint: WorkbenchError | None = None
        self._stopping: int | None = None
        self._watching = False
        self._shown_job: Job | None = None
        self._front: Front | None = None
        self._refresher: asyncio.Task[None] | None = None
        self._set_experiment(parameters.experiment, parameters.model)

    def open(self) -> None:
        """Show the table, and start the first action that was asked for."""
        if self._parameters.mirror:
            colab.reach_folder(PROJECT / self._parameters.mirror)
        going = self._going()
        if going is not None and any(self._is(going, row) for row in self._rows):
            self._model = going.spec.model
        if somebody_can_click():
            self._front = self._make_front()
        if self._front is None:
            print(self._text())
        else:
            self._front.display(self._text())
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
                    self._start(_actions(button)[0])
            except WorkbenchError as error:
                self._complaint = error
            self.refresh()

    def refresh(self, progress: JobProgress | None = None) -> None:
        """Read where things stand and show it."""
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]
            going = self._going()
            if _identity(going) != _identity(self._shown_job):
                self._shown_job, self._stopping = going, None
                self._reload()
            if self._front is not None:
                self._front.render(self._view(going, progress))

    async def watch(self) -> None:
        """Await until what is going on has ended, and do what `action` still asks for.

        An interrupt stops the run. A failure is told in one sentence; without widgets it is
        raised, so that a batch ends with its exit code.
        """
        while True:
            job = self._going()
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
            while (job := self._going()) is None:
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
        experiments = [(name, name) for name in list_manifests("experiments")]
        if (self._experiment, self._experiment_file) not in experiments:
            experiments.insert(0, (self._experiment, self._experiment_file))
        handlers = Handlers(self.press, self._choose_model, self._choose_experiment)
        names = [row.name for row in self._rows]
        try:
            return Front(experiments, self._experiment_file, names, self._model, handlers)
        except ImportError:
            self._notices.append("ipywidgets is not installed here, so there are no buttons")
            return None

    def _choose_model(self, name: str) -> None:
        with self._lock:
            self._model, self._complaint = name, None
            self.refresh()

    def _choose_experiment(self, name: str) -> None:
        with self._lock:
            self._complaint = None
            try:
                self._set_experiment(name, None)
            except WorkbenchError as error:
                self._complaint = error
            if self._front is not None:
                self._front.offer([row.name for row in self._rows], self._model)
            self.refresh()

    def _set_experiment(self, name: str, model: str | None) -> None:
        path = manifest_path(name, "experiments")
        manifest = load_experiment_manifest(name)
        if model is not None and model not in manifest.models:
            raise ParameterError(
                f"{model} is not a model of experiment {manifest.name}",
                where="parameter model",
                mend=f"choose one of {', '.join(manifest.models)}",
            )
        # A job has another working folder, so a path is made absolute.
        self._experiment_file = (
            name if name in list_manifests("experiments") else str(path.resolve())
        )
        self._experiment = manifest.name
        self._model = model or manifest.models[0]
        self._reload()
        if self._token is None and any(row.hub for row in self._rows):
            # Asked for here, in a cell: a callback may have no front end to answer Colab.
            self._token, problem = colab.find_token()
            if self._token is not None:
                self._reload()
            elif problem and problem not in self._notices and any(r.gated for r in self._rows):
                self._notices.append(problem)

    def _reload(self) -> None:
        self._rows = model_rows(
            self._experiment_file,
            runs=self._runs,
            cache=self._cache,
            gpu=self._gpu,
            has_token=self._token is not None,
            require_smoke=self._parameters.require_smoke,
        )

    def _spec(self, action: Action, model: str | None = None) -> JobSpec:
        parameters = self._parameters
        return JobSpec(
            action=action,
            experiment=self._experiment,
            experiment_file=self._experiment_file,
            model=model or self._model,
            runs=self._runs,
            cache=self._cache,
            engine_python=parameters.engine_python,
            evaluator_python=parameters.evaluator_python,
            mirror=parameters.mirror,
            require_smoke=parameters.require_smoke,
            allow_weak_sandbox=parameters.allow_weak_sandbox,
            replay=parameters.replay,
        )

    def _start(self, action: Action) -> None:
        hub = action in ("smoke", "full_run") and self._row().hub
        token = self._token if hub else None
        self._children.append(jobs.start(self._spec(action), token))

    def _row(self) -> ModelRow:
        return next(row for row in self._rows if row.name == self._model)

    def _stop(self) -> None:
        job = self._going()
        if job is None:
            return
        if self._stopping is not None and self._stopping == job.pid:
            jobs.end_by_force(job)
            return
        self._stopping = job.pid
        jobs.stop(job)

    def _going(self) -> Job | None:
        job = jobs.current(self._runs)
        if job is not None:
            return job
        for row in self._rows:
            found = jobs.foreign_run(self._spec("smoke", row.name))
            if found is not None:
                return found
        return None

    def _view(self, going: Job | None, progress: JobProgress | None) -> View:
        row = self._row()
        message, picture = self._message(going)
        if going is None:
            return View(
                table=html_table(self._rows, self._model),
                enabled=frozenset(row.can),
                next=row.next,
                message=message,
                figure=picture,
                notices=tuple(self._notices),
            )
        progress = progress or jobs.progress(going)
        text = progress.text
        if self._stopping is not None and self._stopping == going.pid:
            text = f"stopping; press Stop again to end it by force ({text})"
        deaf = self._watching and not handles_clicks_in_a_cell()
        live = f"{going.spec.title.split(' of ')[0]}: going on"
        return View(
            table=html_table(self._rows, self._model, live if self._is(going, row) else ""),
            enabled=frozenset() if deaf else frozenset({"stop"}),
            going=f"{going.spec.title}:",
            progress=text,
            done=progress.done,
            total=progress.total,
            message=message,
            hint=_INTERRUPT if deaf else "",
            notices=tuple(self._notices),
        )

    def _is(self, job: Job, row: ModelRow) -> bool:
        return (job.spec.experiment, job.spec.model) == (self._experiment, row.name)

    def _message(self, going: Job | None) -> tuple[Message | None, bytes]:
        """How the chosen model's last job ended, and its figure."""
        if self._complaint is not None:
            return refused(f"{self._model}: this was not done", self._complaint), b""
        last = jobs.last(self._runs, self._experiment, self._model)
        if last is None or last.alive or (going is not None and going.spec.model == self._model):
            return None, b""
        return ended(last), figure(last)

    def _text(self) -> str:
        lines = [f"Experiment {self._experiment}", text_table(self._rows), *self._notices]
        going = self._going()
        if going is not None:
            lines.append(f"{going.spec.title}: {jobs.progress(going).text}")
        return "\n".join(lines)

    def _probe(self) -> dict[str, Any] | None:
        try:
            return colab.probe_gpu()
        except InputError as error:
            self._notices.append(str(error))
            return None

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


def _identity(job: Job | None) -> object:
    return None if job is None else (job.spec.id, job.spec.action, job.spec.model)
