"""Scoring a run: verdicts by running answers, again and again, never touching the answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from answered_runs import CODE, RIGHT, answered_run
from builders import code_line, finance_line, small_lines, sql_line, write_dataset

from colab_utils import records
from colab_utils.errors import ParameterError, ScoringError
from colab_utils.explanation import explain
from colab_utils.manifests import PROJECT, load_dataset_manifest
from colab_utils.samples import Dataset, load_dataset
from colab_utils.scoring import latest_scoring, score, score_part, verify_references
from colab_utils.scoring_progress import ScoringProgress

PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"


def dataset_in(folder: Path, lines: list[dict]) -> Dataset:
    return load_dataset(load_dataset_manifest(write_dataset(folder, lines)))


def by_id(result) -> dict:
    return {verdict.request_id: verdict for verdict in result.scoring.verdicts}


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    return dataset_in(tmp_path, small_lines())


def test_each_outcome_is_told_apart(tmp_path, dataset):
    answers = {
        "code-0/EN": CODE,
        "code-0/KO": f"네, 다음과 같습니다.\n\n{CODE}\n\n도움이 되었기를 바랍니다!",
        "code-0/MIX1": CODE.replace("2 * x", "3 * x"),
        "code-0/MIX2": "죄송하지만 답할 수 없습니다.",
        "code-0/MIX3": CODE.replace("return 2 * x", "raise SystemExit"),
        "sql-0/EN": RIGHT["sql"],
        "sql-0/KO": "SELECT COUNT(*) FROM item",
        "sql-0/MIX1": "```sql\nDELETE FROM item\n```",
        "sql-0/MIX2": "```sql\nSELECT nothing FROM nowhere\n```",
        "sql-0/MIX3": "",
        "finance-0/EN": RIGHT["finance"],
        "finance-0/KO": RIGHT["finance"].replace("50.0", "50.1"),
        "finance-0/MIX1": RIGHT["finance"].replace("50.0", "50.11"),
        "finance-0/MIX2": RIGHT["finance"].replace("```python", "```py"),
        "finance-0/MIX3": "",
    }
    run = answered_run(
        tmp_path / "run", dataset, lambda r: answers[r.request_id], rejected=("finance-0/MIX3",)
    )
    before = (run / "responses.jsonl").read_bytes()
    verdicts = by_id(score(run, dataset=dataset, evaluator_python=PYTHON))
    outcomes = {name: verdict.outcome for name, verdict in verdicts.items()}
    assert outcomes == {
        "code-0/EN": "passed",
        "code-0/KO": "passed",
        "code-0/MIX1": "wrong_answer",
        "code-0/MIX2": "no_answer",
        "code-0/MIX3": "error",
        "sql-0/EN": "passed",
        "sql-0/KO": "passed",
        "sql-0/MIX1": "no_answer",
        "sql-0/MIX2": "error",
        "sql-0/MIX3": "no_answer",
        "finance-0/EN": "passed",
        "finance-0/KO": "passed",
        "finance-0/MIX1": "wrong_answer",
        "finance-0/MIX2": "passed",
        "finance-0/MIX3": "no_answer",
    }
    upstream = {name for name, verdict in verdicts.items() if verdict.passed_upstream}
    # Upstream executes a SQL reply as it stands, and can't read a "```py" fence.
    assert upstream == {
        "code-0/EN", "code-0/KO", "sql-0/KO", "finance-0/EN", "finance-0/KO",
    }  # fmt: skip
    assert verdicts["finance-0/MIX3"].detail == "rejected: too long"
    assert (run / "responses.jsonl").read_bytes() == before


def test_what_only_upstreams_extraction_finds_is_our_extractions_fault(tmp_path, dataset):
    """Not where the program stands in thinking, and not where upstream's rule is the laxer one."""
    draft = "```python\ndef task_func(x):\n    pass\n```\n"
    whole = CODE.replace("    return", "    # doubled\n    return")
    thought = f"<think>{RIGHT['finance']}</think>"
    answers = {
        "code-0/KO": f"먼저 틀입니다.\n{draft}이제 전체입니다.\n{whole}",
        "code-0/MIX1": draft,
        "sql-0/KO": "SELECT COUNT(*)\n\nFROM item; -- 모두",
        "sql-0/MIX1": "SELECT COUNT(*)\n\nFROM item;",
        "finance-0/MIX1": thought,
    }
    run = answered_run(
        tmp_path / "run", dataset, lambda r: answers.get(r.request_id, RIGHT[r.sample.task])
    )
    seen: list[ScoringProgress] = []
    result = score(run, dataset=dataset, evaluator_python=PYTHON, progress=seen.append)
    verdicts = by_id(result)
    assert {name: (verdicts[name].outcome, verdicts[name].passed_upstream) for name in answers} == {
        "code-0/KO": ("wrong_extraction", True),
        "code-0/MIX1": ("wrong_answer", False),
        "sql-0/KO": ("wrong_extraction", True),
        "sql-0/MIX1": ("passed", True),
        "finance-0/MIX1": ("no_answer", True),
    }
    assert "what upstream takes from the reply passes; ours: " in verdicts["sql-0/KO"].detail
    table = {line.split("  ")[0]: line.split()[2:] for line in seen[-1].table.splitlines()}
    assert table["wrong extraction"] == ["0", "2", "0", "0", "0"]


