"""`verify` names each damaged file, and `repair` makes whole what can be made whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from answered_runs import answered_run
from builders import run_spec, small_lines, write_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colab_utils import checkpoints, launch, records
from colab_utils import replay as replaying
from colab_utils.errors import ParameterError, RunDirectoryError, RunnerBusy
from colab_utils.judging import answer_digest
from colab_utils.lock import locked
from colab_utils.manifests import load_dataset_manifest
from colab_utils.mirror_launch import mirror_of
from colab_utils.repair import repair
from colab_utils.responses import parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import load_dataset
from colab_utils.verification import verify

MODEL = "llama-3.2-3b-instruct"
CHUNK = 6
SCORING = "scoring/aaaaaaaaaaaa"


def quiet(text: str) -> None:
    """Says nothing."""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A complete, scored run of thirty requests with one replay, at runs/trial/tiny/full."""
    folder = tmp_path_factory.mktemp("made")
    manifest = write_dataset(folder / "data", small_lines(2))
    dataset = load_dataset(load_dataset_manifest(manifest))
    run = answered_run(folder / "runs" / "trial" / "tiny" / "full", dataset, lambda r: "답\u2028")
    record = records.read_json(run / "run.json")
    record |= {
        "dataset_manifest": str(manifest), "chunk_size": CHUNK, "segments": [],
        "run_fingerprint": records.sha256_json(record["run"]),
        "decoding_fingerprint": records.sha256_json(record["decoding"]),
    }  # fmt: skip
    records.write_atomic(run / "run.json", records.encode_line(record))
    answers = parse_responses((run / "responses.jsonl").read_bytes(), where="x")
    for chunk in checkpoints.plan(len(answers), CHUNK):
        checkpoints.commit(run / "chunks", chunk, answers[chunk.first : chunk.last + 1])
    replayed = answers[3]
    changed = replayed.model_copy(update={"text": "other"})
    replaying.write(RunDirectory(run), {
        "at": "2026-12-01T10:00:00+00:00", "requests": 1, "changed": 1, "order": "shuffled",
        "request_ids": [replayed.request_id], "by": [],
        "changed_answers": [changed.model_dump(mode="json")],
    })  # fmt: skip
    verdicts = [
        {"request_id": a.request_id, "answer_sha256": answer_digest(a), "passed": False,
         "passed_upstream": False, "outcome": "wrong_answer", "detail": "", "extracted": None,
         "evaluator": {"name": "x", "version": "1"}, "seconds": 0.1, "extra": {}}
        for a in answers
    ]  # fmt: skip
    lines = records.encode_lines(verdicts)
    records.write_atomic(run / SCORING / "verdicts.jsonl", lines)
    scoring = {
        "format": 1, "evaluator_fingerprint": "a" * 64, "evaluator": {}, "sandbox": {},
        "responses_sha256": record["completed"]["responses_sha256"],
        "verdicts_sha256": records.sha256_bytes(lines),
        "dataset_sha256": dataset.manifest.sha256, "completed": "2026-12-01T10:00:00+00:00",
    }  # fmt: skip
    records.write_atomic(run / SCORING / "scoring.json", records.encode_line(scoring))
    return run


@pytest.fixture
def run(made, tmp_path) -> Path:
    folder = tmp_path / "runs" / "trial" / "tiny" / "full"
    shutil.copytree(made, folder)
    return folder


def content(run: Path) -> dict[str, bytes]:
    names = ("chunks/*.jsonl", "responses.jsonl")
    return {str(p.relative_to(run)): p.read_bytes() for n in names for p in run.glob(n)}


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "flipped":
        at = data.index(b"sha256") if b"sha256" in data else len(data) // 2
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    elif how == "torn":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "removed":
        path.unlink()
    elif how == "doubled":
        path.with_name(f"{path.stem} (1){path.suffix}").write_bytes(data)


def test_a_whole_run_has_nothing_wrong(run, cli):
    found = verify(run)
    assert found.problems == ()
    assert found.checked == "5 chunks with 30 of 30 answers, 1 replays, 30 verdicts"
    done = cli("verify", str(run))
    assert (done.returncode, done.stdout) == (0, f"nothing wrong; checked: {found.checked}\n")


@pytest.mark.parametrize(
    ("file", "how"),
    [
        *((file, how) for file in ("chunks", "responses.jsonl")
          for how in ("flipped", "torn", "empty", "removed")),
        ("chunks", "doubled"),
    ],
)  # fmt: skip
def test_answers_are_made_again_from_their_other_copy(run, cli, file, how):
    whole = content(run)
    path = sorted(run.glob("chunks/*.jsonl"))[2] if file == "chunks" else run / file
    spoil(path, how)
    done = cli("verify", str(run))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    wrong, last = done.stdout.splitlines()[:-1], done.stdout.splitlines()[-1]
    assert len(wrong) == 1 and last.startswith("1 wrong; checked: ")
    named = "chunks: no chunk answers" if (file, how) == ("chunks", "removed") else file
    assert wrong[0].startswith(named)
    before = sum(1 for _ in run.rglob("*") if _.is_file())
    assert repair(run, say=quiet).problems == ()
    assert content(run) == whole
    # Whatever was damaged is still there, aside.
    assert sum(1 for _ in run.rglob("*") if _.is_file()) >= before


def test_what_is_gone_on_both_sides_is_left_to_the_next_start(run, capsys):
    chunk = sorted(run.glob("chunks/*.jsonl"))[1]
    spoil(chunk, "torn")
    spoil(run / "responses.jsonl", "torn")
    left = repair(run)
    assert "6 answers are gone: start the run again to compute them" in capsys.readouterr().out
    assert [problem.file for problem in left.problems] == ["chunks", "responses.jsonl"]
    assert not RunDirectory(run).is_complete()
    assert len(list((run / "chunks" / "set-aside").iterdir())) == 1


