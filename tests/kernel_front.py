"""A front end without a browser: a real kernel, its cells, its widgets' states, and clicks."""

from __future__ import annotations

import json
import os
import queue
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from colab_utils.manifests import PROJECT

# A limit for what hangs; nothing is asserted on how long a step takes.
_HANGS_SECONDS = 60


class KernelFront:
    """What a notebook's page does: sends cells and clicks, keeps outputs and widgets' states."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager = manager
        self._client = client
        self.widgets: dict[str, dict[str, Any]] = {}
        self.text = ""
        self.hangs_seconds = _HANGS_SECONDS

    def run(self, *cells: str, person: bool = True) -> str:
        """Run cells to their end and return what they said; `person` allows input, as pages do."""
        self.text = ""
        for cell in cells:
            sent = self._client.execute(cell, allow_stdin=person)
            self.until(lambda message, sent=sent: _ended(message, sent))
        return self.text

    def send(self, cell: str) -> None:
        """Send a cell and return at once."""
        self._client.execute(cell, allow_stdin=True)

    def until(self, seen: Callable[[dict[str, Any]], Any]) -> None:
        """Take in what the kernel sends until `seen` is true of a message."""
        deadline = time.monotonic() + self.hangs_seconds
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            self._take(message)
            if seen(message):
                return
        raise TimeoutError(f"not seen; widgets: {self.page()}; outputs: {self.text}")

    def see(self, text: str) -> None:
        """Wait until some widget or output shows `text`."""
        self.wait(lambda: text in self.page() + self.text)

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until the page is as `holds` asks for."""
        if not holds():
            self.until(lambda _: holds())

    def can_press(self) -> set[str]:
        """Labels of the buttons that are enabled."""
        buttons = (s for s in self.widgets.values() if s.get("_model_name") == "ButtonModel")
        return {state["description"] for state in buttons if not state["disabled"]}

    def page(self) -> str:
        """What all HTML widgets show."""
        return "\n".join(
            str(state.get("value"))
            for state in self.widgets.values()
            if state.get("_model_name") == "HTMLModel"
        )

    def button(self, label: str) -> dict[str, Any]:
        """The state of a button."""
        return self.widgets[self._find("ButtonModel", label)]

    def press(self, label: str) -> None:
        """Press a button; the kernel's answer comes in with what is seen next."""
        self._tell(self._find("ButtonModel", label), method="custom", content={"event": "click"})

    def choose(self, label: str, option: str) -> None:
        """Choose from a list."""
        model = self._find("DropdownModel", label)
        number = self.widgets[model]["_options_labels"].index(option)
        # A page shows at once what was chosen, until the kernel says otherwise.
        self.widgets[model]["index"] = number
        self._tell(model, method="update", state={"index": number}, buffer_paths=[])

    def chosen(self, label: str) -> str:
        """What a list has chosen."""
        state = self.widgets[self._find("DropdownModel", label)]
        return str(state["_options_labels"][state["index"]])

    def interrupt(self) -> None:
        """Interrupt the kernel."""
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """Kill the kernel and start it again; the page forgets its widgets."""
        self._manager.restart_kernel(now=True)
        self._client.wait_for_ready(timeout=_HANGS_SECONDS)
        self.widgets.clear()

    def _find(self, kind: str, label: str) -> str:
        return next(
            name
            for name, state in self.widgets.items()
            if state.get("_model_name") == kind and state.get("description") == label
        )

    def _tell(self, model: str, **data: Any) -> None:
        message = self._client.session.msg("comm_msg", {"comm_id": model, "data": data})
        self._client.shell_channel.send(message)

    def _take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "comm_open":
            self.widgets[content["comm_id"]] = dict(content["data"]["state"])
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            self._update(content, message["buffers"])
        elif kind == "comm_close":
            self.widgets.pop(content["comm_id"], None)
        elif kind == "stream":
            self.text += content["text"]
        elif kind in ("display_data", "execute_result", "update_display_data"):
            self.text += str(content["data"].get("text/plain", "")) + "\n"
        elif kind == "error":
            trace = "\n".join(content["traceback"])
            self.text += re.sub(r"\x1b\[[0-9;]*m", "", trace) + "\n"

    def _update(self, content: dict[str, Any], buffers: list[memoryview]) -> None:
        state = content["data"]["state"]
        for path, data in zip(content["data"].get("buffer_paths", []), buffers, strict=True):
            state[path[-1]] = bytes(data)
        self.widgets.setdefault(content["comm_id"], {}).update(state)


def _ended(message: dict[str, Any], sent: str) -> bool:
    return bool(
        message["parent_header"].get("msg_id") == sent
        and message["msg_type"] == "status"
        and message["content"]["execution_state"] == "idle"
    )


@contextmanager
def kernel_front(
    python: str | Path, folder: Path, *, more: dict[str, str] | None = None
) -> Iterator[KernelFront]:
    """A kernel of the interpreter `python` in `folder`, ended on leaving; `more` environment."""
    spec = folder / "kernels" / "tested"
    spec.mkdir(parents=True, exist_ok=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "tested", "language": "python"})
    )
    manager = KernelManager(
        kernel_name="tested",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(spec.parent)]),
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "IPYTHONDIR": str(folder / "ipython")}
    environment.pop("HF_TOKEN", None)
    environment |= more or {}
    manager.start_kernel(cwd=str(folder), env=environment)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=_HANGS_SECONDS)
        yield KernelFront(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
