"""Colab's failures in one sentence each, against a stand-in with the real module's signatures."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import pexpect
import pytest

from colab_utils import colab
from colab_utils.errors import InputError, ParameterError
from colab_utils.parameters import PickerParameters
from colab_utils.picker_selection import Selection


class Error(Exception):
    """As google.colab.errors has it, the base of most of Colab's own."""


class MessageError(Error):
    """As google.colab raises it when the front end answers with an error."""


class SecretNotFoundError(Error):
    """As google.colab.userdata raises it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"Secret {key} does not exist.")


class NotebookAccessError(Exception):
    """As google.colab.userdata raises it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"Notebook does not have access to secret {key}")


class TimeoutException(Exception):
    """As google.colab.userdata raises it."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"Requesting secret {key} timed out. Secrets can only be fetched when running from the "
            "Colab UI."
        )


def kernel_with(*, allow_stdin: bool) -> Any:
    """A kernel whose running cell a person's page sent, or papermill, which forbids input."""
    return types.SimpleNamespace(get_parent=lambda: {"content": {"allow_stdin": allow_stdin}})


class StandIn:
    """google.colab: `answers` says what `mount` and `get` give or raise, `asked` what was asked.

    `kernel` is the notebook's, None in any other process.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.kernel: Any = kernel_with(allow_stdin=True)
        self.asked: list[str] = []

    def mount(
        self,
        mountpoint: str,
        force_remount: bool = False,
        timeout_ms: int = 120000,
        readonly: bool = False,
    ) -> None:
        """drive.mount: prints, returns nothing."""
        self._answer("mount")

    def get(self, key: str) -> str:
        """userdata.get."""
        return str(self._answer("get"))

    def _answer(self, name: str) -> Any:
        self.asked.append(name)
        if self.kernel is None:
            raise AttributeError("'NoneType' object has no attribute 'shell'")
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def in_colab(monkeypatch) -> StandIn:
    """A Colab machine's environment and modules."""
    stand_in = StandIn()
    errors = types.ModuleType("google.colab.errors")
    errors.Error = Error
    drive = types.ModuleType("google.colab.drive")
    drive.mount = stand_in.mount
    userdata = types.ModuleType("google.colab.userdata")
    userdata.get = stand_in.get
    for error in (SecretNotFoundError, NotebookAccessError, TimeoutException):
        setattr(userdata, error.__name__, error)
    package = types.ModuleType("google.colab")
    package.drive, package.userdata, package.errors = drive, userdata, errors
    monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
    for module in (package, drive, userdata, errors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=stand_in.kernel)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return stand_in


# As a job's process or a shell finds it, and a kernel that papermill started.
@pytest.mark.parametrize("kernel", [None, kernel_with(allow_stdin=False)])
def test_without_a_front_end_colab_is_never_asked(in_colab, monkeypatch, kernel):
    in_colab.answers["get"] = "hf_secret"
    in_colab.kernel = kernel
    token, why = colab.find_token()
    assert token is None and "set HF_TOKEN in the environment" in why
    with pytest.raises(InputError, match="only a cell of the open notebook can mount it; mount"):
        colab.mount_drive()
    assert in_colab.asked == []


def test_the_token_comes_from_the_environment_first(in_colab, monkeypatch):
    in_colab.answers["get"] = "hf_secret\n"
    assert colab.hub_token() == "hf_secret"
    monkeypatch.setenv("HF_TOKEN", " hf_environment ")
    assert colab.find_token() == ("hf_environment", "")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (SecretNotFoundError("HF_TOKEN"), "no secret HF_TOKEN: add it under the key"),
        (NotebookAccessError("HF_TOKEN"), "no access to the secret HF_TOKEN: switch it on"),
        (TimeoutException("HF_TOKEN"), "did not answer .* run this cell in the open notebook"),
        (MessageError("Error: denied"), r"did not give .* \(Error: denied\): run the cell again"),
        ("  ", "is empty: put the token in it"),
    ],
)
def test_a_secret_that_is_not_given_is_no_token_and_says_why(in_colab, answer, says):
    in_colab.answers["get"] = answer
    token, why = colab.find_token()
    assert token is None and colab.hub_token() is None
    assert re.search(says, why)


