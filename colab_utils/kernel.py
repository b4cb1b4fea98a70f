"""Installs this project into Colab's kernel, whose own packages stay as they are.

It runs before anything of the project is installed, so it needs the standard library alone.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

from colab_utils.errors import InterpreterError

PROJECT = Path(__file__).resolve().parents[1]
_NAME = "codeswitch-workbench"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
_CONFLICT = re.compile(r"The conflict is caused by:\n((?:[ \t]+\S.*\n)+)")


def prepare(tag: str) -> None:
    """Install the project and what it needs into Colab's kernel; elsewhere nothing is done.

    `tag` is the release that the notebook is of, "v0.1.0" say. New packages only: what the kernel
    has is given to pip as constraints, so that nothing is replaced and no restart is needed. A
    second call finds it done. Raises `InterpreterError` when the project's folder holds another
    release, when a constraint can't be met, or when pip fails.
    """
    if "COLAB_RELEASE_TAG" not in os.environ:
        return
    version = _version()
    if tag != f"v{version}":
        raise InterpreterError(
            f"holds release v{version}, and this notebook is of {tag}",
            where=str(PROJECT),
            mend="disconnect and delete the runtime, then open the notebook by its badge again",
        )
    if not _is_installed(version):
        print("Installing the project beside this kernel's packages: about half a minute, once.")
        _install()
        importlib.invalidate_caches()


def constraints() -> str:
    """What this interpreter has, a line `name==version` each, as pip itself sees it."""
    listed = _pip("list", "--format=json")
    if listed.returncode != 0:
        raise _failure(listed)
    packages = [p for p in json.loads(listed.stdout) if p["name"] != _NAME]
    return "".join(f"{package['name']}=={package['version']}\n" for package in packages)


def _install() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.txt"
        file.write_text(constraints(), encoding="utf-8")
        # One call: pip installs the project after all that it needs, so that it stands for them.
        done = _pip("install", "--constraint", str(file), "--editable", str(PROJECT))
    if done.returncode != 0:
        raise _failure(done)


def _version() -> str:
    with open(PROJECT / "pyproject.toml", "rb") as stream:
        return str(tomllib.load(stream)["project"]["version"])


def _is_installed(version: str) -> bool:
    try:
        return metadata.version(_NAME) == version
    except metadata.PackageNotFoundError:
        return False


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_PIP, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _failure(done: subprocess.CompletedProcess[str]) -> InterpreterError:
    said = done.stdout + done.stderr
    conflict = _CONFLICT.search(said)
    if conflict is not None:
        causes = ", ".join(line.strip() for line in conflict[1].splitlines())
        return InterpreterError(
            f"the project can't be installed without replacing this kernel's packages ({causes})",
            where=sys.executable,
            mend="choose another runtime version (Change runtime type); nothing was changed",
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("ERROR: ")), lines[-1] if lines else "")
    return InterpreterError(
        f"the project can't be installed ({told.removeprefix('ERROR: ') or 'pip said nothing'})",
        where=sys.executable,
        mend="check the network and run the cell again",
    )