def test_scoring_again_does_nothing(tmp_path, dataset):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    first = score(run, dataset=dataset, evaluator_python=PYTHON)
    stamp = first.verdicts_path.stat().st_mtime_ns
    again = score(run, dataset=dataset, evaluator_python=PYTHON)
    assert (first.already_done, again.already_done) == (False, True)
    assert first.verdicts_path.stat().st_mtime_ns == stamp
    assert all(verdict.passed for verdict in first.scoring.verdicts)
    assert latest_scoring(run).folder == first.folder


def test_equal_answers_of_a_sample_are_run_once(tmp_path, dataset):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    result = score(run, dataset=dataset, evaluator_python=PYTHON, workers=1)
    assert records.read_json(result.folder / "scoring.json")["equal_programs"] == 12


def test_a_failing_reference_excludes_its_sample_for_all_conditions(tmp_path):
    broken = code_line(1)
    broken["reference"]["canonical_solution"] = "    return x\n"
    unknown = sql_line(1)
    unknown["reference"]["gold_sql"] = "SELECT * FROM gone"
    wrong = finance_line(1)
    wrong["reference"]["python_solution"] = "def solution():\n    return 1\n"
    dataset = dataset_in(tmp_path, [*small_lines(), broken, unknown, wrong])
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    result = score(run, dataset=dataset, evaluator_python=PYTHON)
    assert result.scoring.excluded == ["code-1", "finance-1", "sql-1"]
    for name, verdict in by_id(result).items():
        excluded = name.split("/")[0] in result.scoring.excluded
        assert (verdict.outcome == "reference_error") == excluded


def test_killed_scoring_goes_on_where_it_was(tmp_path):
    dataset = dataset_in(tmp_path, small_lines(4))
    run = answered_run(
        tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task] + f"\n{r.request_id}"
    )
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from colab_utils.manifests import load_dataset_manifest\n"
        "from colab_utils.samples import load_dataset\nfrom colab_utils.scoring import score\n"
        "dataset = load_dataset(load_dataset_manifest(Path(sys.argv[2])))\n"
        "score(Path(sys.argv[1]), dataset=dataset, evaluator_python=Path(sys.argv[3]))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(run), str(tmp_path / "small.yaml"), str(PYTHON)],
        start_new_session=True,
    )
    part = None
    while part is None or part.read_bytes().count(b"\n") < 6:
        assert child.poll() is None
        part = next(iter(run.glob("scoring/*/verdicts.part.jsonl")), None)
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    kept = part.read_bytes()[: part.read_bytes().rfind(b"\n") + 1]
    # A torn last line, as a kill in the middle of a write leaves it, is judged again.
    part.write_bytes(kept + b'{"request_id":"code-')
    result = score(run, dataset=dataset, evaluator_python=PYTHON)
    assert len(result.scoring.verdicts) == 60
    assert not part.exists()
    final = result.verdicts_path.read_bytes().split(b"\n")
    assert set(kept.split(b"\n")[1:-1]) <= set(final)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "run.json").unlink(), "holds no run"),
        (lambda run: (run / "responses.jsonl").unlink(), "some answers are missing"),
        (
            lambda run: (run / "responses.jsonl").write_bytes(b"{}\n"),
            "is not what the run wrote",
        ),
    ],
)
def test_what_cannot_be_scored_is_refused(tmp_path, dataset, spoil, message):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    spoil(run)
    with pytest.raises(ScoringError, match=message):
        score(run, dataset=dataset, evaluator_python=PYTHON)
    assert not (run / "scoring").exists()


def test_a_run_of_another_data_set_is_refused(tmp_path, dataset):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    (tmp_path / "other").mkdir()
    other = dataset_in(tmp_path / "other", small_lines(2))
    with pytest.raises(ScoringError, match="answers another data set"):
        score(run, dataset=other, evaluator_python=PYTHON)


def test_an_interpreter_without_the_sanitiser_is_named(tmp_path, dataset):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    with pytest.raises(ScoringError, match="lacks bigcodebench"):
        score(run, dataset=dataset, evaluator_python=Path(sys.executable))


