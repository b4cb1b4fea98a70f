"""Chunks are whole or absent, never mixed up, and a plan covers each request once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colab_utils import checkpoints
from colab_utils.checkpoints import ChunkRange
from colab_utils.errors import ChunkConflict, RunDirectoryError
from colab_utils.responses import Response

IDS = [f"s{number}/EN" for number in range(10)]


def response(request_id: str, text: str = "답\u2028\x85\x0c\ud800\x00\r\n") -> Response:
    return Response(
        request_id=request_id, sample_id=request_id.split("/")[0], task="code", condition="EN",
        text=text, output_token_ids=[1, 2], finish_reason="stop", stop_reason=2, error=None,
        prompt_tokens=3, output_tokens=2, prompt_sha256="0" * 64,
    )  # fmt: skip


def commit(folder, first: int, last: int, text: str = "답\u2028"):
    responses = [response(name, text) for name in IDS[first : last + 1]]
    return checkpoints.commit(folder, ChunkRange(first, last), responses)


@given(
    total=st.integers(1, 60),
    chunk_size=st.integers(1, 20),
    done=st.sets(st.integers(0, 59)),
)
def test_a_plan_covers_what_is_not_finished_once(total, chunk_size, done):
    finished = [ChunkRange(number, number) for number in sorted(done) if number < total]
    chunks = checkpoints.plan(total, chunk_size, finished)
    planned = [n for chunk in chunks for n in range(chunk.first, chunk.last + 1)]
    assert sorted(planned + [chunk.first for chunk in finished]) == list(range(total))
    assert all(1 <= len(chunk) <= chunk_size for chunk in chunks)


def test_a_resumed_plan_keeps_the_borders_of_the_first():
    whole = checkpoints.plan(100, 32)
    assert [str(chunk) for chunk in whole] == [
        "00000-00031", "00032-00063", "00064-00095", "00096-00099",
    ]  # fmt: skip
    assert checkpoints.plan(100, 32, [whole[0], whole[2]]) == [whole[1], whole[3]]
    assert checkpoints.plan(100, 32, whole) == []


@given(text=st.text(st.characters(codec=None), max_size=200))
def test_any_text_survives_a_chunk(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("chunks")
    path = checkpoints.commit(folder, ChunkRange(0, 0), [response(IDS[0], text)])
    assert list(checkpoints.verify(folder, IDS).finished.values()) == [path]
    assert path.read_bytes().count(b"\n") == 1


def test_what_is_set_aside_replaces_nothing_there(tmp_path):
    for text in ("first", "second", "third"):
        (tmp_path / "a.jsonl").write_text(text)
        moved = checkpoints.move_aside(tmp_path / "a.jsonl")
        if text == "first":
            first = moved
        if text == "second":
            # Somebody tidied up.
            first.unlink()
    kept = [path.read_text() for path in sorted((tmp_path / "set-aside").iterdir())]
    assert kept == ["second", "third"]


def test_torn_chunks_are_told_and_set_aside(tmp_path):
    good = commit(tmp_path, 0, 1)
    cut = commit(tmp_path, 2, 3)
    cut.write_bytes(cut.read_bytes()[:-5])
    other = commit(tmp_path, 4, 5)
    other.rename(other.with_name(other.name.replace("00004-00005", "00006-00007")))
    (tmp_path / "notes.jsonl").write_bytes(b"{}\n")
    (tmp_path / "00008-00019.00000000.jsonl").write_bytes(b"")
    checkpoint = checkpoints.verify(tmp_path, IDS)
    assert list(checkpoint.finished.values()) == [good]
    assert len(checkpoint.torn) == 4 and checkpoint.requests_done == 2
    checkpoints.set_aside(checkpoint)
    assert [path.name for path in tmp_path.glob("*.jsonl")] == [good.name]
    assert len(list((tmp_path / "set-aside").iterdir())) == 4


def test_two_answers_for_one_request_are_the_users_choice(tmp_path):
    commit(tmp_path, 0, 1)
    commit(tmp_path, 0, 1, text="another")
    with pytest.raises(ChunkConflict, match=r"both answer requests 0 to 1; choose one"):
        checkpoints.verify(tmp_path, IDS)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        commit(blocked / "chunks", 0, 1)


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("colab_utils.records.os.fsync", no_space)
    with pytest.raises(RunDirectoryError, match="No space left.*free some disk space"):
        commit(tmp_path, 0, 1)
    assert list(tmp_path.iterdir()) == []
