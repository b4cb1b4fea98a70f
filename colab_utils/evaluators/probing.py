"""Which sandbox works here: each is tried with a real program, the strongest first."""

from __future__ import annotations

from pathlib import Path

from colab_utils.errors import EvaluatorFailed, SandboxUnavailable
from colab_utils.evaluators import sandbox
from colab_utils.evaluators.sandbox import Sandbox
from colab_utils.evaluators.workers import Workers

# A module that is not built in and that no worker has imported.
_PROGRAM = "import colorsys\ndef solution():\n    return 6 * 7\n"


def probe(python: Path, *, allow_weak: bool) -> Sandbox:
    """The strongest sandbox that really runs `python` here; `what` names why not a stronger one.

    Raises `SandboxUnavailable` when only the weak one does and `allow_weak` is False, or when
    programs can't import even there; `EvaluatorFailed` when `python` does not start.
    """
    reasons = [] if sandbox.has_bubblewrap() else ["bubblewrap is not installed"]
    for candidate in sandbox.candidates():
        if candidate.level == "weak" and not allow_weak:
            break
        problem = _problem(candidate, python)
        if problem is None:
            what = "; ".join([candidate.what, *reasons])
            return Sandbox(candidate.level, what, candidate.holder, candidate.limits)
        reasons.append(f"{candidate.what}: {problem}")
    if allow_weak:
        raise SandboxUnavailable(
            f"programs can run in no sandbox here ({'; '.join(reasons)})",
            where=str(python),
            mend="install bubblewrap, or make the evaluator environment from an interpreter "
            "that every user may read",
        )
    raise SandboxUnavailable(
        f"neither a strong nor a medium sandbox can be had here ({'; '.join(reasons)})",
        mend="install bubblewrap, or allow the weak one (allow_weak_sandbox); it is recorded",
    )


def _problem(candidate: Sandbox, python: Path) -> str | None:
    """Why a program does not run as it should; None when it does."""
    with Workers(python, candidate) as workers:
        # Without the server there is nothing to try: that error is the interpreter's.
        workers.start()
        try:
            result = workers.run({"kind": "finance", "program": _PROGRAM}, seconds=20)
        except EvaluatorFailed as error:
            return error.problem
    if result.get("returned", {}).get("number") == "42":
        return None
    return f"the probe gave {result.get('error') or result.get('died') or 'a wrong answer'}"
