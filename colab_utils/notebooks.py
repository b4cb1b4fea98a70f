"""Run one of the project's notebooks through papermill, and turn its failure into one sentence."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from colab_utils import errors, records
from colab_utils.errors import InterpreterError, ParameterError, WorkbenchError
from colab_utils.manifests import PROJECT

NOTEBOOKS = PROJECT / "notebooks"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def execute(name: str, output: Path, parameters: dict[str, Any]) -> None:
    """Execute `notebooks/NAME.ipynb` with `parameters`; the run notebook is kept at `output`.

    Raises `ParameterError` for a parameter that the notebook does not have, and for a failed
    cell the error that the library raised there, with its sentence and exit code.
    """
    source = NOTEBOOKS / f"{name}.ipynb"
    known = papermill.inspect_notebook(str(source))
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ParameterError(
            f"is not a parameter of {source.name}",
            where=f"parameter {unknown[0]}",
            mend=f"it has {', '.join(known)}",
        )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise records.unwritable(output.parent, error) from error
    try:
        papermill.execute_notebook(
            str(source),
            str(output),
            parameters=parameters,
            kernel_name="python3",
            progress_bar=False,
            stdout_file=sys.stdout,
            cwd=str(NOTEBOOKS),
        )
    except PapermillExecutionError as error:
        raise _failure(error, output) from error
    except (DeadKernelError, NoSuchKernel) as error:
        raise InterpreterError(
            f"the notebook's kernel ended or is not installed ({error})",
            where=str(source),
            mend="make the kernel's environment again",
        ) from error


def failure_in(output: Path) -> WorkbenchError | None:
    """The error that a run notebook ended with, None when it holds none or can't be read."""
    try:
        notebook = nbformat.read(output, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError):
        return None
    for cell in reversed(notebook.cells):
        for said in reversed(cell.get("outputs", [])):
            if said.output_type == "error":
                kind, text = _error(said.ename, said.evalue)
                return kind(text)
    return None


def _failure(error: PapermillExecutionError, output: Path) -> WorkbenchError:
    """The library's own error with its class, so that its exit code is kept."""
    kind, text = _error(str(error.ename), str(error.evalue))
    return kind(text, mend=f"the notebook as far as it came: {output}")


def _error(name: str, value: str) -> tuple[type[WorkbenchError], str]:
    text = _ANSI.sub("", value).strip()
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, WorkbenchError)):
        text, kind = f"{name}: {text}", WorkbenchError
    return kind, text.rstrip(".")
