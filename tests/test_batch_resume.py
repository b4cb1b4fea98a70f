"""What a batch finds done is read from run directories; a stopped one leaves nothing going."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import nbformat
import pytest
from batch_worlds import World, make_world, manifest_of, put_weights, tiny_manifest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from run_directories import row, write_run, write_scoring

from colab_utils import batch, batch_plan, fingerprints, notebook_process, records, weights
from colab_utils.batch_plan import Plan, make_plan, next_phase, smoke_passed
from colab_utils.errors import BatchFailed, FingerprintMismatch, RunDirectoryError, RunStopped
from colab_utils.manifests import PROJECT, load_dataset_manifest, load_experiment_manifest
from colab_utils.notebooks import failure_in
from colab_utils.parameters import BatchParameters, checked
from colab_utils.run_directory import RunDirectory

HUGE = {"family": "llama", "parameters": 10**15, "layers": 2, "kv_heads": 2, "head_size": 64}
ANSWERS = {f"{task}-0": (task, row("pwwpw")) for task in ("code", "sql", "finance")}


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(tmp_path, {name: {"repo": f"made/{name}"} for name in ("one", "two")})


def plan_of(world: World, *models: str, **more: Any) -> Plan:
    return make_plan(checked(BatchParameters, world.values(*models, **more)), chunk_size=32)


def phase_of(world: World, model: str, **more: Any) -> str | None:
    plan = plan_of(world, model, **more)
    return next_phase(plan, plan.jobs[0])


def write_kind(
    world: World,
    model: str,
    kind: str,
    *,
    answers: dict = ANSWERS,
    scored: bool = False,
    max_tokens: int | None = None,
    **run: Any,
) -> RunDirectory:
    """A complete run as the engine would have left it under the world's own manifests."""
    manifest, experiment = manifest_of(world, model), load_experiment_manifest(world.experiment)
    dataset = load_dataset_manifest(experiment.dataset)
    decoding = fingerprints.decoding_settings(
        manifest, experiment, digests={"model.safetensors": "f" * 64}
    )
    if max_tokens is not None:
        decoding["decoding"]["max_tokens"] = max_tokens
    folder = write_run(
        world.run(model, kind).path, answers, scored=False, kind=kind, decoding=decoding,
        experiment={"name": "small"}, decoding_fingerprint=fingerprints.fingerprint(decoding),
        dataset="small", dataset_manifest=experiment.dataset,
        run={"dataset_sha256": dataset.sha256} | run, model={"name": model},
    )  # fmt: skip
    written = records.read_json(folder / "run.json")
    written["manifests"]["dataset"] = dataset.model_dump(mode="json")
    written["manifests"]["experiment"]["models"] = list(world.models)
    (folder / "run.json").write_bytes(records.encode_line(written))
    if scored:
        write_scoring(folder, answers, dataset_sha256=dataset.sha256)
    return RunDirectory(folder)


def test_the_next_phase_is_what_the_run_directories_lack(world):
    assert phase_of(world, "one") == "smoke"
    write_kind(world, "one", "smoke")
    assert phase_of(world, "one") == "full"
    full = write_kind(world, "one", "full")
    assert phase_of(world, "one") == "scoring"
    write_kind(world, "one", "full", scored=True)
    assert phase_of(world, "one") is None
    # Answers that are not what the run ended with are not complete, scored or not.
    full.responses.write_bytes(full.responses.read_bytes() + b"\n")
    assert phase_of(world, "one") == "full"


def test_a_smoke_that_ended_and_did_not_pass_is_run_again(world):
    rejected = ANSWERS | {"sql-0": ("sql", row("ppprp"))}
    write_kind(world, "one", "smoke", answers=rejected)
    plan = plan_of(world, "one")
    assert not smoke_passed(plan.jobs[0]) and next_phase(plan, plan.jobs[0]) == "smoke"


def test_verdicts_on_other_answers_are_none_on_these(world):
    full = write_kind(world, "one", "full", scored=True)
    write_scoring(full.path, ANSWERS, responses_sha256="0" * 64)
    assert phase_of(world, "one") == "scoring"


@pytest.mark.parametrize("field", ["decoding", "run"])
def test_a_run_that_does_not_say_how_it_was_made_is_refused_in_one_sentence(world, field):
    full = write_kind(world, "one", "full", scored=True)
    full.run_json.write_bytes(records.encode_line(full.read_run() | {field: {}}))
    with pytest.raises(RunDirectoryError, match=r"run\.json: does not say how") as caught:
        phase_of(world, "one")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["smoke", "full"])
def test_answers_under_another_setting_are_neither_taken_nor_mixed(world, kind):
    write_kind(world, "one", kind, scored=kind == "full", max_tokens=9)
    with pytest.raises(FingerprintMismatch, match=r"decoding.max_tokens: 9 became 8"):
        phase_of(world, "one")


def test_answers_to_another_data_set_are_refused(world):
    write_kind(world, "one", "full", scored=True, dataset_sha256="0" * 64)
    with pytest.raises(FingerprintMismatch, match="dataset_sha256"):
        phase_of(world, "one")


