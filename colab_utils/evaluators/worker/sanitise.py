"""Call bigcodebench's own sanitiser; run as `python -I sanitise.py` by the evaluator interpreter.

One JSON line {"text", "entry_point"} on standard input, {"program"} as JSON on standard output:
the sanitised program, null where the sanitiser fails on the text (a lone surrogate, say). What
the package imports for downloads only is stood in for: none happen here.
"""

import json
import sys
import types


def main() -> None:
    """Sanitise the text on standard input."""
    job = json.loads(sys.stdin.buffer.read())
    for name in ("datasets", "tempdir", "wget"):
        stand_in = types.ModuleType(name)
        setattr(stand_in, "load_dataset", None)  # noqa: B010  (mypy knows no such attribute)
        sys.modules.setdefault(name, stand_in)
    from bigcodebench.sanitize import sanitize

    try:
        program = sanitize(job["text"], job["entry_point"])
        program.encode("utf-8")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        program = None
    sys.stdout.write(json.dumps({"program": program}))


if __name__ == "__main__":
    main()
