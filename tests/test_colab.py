"""Colab's failures in one sentence each, against a stand-in with the real module's signatures."""

from __future__ import annotations

import sys
import types

import pytest

from colab_utils import colab
from colab_utils.errors import InputError, ParameterError


class SecretNotFoundError(Exception):
    """As google.colab.userdata raises it."""


class NotebookAccessError(Exception):
    """As google.colab.userdata raises it."""


class TimeoutException(Exception):
    """As google.colab.userdata raises it."""


@pytest.fixture
def in_colab(monkeypatch):
    """Stand-ins for google.colab; `answers` holds what mount and get do."""
    answers: dict[str, object] = {}

    def act(name: str):
        answer = answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    drive = types.ModuleType("google.colab.drive")
    drive.mount = lambda mountpoint, force_remount=False, timeout_ms=120000, readonly=False: act(
        "mount"
    )
    userdata = types.ModuleType("google.colab.userdata")
    userdata.get = lambda key: act("get")
    for error in (SecretNotFoundError, NotebookAccessError, TimeoutException):
        setattr(userdata, error.__name__, error)
    package = types.ModuleType("google.colab")
    package.drive, package.userdata = drive, userdata
    monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", package)
    monkeypatch.setitem(sys.modules, "google.colab.drive", drive)
    monkeypatch.setitem(sys.modules, "google.colab.userdata", userdata)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return answers


def test_the_token_comes_from_the_environment_first(in_colab, monkeypatch):
    in_colab["get"] = "hf_secret"
    assert colab.hub_token() == "hf_secret"
    monkeypatch.setenv("HF_TOKEN", " hf_environment ")
    assert colab.hub_token() == "hf_environment"


@pytest.mark.parametrize("error", [SecretNotFoundError, NotebookAccessError, TimeoutException])
def test_a_secret_that_is_not_given_is_no_token(in_colab, error):
    in_colab["get"] = error("no")
    assert colab.hub_token() is None


def test_a_drive_that_cannot_be_mounted_is_told(in_colab):
    assert str(colab.mount_drive()) == "/content/drive/MyDrive"
    in_colab["mount"] = ValueError("mount failed: timeout during initial read of root folder")
    with pytest.raises(InputError, match=r"could not be mounted .*timeout.*go on without Drive"):
        colab.mount_drive()


def test_outside_colab_there_is_no_drive_and_no_secret(monkeypatch):
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert colab.hub_token() is None
    with pytest.raises(InputError, match="on Colab only"):
        colab.mount_drive()


def test_work_is_local(tmp_path):
    assert colab.local_folder(str(tmp_path), parameter="runs") == tmp_path
    with pytest.raises(ParameterError, match="parameter runs: is on Drive"):
        colab.local_folder("/content/drive/MyDrive/runs", parameter="runs")


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        (
            "NVIDIA L4, 580.82.07, 23034, 8.9",
            {"name": "NVIDIA L4", "driver": "580.82.07", "memory_bytes": 23034 << 20,
             "compute_capability": 8.9},
        ),
        (None, None),
    ],
)  # fmt: skip
def test_the_gpu_is_asked_of_nvidia_smi(tmp_path, monkeypatch, line, gpu):
    monkeypatch.setenv("PATH", str(tmp_path))
    if line is not None:
        fake = tmp_path / "nvidia-smi"
        fake.write_text(f"#!/bin/sh\necho '{line}'\n")
        fake.chmod(0o755)
    assert colab.probe_gpu() == gpu
