"""Anything may stand in a file: no wrong byte is accepted, no good one refused, no traceback shown.

`make fuzz` runs many thousand examples of each; here a few of each run with the other tests.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import small_lines, write_dataset
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mirrored_runs import make_run
from test_chunks import IDS, response

from colab_utils import checkpoints, records
from colab_utils.errors import ChunkConflict, WorkbenchError
from colab_utils.manifests import (
    MANIFESTS,
    load_dataset_manifest,
    load_experiment_manifest,
    load_model_manifest,
)
from colab_utils.mirror_ledger import MirrorReader
from colab_utils.responses import Response, parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import load_dataset
from colab_utils.verdicts import load_scorings

fuzz = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ODD = "\u2028\u2029\x85\x0c\x00\r\n\t\ufeff\ud800\udfff각\U0001f600'\"\\{}[]:,&*#!|>%@`"
texts = st.text(st.one_of(st.sampled_from(ODD), st.characters()), max_size=40)
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), texts,
        st.sampled_from([-1, 0, 2**63, "", "bfloat16", "../..", "/etc/passwd", ["EN"] * 5]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with a few edits: flipped, cut, doubled, put in, swapped, or cut off at the end."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 60)))
        match draw(st.sampled_from(("flip", "cut", "double", "insert", "truncate", "empty"))):
            case "flip" if start < len(data):
                byte = data[start] ^ draw(st.integers(1, 255))
                data = data[:start] + bytes([byte]) + data[start + 1 :]
            case "cut":
                data = data[:start] + data[end:]
            case "double":
                data = data[:end] + data[start:]
            case "insert":
                new = draw(st.one_of(st.binary(max_size=8), texts.map(_encoded)))
                data = data[:start] + new + data[start:]
            case "truncate":
                data = data[:start]
            case "empty":
                data = b""
    return data


@st.composite
def changed(draw: st.DrawFn, record: Any) -> Any:
    """A JSON value with one part replaced by anything, taken out, or put in."""
    if isinstance(record, dict) and record and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(record)))
        if not draw(st.integers(0, 4)):
            return {k: v for k, v in record.items() if k != key}
        return {**record, key: draw(changed(record[key]))}
    if isinstance(record, list) and record and draw(st.booleans()):
        number = draw(st.integers(0, len(record) - 1))
        return [*record[:number], draw(changed(record[number])), *record[number + 1 :]]
    return draw(values)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def anything_or(good: bytes) -> st.SearchStrategy[bytes]:
    """A good file spoiled, a good record changed, or any bytes at all."""
    return st.one_of(
        spoiled(good),
        changed(json.loads(good.split(b"\n")[0])).map(
            lambda record: json.dumps(record).encode() + b"\n"
        ),
        st.binary(max_size=200),
    )


@fuzz
@given(data=st.data())
@pytest.mark.parametrize(
    ("kind", "name", "load"),
    [
        ("models", "qwen3-8b", load_model_manifest),
        ("models", "hyperclovax-seed-0.5b", load_model_manifest),
        ("datasets", "embedded", load_dataset_manifest),
        ("experiments", "embedded", load_experiment_manifest),
    ],
)
def test_manifests(tmp_path, kind, name, load, data):
    good = (MANIFESTS / kind / f"{name}.yaml").read_bytes()
    content = yaml.safe_load(good)
    path = tmp_path / f"{name}.yaml"
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(spoiled(good)))
    else:
        text = yaml.safe_dump(_dumpable(data.draw(changed(content))), allow_unicode=True)
        path.write_bytes(_encoded(text))
    try:
        load(path)
    except WorkbenchError as error:
        assert name in str(error) and "\n" not in str(error).rstrip("\n"), "not one sentence"


def _dumpable(value: Any) -> Any:
    """Without what YAML can't write: lone surrogates."""
    return json.loads(json.dumps(value).replace("\\ud8", "\\u00").replace("\\udf", "\\u00"))


@fuzz
@given(data=st.data())
def test_data_set_files_that_are_not_the_pinned_one_are_refused(tmp_path, data):
    manifest = write_dataset(tmp_path, small_lines(1))
    path = tmp_path / "small.jsonl"
    good = path.read_bytes()
    bad = data.draw(anything_or(good))
    assume(bad != good)
    path.write_bytes(bad)
    with pytest.raises(WorkbenchError, match=r"small\.jsonl"):
        load_dataset(load_dataset_manifest(manifest))


