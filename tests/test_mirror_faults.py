"""Every fault at every step of copying and restoring: nothing is lost, nothing unverified trusted.

The number of steps is learned from an undisturbed run; each of them then meets each fault.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest
from faulty_files import ERRORS, LIES, ONLY_WRITES, WRITES, FaultyFiles, spoil
from mirrored_runs import (
    FOLDER,
    HERE,
    add_chunk,
    answers,
    bring,
    copier,
    make_run,
    state,
)

from colab_utils import checkpoints, records
from colab_utils.errors import MirrorError
from colab_utils.mirror_files import stored_name
from colab_utils.mirror_ledger import MirrorReader
from colab_utils.mirroring import MirrorSpec, keep_copying
from colab_utils.run_directory import RunDirectory

STEPS_OF_A_FAULT = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run")


def fresh_copy(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "run"))


def copy_calls(run: Path, folder: Path) -> list[str]:
    """The calls of copying a run and a further chunk, and of looking for another machine's."""
    files = FaultyFiles()
    own = fresh_copy(run, folder)
    mirror = copier(own, folder / "drive", files)
    assert mirror.step(alive=False)
    add_chunk(own, 4)
    assert mirror.step(alive=False)
    return files.calls


def local_content(run: Path) -> dict[str, bytes]:
    names = ("run.json", "chunks/*.jsonl")
    return {p.name: p.read_bytes() for pattern in names for p in run.glob(pattern)}


def all_is_right_there(run: Path, folder: Path, root: Path) -> None:
    """On a third machine all answers come back; every name on the mirror holds what it says."""
    back = folder / "back"
    assert bring(root, back).damaged == {}
    assert answers(back) == answers(run)
    assert RunDirectory(back).read_run() == RunDirectory(run).read_run()


def test_every_error_at_every_step_of_copying(run, tmp_path, capsys):
    small = make_run(tmp_path / "small", chunks=1)
    calls = copy_calls(small, tmp_path)
    tried: Counter[str] = Counter()
    for number, call in enumerate(calls):
        for fault in ERRORS:
            if fault in ONLY_WRITES and call not in WRITES:
                continue
            for steps in (STEPS_OF_A_FAULT, None):
                folder = tmp_path / f"{number}-{fault}-{steps}"
                folder.mkdir()
                own = fresh_copy(small, folder)
                files = FaultyFiles(fault=fault, at=number, steps=steps)
                mirror, reader = copier(own, folder / "drive", files), MirrorReader(own)
                told: list[str] = []
                for step in range(6):
                    if step == 1:
                        # The run goes on meanwhile.
                        add_chunk(own, 4)
                    mirror.step(alive=False)
                    told += reader.news()
                    # Whatever is called copied is whole there.
                    for path in state(own).copied:
                        if path.startswith("chunks/"):
                            there = folder / "drive" / FOLDER / path
                            assert there.read_bytes() == (own / path).read_bytes()
                before = local_content(own)
                failures = [text for text in told if "fails" in text]
                if state(own).local:
                    assert steps is None and len(failures) == 1, (call, fault, told)
                    assert "on this machine only" in failures[0]
                    assert "not safe: " in str(state(own)) and state(own).problem
                assert len(failures) <= 1
                files.over = True
                assert mirror.step(alive=False)
                told = reader.news()
                assert not state(own).local and state(own).problem is None
                assert not told or (len(told) == 1 and "answers again" in told[0])
                assert local_content(own) == before and len(answers(own)) == 2
                all_is_right_there(own, folder, folder / "drive")
                tried[f"{fault} for {'good' if steps is None else 'a while'}"] += 1
                shutil.rmtree(folder)
    with capsys.disabled():
        print(f"\ncopying: {len(calls)} steps ({dict(Counter(calls))}), faults tried {dict(tried)}")


def test_every_lie_of_a_cache_about_every_file(run, tmp_path, capsys):
    calls = copy_calls(run, tmp_path)
    tried: Counter[str] = Counter()
    for number in [n for n, call in enumerate(calls) if call == "rename"]:
        for lie in LIES:
            folder = tmp_path / f"{number}-{lie}"
            folder.mkdir()
            own, drive = fresh_copy(run, folder), folder / "drive"
            mirror = copier(own, drive, FaultyFiles(fault=lie, at=number))
            assert mirror.step(alive=False)
            add_chunk(own, 4)
            assert mirror.step(alive=False)
            # The mount shows all of it, so nothing is confirmed.
            assert not state(own).confirmed and len(state(own).copied) == 4
            back = folder / "back"
            found = bring(drive, back)
            whole = answers(back)
            assert whole.items() <= answers(own).items()
            missing = answers(own).keys() - whole.keys()
            if lie == "doubled":
                assert not missing and not found.damaged
            # What is lost is computed again: the plan has it, and only it.
            done = [checkpoints.range_of(name) for name in whole]
            again = [str(chunk) for chunk in checkpoints.plan(6, 2, done)]
            assert again == sorted(name.split(".")[0] for name in missing)
            if missing and lie != "lost":
                assert [stored_name(n).path for n in found.damaged] == [
                    f"chunks/{name}" for name in missing
                ]
            assert RunDirectory(back).read_run()["run"] == RunDirectory(own).read_run()["run"]
            # The machine that has it mends the mirror at its next start, on a fresh mount.
            bring(drive, own, machine=HERE)
            assert copier(own, drive).step(alive=False)
            shutil.rmtree(back)
            all_is_right_there(own, folder, drive)
            tried[lie] += 1
            shutil.rmtree(folder)
    with capsys.disabled():
        print(f"\nlies of a cache, by kind: {dict(tried)}")