def test_a_kernel_without_colabs_module_says_how_to_give_the_token(in_colab, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", None)
    assert "set HF_TOKEN in its environment" in colab.find_token()[1]


def test_outside_of_a_cell_colab_is_not_asked(in_colab, monkeypatch):
    in_colab.answers["get"] = "hf_secret"
    token, why = colab.find_token(in_cell=False)
    assert token is None and "Run the cell again" in why and in_colab.asked == []
    monkeypatch.setenv("HF_TOKEN", "hf_environment")
    assert colab.find_token(in_cell=False)[0] == "hf_environment"


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (ValueError("mount failed: timeout during initial read of root folder; for more info: ..."),
         "timeout.*move files out of My Drive's top folder"),
        (ValueError("mount failed"), "mount failed.*run the cell again"),
        (ValueError("Mountpoint must not already contain files"), "move away what lies in"),
        (ValueError("The domain policy has disabled Drive for desktop: ..."), "use an account"),
        (MessageError("Error: credential propagation was unsuccessful"), "allow access"),
        (pexpect.TIMEOUT("Timeout exceeded.\nbuffer: 9000 lines"), r"\(Timeout exceeded\.\)"),
        (pexpect.EOF("End Of File (EOF)."), "End Of File"),
        (OSError(107, "Transport endpoint is not connected"), "Transport endpoint"),
        (AssertionError(), r"\(AssertionError\)"),
    ],
)  # fmt: skip
def test_a_drive_that_cannot_be_mounted_is_told_with_its_mend(in_colab, failure, says):
    assert str(colab.mount_drive()) == "/content/drive/MyDrive"
    in_colab.answers["mount"] = failure
    with pytest.raises(InputError, match=says) as told:
        colab.mount_drive()
    assert "go on without Drive" in told.value.mend and "\n" not in str(told.value)


def test_the_picker_asks_colab_in_its_cell_only_and_says_what_is_missing(in_colab, tmp_path):
    def choose(experiment: str, model: str, **more: str) -> Selection:
        folders = {"runs": str(tmp_path / "runs"), "cache": str(tmp_path / "cache")}
        return Selection(PickerParameters(experiment=experiment, model=model, **folders, **more))

    in_colab.answers["get"] = NotebookAccessError("HF_TOKEN")
    chosen = choose("embedded", "smollm2-135m-instruct")
    # Nothing gated, nothing asked.
    assert in_colab.asked == [] and chosen.notices == ()
    chosen.choose_experiment("code-switching-512", in_cell=False)
    assert in_colab.asked == [] and "Run the cell again" in chosen.notices[0]
    told = choose("code-switching-512", "llama-3.2-3b-instruct")
    assert in_colab.asked == ["get"] and "switch it on" in told.notices[0]
    assert told.token_for(told.spec("full_run")) is None
    in_colab.answers["get"] = "hf_secret"
    chosen = choose("code-switching-512", "llama-3.2-3b-instruct")
    assert chosen.notices == () and chosen.row.access == "gated, token found"
    assert chosen.token_for(chosen.spec("full_run")) == "hf_secret"
    assert chosen.token_for(chosen.spec("score")) is None
    # Drive is mounted in the cell, too.
    in_colab.answers["mount"] = ValueError("mount failed")
    with pytest.raises(InputError, match="could not be mounted"):
        choose("embedded", "smollm2-135m-instruct", mirror="/content/drive/MyDrive/runs")


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


def test_an_nvidia_smi_that_fails_is_not_taken_for_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho NVIDIA-SMI has failed >&2\nexit 9\n")
    fake.chmod(0o755)
    with pytest.raises(InputError, match="does not describe a GPU"):
        colab.probe_gpu()
