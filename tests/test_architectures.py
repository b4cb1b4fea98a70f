"""Every architecture of the study goes through real vLLM, with its own manifest's prompts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from builders import TINY_FAMILY, run_spec, small_lines, write_dataset

from colab_utils import launch
from colab_utils.responses import read_responses
from colab_utils.run_directory import RunDirectory

# Renders in the engine interpreter, where the tokenizer lives, and prints what was rendered.
RENDER = """
import json, sys
from pathlib import Path
from colab_utils.manifests import ModelManifest, load_dataset_manifest
from colab_utils.prompts import load_tokenizer, render_all, stop_token_ids
from colab_utils.samples import load_dataset
model = ModelManifest.model_validate_json(sys.argv[1])
tokenizer = load_tokenizer(Path(sys.argv[2]), model)
requests = load_dataset(load_dataset_manifest(Path(sys.argv[3]))).smoke_requests()
prompts = render_all(requests, model, tokenizer, chat_template=None, max_tokens=24)
print(json.dumps({
    "text": tokenizer.decode(prompts[1].token_ids),
    "ids": list(prompts[1].token_ids),
    "bos": tokenizer.bos_token_id,
    "stops": stop_token_ids(model, tokenizer),
    "stop_tokens": tokenizer.convert_ids_to_tokens(stop_token_ids(model, tokenizer)),
}))
"""


def rendered(engine_python: Path, model, dataset: Path) -> dict:
    answer = subprocess.run(
        [str(engine_python), "-c", RENDER, model.manifest.model_dump_json(), str(model.folder),
         str(dataset)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(answer.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_FAMILY)
def test_fifteen_requests_are_answered_by_real_vllm(name, tiny, engine_python, tmp_path):
    model = tiny(name)
    spec = run_spec(tmp_path / "run", model, write_dataset(tmp_path, small_lines()), kind="smoke")
    launch.watch(spec.run_dir, launch.start(spec, engine_python))
    directory = RunDirectory(spec.run_dir)
    ids = [f"{s}-0/{c}" for s in ("code", "sql", "finance")
           for c in ("EN", "KO", "MIX1", "MIX2", "MIX3")]  # fmt: skip
    responses = read_responses(directory.responses, ids)
    assert {r.finish_reason for r in responses} <= {"stop", "length"}
    assert all(r.output_tokens for r in responses)
    run = directory.read_run()
    assert run["run"]["mode"] == "eager" and run["run"]["device"] == "cpu"
    assert "ATTN" in run["run"]["attention_backend"].upper()


def test_llama_keeps_its_date_and_one_bos(tiny, engine_python, tmp_path):
    found = rendered(
        engine_python, tiny("llama-3.2-3b-instruct"), write_dataset(tmp_path, small_lines())
    )
    assert "Today: 26 Jul 2024" in found["text"]
    assert found["ids"].count(found["bos"]) == 1 and found["ids"][0] == found["bos"]
    assert found["stop_tokens"] == ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]


def test_qwen3_does_not_think(tiny, engine_python, tmp_path):
    found = rendered(engine_python, tiny("qwen3-8b"), write_dataset(tmp_path, small_lines()))
    assert found["text"].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert found["stop_tokens"] == ["<|endoftext|>", "<|im_end|>"]


def test_hyperclovax_begins_with_an_empty_tool_list(tiny, engine_python, tmp_path):
    found = rendered(
        engine_python, tiny("hyperclovax-seed-0.5b"), write_dataset(tmp_path, small_lines())
    )
    assert found["text"].startswith("<|im_start|>tool_list\n<|im_end|>\n<|im_start|>system\n- AI")
    assert "2025년 04월 24일" in found["text"]
    assert found["stop_tokens"] == ["<|endofturn|>", "<|stop|>"]


def test_exaone_without_trust_is_refused_before_any_engine(tiny, tmp_path):
    from colab_utils.errors import WeightsError
    from colab_utils.weights import check_weights

    model = tiny("exaone-3.5-2.4b-instruct")
    distrusted = model.manifest.model_copy(update={"trust_remote_code": False})
    with pytest.raises(WeightsError, match=r"auto_map.*trust_remote_code"):
        check_weights(model.folder, distrusted)
    assert check_weights(model.folder, model.manifest)


def test_question_stands_last_and_context_first(tiny, engine_python, tmp_path):
    found = rendered(
        engine_python, tiny("llama-3.2-3b-instruct"), write_dataset(tmp_path, small_lines())
    )
    text = found["text"]
    assert text.index("def task_func(x):") < text.index("Write task_func that doubles")
    assert text.index("(KO 0)") > text.index("one ```python block")
