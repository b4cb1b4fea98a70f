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

from colab_utils import checkpoints, launch, records, run_record
from colab_utils import replay as replaying
from colab_utils.errors import ParameterError, RecordError, RunDirectoryError, RunnerBusy
from colab_utils.judging import answer_digest
from colab_utils.lock import locked
from colab_utils.manifests import load_dataset_manifest
from colab_utils.mirror_launch import RunMirror, mirror_of
from colab_utils.mirror_ledger import Ledger, MirrorReader
from colab_utils.repair import repair
from colab_utils.responses import parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.run_record import prompts_digest
from colab_utils.samples import load_dataset
from colab_utils.verification import verify

MODEL = "llama-3.2-3b-instruct"
CHUNK = 6
EVALUATOR = {"rules": {}, "excluded": []}
SCORING = f"scoring/{records.sha256_json(EVALUATOR)[:12]}"


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
    record["run"] = {**record["run"], "kind": "full"}
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
        "format": 1, "evaluator_fingerprint": records.sha256_json(EVALUATOR),
        "evaluator": EVALUATOR, "sandbox": {},
        "responses_sha256": record["completed"]["responses_sha256"],
        "verdicts_sha256": records.sha256_bytes(lines),
        "dataset_sha256": dataset.manifest.sha256, "completed": "2026-12-01T10:00:00+00:00",
    }  # fmt: skip
    records.write_atomic(run / SCORING / "scoring.json", records.encode_line(scoring))
    flip = {
        "replay": 0, "request_id": replayed.request_id, "task": replayed.task,
        "condition": replayed.condition, "passed_before": False, "passed": True,
        "passed_upstream_before": False, "passed_upstream": True,
    }  # fmt: skip
    records.write_atomic(run / SCORING / "replays.jsonl", records.encode_line(flip))
    first = sorted(run.glob("chunks/*.jsonl"))[0].name
    choice = records.encode_line(
        {"keep": [first], "aside": [f"{first[:12]}00000000.jsonl"], "replaces": []}
    )
    name = f"{first.split('.')[1]}.{records.sha256_bytes(choice)[:8]}.json"
    records.write_atomic(run / "choices" / name, choice)
    return run


@pytest.fixture
def run(made, tmp_path) -> Path:
    folder = tmp_path / "runs" / "trial" / "tiny" / "full"
    shutil.copytree(made, folder)
    return folder


def content(run: Path) -> dict[str, bytes]:
    names = ("chunks/*.jsonl", "responses.jsonl")
    return {str(p.relative_to(run)): p.read_bytes() for n in names for p in run.glob(n)}


def everything(run: Path) -> dict[str, bytes]:
    """All files that belong on a mirror; run.json by what it says."""
    paths = [run / name for name in MirrorReader.all_paths(run)]
    return {str(p.relative_to(run)): p.read_bytes() for p in paths if p.name != "run.json"} | {
        "run.json": records.encode_line(records.read_json(run / "run.json"))
    }


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
    assert "next: `run` again" in capsys.readouterr().out
    assert [problem.file for problem in left.problems] == ["chunks", "responses.jsonl"]
    assert "no chunk answers 6 requests (the first is 6)" in left.problems[0].what
    # Verdicts are on answers that the next start makes again, byte for byte.
    assert (run / SCORING / "scoring.json").exists()
    assert not RunDirectory(run).is_complete()
    assert len(list((run / "chunks" / "set-aside").iterdir())) == 1


# Each kind of file, its damage: what is still named after a repair ("" where nothing is).
KINDS = {
    "run.json": "run.json",
    "chunks/00012-00017.*.jsonl": "",
    "responses.jsonl": "",
    "replays/000.json": "",
    f"{SCORING}/verdicts.jsonl": "",
    f"{SCORING}/scoring.json": "",
    f"{SCORING}/replays.jsonl": "",
    "choices/*.json": "",
}


