"""What this process can show a person: is it a notebook's kernel, and does its front end click?"""

from __future__ import annotations

import sys
from typing import Any


def running_kernel() -> Any:
    """The IPython kernel that this process is, None outside a notebook."""
    # Asked of what is loaded: importing IPython just to learn that it is not there costs time.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None)


def somebody_can_click() -> bool:
    """Whether the running cell was sent by a front end with a person.

    papermill and nbclient forbid input in their requests, notebooks allow it.
    """
    kernel = running_kernel()
    if kernel is None:
        return False
    return bool(kernel.get_parent().get("content", {}).get("allow_stdin"))


def handles_clicks_in_a_cell() -> bool:
    """Whether this kernel can handle a click while a cell runs, in a subshell."""
    kernel = running_kernel()
    if kernel is None:
        return False
    return "kernel subshells" in kernel.kernel_info.get("supported_features", [])


def cells_run() -> list[str]:
    """Python source of the cells that this kernel has run, in order; none outside a notebook."""
    kernel = running_kernel()
    return [] if kernel is None else [str(cell) for cell in kernel.shell.user_ns.get("In", [])]
