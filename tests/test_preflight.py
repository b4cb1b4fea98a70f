"""What stands against a run is told before an environment is made or a byte is fetched."""

from __future__ import annotations

import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from batch_worlds import make_world

from colab_utils import batch, colab, environments, scoring_verbs, workbench
from colab_utils.errors import DownloadFailed, FitError, InputError, ParameterError
from colab_utils.manifests import PROJECT

STUDY = "code-switching-512"
L4 = "NVIDIA L4, 580.82.07, 23034, 8.9"
Usage = namedtuple("Usage", "total used free")


class Made(Exception):
    """An environment would be made now."""


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine without GPU, token and environments; called with a GPU's line, one with it."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)

    def make(lock: Path, **more: object) -> None:
        raise Made(lock.name)

    monkeypatch.setattr(environments, "make_environment", make)
    monkeypatch.setattr(environments, "make_evaluator_environment", make)

    def gpu(line: str) -> None:
        fake = tmp_path / "bin" / "nvidia-smi"
        fake.parent.mkdir(exist_ok=True)
        fake.write_text(f"#!/bin/sh\necho '{line}'\n")
        fake.chmod(0o755)

    return gpu


def test_no_gpu_is_told_with_the_next_step(monkeypatch):
    with pytest.raises(ParameterError, match="needs a GPU, and there is none here; choose a mach"):
        workbench.setup(STUDY)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    with pytest.raises(ParameterError, match="there is none here; change the runtime type.*L4"):
        workbench.setup(STUDY)
    with pytest.raises(Made, match="requirements-cpu"):
        workbench.setup("embedded")


def test_a_t4_is_told_what_to_take_instead(machine):
    machine("Tesla T4, 550.54.15, 15360, 7.5")
    said = r"Tesla T4 has no BF16.*7\.5\); choose an L4.*engine: transformers and precision"
    with pytest.raises(FitError, match=said):
        workbench.setup(STUDY)


@pytest.mark.parametrize(
    ("driver", "lock"),
    [
        ("579.99", "requirements-colab-cuda12.txt"),
        ("570.124.06", "requirements-colab-cuda12.txt"),
        ("580", "requirements-colab.txt"),
        ("605.1", "requirements-colab.txt"),
    ],
)
def test_the_lock_follows_the_driver(machine, driver, lock):
    assert environments.choose_lock(driver) == lock
    machine(L4.replace("580.82.07", driver))
    if lock == "requirements-colab.txt":
        with pytest.raises(Made, match=f"^{re.escape(lock)}$"):
            workbench.setup(STUDY)
    else:
        with pytest.raises(ParameterError, match=f"driver {re.escape(driver)} and needs {lock}"):
            workbench.setup(STUDY)


def test_a_model_that_does_not_fit_is_told(machine, tmp_path):
    machine(L4.replace("23034", "12282"))
    with pytest.raises(FitError, match="needs 16.4 GB for weights"):
        workbench.setup(STUDY, model="qwen3-8b", cache=str(tmp_path))


def test_a_full_disk_is_told(machine, tmp_path, monkeypatch):
    machine(L4)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 5_000_000_000))
    with pytest.raises(DownloadFailed, match=r"needs 17\.2 GB for weights and 5\.0 GB are free"):
        workbench.setup(STUDY, model="qwen3-8b", cache=str(tmp_path))
    # What comes along is unpacked, which takes room, too.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 1000))
    with pytest.raises(DownloadFailed, match="smollm2-135m-instruct: needs 0.3 GB"):
        workbench.setup("embedded", model="smollm2-135m-instruct", cache=str(tmp_path))


def test_a_gated_model_without_a_token_is_told(machine, tmp_path, monkeypatch):
    machine(L4)
    model = {"model": "llama-3.2-3b-instruct", "cache": str(tmp_path)}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 10**12))
    with pytest.raises(InputError, match="is gated.*no token; accept its licence.*HF_TOKEN is not"):
        workbench.setup(STUDY, **model)
    monkeypatch.setenv("HF_TOKEN", "hf_something")
    with pytest.raises(Made):
        workbench.setup(STUDY, **model)


def test_environments_are_never_made_on_drive(monkeypatch):
    monkeypatch.setattr(colab, "DRIVE", PROJECT.parent)
    for set_up in (workbench.setup, scoring_verbs.setup_evaluator):
        with pytest.raises(ParameterError, match=r"\.envs/.*: is on Drive"):
            set_up()


def test_a_run_is_refused_before_anything_is_fetched_or_written(tmp_path, monkeypatch):
    # A download would end with another sentence.
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 10**12))
    world = make_world(tmp_path / "world", {"one": {"gated": True}})
    values = {"experiment": str(world.experiment), "model": str(world.models["one"]),
              "runs": str(world.runs), "cache": str(world.cache)}  # fmt: skip
    with pytest.raises(InputError, match=r"model one \(.*: is gated on the hub, and there is no"):
        workbench.smoke(**values)
    assert not world.runs.exists() and not world.cache.exists()


def test_no_drive_is_told_before_the_weights_are_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 10**12))
    monkeypatch.setattr(workbench, "_engine_python", lambda *given: Path("unused"))
    world = make_world(tmp_path / "world", {"one": {"gated": False}})
    values = {"experiment": str(world.experiment), "model": str(world.models["one"]),
              "runs": str(world.runs), "cache": str(world.cache),
              "mirror": "/content/drive/MyDrive/workbench"}  # fmt: skip
    with pytest.raises(InputError, match="Drive can be mounted on Colab only; leave the mirror"):
        workbench.smoke(**values)
    assert not world.runs.exists() and not world.cache.exists()
    # A batch asks once, not once a model, and after its environments are there.
    made: list[object] = []
    monkeypatch.setattr(environments, "make_environment", lambda *given, **more: made.append(given))
    monkeypatch.setattr(environments, "make_evaluator_environment", lambda **more: made.append(0))
    given = world.values(mirror="/content/drive/MyDrive/workbench")
    with pytest.raises(InputError, match="Drive can be mounted on Colab only"):
        batch.batch(**given)
    assert len(made) == 2 and not (world.batch / "record.jsonl").exists()
