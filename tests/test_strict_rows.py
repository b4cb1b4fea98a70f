"""SQL verdicts on a real database: the set rule, and the stricter column beside it."""

from __future__ import annotations

import sqlite3

import pytest

from colab_utils.evaluators import execution_accuracy
from colab_utils.evaluators.probing import probe
from colab_utils.evaluators.workers import Workers
from colab_utils.manifests import PROJECT

PYTHON = PROJECT / ".envs" / "evaluator" / "bin" / "python"
DOUBLES = "SELECT name FROM t"
ORDERED = "SELECT name FROM t ORDER BY id"
ORDER_INSIDE = "SELECT name FROM (SELECT name FROM t ORDER BY id)"


@pytest.fixture(scope="module")
def run_sql(tmp_path_factory):
    database = tmp_path_factory.mktemp("strict") / "small.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
        connection.executemany("INSERT INTO t (name) VALUES (?)", [("나",), ("가",), ("나",)])
    connection.close()
    with Workers(PYTHON, probe(PYTHON, allow_weak=True), []) as workers:

        def verdict(reply: str, gold_sql: str):
            def run(job: dict, seconds: float) -> dict:
                return workers.run(job, seconds=seconds, readable=(database,))

            gold = execution_accuracy.gold_rows(gold_sql, database, run)
            judgement = execution_accuracy.judge(reply, gold_sql, gold, database, 5.0, run)
            return judgement.passed, judgement.passed_upstream, judgement.extra["strict"]

        yield verdict


@pytest.mark.parametrize(
    ("reply", "gold", "expected"),
    [
        (DOUBLES, DOUBLES, (True, True, True)),
        ("SELECT DISTINCT name FROM t", DOUBLES, (True, True, False)),
        (f"{DOUBLES} ORDER BY id DESC", DOUBLES, (True, True, True)),
        (ORDERED, ORDERED, (True, True, True)),
        ("SELECT name FROM t ORDER BY name", ORDERED, (True, True, False)),
        ("SELECT name FROM t ORDER BY name", ORDER_INSIDE, (True, True, True)),
        (f"```sql\n{ORDERED}\n```", ORDERED, (True, False, True)),
        ("SELECT id FROM t", DOUBLES, (False, False, False)),
        ("SELECT 이름 FROM t", DOUBLES, (False, False, False)),
    ],
)
def test_the_set_decides_and_the_strict_column_asks_for_doubles_and_order(
    run_sql, reply, gold, expected
):
    assert run_sql(reply, gold) == expected
