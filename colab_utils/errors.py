"""One tree of exceptions. Each carries what is wrong, where, and how to mend it.

The command line turns a `WorkbenchError` into one sentence and its `exit_code`;
a notebook shows the same sentence. Anything else that escapes is a fault of ours.
"""

from __future__ import annotations


class WorkbenchError(Exception):
    """Base of all errors this project raises on purpose.

    Parameters
    ----------
    problem:
        What is wrong, as a clause that names the value met.
    where:
        The file, field or parameter it was met in; empty when there is none.
    mend:
        What the reader can do next, as a clause.
    """

    exit_code = 1

    def __init__(self, problem: str, *, where: str = "", mend: str = "") -> None:
        self.problem = problem
        self.where = where
        self.mend = mend
        sentence = f"{where}: {problem}" if where else problem
        if mend:
            sentence += f"; {mend}"
        super().__init__(sentence if sentence.endswith((".", "?")) else sentence + ".")


class InputError(WorkbenchError):
    """Something the user gave is not usable; nothing was started or written."""

    exit_code = 2


class ParameterError(InputError):
    """A notebook, command-line or function parameter has the wrong type or value."""


class ManifestError(InputError):
    """A manifest is missing, malformed, or contradicts what it pins."""


class DataError(InputError):
    """A data set file, or a database it needs, is malformed or not the pinned one."""


class RecordError(InputError):
    """A JSON or JSONL file is not what this project writes: torn, not UTF-8, not strict JSON."""


class WeightsError(InputError):
    """Model files are missing, incomplete, quantised, or not the locked ones."""


class InterpreterError(InputError):
    """An interpreter lacks a package, or the machine cannot hold the environment."""


class FitError(InputError):
    """The model does not fit this GPU, or this GPU cannot run it."""


class RunDirectoryError(InputError):
    """The run directory cannot be used: read-only, full, or not a run directory."""


class FingerprintMismatch(RunDirectoryError):
    """The run directory holds answers that were made under another setting."""


class RunnerBusy(RunDirectoryError):
    """Another runner holds this run directory's lock."""


class ChunkConflict(RunDirectoryError):
    """One request range has chunks with two digests; the user must choose."""


class MirrorError(WorkbenchError):
    """A mirror could not be read or written now; what is on this machine is not touched by it.

    `gone` says that the whole mirror does not answer, not one file of it alone.
    """

    def __init__(
        self, problem: str, *, where: str = "", mend: str = "", gone: bool = False
    ) -> None:
        self.gone = gone
        super().__init__(problem, where=where, mend=mend)


class VerificationFailed(WorkbenchError):
    """Files of a run are not what its digests and fingerprints say."""


class SmokeNotPassed(InputError):
    """A full run was asked for before the smoke gate passed under the same decoding."""


class SmokeFailed(WorkbenchError):
    """The smoke run finished and its answers do not satisfy the gate."""


class EngineFailed(WorkbenchError):
    """The engine did not start, or ended before the run was complete."""


class EngineStalled(EngineFailed):
    """The engine process gave no sign of life, or finished no step, for too long; it was ended."""


class RunStopped(WorkbenchError):
    """The run was stopped on request; what was finished is committed."""

    exit_code = 130


class DownloadFailed(WorkbenchError):
    """Weights could not be fetched from the hub."""


class ScoringError(InputError):
    """Answers cannot be scored: incomplete, of another data set, or no evaluator interpreter."""


class SandboxUnavailable(ScoringError):
    """No isolation of the asked strength can be had on this machine."""


class EvaluatorFailed(WorkbenchError):
    """An evaluator process broke in a way that is not the answer's fault."""


class BatchFailed(WorkbenchError):
    """A batch went through its list and not every model is done, or its report was not made."""


class ReportError(InputError):
    """A report cannot be made from what the run directory holds."""
