"""A BIRD folder: eleven databases, each found by its `db_id`, whatever else lies beside them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import yaml
from answered_runs import answered_run
from builders import code_line, finance_line, sql_line, write_dataset

from colab_utils import records
from colab_utils.errors import DataError
from colab_utils.evaluators import execution_accuracy
from colab_utils.evaluators.probing import probe
from colab_utils.evaluators.workers import Workers
from colab_utils.manifests import PROJECT, load_dataset_manifest
from colab_utils.samples import load_dataset
from colab_utils.scoring import score

PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"
DATABASES = (
    "california_schools", "card_games", "codebase_community", "debit_card_specializing",
    "european_football_2", "financial", "formula_1", "student_club", "superhero",
    "thrombosis_prediction", "toxicology",
)  # fmt: skip


def lay_out(folder: Path, statements: dict[str, str]) -> dict[str, str]:
    """`folder/db_id/db_id.sqlite` with column descriptions beside it; digests by db_id."""
    digests = {}
    for db_id, script in statements.items():
        path = folder / db_id / f"{db_id}.sqlite"
        (path.parent / "database_description").mkdir(parents=True)
        (path.parent / "database_description" / "t.csv").write_bytes(b"\xef\xbb\xbfname\r\n")
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
        digests[db_id] = records.sha256_file(path)
    return digests


@pytest.fixture
def manifest(tmp_path):
    """A data set with a question on each database; each database has its own number of rows."""
    rows = {db_id: number for number, db_id in enumerate(DATABASES, start=1)}
    digests = lay_out(
        tmp_path / "dev_databases",
        {
            db_id: "CREATE TABLE t (name TEXT);" + "INSERT INTO t VALUES ('행');" * count
            for db_id, count in rows.items()
        },
    )
    lines = [code_line(0), finance_line(0)]
    for number, db_id in enumerate(reversed(DATABASES)):
        line = sql_line(number)
        line["reference"] = {"db_id": db_id, "gold_sql": "SELECT COUNT(*) FROM t"}
        lines.append(line)
    path = write_dataset(tmp_path, lines)
    content = yaml.safe_load(path.read_text())
    content["databases"] = {"folder": "dev_databases", "sha256": digests}
    path.write_text(yaml.safe_dump(content))
    return path


def test_each_answer_is_run_on_its_own_database(tmp_path, manifest):
    dataset = load_dataset(load_dataset_manifest(manifest))
    run = answered_run(
        tmp_path / "run",
        dataset,
        lambda r: "SELECT COUNT(*) FROM t" if r.condition == "EN" else "SELECT 6",
    )
    verdicts = score(run, dataset=dataset, evaluator_python=PYTHON).scoring.verdicts
    passed = {v.request_id for v in verdicts if v.passed and v.request_id.startswith("sql")}
    # "SELECT 6" is right on the database of six rows alone, the sixth of eleven either way.
    assert passed == {f"sql-{n}/EN" for n in range(11)} | {
        f"sql-5/{c}" for c in ("KO", "MIX1", "MIX2", "MIX3")
    }


def test_a_database_that_lies_elsewhere_is_named_with_the_layout(tmp_path, manifest):
    folder = tmp_path / "dev_databases"
    (folder / "superhero" / "superhero.sqlite").rename(folder / "superhero.sqlite")
    with pytest.raises(DataError, match=r"superhero/superhero\.sqlite: cannot be read .*db_id"):
        load_dataset(load_dataset_manifest(manifest))


@pytest.mark.slow
def test_the_gold_queries_of_mini_dev_run_on_its_eleven_schemas(tmp_path, golden):
    tables = json.loads((golden / "bird" / "mini_dev_tables.json").read_text())
    questions = json.loads((golden / "bird" / "mini_dev_sqlite.json").read_text())
    folder = tmp_path / "dev_databases"
    lay_out(folder, {schema["db_id"]: empty_tables(schema) for schema in tables})
    assert {schema["db_id"] for schema in tables} == set(DATABASES)
    problems = {}
    with Workers(PYTHON, probe(PYTHON, allow_weak=False), []) as workers:
        for question in questions[::5]:
            database = folder / question["db_id"] / f"{question['db_id']}.sqlite"

            def run(job: dict, seconds: float, database: Path = database) -> dict:
                return workers.run(job, seconds=seconds, readable=(database,))

            gold = execution_accuracy.gold_rows(question["SQL"], database, run)
            if "problem" in gold:
                problems[question["question_id"]] = gold["problem"]
    assert problems == {}


def empty_tables(schema: dict) -> str:
    """The statements that make a schema's tables, without rows."""
    columns: dict[int, list[str]] = {}
    for table, name in schema["column_names_original"]:
        columns.setdefault(table, []).append(f'"{name}"')
    return "".join(
        f'CREATE TABLE "{name}" ({", ".join(columns[number])});'
        for number, name in enumerate(schema["table_names_original"])
    )