def test_every_fault_at_every_step_of_restoring(run, tmp_path, capsys):
    drive = tmp_path / "drive"
    copier(run, drive).step(alive=False)
    counting = FaultyFiles()
    bring(drive, tmp_path / "counted", counting)
    tried: Counter[str] = Counter()
    for number, call in enumerate(counting.calls):
        for fault in ("ENOTCONN", "EIO"):
            for steps in (0, STEPS_OF_A_FAULT, None):
                back = tmp_path / f"{number}-{fault}-{steps}"
                files = FaultyFiles(fault=fault, at=number, steps=steps)
                damaged = {}
                try:
                    damaged = bring(drive, back, files).damaged
                except MirrorError:
                    # Nothing came, so nothing is computed again that is there.
                    assert answers(back) == {} and not (back / "run.json").exists()
                    damaged = {"all": ""}
                missing = answers(run).keys() - answers(back).keys()
                assert answers(back).items() <= answers(run).items()
                if missing:
                    assert damaged, (call, fault, steps)
                # The mirror itself is as it was, and gives all when it is asked again.
                bring(drive, back)
                assert answers(back) == answers(run)
                tried[f"{fault} for {'good' if steps is None else f'{steps + 1} calls'}"] += 1
    with capsys.disabled():
        print(f"\nrestoring: {len(counting.calls)} steps, faults tried {dict(tried)}")


@pytest.mark.parametrize("how", LIES)
def test_every_stored_file_spoiled_in_turn(run, tmp_path, how):
    first = tmp_path / "drive"
    copier(run, first).step(alive=False)
    names = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert len(names) == 6
    for number, name in enumerate(names):
        drive = Path(shutil.copytree(first, tmp_path / f"drive-{number}"))
        spoil(drive / name, how)
        back = tmp_path / f"back-{number}"
        found = bring(drive, back)
        lost = name.parts[-2] == "chunks" and ".record." not in name.name and how != "doubled"
        assert len(answers(back)) == 2 - lost
        assert RunDirectory(back).read_run()["run_fingerprint"]
        assert bool(found.damaged) == (
            how not in ("doubled", "lost") and "machines" not in name.parts
        )


def test_a_double_beside_the_plain_file_changes_nothing(run, tmp_path):
    drive = tmp_path / "drive"
    copier(run, drive).step(alive=False)
    for path in list((drive / FOLDER / "chunks").iterdir()):
        shutil.copy(path, path.with_name(f"{path.stem} (1){path.suffix}"))
        shutil.copy(path, path.with_name(f"{path.name} (2)"))
        path.write_bytes(path.read_bytes()[:7])
    assert bring(drive, tmp_path / "back").damaged == {}
    assert answers(tmp_path / "back") == answers(run)


def test_an_older_run_json_under_a_newer_name_is_told_apart(run, tmp_path):
    drive = tmp_path / "drive"
    own = fresh_copy(run, tmp_path)
    copier(own, drive).step(alive=False)
    (older,) = (drive / FOLDER).glob("run.*.json")
    record = RunDirectory(own).read_run()
    record["completed"] = {"responses_sha256": "f" * 64}
    records.write_atomic(own / "run.json", records.encode_line(record))
    copier(own, drive).step(alive=False)
    (newer,) = set((drive / FOLDER).glob("run.*.json")) - {older}
    newer.write_bytes(older.read_bytes())
    found = bring(drive, tmp_path / "back")
    assert list(found.damaged) == [newer.name]
    assert RunDirectory(tmp_path / "back").read_run()["completed"] is None


def test_a_write_that_does_not_come_back_holds_up_nothing_and_is_told_once(run, tmp_path):
    own = fresh_copy(run, tmp_path)
    (tmp_path / "counted").mkdir()
    calls = copy_calls(run, tmp_path / "counted")
    files = FaultyFiles(fault="slow", at=calls.index("write"))
    mirror, reader = copier(own, tmp_path / "drive", files), MirrorReader(own)
    told: list[str] = []
    said: list[str] = []
    ledger = mirror._ledger

    def on_silence(text: str) -> None:
        said.append(text)
        ledger.note_problem(text)
        told.extend(reader.news())
        if len(said) == 3:
            # The run itself was never held up: a chunk is committed meanwhile.
            add_chunk(own, 4)
            assert files.waiting.is_set()
            files.gate.set()

    spec = MirrorSpec(
        verb="copy", mirror="m", folder="f", run_dir=own,
        patience_seconds=0.05, poll_seconds=0, linger_seconds=60,
    )  # fmt: skip
    assert keep_copying(lambda alive: mirror.step(alive=alive), lambda: not said, on_silence, spec)
    told += reader.news()
    assert len([text for text in told if "has not answered" in text]) == 1, told
    assert len([text for text in told if "answers again;" in text]) == 1
    all_is_right_there(own, tmp_path, tmp_path / "drive")


def test_a_write_that_never_comes_back_is_given_up_after_the_end_of_the_run(run, tmp_path):
    own = fresh_copy(run, tmp_path)
    never = threading.Event()
    spec = MirrorSpec(
        verb="copy", mirror="m", folder="f", run_dir=own,
        patience_seconds=0.01, poll_seconds=0, linger_seconds=0.05,
    )  # fmt: skip
    said: list[str] = []
    assert not keep_copying(lambda alive: never.wait(60), lambda: False, said.append, spec)
    never.set()
    assert said


def test_a_full_disk_under_the_ledger_never_ends_the_copying(run, tmp_path, monkeypatch):
    own = fresh_copy(run, tmp_path)
    mirror = copier(own, tmp_path / "drive")

    def full(path, record):
        raise records.unwritable(path, OSError(28, "No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr("colab_utils.mirror_ledger.records.append_line", full)
        assert not mirror.step(alive=True)
    assert mirror.step(alive=True)
    all_is_right_there(own, tmp_path, tmp_path / "drive")