def test_answers_of_other_weights_than_the_locked_are_told_without_weights_at_hand(tmp_path):
    files = {"model.safetensors": {"size": 1, "sha256": "a" * 64}}
    world = make_world(tmp_path, {"one": {"files": files}})
    write_kind(world, "one", "full", scored=True)
    with pytest.raises(FingerprintMismatch, match=r"files.model.safetensors"):
        phase_of(world, "one")


def test_another_chunk_size_matters_only_where_answers_depend_on_batching(world):
    write_kind(world, "one", "full", scored=True)
    assert phase_of(world, "one", chunk_size=8) is None
    write_kind(world, "two", "full", scored=True, batch_invariant=False)
    assert phase_of(world, "two") is None
    with pytest.raises(FingerprintMismatch, match="chunk_size: 32 became 8"):
        phase_of(world, "two", chunk_size=8)


def test_the_embedded_models_folder_stays_in_the_cache(tmp_path):
    manifest = batch_plan.load_model_manifest("smollm2-135m-instruct")
    folder = weights.model_folder(manifest, tmp_path)
    folder.mkdir(parents=True)
    assert weights.remove_weights(manifest, tmp_path) == 0 and folder.is_dir()


@pytest.mark.slow
def test_an_error_of_a_notebook_that_did_its_work_is_not_lost(world, monkeypatch, engine_python):
    full = write_kind(world, "one", "full")

    def start(name, output, parameters, **more):
        write_scoring(full.path, ANSWERS)
        said = {"ename": "ChunkConflict", "evalue": "two digests", "traceback": []}
        cell = new_code_cell("", outputs=[new_output("error", **said)])
        output.parent.mkdir(parents=True)
        nbformat.write(new_notebook(cells=[cell]), output)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(notebook_process, "start", start)
    with pytest.raises(BatchFailed, match="0 of 1 models are done"):
        batch.batch(**world.values("one"))
    last = records.read_jsonl(world.batch / "record.jsonl")[-1]
    assert (last["state"], last["cause"]) == ("failed", "two digests.")


@pytest.mark.slow
def test_done_models_are_reported_together_and_freed_and_nothing_is_done_twice(
    engine_python, tmp_path, capsys
):
    shared = {"repo": "made/shared"}
    world = make_world(
        tmp_path,
        {
            "one": {"repo": "made/one"},
            "huge": {"repo": "made/huge", "architecture": HUGE},
            "two": shared,
            "three": shared | {"architecture": HUGE},
        },
    )
    for name in ("one", "two"):
        write_kind(world, name, "full", scored=True)
        world.weights(name).mkdir(parents=True)
        (world.weights(name) / "model.safetensors").write_bytes(b"x" * 20_000_000)
    before = {name: world.run(name).run_json.read_bytes() for name in ("one", "two")}
    for _ in range(2):
        with pytest.raises(BatchFailed, match="2 of 4 models are done; mend"):
            batch.batch(**world.values(free_cache=True))
    said = capsys.readouterr().out
    # No room: refused before anything is fetched.
    assert "model huge: needs 2100000.0 GB for weights" in said
    assert not world.weights("huge").exists()
    assert said.count("one: 0.02 GB of weights removed from the cache") == 1
    assert "two: the weights stay, three needs them" in said
    assert not world.weights("one").exists() and world.weights("two").exists()
    page = world.runs / "small" / "report" / "report.html"
    assert said.count(f"report  {page}") == 2
    assert "does not cover: huge, three." in page.read_text(encoding="utf-8")
    # The second time made no notebook: one report, of the first.
    notebooks = sorted(path.name for path in (world.batch / "notebooks").glob("*.ipynb"))
    assert notebooks == ["0001-small-report.ipynb"]
    assert {name: world.run(name).run_json.read_bytes() for name in before} == before
    states: dict[str, list[str]] = {}
    for line in records.read_jsonl(world.batch / "record.jsonl"):
        states.setdefault(str(line["model"]), []).append(line["state"])
    assert states["one"] == ["waiting", "done"]
    assert states["huge"] == ["waiting", "failed"] * 2


@pytest.mark.slow
def test_sigterm_stops_the_engine_and_says_how_to_go_on(tiny, tmp_path):
    model = tiny("llama-3.2-3b-instruct")
    world = make_world(tmp_path, {"one": tiny_manifest(model, "made/one")})
    put_weights(world, "one", model.folder)
    command = [sys.executable, "-m", "colab_utils", "batch", str(world.models["one"])]
    command += ["--experiment", str(world.experiment), "--runs", str(world.runs)]
    command += ["--cache", str(world.cache)]
    process = subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    smoke = world.run("one", "smoke")
    while smoke.runner() is None:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate()
    assert process.returncode == RunStopped.exit_code
    assert "start the same batch again: it goes on where it was" in said
    assert smoke.runner() is None and RunDirectory(world.batch / "notebooks").runner() is None
    (kept,) = (world.batch / "notebooks").glob("*.ipynb")
    assert isinstance(failure_in(kept), RunStopped)
    last = records.read_jsonl(world.batch / "record.jsonl")[-1]
    assert (last["state"], last["cause"]) == ("waiting", "stopped on request in smoke")
