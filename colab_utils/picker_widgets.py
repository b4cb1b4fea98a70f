"""The picker's widgets: what they show at one moment, as data, and which button was pressed.

Only what ipywidgets 7.7.1 (Colab's) and 8 have in common is used. Text from manifests and errors
is escaped: an HTML widget shows its value as HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from colab_utils.errors import WorkbenchError
from colab_utils.job_record import Job

BUTTONS: dict[str, tuple[str, str]] = {
    "smoke": ("Smoke", "15 requests: does this model run here? It is no score"),
    "full_run": ("Full run", "every request of this model; goes on where it ended"),
    "score": ("Score", "judge the answers by running them; needs no GPU"),
    "report": ("Report", "tables, figure and database of the scored run"),
    "stop": ("Stop", "end what is going on; what is finished is kept"),
}
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
    notices: tuple[str, ...] = ()


def refused(title: str, error: WorkbenchError) -> Message:
    """What is said when something could not even be started."""
    return Message("bad", title, _cause(error), error.mend)


def ended(job: Job) -> Message:
    """What is said of a job that is over."""
    title = f"{job.spec.title}: {job.outcome}"
    if job.error is None:
        return Message("good", title, job.text)
    tone: Tone = "plain" if job.outcome == "stopped" else "bad"
    return Message(tone, title, _cause(job.error), job.error.mend)


def figure(job: Job) -> bytes:
    """A report's picture as PNG, empty where there is none (any more)."""
    path = Path(job.figure)
    return path.read_bytes() if job.figure and path.exists() else b""


@dataclass(frozen=True)
class Handlers:
    """What the front calls: a button was pressed, another model or experiment was chosen."""

    button: Callable[[str], None]
    model: Callable[[str], None]
    experiment: Callable[[str], None]


class Front:
    """One box of widgets; `experiments` are pairs of label and value.

    Raises `ImportError` when ipywidgets is not installed.
    """

    def __init__(
        self,
        experiments: Sequence[tuple[str, str]],
        experiment: str,
        models: Sequence[str],
        model: str,
        handlers: Handlers,
    ) -> None:
        import ipywidgets as widgets

        wide = widgets.Layout(width="auto")
        style = {"description_width": "initial"}
        self._experiment = widgets.Dropdown(
            options=list(experiments), value=experiment, description="Experiment", style=style,
            layout=widgets.Layout(width="320px"),
        )  # fmt: skip
        self._model = widgets.Dropdown(
            options=list(models), value=model, description="Model", style=style,
            layout=widgets.Layout(width="340px"),
        )  # fmt: skip
        self._table = widgets.HTML(layout=wide)
        self._buttons = {
            name: widgets.Button(
                description=label, tooltip=tooltip, disabled=True,
                layout=widgets.Layout(width="110px"),
            )
            for name, (label, tooltip) in BUTTONS.items()
        }  # fmt: skip
        self._bar = widgets.IntProgress(
            value=0, min=0, max=1, layout=widgets.Layout(width="340px", display="none")
        )
        self._progress = widgets.HTML(layout=wide)
        self._message = widgets.HTML(layout=wide)
        self._figure = widgets.Image(
            format="png", layout=widgets.Layout(display="none", width="100%", max_width="900px")
        )
        self._box = widgets.VBox(
            [
                widgets.HBox([self._experiment, self._model], layout=_wrapping(widgets)),
                self._table,
                widgets.HBox(list(self._buttons.values()), layout=_wrapping(widgets)),
                self._bar,
                self._progress,
                self._message,
                self._figure,
            ]
        )
        self._quiet = False
        for name, button in self._buttons.items():
            button.on_click(lambda _, name=name: handlers.button(name))
        self._model.observe(self._chosen(handlers.model), names="value")
        self._experiment.observe(self._chosen(handlers.experiment), names="value")

    def display(self, text: str) -> None:
        """Show the box; a front end without widgets shows `text` in its place."""
        from IPython.display import display

        # Said by hand, since a widget's own bundle holds its repr as text.
        view = {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}
        bundle = {"text/plain": text, "application/vnd.jupyter.widget-view+json": view}
        display(bundle, raw=True)

    def offer(self, experiment: str, models: Sequence[str], model: str) -> None:
        """Show an experiment's models, and it as chosen, be it the one before.

        Called from handlers only, which the front end waits for.
        """
        self._quiet = True
        self._experiment.value = experiment
        self._model.options = list(models)
        self._model.value = model
        self._quiet = False

    def render(self, view: View) -> None:
        """Show `view`; what has not changed is not sent."""
        self._table.value = view.table
        for name, button in self._buttons.items():
            button.disabled = name not in view.enabled
            button.button_style = "primary" if name == view.next else ""
        self._buttons["stop"].button_style = "danger" if "stop" in view.enabled else ""
        # The bar's maximum first: a value above it would be cut.
        self._bar.max = max(view.total, 1)
        self._bar.value = view.done
        self._bar.layout.display = "" if view.total else "none"
        self._progress.value = _progress(view)
        self._message.value = view.message.html() if view.message else ""
        self._figure.value = view.figure
        self._figure.layout.display = "" if view.figure else "none"

    def close(self) -> None:
        """Take the widgets off the page."""
        self._box.close()

    def _chosen(self, handle: Callable[[str], None]) -> Callable[[dict[str, Any]], None]:
        """What observes a list: `handle`, but for what is set from here."""

        def observe(change: dict[str, Any]) -> None:
            if not self._quiet and change["new"] is not None:
                handle(change["new"])

        return observe


def _progress(view: View) -> str:
    lines = [f"<b>{escape(view.going)}</b> {escape(view.progress)}"] if view.going else []
    lines += [escape(line) for line in (view.hint, *view.notices) if line]
    return "".join(f'<div style="line-height:1.5">{line}</div>' for line in lines)


def _wrapping(widgets: Any) -> Any:
    return widgets.Layout(flex_flow="row wrap")


def _cause(error: WorkbenchError) -> str:
    return f"{error.where}: {error.problem}" if error.where else error.problem
