"""Runs that a reviewer was sent: ZIPs, read-only folders, Drive; hostile ZIPs leave nothing."""

from __future__ import annotations

import os
import shutil
import stat
import unicodedata
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest
from answered_runs import RIGHT, answered_run
from builders import small_lines, write_dataset
from run_directories import write_run

from colab_utils import colab, handed_over, records, workbench
from colab_utils.errors import InputError, ParameterError, RunDirectoryError
from colab_utils.handed_over import local_run
from colab_utils.manifests import PROJECT, load_dataset_manifest
from colab_utils.samples import load_dataset

EVALUATOR = PROJECT / ".envs" / "evaluator" / "bin" / "python"
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(handed_over, "RUNS", tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def sent(tmp_path) -> Path:
    """A complete run of the model `tiny` under the experiment `small`, in a Hangul folder."""
    manifest = write_dataset(tmp_path / "data", small_lines())
    dataset = load_dataset(load_dataset_manifest(manifest))
    folder = tmp_path / "받은 것" / "full"
    answered_run(folder, dataset, lambda request: RIGHT[request.sample.task])
    change(folder, experiment="small", model="tiny", dataset_manifest=str(manifest))
    return folder


def change(folder: Path, **fields: object) -> None:
    run = records.read_json(folder / "run.json") | fields
    (folder / "run.json").write_bytes(records.encode_line(run))


def zipped(folder: Path, target: Path, *, top: str = "") -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        if top:
            archive.mkdir(top)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, top + path.relative_to(folder).as_posix())
    return target


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*")
            if p.is_file()}  # fmt: skip


def quiet(text: str) -> None:
    """Nothing on the test's output."""


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("top", ["", "full/", "보낸 답/full/"])
def test_a_zip_is_unpacked_to_the_runs_own_place(runs, sent, tmp_path, form, top):
    name = unicodedata.normalize(form, "보낸 답.zip")
    other = unicodedata.normalize({"NFC": "NFD", "NFD": "NFC"}[form], "보낸 답.zip")
    path = zipped(sent, tmp_path / name, top=unicodedata.normalize(form, top))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/._run.json", b"x")
    said: list[str] = []
    found = local_run(str(tmp_path / other), parameter="run_dir", say=said.append)
    assert found == runs / "small" / "tiny" / "full"
    assert {k: v for k, v in content(found).items() if "MACOSX" not in k} == content(sent)
    (found / "scoring").mkdir()
    # What is there is not unpacked again, and what was made of it stays.
    assert local_run(str(path), parameter="run_dir", say=said.append) == found
    assert "was copied" in said[-1] and (found / "scoring").is_dir()
    assert [path.name for path in runs.iterdir()] == ["small"]


def test_a_place_that_holds_another_run_is_left_alone(runs, sent, tmp_path):
    path = zipped(sent, tmp_path / "one.zip")
    place = local_run(str(path), parameter="run_dir", say=quiet)
    change(place, completed={"responses_sha256": "0" * 64})
    before = content(place)
    with pytest.raises(RunDirectoryError, match=r"tiny/full: holds other answers than .*one\.zip"):
        local_run(str(path), parameter="run_dir", say=quiet)
    assert content(place) == before


def entry(name: str, *, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    ("added", "says"),
    [
        (entry("../evil.txt"), "leads out of its folder"),
        (entry("full/../../evil.txt"), "leads out of its folder"),
        (entry("/evil.txt"), "absolute name"),
        (entry("C:/evil.txt"), "absolute name or one of another system"),
        (entry("full\\..\\evil.txt"), "one of another system"),
        (entry("chunks/link", mode=stat.S_IFLNK | 0o777), "is a link or a special file"),
        (entry("chunks/pipe", mode=stat.S_IFIFO | 0o644), "is a link or a special file"),
        (entry("run.json"), "stands there twice"),
        (entry("other/run.json"), "holds 2 runs"),
    ],
    ids=lambda value: getattr(value, "filename", ""),
)
def test_a_hostile_zip_is_refused_and_leaves_nothing(runs, sent, tmp_path, added, says):
    path = zipped(sent, tmp_path / "one.zip")
    with zipfile.ZipFile(path, "a") as archive, pytest.MonkeyPatch.context() as quietly:
        quietly.setattr("warnings.warn", lambda *arguments, **more: None)
        archive.writestr(added, b"/etc/passwd")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ParameterError, match=says) as told:
        local_run(str(path), parameter="run_dir", say=quiet)
    assert "one.zip" in str(told.value) and "\n" not in str(told.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"experiment": "../../evil"}, "run.json: names no experiment"),
        ({"model": ".."}, "names no model"),
        ({"model": None}, "names no model"),
        ({"kind": "best"}, "is of the kind 'best'"),
        ({"format": 9}, "not written by this version"),
    ],
)
def test_a_record_that_names_no_place_is_refused(runs, sent, tmp_path, fields, says):
    change(sent, **fields)
    with pytest.raises(InputError, match=says):
        local_run(str(zipped(sent, tmp_path / "one.zip")), parameter="run_dir", say=quiet)
    assert not list(tmp_path.rglob("evil*"))
    assert not [path for path in runs.rglob("*") if path.is_file()]


