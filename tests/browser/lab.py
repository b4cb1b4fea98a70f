"""A real JupyterLab and a real browser on one notebook; runs in the browser environment."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Locator, Page, sync_playwright

# Limits for what hangs, on a machine that is busy with other things, too.
_START_SECONDS = 120
_STEP_SECONDS = 600
# Outputs that are scrolled away stay in the page, and nothing pops up.
_SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


@contextmanager
def lab_server(lab_python: str, kernel_python: str, folder: Path) -> Iterator[str]:
    """JupyterLab over `folder` whose only kernel is `kernel_python`; yields its address."""
    own = folder / ".lab"
    kernels = own / "data" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    launcher = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": [kernel_python, *launcher], "display_name": "Python 3", "language": "python"}
    (kernels / "kernel.json").write_text(json.dumps(spec))
    for name, settings in _SETTINGS.items():
        path = own / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    environment = {
        **os.environ,
        "JUPYTER_PATH": str(own / "data"),
        "JUPYTER_CONFIG_DIR": str(own / "config"),
        "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
        "IPYTHONDIR": str(own / "ipython"),
        "JUPYTER_TOKEN": token,
    }
    command = [
        lab_python, "-W", "ignore", "-m", "jupyterlab", "--no-browser", "--allow-root",
        "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
    ]  # fmt: skip
    with open(own / "server.log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/status?token={token}", server)
        yield f"http://127.0.0.1:{port}/lab/tree/{{notebook}}?token={token}"
    finally:
        # Asked to end, it ends its kernels, too.
        server.terminate()
        server.wait(timeout=60)


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError("JupyterLab did not start")


@dataclass
class Notebook:
    """The open notebook: what a person does in it, and pictures of it."""

    page: Page
    pictures: Path
    taken: int = 0

    def menu(self, menu: str, entry: str) -> None:
        """Choose an entry of the menu bar."""
        self.page.locator(".lm-MenuBar-item, .p-MenuBar-item").filter(has_text=menu).first.click()
        label = ".lm-Menu-itemLabel, .p-Menu-itemLabel"
        self.page.locator(label).get_by_text(entry, exact=True).first.click()

    def run_all(self) -> None:
        """Run > Run All Cells."""
        self.menu("Run", "Run All Cells")

    def restart(self) -> None:
        """Kernel > Restart Kernel..., confirmed; waits until outputs can come again."""
        self.menu("Kernel", "Restart Kernel…")
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()
        self.page.locator(".jp-Dialog").wait_for(state="detached")

    def see_state(self, model: str, state: str) -> None:
        """Wait until the table's row of `model` is the chosen one and shows `state`."""
        row = self.page.locator("tr", has=self.page.locator("td b", has_text=model))
        row.locator("td span", has_text=state).last.wait_for()

    def button(self, name: str) -> Locator:
        """One of the picker's buttons."""
        return self.page.locator(".jupyter-button", has_text=name).last

    def press(self, name: str) -> None:
        """Wait until a button can be pressed, and press it."""
        self.button(name).and_(self.page.locator(":enabled")).click()

    def choose(self, label: str, value: str) -> None:
        """Choose from one of the picker's two lists."""
        box = self.page.locator(".widget-dropdown", has_text=label).last
        box.locator("select").select_option(label=value)

    def output(self) -> Locator:
        """Everything below code cells."""
        return self.page.locator(".jp-OutputArea-output")

    def see(self, text: str) -> None:
        """Wait until some output shows `text`."""
        self.output().get_by_text(text).last.wait_for()

    def picture(self, name: str) -> None:
        """Take a picture of the page with the picker in sight."""
        self.taken += 1
        self.button("Smoke").scroll_into_view_if_needed()
        self.page.screenshot(path=str(self.pictures / f"{self.taken:02d}-{name}.png"))


@contextmanager
def open_notebook(address: str, name: str, *, chromium: str, pictures: Path) -> Iterator[Notebook]:
    """The notebook in headless chromium, its kernel idle."""
    with sync_playwright() as playwright:
        # As root there is no sandbox; the page is our own.
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--no-proxy-server"]
        )
        page = browser.new_page(viewport={"width": 1360, "height": 1500})
        page.set_default_timeout(_STEP_SECONDS * 1000)
        page.goto(address.format(notebook=name))
        page.locator(".jp-Notebook").wait_for()
        # The menu's entries act on the notebook only once its kernel is known.
        page.locator(".jp-KernelName, .jp-Toolbar-kernelName").get_by_text(
            "Python 3"
        ).first.wait_for()
        page.locator(".jp-NotebookPanel-toolbar [data-status=idle]").first.wait_for()
        pictures.mkdir(parents=True, exist_ok=True)
        try:
            yield Notebook(page, pictures)
        except Exception:
            page.screenshot(path=str(pictures / "failed.png"))
            raise
        finally:
            browser.close()
