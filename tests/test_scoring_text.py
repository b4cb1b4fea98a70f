"""Answers that hold anything a text can hold: each gets its verdict, none ends the scoring."""

from __future__ import annotations

import pytest
from answered_runs import RIGHT, answered_run
from builders import small_lines, write_dataset

from colab_utils import records
from colab_utils.errors import InterpreterError, ParameterError
from colab_utils.manifests import PROJECT, load_dataset_manifest
from colab_utils.samples import Dataset, load_dataset
from colab_utils.scoring import score

PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    return load_dataset(load_dataset_manifest(write_dataset(tmp_path, small_lines())))


@pytest.mark.parametrize(
    "mark",
    [
        "\ud800", "\x00", "\ufeff", "\u2028", "\x0c", "\u1112\u1161\u11ab", "한", "😀", "NaN",
        "(" * 5000, "그래서\n" * 40, "x" * 100_000, "\r\n", "`", "<think>다시</think>",
    ],
    ids=lambda mark: f"U+{ord(mark[0]):04X} x{len(mark)}",
)  # fmt: skip
def test_odd_text_around_a_right_answer_changes_nothing(tmp_path, dataset, mark):
    places = {"EN": "{mark}\n{right}", "KO": "{right}\n{mark}", "MIX1": "{mark}\n{right}\n{mark}",
              "MIX2": "{mark}", "MIX3": ""}  # fmt: skip

    def answer(request) -> str:
        text = places[request.condition].replace("{right}", RIGHT[request.sample.task])
        return text.replace("{mark}", mark)

    run = answered_run(tmp_path / "run", dataset, answer)
    result = score(run, dataset=dataset, evaluator_python=PYTHON)
    verdicts = {verdict.request_id: verdict for verdict in result.scoring.verdicts}
    assert len(verdicts) == 15
    for name, verdict in verdicts.items():
        right = name.split("/")[1] in ("EN", "KO", "MIX1")
        assert verdict.passed == right, (name, verdict.outcome, verdict.detail)
    # Strict JSON all the way: the file can be read back line by line.
    assert len(records.read_jsonl(result.verdicts_path)) == 15


def test_thinking_is_no_answer_in_any_task(tmp_path, dataset):
    run = answered_run(
        tmp_path / "run", dataset, lambda r: "<think>\n" + RIGHT[r.sample.task] + "\n그러면"
    )
    result = score(run, dataset=dataset, evaluator_python=PYTHON)
    assert {verdict.outcome for verdict in result.scoring.verdicts} == {"no_answer"}
    # Upstream reads programs in thinking too.
    assert any(verdict.passed_upstream for verdict in result.scoring.verdicts)


def test_values_that_cannot_be_compared_do_not_end_the_scoring(tmp_path, dataset):
    values = {"EN": "'[[50]]'", "KO": "[[50]]", "MIX1": "'9**9**9'", "MIX2": "{50: 50}",
              "MIX3": "50.0"}  # fmt: skip

    def answer(request) -> str:
        if request.sample.task != "finance":
            return RIGHT[request.sample.task]
        return f"```python\ndef solution():\n    return {values[request.condition]}\n```"

    run = answered_run(tmp_path / "run", dataset, answer)
    result = score(run, dataset=dataset, evaluator_python=PYTHON)
    finance = {
        v.request_id: v.outcome for v in result.scoring.verdicts if "finance" in v.request_id
    }
    assert finance == {
        "finance-0/EN": "wrong_answer", "finance-0/KO": "wrong_answer",
        "finance-0/MIX1": "wrong_answer", "finance-0/MIX2": "wrong_answer",
        "finance-0/MIX3": "passed",
    }  # fmt: skip


@pytest.mark.parametrize("workers", [0, -1])
def test_a_number_of_workers_that_cannot_be_is_refused(tmp_path, dataset, workers):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    with pytest.raises(ParameterError, match="workers"):
        score(run, dataset=dataset, evaluator_python=PYTHON, workers=workers)


def test_an_interpreter_that_is_not_there_is_named(tmp_path, dataset):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    with pytest.raises(InterpreterError, match="nowhere"):
        score(run, dataset=dataset, evaluator_python=tmp_path / "nowhere")
    assert not (run / "scoring").exists()
