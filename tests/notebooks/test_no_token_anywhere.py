"""A canary token through a whole job on a gated model: who got it, and where it must not be."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from batch_worlds import World, make_world, manifest_of, tiny_manifest
from kernel_front import kernel_front
from model_hub import model_hub

from colab_utils import jobs
from colab_utils.job_record import JobSpec
from colab_utils.manifests import PROJECT
from colab_utils.notebooks import NOTEBOOKS

CANARY = "hf_canary_9f3b1c77aa"
_COLAB = {
    "__init__.py": "",
    "errors.py": "class Error(Exception): ...\n",
    "drive.py": "",
    "userdata.py": (
        "import os\n"
        "class SecretNotFoundError(Exception): ...\n"
        "class NotebookAccessError(Exception): ...\n"
        "class TimeoutException(Exception): ...\n"
        "def get(key):\n"
        "    with open(os.environ['ASKED'], 'a') as asked:\n"
        "        asked.write(key + '\\n')\n"
        "    return open(os.environ['SECRETS']).read()\n"
    ),
}


def holding(secret: str, folder: Path) -> list[Path]:
    """Files below a folder that hold a text, in their names or in their bytes."""
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.is_file() and secret.encode() in path.read_bytes()
        if inside or secret in path.name:
            found.append(path)
    return found


@dataclass
class Watch:
    """Command lines and environments of the processes below this one, taken again and again."""

    seen: dict[tuple[int, str], bytes] = field(default_factory=dict)

    def look(self) -> None:
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            text = _read(stat)
            if text:
                parents[int(stat.parent.name)] = int(text.rpartition(b")")[2].split()[1])
        for pid in parents:
            above = pid
            while above in parents and above != os.getpid():
                above = parents[above]
            process = Path(f"/proc/{pid}")
            command, environ = _read(process / "cmdline"), _read(process / "environ")
            # The same before and after: the environment is not that of what a fork came from.
            if above == os.getpid() and command and command == _read(process / "cmdline"):
                name = command.replace(b"\0", b" ").decode(errors="replace")
                self.seen[pid, name] = self.seen.get((pid, name), b"") + environ

    def of(self, *words: str) -> dict[str, bytes]:
        """Environments by command line, of the processes whose command holds one of `words`."""
        return {
            command: environ
            for (_, command), environ in self.seen.items()
            if any(word in command for word in words)
        }


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@contextmanager
def watched():
    """A `Watch` that looks until the block has ended."""
    watch, over = Watch(), threading.Event()

    def look() -> None:
        while not over.wait(0.3):
            watch.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def job(tiny, engine_python, tmp_path_factory) -> tuple[World, Watch, list[str], Path]:
    """Smoke in an interface's kernel, the other notebooks through papermill, then a job."""
    folder = tmp_path_factory.mktemp("canary")
    model = tiny("llama-3.2-3b-instruct")
    changed = tiny_manifest(model, "made/one") | {"gated": True}
    world = make_world(folder / "world", {"one": changed})
    colab = folder / "modules" / "google" / "colab"
    colab.mkdir(parents=True)
    for name, text in _COLAB.items():
        (colab / name).write_text(text)
    secret = folder / "secrets"
    secret.write_text(CANARY)
    revision = manifest_of(world, "one").revision
    hub = model_hub(model.folder, "made/one", revision, CANARY)
    with hub as (address, headers), watched() as watch:
        more = {
            "HF_ENDPOINT": address,
            "HF_HOME": str(world.folder / "hf"),
            "COLAB_RELEASE_TAG": "release-colab",
            "PYTHONPATH": f"{PROJECT}{os.pathsep}{folder / 'modules'}",
            "SECRETS": str(secret),
            "ASKED": str(folder / "asked"),
            "VLLM_CACHE_ROOT": str(world.folder / "vllm"),
        }
        _smoke_in_a_cell(world, more)
        parameters = {
            "EXPERIMENT": world.experiment, "MODEL": world.models["one"],
            "RUNS": world.runs, "CACHE": world.cache, "MIRROR": world.folder / "mirror",
        }  # fmt: skip
        more |= {"HF_TOKEN": CANARY}
        full = world.run("one").path
        _papermill("full_run", world, more, parameters)
        _papermill("scoring", world, more, {"RUN_DIR": full})
        _papermill("report", world, more, {"RUN_DIRS": f"[{full}]"}, kind="-y")
        _job(world)
    return world, watch, headers, folder


