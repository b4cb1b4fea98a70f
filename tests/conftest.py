"""Fixtures: the engine interpreter, tiny checkpoints, small data sets, golden data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builders import TinyModel, tiny_model

from colab_utils.manifests import PROJECT

ENGINE_PYTHON = PROJECT / ".envs" / "engine" / "bin" / "python"
GOLDEN = PROJECT.parent / "shared" / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of real benchmark data, which a user's clone does not have."""
    if not GOLDEN.is_dir():
        pytest.skip("no golden data beside this clone")
    return GOLDEN


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The engine interpreter that `make setup` made; without it there is nothing to test."""
    if not ENGINE_PYTHON.exists():
        pytest.fail("the engine environment is missing: run `make setup`")
    return ENGINE_PYTHON


@pytest.fixture(scope="session")
def tiny(engine_python: Path, tmp_path_factory: pytest.TempPathFactory):
    """Makes a tiny random checkpoint with the manifest of a real model; each once a session."""
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            made[name] = tiny_model(name, engine_python, tmp_path_factory.mktemp("model"))
        return made[name]

    return make


@pytest.fixture
def cli():
    """Runs `python -m colab_utils ...` and returns the finished process."""

    def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "colab_utils", *arguments],
            capture_output=True,
            text=True,
            check=False,
            **more,  # type: ignore[call-overload]
        )

    return run
