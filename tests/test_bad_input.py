"""Bad input gets one clear sentence that names where and what, before anything is started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from builders import code_line, small_lines, write_dataset

from colab_utils import records
from colab_utils.errors import DataError, InputError, ManifestError, RecordError
from colab_utils.manifests import (
    MANIFESTS,
    list_manifests,
    load_dataset_manifest,
    load_experiment_manifest,
    load_model_manifest,
)
from colab_utils.samples import load_dataset


def load(path: Path):
    return load_dataset(load_dataset_manifest(path))


def with_lines(folder: Path, data: bytes) -> Path:
    """A data set whose manifest pins whatever bytes the file holds."""
    path = write_dataset(folder, small_lines())
    (folder / "small.jsonl").write_bytes(data)
    manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    manifest["sha256"] = records.sha256_bytes(data)
    path.write_text(yaml.safe_dump(manifest), encoding="utf-8")
    return path


def test_a_good_data_set_is_read(tmp_path):
    dataset = load(write_dataset(tmp_path, small_lines(2)))
    assert [r.request_id for r in dataset.requests()][:6] == [
        "code-0/EN", "code-0/KO", "code-0/MIX1", "code-0/MIX2", "code-0/MIX3", "sql-0/EN",
    ]  # fmt: skip
    assert len(dataset.smoke_requests()) == 15


@pytest.mark.parametrize(
    "text", ["한국어", "\u1112\u1161\u11ab", "🙂", "a\u2028b\x85\x0c", "\ud800"]
)
def test_surfaces_hold_anything(tmp_path, text):
    dataset = load(write_dataset(tmp_path, [code_line(0, surface=text), *small_lines()[1:]]))
    assert dataset.samples[0].surfaces["KO"] == f"{text} (KO 0)"


def spoiled(**change):
    line = code_line(0)
    line.update(change)
    return records.encode_lines([line, *small_lines()[1:]])


def surfaces(**change):
    made = code_line(0)["surfaces"] | change
    return {condition: text for condition, text in made.items() if text is not None}


GOOD = records.encode_lines(small_lines())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xef\xbb\xbf" + GOOD, "byte order mark"),
        (GOOD.replace(b"Revenue", b"Reven\xff"), r"line 3: byte \d+ is not UTF-8"),
        (GOOD + GOOD, r"line 4: sample_id 'code-0' already stands on line 1"),
        (GOOD + b"\n", "line 4: is an empty line"),
        (GOOD[:-20], "line 3: is not strict JSON"),
        (GOOD.replace(b"50.0", b"NaN", 1), "line 3: is not strict JSON .*NaN"),
        (spoiled(surfaces=surfaces(MIX2=None)), r"line 1, field surfaces.MIX2: is missing"),
        (spoiled(surfaces=surfaces(KO=" \n")), r"line 1, field surfaces.KO: is empty"),
        (spoiled(surprise=1), r"line 1, field surprise"),
        (spoiled(task="essay"), r"line 1, field task"),
        (spoiled(reference={"code_prompt": "x"}), r"field reference.entry_point: is missing"),
        (spoiled(sample_id="a b"), r"line 1, field sample_id"),
        (b"", "holds {} samples"),
    ],
)
def test_a_bad_data_file_is_named(tmp_path, data, message):
    with pytest.raises(InputError, match=message) as caught:
        load(with_lines(tmp_path, data))
    assert "small.jsonl" in str(caught.value)
    assert caught.value.exit_code == 2


def test_missing_file_and_other_hash(tmp_path):
    path = write_dataset(tmp_path, small_lines())
    with open(tmp_path / "small.jsonl", "ab") as stream:
        stream.write(records.encode_lines([code_line(9)]))
    with pytest.raises(DataError, match="4 samples|'small-code': 2"):
        load(path)
    changed = (tmp_path / "small.jsonl").read_bytes().replace(b"doubles", b"triples")
    (tmp_path / "small.jsonl").write_bytes(b"\n".join(changed.split(b"\n")[:3]) + b"\n")
    with pytest.raises(DataError, match="the manifest small pins"):
        load(path)
    (tmp_path / "small.jsonl").unlink()
    with pytest.raises(RecordError, match="small.jsonl: does not exist"):
        load(path)


def test_databases_are_pinned(tmp_path):
    path = write_dataset(tmp_path, small_lines())
    database = tmp_path / "databases" / "shop" / "shop.sqlite"
    database.write_bytes(b"not a database at all, but long enough to look like one" * 20)
    with pytest.raises(DataError, match="pins another"):
        load(path)
    path = write_dataset(tmp_path, small_lines())
    with pytest.raises(DataError, match="is not a SQLite database"):
        load(path)
    database.unlink()
    with pytest.raises(DataError, match=r"shop.sqlite: cannot be read .*FOLDER/db_id"):
        load(path)


def spoil_yaml(tmp_path: Path, change) -> Path:
    text = (MANIFESTS / "models" / "qwen3-8b.yaml").read_text(encoding="utf-8")
    path = tmp_path / "qwen3-8b.yaml"
    path.write_bytes(change(text.encode()))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text + b"colour: blue\n", "field colour: is not a field"),
        (lambda text: text.replace(b"8192", b"'8192'"), r"field max_model_len: .*found '8192'"),
        (lambda text: text.replace(b"gated: false", b""), "field gated: is missing"),
        (lambda text: text + b"gated: true\n", "the key 'gated' stands twice"),
        (lambda text: text.replace(b"bfloat16", b"float16"), "field precision"),
        (lambda text: text.replace(b"locked: false", b"locked: true"), "locked: true needs"),
        (lambda text: b"\xef\xbb\xbf" + text, "byte order mark"),
        (lambda text: text.replace(b"Apache", b"\xff"), "is not UTF-8"),
        (lambda text: text + b"x: [1\n", "is not YAML"),
        (lambda text: b"- 1\n", "is not a mapping"),
        (lambda text: b"", "is not a mapping"),
    ],
)
def test_a_bad_manifest_is_named(tmp_path, change, message):
    with pytest.raises(ManifestError, match=message) as caught:
        load_model_manifest(spoil_yaml(tmp_path, change))
    assert "qwen3-8b.yaml" in str(caught.value)


def test_every_manifest_of_the_project_is_valid():
    for name in list_manifests("models"):
        model = load_model_manifest(name)
        assert model.name == name
        assert model.locked or model.unverified
    for name in list_manifests("experiments"):
        experiment = load_experiment_manifest(name)
        assert set(experiment.models) <= set(list_manifests("models"))
    with pytest.raises(ManifestError, match="known models: .*qwen3-8b"):
        load_model_manifest("qwen4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smoke", "--model", "nobody"], "nobody.yaml: cannot be read"),
        (["smoke", "--model", "qwen3-8b"], "qwen3-8b is not a model of experiment embedded"),
        (["smoke", "--chunk-size", "-1"], "parameter chunk_size: should be greater than"),
        (["smoke", "--chunk-size", "0"], "parameter chunk_size: should be greater than"),
        (["watch", "/nowhere"], "holds no run"),
        (["smoke", "--runs", "a" * 300], "parameter runs: is no folder's name"),
        (["smoke", "--chunk-size", "many"], "Invalid value"),
        (["run", "--experiment", "code-switching-512"], "known datasets|is not a model"),
        (["smoke", "--engine-python", "/nowhere/python"], "/nowhere/python"),
        (["score", "/nowhere"], "holds no run"),
        (["report", "/nowhere"], "holds no run"),
        (["smoke", "--runs", "/content/drive/MyDrive/runs"], "parameter runs: is on Drive"),
    ],
)
def test_the_command_line_says_it_in_one_sentence(cli, tmp_path, arguments, message):
    if arguments[0] in ("smoke", "run") and "--runs" not in arguments:
        arguments = [*arguments, "--runs", str(tmp_path / "runs")]
    done = cli(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert any(part in " ".join(done.stderr.split()) for part in message.split("|"))
    assert not (tmp_path / "runs").exists()


def test_a_run_directory_that_is_not_one_is_refused(cli, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"format": 99}))
    done = cli("score", str(tmp_path))
    assert done.returncode == 2
    assert "was not written by this version of the workbench" in done.stderr


def test_a_run_that_names_no_data_set_is_refused(cli, tmp_path):
    needed = ("decoding_fingerprint", "run_fingerprint", "decoding", "run", "requests")
    record = {"format": 1, "kind": "full", **dict.fromkeys(needed)}
    (tmp_path / "run.json").write_text(json.dumps(record))
    done = cli("score", str(tmp_path))
    assert done.returncode == 2
    assert "dataset_manifest: names no data set manifest" in " ".join(done.stderr.split())


def test_a_cache_that_is_a_file_is_named(cli, tmp_path):
    (tmp_path / "cache").write_bytes(b"")
    done = cli("smoke", "--cache", str(tmp_path / "cache"), "--runs", str(tmp_path / "runs"))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "parameter cache: is a file; give a folder's name" in done.stderr
    checked = cli("check", "--runs", str(tmp_path / "cache"))
    assert checked.returncode == 2 and "Traceback" not in checked.stderr
    assert "is a file; give a folder's name" in checked.stdout + checked.stderr


def test_a_torn_log_line_spoils_no_other(tmp_path):
    log = tmp_path / "timeline.jsonl"
    records.append_line(log, {"a": 1})
    with open(log, "ab") as stream:
        stream.write(b'{"a": 2, "to')
    records.append_line(log, {"a": 3})
    assert records.read_log(log) == [{"a": 1}, {"a": 3}]


def test_a_probe_that_fails_is_not_no_gpu(cli, tmp_path):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'NVIDIA L4, 580.1, [N/A], 8.9'\n")
    fake.chmod(0o755)
    done = cli("check", env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 2
    assert "nvidia-smi is there and does not describe a GPU" in done.stderr