@pytest.mark.parametrize("damage", ["torn", "flipped", "encrypted", "no zip", "empty"])
def test_a_damaged_zip_is_refused_and_leaves_nothing(runs, sent, tmp_path, damage):
    path = zipped(sent, tmp_path / "one.zip")
    data = bytearray(path.read_bytes())
    if damage == "torn":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo("responses.jsonl")
        at = info.header_offset + 30 + len("responses.jsonl") + info.compress_size // 2
        data[at : at + 8] = b"\xff" * 8
    elif damage == "encrypted":
        data[data.index(b"PK\x01\x02") + 8] |= 1
    else:
        data = bytearray(b"" if damage == "empty" else b"not a zip")
    path.write_bytes(data)
    with pytest.raises(ParameterError, match=r"one\.zip.*(damaged|encrypted)"):
        local_run(str(path), parameter="run_dir", say=quiet)
    assert not [found for found in runs.rglob("*") if found.is_file()]


def test_what_the_disk_cannot_hold_is_not_begun(runs, sent, tmp_path, monkeypatch):
    (sent / "engine.log").write_bytes(b"\0" * 50_000_000)
    path = zipped(sent, tmp_path / "one.zip")
    assert path.stat().st_size < 1_000_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 10_000_000))
    with pytest.raises(RunDirectoryError, match=r"holds 0\.05 GB and 0\.01 GB are free"):
        local_run(str(path), parameter="run_dir", say=quiet)
    assert not [found for found in runs.rglob("*") if found.is_file()]


def test_a_folder_that_cannot_be_written_is_copied(runs, sent, monkeypatch):
    assert local_run(str(sent), parameter="run_dir", say=quiet) == sent
    # For root every folder can be written, but on a file system that is read-only.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != sent)
    (sent / "link").symlink_to("/etc/passwd")
    place = local_run(str(sent), parameter="run_dir", say=quiet)
    assert place == runs / "small" / "tiny" / "full"
    assert content(place).keys() == content(sent).keys() - {"link"}


def test_a_folder_on_drive_is_copied_and_a_mirrors_is_named(runs, sent, tmp_path, monkeypatch):
    drive = tmp_path / "drive"
    monkeypatch.setattr(colab, "DRIVE", drive)
    on_drive = drive / "MyDrive" / "full"
    with pytest.raises(InputError, match="Drive can be mounted on Colab only"):
        local_run(str(on_drive), parameter="run_dir", say=quiet)
    shutil.copytree(sent, on_drive)
    place = local_run(str(on_drive), parameter="run_dir", say=quiet)
    assert place == runs / "small" / "tiny" / "full" and content(place) == content(sent)
    mirrored = on_drive.with_name("mirrored")
    mirrored.mkdir()
    (on_drive / "run.json").rename(mirrored / f"run.20261201T100000Z.{'a' * 16}.json")
    with pytest.raises(ParameterError, match="holds no run; this is a mirror's folder"):
        local_run(str(mirrored), parameter="run_dir", say=quiet)


def test_reports_are_made_of_zips(runs, tmp_path, monkeypatch):
    manifest = write_dataset(tmp_path / "data", small_lines())
    samples = {f"s{n}": ("code", dict.fromkeys(("EN", "KO", "MIX1", "MIX2", "MIX3"), "passed"))
               for n in range(3)}  # fmt: skip
    folder = write_run(tmp_path / "sent", samples, dataset_manifest=str(manifest))
    sha256 = load_dataset_manifest(manifest).sha256
    old = records.read_json(folder / "run.json")["manifests"]["dataset"]["sha256"]
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text().replace(old, sha256))
    report = workbench.report(say=quiet, run_dirs=[str(zipped(folder, tmp_path / "one.zip"))])
    assert report.html.exists() and report.html.is_relative_to(runs / "trial")


@pytest.mark.slow
def test_a_zip_is_scored_beside_its_copy(runs, sent, tmp_path):
    path = zipped(sent, tmp_path / "one.zip", top="full/")
    before = path.read_bytes()
    scored = workbench.score(
        say=quiet, run_dir=path, evaluator_python=str(EVALUATOR), allow_weak_sandbox=True
    )
    assert scored.folder.is_relative_to(runs / "small" / "tiny" / "full" / "scoring")
    assert all(verdict.passed for verdict in scored.scoring.verdicts)
    assert path.read_bytes() == before and not (sent / "scoring").exists()
    again = workbench.score(
        say=quiet, run_dir=path, evaluator_python=str(EVALUATOR), allow_weak_sandbox=True
    )
    assert again.already_done