def _smoke_in_a_cell(world: World, more: dict[str, str]) -> None:
    values = {
        "experiment": str(world.experiment), "model": str(world.models["one"]),
        "runs": str(world.runs), "cache": str(world.cache), "mirror": str(world.folder / "mirror"),
    }  # fmt: skip
    with kernel_front(sys.executable, world.folder, more=more) as page:
        page.hangs_seconds = 300
        said = page.run("from colab_utils import workbench", f"workbench.smoke(**{values!r})")
    assert "Smoke passed" in said, said
    (world.folder / "said.txt").write_text(said)


def _job(world: World) -> None:
    """A step of the picker, which has a record and a log."""
    spec = JobSpec(
        action="report", experiment="small", experiment_file=str(world.experiment), model="one",
        runs=world.runs, cache=world.cache,
    )  # fmt: skip
    assert jobs.start(spec, token=CANARY).wait() == 0


def _papermill(
    name: str, world: World, more: dict[str, str], given: dict[str, object], *, kind: str = "-r"
) -> None:
    output = world.folder / "outputs" / f"{name}.ipynb"
    output.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "--log-output"]
    for parameter, value in given.items():
        pair = (f"{parameter}: {value}",) if kind == "-y" else (parameter, str(value))
        command += [kind, *pair]
    command += [str(NOTEBOOKS / f"{name}.ipynb"), str(output)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=PROJECT, env=os.environ | more
    )
    assert done.returncode == 0, done.stderr[-2000:]
    output.with_suffix(".log").write_text(done.stdout + done.stderr)


@pytest.mark.slow
def test_the_download_had_the_token_and_colab_was_asked_once(job):
    world, _, headers, folder = job
    assert f"Bearer {CANARY}" in headers
    assert (folder / "asked").read_text() == "HF_TOKEN\n"
    assert world.run("one").is_complete() and world.run("one", "smoke").is_complete()


@pytest.mark.slow
def test_no_file_that_a_job_leaves_holds_the_token(job):
    world, *_ = job
    kinds = {path.suffix for path in world.folder.rglob("*") if path.is_file()}
    # What was looked into: answers, logs, output notebooks, database, page, weights.
    assert kinds >= {".jsonl", ".log", ".ipynb", ".sqlite", ".html", ".safetensors", ".json"}
    for part in ("runs/.jobs", "mirror/small/one/full", "cache", "outputs"):
        assert (world.folder / part).is_dir(), part
    assert holding(CANARY, world.folder) == []
    # It can be found: here it would have been.
    leak = world.run("one").path / "scoring" / "note.txt"
    leak.write_text(f"token {CANARY}\n")
    assert holding(CANARY, world.folder) == [leak]
    leak.unlink()


@pytest.mark.slow
def test_neither_engine_nor_evaluator_nor_mirror_process_has_the_token(job):
    watch = job[1]
    engines = watch.of("colab_utils.runs")
    evaluators = watch.of("evaluators/worker", "worker/__main__")
    mirrors = watch.of("colab_utils.mirroring")
    assert engines and evaluators and mirrors
    for command, environ in (engines | evaluators | mirrors).items():
        assert CANARY.encode() not in environ, command
    # The same look finds it where it belongs.
    papermill = watch.of("-m papermill")
    assert papermill and all(CANARY.encode() in environ for environ in papermill.values())
