"""Of several snapshots on a mirror the newest comes back, and never halves of two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mirrored_runs import (
    FOLDER,
    HERE,
    IDS,
    THERE,
    add_chunk,
    answers,
    bring,
    copier,
    make_run,
    write_run_json,
)

from colab_utils import checkpoints, records
from colab_utils.repair import repair
from colab_utils.run_directory import RunDirectory

SCORING = "scoring/0123456789ab"
FIRST = 1_780_000_000


def scoring(run: Path, number: int, verdicts: bytes) -> bytes:
    """Put a scoring into `run`, an hour after that of `number` - 1; returns its record."""
    digests = {"responses_sha256": "0" * 64, "verdicts_sha256": records.sha256_bytes(verdicts)}
    record = records.encode_line(digests)
    for name, data in (("verdicts.jsonl", verdicts), ("scoring.json", record)):
        path = run / SCORING / name
        records.write_atomic(path, data)
        os.utime(path, (FIRST + 3600 * number,) * 2)
    return record


def verdicts_in_order(*, falling: bool) -> list[bytes]:
    """Three files of verdicts whose digests rise, or fall."""
    lines = [records.encode_line({"request_id": name}) for name in IDS[:3]]
    return sorted(lines, key=records.sha256_bytes, reverse=falling)


@pytest.mark.parametrize("falling", [True, False])
def test_the_newest_scoring_comes_back_whatever_its_digest(tmp_path, falling):
    run, drive = make_run(tmp_path / "run"), tmp_path / "drive"
    for number, verdicts in enumerate(verdicts_in_order(falling=falling)):
        record = scoring(run, number, verdicts)
        copier(run, drive).step(alive=False)
    bring(drive, tmp_path / "fresh")
    assert (tmp_path / "fresh" / SCORING / "verdicts.jsonl").read_bytes() == verdicts
    assert (tmp_path / "fresh" / SCORING / "scoring.json").read_bytes() == record


@pytest.mark.parametrize("lost", ["verdicts", "scoring"])
def test_a_scoring_whose_half_is_lost_gives_way_to_the_one_before(tmp_path, lost):
    run, drive = make_run(tmp_path / "run"), tmp_path / "drive"
    first, second, _ = verdicts_in_order(falling=True)
    record = scoring(run, 0, first)
    copier(run, drive).step(alive=False)
    scoring(run, 1, second)
    copier(run, drive).step(alive=False)
    there = sorted((drive / FOLDER / SCORING).glob(f"{lost}.*"))
    assert len(there) == 2
    # The name begins with the time.
    there[-1].write_bytes(b"")
    bring(drive, tmp_path / "fresh")
    assert (tmp_path / "fresh" / SCORING / "verdicts.jsonl").read_bytes() == first
    assert (tmp_path / "fresh" / SCORING / "scoring.json").read_bytes() == record


def complete(run: Path, at: str, host: str) -> bytes:
    """Join the run's answers and say in run.json that it has ended."""
    checkpoint = checkpoints.verify(run / "chunks", IDS)
    digest = checkpoints.join(checkpoint, run / "responses.jsonl")
    write_run_json(run, host=host, completed={"at": at, "responses_sha256": digest})
    return (run / "responses.jsonl").read_bytes()


def test_a_choice_made_elsewhere_takes_joined_answers_out_here_too(tmp_path):
    drive = tmp_path / "drive"
    here, there = tmp_path / "here" / FOLDER, tmp_path / "there" / FOLDER
    for run in (here, there):
        host = run.relative_to(tmp_path).parts[0]
        make_run(run, chunks=4, host=host)
        chosen = add_chunk(run, 8, text=f"from {host}", host=host)
    before = complete(here, "2026-12-01T11:00:00+00:00", "here")
    copier(here, drive).step(alive=False)
    # The other machine meets the conflict, chooses its own, and ends its run.
    assert len(bring(drive, there).conflicts) == 1
    (there / "responses.jsonl").unlink()
    repair(there, keep=chosen.name.split(".")[1], say=lambda text: None)
    after = complete(there, "2026-12-01T12:00:00+00:00", "there")
    copier(there, drive, machine=THERE).step(alive=False)

    assert bring(drive, here, machine=HERE).conflicts == ()
    assert chosen.name in answers(here) and len(answers(here)) == 5
    assert (here / "responses.jsonl").read_bytes() == after != before
    assert RunDirectory(here).is_complete()
    # Nothing is lost by it.
    (kept,) = (here / "set-aside").iterdir()
    assert kept.read_bytes() == before