def test_part_of_the_answers_is_judged_and_taken_over(tmp_path, dataset):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    part = score_part(run, "KO", dataset=dataset, evaluator_python=PYTHON)
    assert {v["request_id"] for v in part.verdicts} == {"code-0/KO", "sql-0/KO", "finance-0/KO"}
    assert latest_scoring(run) is None
    kept = {v["request_id"]: v["seconds"] for v in part.verdicts}
    whole = by_id(score(run, dataset=dataset, evaluator_python=PYTHON))
    assert {name: whole[name].seconds for name in kept} == kept
    one = score_part(run, "sql-0/MIX1", dataset=dataset, evaluator_python=PYTHON)
    assert [v["request_id"] for v in one.verdicts] == ["sql-0/MIX1"]
    with pytest.raises(ParameterError, match="'FR' is no task, condition, sample or request"):
        score_part(run, "FR", dataset=dataset, evaluator_python=PYTHON)


def test_two_scorings_of_one_run_do_not_meet(tmp_path, dataset):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    refused = []

    def again(state: ScoringProgress) -> None:
        with pytest.raises(ScoringError, match="is being scored by another process"):
            score(run, dataset=dataset, evaluator_python=PYTHON)
        refused.append(state)

    score(run, dataset=dataset, evaluator_python=PYTHON, progress=again)
    assert "passed" in refused[-1].table and "finance" in refused[-1].table
    # KO and EN stand in columns, each with its one answer a task.
    assert refused[-1].table.count("1/1") == 15


def test_references_are_run_once_and_the_failing_named(tmp_path):
    broken = code_line(1)
    broken["reference"]["code_prompt"] = "import not_installed\ndef task_func(x):\n"
    unimportable = code_line(2)
    unimportable["reference"]["test"] = (
        "import unittest\nfrom nowhere import x\nclass TestCases(unittest.TestCase):\n"
        "    def test_a(self):\n        pass\n"
    )
    dataset = dataset_in(tmp_path, [*small_lines(), broken, unimportable])
    found = verify_references(tmp_path / "kept", dataset=dataset, evaluator_python=PYTHON)
    assert {n for n, r in found.items() if r.problem} == {"code-1", "code-2"}
    assert "not_installed" in found["code-1"].problem and "nowhere" in found["code-2"].problem
    assert found["sql-0"].gold["rows"] >= 1
    file = next((tmp_path / "kept").glob("references.*.jsonl"))
    data = file.read_bytes()
    # A kill tore the last line: that reference is run again, no other.
    file.write_bytes(data[:-9])
    assert verify_references(tmp_path / "kept", dataset=dataset, evaluator_python=PYTHON) == found
    assert file.read_bytes() == data


def test_one_answer_is_explained_from_prompt_to_verdicts(tmp_path, dataset):
    def reply(request):
        return "\ud800 모르겠습니다" if request.condition == "MIX2" else RIGHT[request.sample.task]

    run = answered_run(tmp_path / "run", dataset, reply)
    assert "not scored yet" in explain(run, "code-0/KO", dataset=dataset)
    score(run, dataset=dataset, evaluator_python=PYTHON)
    for task, word in (("code", "class TestCases"), ("sql", "compared with"), ("finance", "gold:")):
        text = explain(run, f"{task}-0/KO", dataset=dataset)
        for part in ("the prompt", "answer (stop", "extracted (", "what ran", "passed: True", word):
            assert part in text
    lost = explain(run, "code-0/MIX2", dataset=dataset)
    assert "\\udcd8" not in lost and "no_answer: no program in the reply" in lost
    lost.encode("utf-8")
    with pytest.raises(ParameterError, match="no request of this run"):
        explain(run, "code-9/KO", dataset=dataset)


def test_a_scoring_of_a_run_that_went_on_keeps_its_verdicts(tmp_path, dataset):
    run = answered_run(tmp_path / "run", dataset, lambda r: RIGHT[r.sample.task])
    whole = (run / "responses.jsonl").read_bytes()
    record = records.read_json(run / "run.json")
    lines = whole.split(b"\n")
    some = b"\n".join(lines[:5]) + b"\n"
    (run / "responses.jsonl").write_bytes(some)
    record["completed"]["responses_sha256"] = records.sha256_bytes(some)
    (run / "run.json").write_bytes(records.encode_line(record))
    first = score(run, dataset=dataset, evaluator_python=PYTHON)
    assert len(first.scoring.incomplete) == 10
    (run / "responses.jsonl").write_bytes(whole)
    record["completed"]["responses_sha256"] = records.sha256_bytes(whole)
    (run / "run.json").write_bytes(records.encode_line(record))
    second = score(run, dataset=dataset, evaluator_python=PYTHON)
    assert second.scoring.incomplete == [] and second.folder == first.folder
    kept = {v.request_id: v.seconds for v in first.scoring.verdicts}
    assert {
        v.request_id: v.seconds for v in second.scoring.verdicts if v.request_id in kept
    } == kept
