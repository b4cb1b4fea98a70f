"""The picker as a person uses it: from the first click to the report, with a kernel restart.

Run as `python whole_job.py LAB_PYTHON KERNEL_PYTHON FOLDER NOTEBOOK CHROMIUM PICTURES MODEL`.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from lab import lab_server, open_notebook


def main(lab_python: str, kernel: str, folder: str, name: str, chromium: str, *more: str) -> None:
    """Fails with the browser's own message when something expected does not appear."""
    pictures, model = Path(more[0]), more[1]
    # Whoever gives up on this script asks it to end, and the server and the browser end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (
        lab_server(lab_python, kernel, Path(folder)) as address,
        open_notebook(address, name, chromium=chromium, pictures=pictures) as notebook,
    ):
        notebook.run_all()
        notebook.see("Waiting for a button above")
        notebook.choose("Model", model)
        notebook.see_state(model, "none")
        notebook.picture("chosen")
        assert notebook.button("Full run").is_disabled() and notebook.button("Stop").is_disabled()

        # Pressed while the watching cell runs.
        notebook.press("Smoke")
        notebook.see(f"smoke of {model}")
        notebook.see("running: ")
        notebook.see_state(model, "/15")
        notebook.picture("smoke-running")
        notebook.see("Smoke passed: 15 of 15 answers")
        notebook.see_state(model, "smoke passed")
        notebook.picture("smoke-passed")

        # Pressed between cells.
        notebook.press("Full run")
        notebook.see("running: ")
        notebook.see_state(model, "full run ")
        notebook.picture("full-run-running")
        notebook.restart()
        notebook.run_all()
        # The going model is the chosen one again.
        notebook.see(f"full run of {model}: running")
        notebook.see_state(model, "full run ")
        notebook.picture("attached-after-restart")
        notebook.see("the run is complete")
        notebook.see_state(model, "complete")
        notebook.picture("complete")

        notebook.press("Score")
        notebook.see("answers are scored")
        notebook.see_state(model, "scored")
        notebook.picture("scored")
        notebook.press("Report")
        notebook.see("report.html")
        notebook.page.locator(".widget-image").last.wait_for()
        notebook.picture("report")
        assert not notebook.page.locator(".jp-RenderedText[data-mime-type*=error]").count()


if __name__ == "__main__":
    main(*sys.argv[1:])