@pytest.mark.parametrize("how", ["flipped", "torn", "empty", "removed"])
@pytest.mark.parametrize("name", ["verdicts.jsonl", "scoring.json"])
def test_a_torn_scoring_is_set_aside(run, name, how):
    spoil(run / SCORING / name, how)
    found = verify(run)
    if (name, how) == ("scoring.json", "removed"):
        # A scoring without its record is one that has not ended.
        assert found.problems == ()
        return
    if (name, how) == ("scoring.json", "flipped"):
        # A field of another name: the record is none any more.
        assert [p.file for p in found.problems] == [f"{SCORING}/scoring.json"]
    assert found.problems and all(p.file.startswith(SCORING) for p in found.problems)
    assert repair(run, say=quiet).problems == ()
    assert len(list((run / "scoring" / "set-aside").iterdir())) == 1


def test_a_verdict_on_another_answer_and_an_unknown_replay_are_named(run):
    path = run / SCORING / "verdicts.jsonl"
    lines = records.read_jsonl(path)
    lines[4]["answer_sha256"] = "0" * 64
    path.write_bytes(records.encode_lines(lines))
    # As one that was made before scorings held that digest.
    record = records.read_json(run / SCORING / "scoring.json")
    del record["verdicts_sha256"]
    (run / SCORING / "scoring.json").write_bytes(records.encode_line(record))
    replay = run / "replays" / "000.json"
    record = records.read_json(replay)
    replay.write_text(json.dumps(record | {"request_ids": ["nobody/EN"]}))
    said = [str(problem) for problem in verify(run).problems]
    assert said == [
        "replays/000.json: replays 'nobody/EN', which the run did not answer",
        f"{SCORING}/verdicts.jsonl: judges another answer to {lines[4]['request_id']}",
    ]
    assert repair(run, say=quiet).problems == ()
    assert replaying.read_all(RunDirectory(run)) == []


def test_settings_that_are_not_those_of_the_fingerprint_are_named(run):
    record = records.read_json(run / "run.json")
    record["run"]["gpu"] = "another"
    (run / "run.json").write_text(json.dumps(record))
    found = verify(run).problems
    assert [str(problem) for problem in found] == [
        "run.json: run_fingerprint is not the digest of the settings under 'run'"
    ]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_flipped_byte_of_an_answer_is_named(run, data):
    paths = [*sorted(run.glob("chunks/*.jsonl")), run / "responses.jsonl"]
    path = data.draw(st.sampled_from(paths))
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    path.write_bytes(
        good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    )
    try:
        assert [p.file for p in verify(run).problems] == [str(path.relative_to(run))]
    finally:
        path.write_bytes(good)


def test_of_two_answers_the_user_chooses(run, cli):
    chunk = sorted(run.glob("chunks/*.jsonl"))[0]
    answers = parse_responses(chunk.read_bytes(), where="x")
    others = [answer.model_copy(update={"text": "other"}) for answer in answers]
    other = checkpoints.commit(run / "chunks", checkpoints.ChunkRange(0, CHUNK - 1), others)
    assert [p.file for p in verify(run).problems] == ["chunks"]
    with pytest.raises(ParameterError, match="keep: 12345678 is the digest of no chunk"):
        repair(run, keep="12345678", say=quiet)
    digest = chunk.name.split(".")[1]
    done = cli("repair", str(run), "--keep", digest)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{chunk.name} counts; {other.name} is set aside" in done.stdout
    assert not other.exists() and (run / "chunks" / "set-aside" / f"000-{other.name}").exists()
    assert verify(run).problems == ()


def test_what_the_mirror_has_comes_back_and_its_damage_is_named(run, tmp_path, cli):
    drive = tmp_path / "drive"
    drive.mkdir()
    whole = content(run)
    mirror = mirror_of(str(drive), run, tmp_path / "runs")
    assert mirror is not None
    mirror.finish(mirror.start(None))
    assert cli("verify", str(run), "--mirror").returncode == 0
    for path in (sorted(run.glob("chunks/*.jsonl"))[3], run / "responses.jsonl"):
        spoil(path, "torn")
    done = cli("repair", str(run))
    assert done.returncode == 0, done.stdout + done.stderr
    assert content(run) == whole
    spoil(sorted((drive / "trial" / "tiny" / "full" / "chunks").glob("*.jsonl"))[0], "torn")
    done = cli("verify", str(run), "--mirror")
    assert done.returncode == 1 and "mirror: " in done.stdout, done.stdout + done.stderr


def test_a_run_that_goes_on_is_left_alone(run, tmp_path):
    with locked(RunDirectory(run)), pytest.raises(RunnerBusy):
        repair(run, say=quiet)
    with pytest.raises(RunDirectoryError, match="holds no run"):
        verify(tmp_path)


@pytest.mark.slow
def test_a_repaired_run_ends_with_the_same_bytes(tiny, engine_python, tmp_path):
    dataset = write_dataset(tmp_path / "data", small_lines(2))
    spec = run_spec(tmp_path / "run", tiny(MODEL), dataset, chunk_size=CHUNK)
    launch.watch(spec.run_dir, launch.start(spec, engine_python))
    whole = content(spec.run_dir)
    assert verify(spec.run_dir).problems == ()
    for path in (
        *sorted(spec.run_dir.glob("chunks/*.jsonl"))[1:3],
        spec.run_dir / "responses.jsonl",
    ):
        spoil(path, "torn")
    assert repair(spec.run_dir, say=quiet).problems
    launch.watch(spec.run_dir, launch.start(spec, engine_python))
    assert content(spec.run_dir) == whole
    assert verify(spec.run_dir).problems == ()
