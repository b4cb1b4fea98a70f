"""Code: bigcodebench's own sanitiser takes the program out of a reply."""

import sys
import types
from collections.abc import Callable

from .text import describe

_STOOD_IN = ("datasets", "tempdir", "wget")
_found: dict[str, Callable[[str, str], str]] = {}


def load() -> None:
    """Import the sanitiser; raises ImportError where the interpreter lacks it.

    What the package imports for downloads only is stood in for: none happen here.
    """
    absent = [name for name in _STOOD_IN if name not in sys.modules]
    for name in absent:
        stand_in = types.ModuleType(name)
        setattr(stand_in, "load_dataset", None)  # noqa: B010  (mypy knows no such attribute)
        sys.modules[name] = stand_in
    try:
        from bigcodebench.sanitize import sanitize

        _found["sanitize"] = sanitize
    finally:
        # Programs must find the real ones, or none.
        for name in absent:
            del sys.modules[name]


def run(job: dict) -> dict:
    """`program`, or None where the sanitiser fails on the text (a lone surrogate, say)."""
    try:
        load()
    except ImportError as error:
        return {"error": describe(error)}
    try:
        program = _found["sanitize"](job["text"], job["entry_point"])
        program.encode("utf-8")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        program = None
    return {"program": program}