@fuzz
@given(data=st.data())
def test_data_set_files_that_somebody_pins_are_whole_or_refused(tmp_path, data):
    lines = small_lines(1)
    number = data.draw(st.integers(0, len(lines) - 1))
    lines[number] = data.draw(changed(lines[number]))
    assume(isinstance(lines[number], dict) and isinstance(lines[number].get("benchmark"), str))
    try:
        manifest = write_dataset(tmp_path, lines)
    except (ValueError, WorkbenchError):
        assume(False)
    try:
        dataset = load_dataset(load_dataset_manifest(manifest))
    except WorkbenchError:
        return
    for request in dataset.requests():
        assert request.sample.surfaces[request.condition].strip()


@fuzz
@given(data=st.data())
def test_chunk_files(tmp_path, data):
    folder = make_run(tmp_path / "run") / "chunks"
    path, other = sorted(folder.glob("*.jsonl"))
    good = path.read_bytes()
    bad = data.draw(anything_or(good))
    path.write_bytes(bad)
    found = checkpoints.verify(folder, IDS)
    assert other in found.finished.values()
    assert (path in found.finished.values()) == (bad == good)
    if bad != good:
        assert list(found.torn) == [path]
    path.write_bytes(good)


@fuzz
@given(name=texts.map(lambda t: t.replace("/", "").replace("\x00", "")), data=st.data())
def test_chunk_names(tmp_path, name, data):
    run = make_run(tmp_path / "run")
    good = sorted((run / "chunks").glob("*.jsonl"))[0]
    encoded = os.fsdecode(_encoded(f"{name}.jsonl")[:200])
    copy = run / "chunks" / data.draw(st.sampled_from([encoded, good.name.replace("0", "9", 1)]))
    assume(copy != good)
    copy.write_bytes(good.read_bytes())
    try:
        assert copy not in checkpoints.verify(run / "chunks", IDS).finished.values()
    except ChunkConflict:
        pass
    finally:
        copy.unlink()


@fuzz
@given(data=st.data())
@pytest.mark.parametrize(
    "name", ["run.json", "lock", "heartbeat.jsonl", "timeline.jsonl", "mirror.jsonl"]
)
def test_files_that_tell_of_a_run(tmp_path, name, data):
    # Logs grow, so that each example has a run of its own.
    run = make_run(Path(tempfile.mkdtemp(dir=tmp_path)))
    path = run / name
    good = path.read_bytes() if path.exists() else b'{"pid": 1, "host": "h", "at": "x"}\n'
    path.write_bytes(data.draw(anything_or(good)))
    directory = RunDirectory(run)
    for read in (
        directory.read_run, directory.status, directory.is_complete, directory.runner,
        lambda: MirrorReader(run).state(), lambda: MirrorReader(run).news(),
        lambda: checkpoints.verify(directory.chunks, IDS),
    ):  # fmt: skip
        try:
            read()
        except WorkbenchError as error:
            assert name in str(error)


@fuzz
@given(data=st.data())
@pytest.mark.parametrize("name", ["verdicts.jsonl", "scoring.json"])
def test_scorings(tmp_path, name, data):
    run = make_run(tmp_path / "run")
    folder = run / "scoring" / ("a" * 12)
    folder.mkdir(parents=True, exist_ok=True)
    verdict = {
        "request_id": IDS[0], "passed": True, "passed_upstream": True, "outcome": "passed",
        "detail": "", "extracted": None, "evaluator": {"name": "x", "version": "1"},
        "seconds": 0.1, "extra": {},
    }  # fmt: skip
    record = {
        "format": 1, "evaluator_fingerprint": "a" * 64, "evaluator": {}, "sandbox": {},
        "responses_sha256": "b" * 64, "dataset_sha256": "c" * 64, "completed": None,
    }  # fmt: skip
    good = {
        "verdicts.jsonl": records.encode_line(verdict), "scoring.json": records.encode_line(record)
    }  # fmt: skip
    for each, content in good.items():
        (folder / each).write_bytes(content)
    (folder / name).write_bytes(data.draw(anything_or(good[name])))
    try:
        load_scorings(run)
    except WorkbenchError as error:
        assert str(folder) in str(error)


@fuzz
@given(replies=st.lists(texts, min_size=1, max_size=5))
def test_replies_of_models(tmp_path, replies):
    given_ids = [f"s{number}/EN" for number in range(len(replies))]
    made = [response(name, text) for name, text in zip(given_ids, replies, strict=True)]
    data = b"".join(one.line() for one in made)
    # A record ends at a newline byte and nowhere else.
    assert data.count(b"\n") == len(replies) and b"\r" not in data
    back = parse_responses(data, where="x")
    assert back == made and [one.text for one in back] == replies
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    assert [Response.model_validate(record) for record in records.read_jsonl(path)] == made
