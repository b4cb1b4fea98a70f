"""The picker as a person uses it: from the first click to the report, with a kernel restart.

Run as `python whole_job.py LAB_PYTHON KERNEL_PYTHON FOLDER NOTEBOOK CHROMIUM PICTURES MODEL`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lab import lab_server, open_notebook


def main(lab_python: str, kernel: str, folder: str, name: str, chromium: str, *more: str) -> None:
    """Fails with the browser's own message when something expected does not appear."""
    pictures, model = Path(more[0]), more[1]
    with (
        lab_server(lab_python, kernel, Path(folder)) as address,
        open_notebook(address, name, chromium=chromium, pictures=pictures) as notebook,
    ):
        notebook.run_all()
        notebook.see("Waiting for a button above")
        notebook.choose("Model", model)
        notebook.page.locator("td b", has_text=model).wait_for()
        notebook.picture("chosen")
        assert notebook.button("Full run").is_disabled() and notebook.button("Stop").is_disabled()

        # Pressed while the watching cell runs.
        notebook.press("Smoke")
        notebook.see(f"smoke of {model}", 30)
        notebook.see("running: ", 120)
        notebook.picture("smoke-running")
        notebook.see("Smoke passed: 15 of 15 answers", 180)
        assert notebook.page.locator("td span", has_text="smoke passed").count()
        notebook.picture("smoke-passed")

        # Pressed between cells.
        notebook.press("Full run")
        notebook.see("running: ", 120)
        notebook.picture("full-run-running")
        notebook.restart()
        notebook.run_all()
        notebook.see(f"full run of {model}: running", 60)
        notebook.picture("attached-after-restart")
        notebook.see("the run is complete", 240)
        notebook.choose("Model", model)
        notebook.page.locator("td span", has_text="complete").wait_for()
        notebook.picture("complete")

        notebook.press("Score")
        notebook.see("answers are scored", 240)
        notebook.picture("scored")
        notebook.press("Report")
        notebook.see("report.html", 120)
        notebook.page.locator(".widget-image").last.wait_for()
        notebook.picture("report")
        assert not notebook.page.locator(".jp-RenderedText[data-mime-type*=error]").count()


if __name__ == "__main__":
    main(*sys.argv[1:])
