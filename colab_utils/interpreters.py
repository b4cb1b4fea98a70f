"""What a lock file asks for, and what an interpreter has: read, never imported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from colab_utils import records
from colab_utils.errors import InterpreterError

CUDA_LIBRARIES = re.compile(r"(nvidia|cuda)-")
"""Names of what the index's torch links to even where no GPU is; a CPU build needs none."""

_QUERY_SECONDS = 120.0
_QUERY = """
import importlib.metadata, json, platform, sys
found = [(d.metadata["Name"], d.version) for d in importlib.metadata.distributions()]
print(json.dumps({
    "python": platform.python_version(),
    "implementation": platform.python_implementation(),
    "packages": {name: version for name, version in reversed(found) if name},
}))
"""


@dataclass(frozen=True)
class LockedPackage:
    """One line of a lock file: its normalised name, exact version, marker and hashes."""

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class Interpreter:
    """What an interpreter says of itself, by its metadata alone: nothing is imported there."""

    path: Path
    version: str
    implementation: str
    packages: dict[str, str]

    @property
    def digest(self) -> str:
        """Hex SHA-256 of Python's version and the installed packages, this project left out."""
        names = {n: v for n, v in self.packages.items() if n != "codeswitch-workbench"}
        return records.sha256_json({"python": self.version, "packages": names})


def read_lock(path: Path) -> tuple[LockedPackage, ...]:
    """Parse a lock file; raises `InterpreterError` for a line without exact version and hash."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InterpreterError(
            f"cannot be read ({error})", where=str(path), mend="name one of requirements-*.txt"
        ) from error
    packages = []
    for line in text.replace("\\\n", " ").split("\n"):
        stated, *hashes = line.split("--hash=")
        if not stated.strip() or stated.lstrip().startswith("#"):
            continue
        try:
            requirement = Requirement(stated.strip())
        except InvalidRequirement as error:
            raise InterpreterError(
                f"{stated.strip()!r} is not a requirement", where=str(path)
            ) from error
        exact = re.fullmatch(r"==([^,*]+)", str(requirement.specifier))
        if exact is None or not hashes:
            raise InterpreterError(
                f"{requirement.name} has no exact version and sha256",
                where=str(path),
                mend="make the lock file anew with `make lock`",
            )
        packages.append(
            LockedPackage(
                canonicalize_name(requirement.name),
                exact.group(1),
                requirement.marker,
                tuple(text.strip() for text in hashes),
            )
        )
    return tuple(packages)


def describe_interpreter(python: Path) -> Interpreter:
    """Ask an interpreter for its version and installed packages (canonical names).

    Raises `InterpreterError` when it is missing, cannot be started, or breaks.
    """
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", _QUERY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_QUERY_SECONDS,
            check=False,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InterpreterError(
            f"is not an interpreter that can be started ({reason})",
            where=str(python),
            mend="run `python -m colab_utils setup`, or give the path of another one",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InterpreterError(
            f"did not answer within {_QUERY_SECONDS:.0f} s", where=str(python)
        ) from error
    try:
        told = json.loads(answer.stdout)
        packages = {str(canonicalize_name(n)): v for n, v in sorted(told["packages"].items())}
        return Interpreter(python, told["python"], told["implementation"], packages)
    except (ValueError, TypeError, KeyError) as error:
        lines = answer.stderr.decode("utf-8", "replace").strip().split("\n")
        raise InterpreterError(
            f"is not a working Python ({lines[-1] or 'it printed no answer'})",
            where=str(python),
            mend="give the path of a Python interpreter",
        ) from error


def find_python(version: str) -> Path | None:
    """An installed Python such as "3.10": on the path, or one that pyenv keeps; else None."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = shutil.which(f"python{version}")
    kept = sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)
    for python in [*([Path(on_path)] if on_path else []), *kept]:
        # pyenv's shims are there for versions that are not chosen, and fail.
        try:
            if describe_interpreter(python).version.startswith(f"{version}."):
                return python
        except InterpreterError:
            continue
    return None


def needed_packages(
    locked: tuple[LockedPackage, ...], interpreter: Interpreter
) -> Iterator[LockedPackage]:
    """The lock's packages that belong in this interpreter."""
    environment = {
        **{key: str(value) for key, value in default_environment().items()},
        "python_version": ".".join(interpreter.version.split(".")[:2]),
        "python_full_version": interpreter.version,
        "platform_python_implementation": interpreter.implementation,
        "implementation_name": interpreter.implementation.lower(),
    }
    cpu_build = _is_cpu_build(interpreter)
    for package in locked:
        if cpu_build and CUDA_LIBRARIES.match(package.name):
            continue
        if package.marker is None or package.marker.evaluate(environment):
            yield package


def _is_cpu_build(interpreter: Interpreter) -> bool:
    return interpreter.packages.get("torch", "").endswith("+cpu")
