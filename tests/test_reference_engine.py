"""The reference engine: the same run loop, files and manifests on Hugging Face transformers."""

from __future__ import annotations

import json

import pytest
from builders import run_spec, small_lines, write_dataset

from colab_utils import launch
from colab_utils.fingerprints import decoding_settings, first_difference
from colab_utils.manifests import load_experiment_manifest, load_model_manifest
from colab_utils.run_directory import RunDirectory

MODEL = "llama-3.2-3b-instruct"


def answers(directory: RunDirectory) -> dict[str, dict]:
    lines = map(json.loads, directory.responses.read_text().splitlines())
    return {line["request_id"]: line for line in lines}


@pytest.mark.slow
def test_it_answers_in_padded_batches_what_it_answers_one_by_one(tiny, engine_python, tmp_path):
    dataset = write_dataset(tmp_path, small_lines(1))

    def run(name: str, engine: str, precision: str, chunk_size: int) -> RunDirectory:
        spec = run_spec(tmp_path / name, tiny(MODEL), dataset, chunk_size=chunk_size)
        declared = {"engine": engine, "precision": precision}
        experiment = spec.experiment.model_copy(update=declared)
        spec = spec.model_copy(update={"experiment": experiment})
        launch.watch(spec.run_dir, launch.start(spec, engine_python))
        return RunDirectory(spec.run_dir)

    batched = run("batched", "transformers", "float32", 15)
    alone = run("alone", "transformers", "float32", 1)
    assert answers(batched) == answers(alone)
    assert len({line["prompt_tokens"] for line in answers(alone).values()}) > 3, "nothing is padded"
    record = batched.read_run()
    assert record["decoding"]["engine"] == "transformers"
    assert record["decoding"]["model"]["precision"] == "float32"
    assert (record["run"]["attention_backend"], record["run"]["batch"]) == ("sdpa", 32)
    assert not record["run"]["batch_invariant"]

    vllm = answers(run("vllm", "vllm", "bfloat16", 15))
    ours = answers(batched)
    same = ("request_id", "prompt_sha256", "prompt_tokens")
    assert [[x[f] for f in same] for x in vllm.values()] == [
        [x[f] for f in same] for x in ours.values()
    ]
    assert {x["finish_reason"] for x in ours.values()} <= {"stop", "length"}
    # Two engines, two precisions: the first tokens agree for most requests of a random model.
    agree = sum(vllm[n]["output_token_ids"][:3] == ours[n]["output_token_ids"][:3] for n in ours)
    assert agree >= len(ours) // 2


def test_another_engine_or_precision_is_another_decoding():
    model = load_model_manifest(MODEL)
    one, other = (load_experiment_manifest(n) for n in ("embedded", "embedded-transformers"))
    half = other.model_copy(update={"precision": "float16"})
    settings = [decoding_settings(model, e, digests={}) for e in (one, other, half)]
    assert first_difference(settings[0], settings[1]) == 'engine: "vllm" became "transformers"'
    assert first_difference(settings[1], settings[2]) == (
        'model.precision: "bfloat16" became "float16"'
    )