@pytest.mark.parametrize("how", ["flipped", "torn", "empty", "removed", "doubled"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_damaged_file_is_named_and_nothing_else(run, kind, how):
    whole = content(run)
    (path,) = run.glob(kind)
    name = path.relative_to(run).as_posix()
    spoil(path, how)
    named = [problem.file for problem in verify(run).problems]
    before = sum(1 for one in run.rglob("*") if one.is_file())
    left = [problem.file for problem in repair(run, say=quiet).problems]
    assert sum(1 for one in run.rglob("*") if one.is_file()) >= before
    assert content(run) == whole
    if how == "doubled":
        double = path.with_name(f"{path.stem} (1){path.suffix}").relative_to(run).as_posix()
        assert (named, left) == ([double], [])
    elif how == "removed" and name.startswith(("replays/", "choices/", f"{SCORING}/replays")):
        # Nothing says that there was one.
        assert (named, left) == ([], [])
    elif how == "empty" and name == f"{SCORING}/replays.jsonl":
        assert (named, left) == ([], [])
    elif (kind, how) == (f"{SCORING}/scoring.json", "removed"):
        # The verdicts are whole, and the next scoring takes them over.
        assert (named, left) == ([name], [name]) and (run / SCORING).is_dir()
    elif name.startswith("chunks/") and how == "removed":
        assert (named, left) == (["chunks"], [])
    else:
        assert (named, left) == ([name], [KINDS[kind]] if KINDS[kind] else [])


def test_every_torn_scoring_is_set_aside_in_one_repair(run, capsys):
    second = records.sha256_json({"rules": {}, "excluded": ["x"]})
    other = run / "scoring" / second[:12]
    shutil.copytree(run / SCORING, other)
    scoring = records.read_json(other / "scoring.json")
    scoring |= {"evaluator": {"rules": {}, "excluded": ["x"]}, "evaluator_fingerprint": second}
    (other / "scoring.json").write_bytes(records.encode_line(scoring))
    assert verify(run).problems == ()
    for folder in (other, run / SCORING):
        spoil(folder / "verdicts.jsonl", "torn")
    assert len(verify(run).problems) == 2
    assert repair(run).problems == ()
    assert len(list((run / "scoring" / "set-aside").iterdir())) == 2
    assert capsys.readouterr().out.count("next: `score` again") == 1


def test_an_unfinished_run_keeps_its_chunks_when_its_data_set_is_gone(run):
    (run / "responses.jsonl").unlink()
    record = records.read_json(run / "run.json")
    away = {"completed": None, "dataset_manifest": "/nowhere.yaml"}
    (run / "run.json").write_bytes(records.encode_line(record | away))
    shutil.rmtree(run / "scoring")
    spoil(sorted(run.glob("chunks/*.jsonl"))[1], "torn")
    said = [problem.what for problem in verify(run).problems]
    assert len(said) == 2 and "data set can't be had" in said[0]
    left = repair(run, say=quiet)
    assert [problem.file for problem in left.problems] == ["run.json"]
    assert len(list(run.glob("chunks/*.jsonl"))) == 4


def test_a_run_json_that_readers_would_trip_over_is_named(run):
    good = records.read_json(run / "run.json")
    for change in (
        {"completed": {"responses": "x"}}, {"kind": "other"}, {"requests": "30"}, {"requests": 31},
        {"run": {}}, {"format": 2}, {"dataset_manifest": 7},
        {"completed": {"responses_sha256": "0" * 64}},
    ):  # fmt: skip
        (run / "run.json").write_bytes(records.encode_line(good | change))
        assert "run.json" in {problem.file for problem in verify(run).problems}, change
        repair(run, say=quiet)
    (run / "run.json").write_bytes(records.encode_line(good))
    assert verify(run).problems == ()


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
    changed = record["changed_answers"][0]["request_id"]
    said = [str(problem) for problem in verify(run).problems]
    assert said == [
        "replays/000.json: replays 'nobody/EN', which is no request of the run",
        f"replays/000.json: {changed} changed, and was not replayed",
        f"{SCORING}/verdicts.jsonl: judges another answer to {lines[4]['request_id']!r}",
    ]
    assert repair(run, say=quiet).problems == ()
    assert replaying.read_all(RunDirectory(run)) == []


def test_other_prompts_and_answers_without_a_verdict_are_named(run):
    record = records.read_json(run / "run.json")
    prompts = [r.prompt_sha256 for r in parse_responses(
        (run / "responses.jsonl").read_bytes(), where="x")]  # fmt: skip
    record["prompts_sha256"] = prompts_digest(prompts)
    records.write_atomic(run / "run.json", records.encode_line(record))
    assert verify(run).problems == ()
    record["prompts_sha256"] = prompts_digest(reversed(prompts))
    records.write_atomic(run / "run.json", records.encode_line(record))
    assert ["other prompts" in p.what for p in verify(run).problems] == [True]
    record["prompts_sha256"] = prompts_digest(prompts)
    records.write_atomic(run / "run.json", records.encode_line(record))
    file = run / SCORING / "verdicts.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    scoring = records.read_json(run / SCORING / "scoring.json")
    scoring["verdicts_sha256"] = records.sha256_file(file)
    records.write_atomic(run / SCORING / "scoring.json", records.encode_line(scoring))
    (problem,) = verify(run).problems
    assert problem.what.startswith("has no verdict on ") and "and 1 more" in problem.what


def test_settings_that_are_not_those_of_the_fingerprint_are_named(run):
    record = records.read_json(run / "run.json")
    record["run"]["gpu"] = "another"
    (run / "run.json").write_text(json.dumps(record))
    found = verify(run).problems
    assert [str(problem) for problem in found] == [
        "run.json: run_fingerprint is not the digest of the settings under 'run'"
    ]


def told(path: Path, data: bytes) -> object:
    """What a file's readers decide by, where no digest vouches for all of it."""
    if path.name not in ("run.json", "scoring.json", "000.json", "replays.jsonl"):
        return data
    decided = {
        "run.json": ("format", "kind", "decoding", "decoding_fingerprint", "run",
                     "run_fingerprint", "requests", "completed"),
        "scoring.json": ("format", "evaluator", "evaluator_fingerprint", "responses_sha256",
                         "dataset_sha256"),
        "000.json": ("requests", "changed", "request_ids"),
        "replays.jsonl": ("request_id",),
    }[path.name]  # fmt: skip
    try:
        record = records.loads(data, where="x")
    except RecordError:
        return None
    return [record.get(name) for name in decided] if isinstance(record, dict) else None


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_flipped_byte_is_named_or_decides_nothing(run, data):
    paths = sorted(path for path in run.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(paths))
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    path.write_bytes(bad)
    try:
        problems = verify(run).problems
        assert problems or told(path, bad) == told(path, good)
        if path.suffix == ".jsonl" and path.name != "replays.jsonl":
            assert [problem.file for problem in problems] == [path.relative_to(run).as_posix()]
    finally:
        path.write_bytes(good)


def rival(run: Path, number: int) -> Path:
    """Another machine's answers to the requests of one chunk, committed beside it."""
    chunk = sorted(run.glob("chunks/*.jsonl"))[number]
    answers = parse_responses(chunk.read_bytes(), where="x")
    others = [answer.model_copy(update={"text": "other"}) for answer in answers]
    return checkpoints.commit(run / "chunks", checkpoints.range_of(chunk.name), others)


def test_of_two_answers_the_user_chooses(run, cli):
    chunk = sorted(run.glob("chunks/*.jsonl"))[1]
    other = rival(run, 1)
    assert [p.file for p in verify(run).problems] == ["chunks"]
    # Both are kept while nobody has chosen.
    assert [p.file for p in repair(run, say=quiet).problems] == ["chunks"]
    assert chunk.exists() and other.exists()
    third = sorted(run.glob("chunks/*.jsonl"))[0].name.split(".")[1]
    for digest in ("12345678", third):
        with pytest.raises(ParameterError, match=f"keep: {digest} is the digest of no chunk"):
            repair(run, keep=digest, say=quiet)
    digest = chunk.name.split(".")[1]
    done = cli("repair", str(run), "--keep", digest)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{chunk.name} counts; {other.name} is set aside" in done.stdout
    assert not other.exists() and (run / "chunks" / "set-aside" / f"000-{other.name}").exists()
    assert verify(run).problems == ()


def test_answers_that_were_joined_before_a_choice_are_joined_again(run, tmp_path):
    mirror = copied(run, tmp_path)
    chunk, other = sorted(run.glob("chunks/*.jsonl"))[1], rival(run, 1)
    left = repair(run, keep=other.name.split(".")[1], say=quiet)
    # Neither the former answers nor their verdicts come back from the mirror.
    assert {problem.file for problem in left.problems} == {"chunks", "responses.jsonl"}
    assert other.exists() and not chunk.exists() and not (run / "responses.jsonl").exists()
    ids = [r.request_id for r in load_dataset(load_dataset_manifest(
        Path(records.read_json(run / "run.json")["dataset_manifest"]))).requests()]  # fmt: skip
    run_record.complete(RunDirectory(run), checkpoints.verify(run / "chunks", ids))
    mirror.restore(quiet)
    assert repair(run, say=quiet).problems == ()
    assert b'"other"' in (run / "responses.jsonl").read_bytes()
    assert not (run / SCORING).exists()


def test_a_conflict_with_a_chunk_that_is_elsewhere_is_named_and_not_chosen_blindly(run):
    chunk = sorted(run.glob("chunks/*.jsonl"))[1].name
    there = f"{chunk[:12]}0123abcd.jsonl"
    Ledger(run, "/gone/trial/tiny/full").note_conflict([chunk, there], f"{chunk} and {there}")
    (problem,) = verify(run).problems
    assert problem.file == "chunks" and f"{there}; {checkpoints.CHOOSE}" in problem.what
    said: list[str] = []
    with pytest.raises(ParameterError, match="0123abcd.jsonl is not on this machine"):
        repair(run, keep="0123abcd", say=said.append)
    assert (run / "chunks" / chunk).exists()
    assert repair(run, keep=chunk.split(".")[1], say=said.append).problems == ()


def copied(run: Path, tmp_path: Path) -> RunMirror:
    drive = tmp_path / "drive"
    drive.mkdir()
    mirror = mirror_of(str(drive), run, tmp_path / "runs")
    assert mirror is not None
    mirror.finish(mirror.start(None))
    return mirror


def test_what_the_mirror_has_comes_back_and_its_damage_is_named(run, tmp_path, cli):
    drive = tmp_path / "drive"
    (problem,) = verify(run, mirror=True).problems
    assert str(problem) == "mirror: the run was never copied to one"
    copied(run, tmp_path)
    whole = everything(run)
    found = verify(run, mirror=True)
    assert found.problems == ()
    assert "0 copied, 0 on this machine only, 0 damaged there" in found.checked
    for path in whole:
        spoil(run / path, "torn")
    done = cli("repair", str(run))
    assert done.returncode == 0, done.stdout + done.stderr
    assert everything(run) == whole
    spoil(sorted((drive / "trial" / "tiny" / "full" / "chunks").glob("*.jsonl"))[0], "torn")
    done = cli("verify", str(run), "--mirror")
    assert done.returncode == 1 and "mirror: chunks/00000-00005." in done.stdout, done.stdout
    shutil.rmtree(drive)
    (problem,) = verify(run, mirror=True, say=quiet).problems
    assert problem.file == "mirror" and str(drive) in problem.what


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
    torn, flipped, gone = sorted(spec.run_dir.glob("chunks/*.jsonl"))[1:4]
    damage = {torn: "torn", flipped: "flipped", gone: "removed"}
    damage[spec.run_dir / "responses.jsonl"] = "empty"
    for path, how in damage.items():
        spoil(path, how)
    named = {problem.file for problem in verify(spec.run_dir).problems}
    expected = {path.relative_to(spec.run_dir).as_posix() for path in damage if path != gone}
    assert named == expected | {"chunks"}
    left = {problem.file for problem in repair(spec.run_dir, say=quiet).problems}
    assert left == {"chunks", "responses.jsonl"}
    launch.watch(spec.run_dir, launch.start(spec, engine_python))
    assert content(spec.run_dir) == whole
    assert verify(spec.run_dir).problems == ()
