"""The embedded data set: what is switched where, and references that hold."""

from __future__ import annotations

import re
import runpy
import sqlite3
import subprocess
import sys
import unicodedata
from contextlib import closing
from pathlib import Path

import pytest

from colab_utils.manifests import CONDITIONS, PROJECT, load_dataset_manifest
from colab_utils.samples import Dataset, Sample, load_dataset

# "asset's" is no quotation; a Korean particle may follow one directly, a Latin letter may not.
LITERAL = re.compile(r"`[^`]+`|\"[^\"]+\"|(?<![A-Za-z])'[^']+'(?![A-Za-z])|\d+(?:[.,]\d+)*")
HANGUL = re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]")
ENGLISH = re.compile("[A-Za-z]{2,}")
IDS = {task: [f"{task}-{n:02}" for n in range(1, 9)] for task in ("code", "sql", "finance")}
DATABASES = ("bike_rental", "bookshop")
# What a query returns that forgets NULLs or rows saved twice, or takes the wrong one of two keys.
CARELESS = {
    "sql-01": "SELECT COUNT(*) FROM book WHERE price = NULL",
    "sql-02": "SELECT c.city, SUM(o.quantity) FROM orders o JOIN customer c USING (customer_id) "
    "GROUP BY c.city",
    "sql-03": "SELECT name FROM customer WHERE customer_id NOT IN (SELECT customer_id FROM orders)",
    "sql-04": "SELECT b.title, ROUND(AVG(r.stars), 2) FROM review r JOIN book b USING (book_id) "
    "WHERE r.stars IS NOT NULL GROUP BY b.book_id",
    "sql-05": "SELECT COUNT(*) FROM rental WHERE minutes IS NULL",
    "sql-06": "SELECT s.name, COUNT(*) FROM station s "
    "LEFT JOIN bike b ON b.home_station_id = s.station_id GROUP BY s.station_id",
    "sql-07": "SELECT m.name FROM rental r JOIN member m USING (member_id) "
    "JOIN station s ON s.station_id = r.end_station_id WHERE s.district = 'Mapo'",
    "sql-08": "SELECT s.name, COUNT(*) FROM rental r "
    "JOIN station s ON s.station_id = r.start_station_id "
    "GROUP BY s.station_id HAVING COUNT(*) >= 4",
}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """The data set as every run loads it: hashes, counts and lines are checked on the way."""
    return load_dataset(load_dataset_manifest("embedded"))


@pytest.fixture(params=[name for ids in IDS.values() for name in ids])
def sample(dataset: Dataset, request: pytest.FixtureRequest) -> Sample:
    """Each sample in turn."""
    return next(s for s in dataset.samples if s.sample_id == request.param)


def sample_of(dataset: Dataset, sample_id: str) -> Sample:
    return next(s for s in dataset.samples if s.sample_id == sample_id)


def parts(sample: Sample) -> dict[str, tuple[str, str]]:
    """(statement, requirement) by condition, as `requirement_start` cuts the surfaces."""
    cut = {}
    for condition in CONDITIONS:
        surface, start = sample.surfaces[condition], sample.meta["requirement_start"][condition]
        assert 1 < start < len(surface) and surface[start - 1] == " "
        cut[condition] = (surface[: start - 1], surface[start:])
    return cut


def prose(text: str) -> str:
    """`text` without its literals."""
    return LITERAL.sub(" ", text)


def run_isolated(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-I", str(file)],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)


def table_names(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [name for (name,) in rows if not name.startswith("sqlite_")]


def test_it_holds_eight_samples_a_task(dataset: Dataset):
    found = {task: [s.sample_id for s in dataset.samples if s.task == task] for task in IDS}
    assert found == IDS
    assert dataset.manifest.samples == {f"embedded-{task}": 8 for task in IDS}
    assert all(s.benchmark == f"embedded-{s.task}" for s in dataset.samples)


def test_manifest_says_what_each_condition_switches(dataset: Dataset):
    assert dataset.manifest.base == "KO"
    assert dataset.manifest.switched == {"MIX1": ["C12"], "MIX2": ["C3"], "MIX3": ["C12", "C3"]}
    assert set(dataset.manifest.components) == {"C12", "C3"}


def test_mixed_surfaces_are_composed_of_statement_and_requirement(sample: Sample):
    assert set(sample.meta["requirement_start"]) == set(CONDITIONS)
    cut = parts(sample)
    # MIX1 switches the statement alone, MIX2 the requirement alone, MIX3 exactly both.
    assert cut["MIX1"][1] == cut["KO"][1]
    assert cut["MIX2"][0] == cut["KO"][0]
    assert cut["MIX3"] == (cut["MIX1"][0], cut["MIX2"][1])
    assert cut["MIX1"][0] != cut["KO"][0]
    assert cut["MIX2"][1] != cut["KO"][1]


def test_switched_parts_are_in_the_language_they_claim(sample: Sample):
    cut = {c: (prose(s), prose(r)) for c, (s, r) in parts(sample).items()}
    for part in cut["KO"]:
        assert HANGUL.search(part) and not ENGLISH.search(part)
    assert HANGUL.search(cut["MIX1"][0]) and ENGLISH.search(cut["MIX1"][0])
    assert ENGLISH.search(cut["MIX2"][1]) and not HANGUL.search(cut["MIX2"][1])
    assert not HANGUL.search(prose(sample.surfaces["EN"]))


def test_surfaces_are_distinct_and_composed_unicode(sample: Sample):
    assert len(set(sample.surfaces.values())) == len(CONDITIONS)
    for surface in sample.surfaces.values():
        assert unicodedata.is_normalized("NFC", surface)
        assert surface == surface.strip() and "  " not in surface
    assert len(sample.surfaces["EN"].split()) < 90


def test_literals_are_the_same_in_all_surfaces(sample: Sample):
    cut = parts(sample)
    for part in (0, 1):
        wanted = sorted(LITERAL.findall(cut["EN"][part]))
        for condition in CONDITIONS:
            assert sorted(LITERAL.findall(cut[condition][part])) == wanted, (condition, part)


@pytest.mark.parametrize("db_id", DATABASES)
def test_databases_have_what_makes_queries_hard(dataset: Dataset, db_id: str):
    with closing(connect(dataset.database_path(db_id))) as db:
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        keys, nulls, doubled = 0, 0, 0
        tables = table_names(db)
        assert 4 <= len(tables) <= 5
        for table in tables:
            keys += len(db.execute(f'PRAGMA foreign_key_list("{table}")').fetchall())
            rows = db.execute(f'SELECT * FROM "{table}"').fetchall()
            assert 20 <= len(rows) <= 60, table
            nulls += sum(value is None for row in rows for value in row)
            doubled += len(rows) - len(set(rows))
    assert keys and nulls and doubled


@pytest.mark.parametrize("db_id", DATABASES)
def test_databases_are_what_their_sql_text_builds(dataset: Dataset, db_id: str, tmp_path: Path):
    build = runpy.run_path(str(PROJECT / "data" / "make_databases.py"))["build"]
    source = PROJECT / "data" / "databases" / db_id / "schema_and_rows.sql"
    built = tmp_path / "built.sqlite"
    build(source, built)
    first = built.read_bytes()
    build(source, built)
    assert built.read_bytes() == first
    # Bytes differ between SQLite versions, content must not.
    with closing(connect(dataset.database_path(db_id))) as kept, closing(connect(built)) as fresh:
        assert list(kept.iterdump()) == list(fresh.iterdump())


def test_a_failed_build_leaves_the_database_as_it_was(tmp_path: Path):
    build = runpy.run_path(str(PROJECT / "data" / "make_databases.py"))["build"]
    source, target = tmp_path / "bad.sql", tmp_path / "kept.sqlite"
    target.write_bytes(b"as it was")
    source.write_text(
        "CREATE TABLE a (id INTEGER PRIMARY KEY);\n"
        "CREATE TABLE b (a INTEGER REFERENCES a(id));\n"
        "INSERT INTO b VALUES (1);\n",
        encoding="utf-8",
    )
    with pytest.raises(sqlite3.IntegrityError):
        build(source, target)
    assert target.read_bytes() == b"as it was"
    assert {path.name for path in tmp_path.iterdir()} == {"bad.sql", "kept.sqlite"}


@pytest.mark.parametrize("sample_id", IDS["sql"])
def test_gold_sql_returns_rows(dataset: Dataset, sample_id: str):
    reference = sample_of(dataset, sample_id).reference
    with closing(connect(dataset.database_path(reference["db_id"]))) as db:
        rows = db.execute(reference["gold_sql"]).fetchall()
    assert rows and any(value is not None for row in rows for value in row)


@pytest.mark.parametrize("sample_id", IDS["sql"])
def test_a_careless_query_returns_other_rows(dataset: Dataset, sample_id: str):
    reference = sample_of(dataset, sample_id).reference
    with closing(connect(dataset.database_path(reference["db_id"]))) as db:
        gold = set(db.execute(reference["gold_sql"]).fetchall())
        assert set(db.execute(CARELESS[sample_id]).fetchall()) != gold


@pytest.mark.parametrize("sample_id", IDS["sql"])
def test_the_schema_shown_is_the_database_s(dataset: Dataset, sample_id: str):
    sample = sample_of(dataset, sample_id)
    with (
        closing(connect(dataset.database_path(sample.reference["db_id"]))) as db,
        closing(sqlite3.connect(":memory:")) as shown,
    ):
        shown.executescript(sample.context)
        schema = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        assert shown.execute(schema).fetchall() == db.execute(schema).fetchall()


def test_both_databases_are_asked(dataset: Dataset):
    asked = {s.reference["db_id"] for s in dataset.samples if s.task == "sql"}
    assert asked == set(DATABASES)


@pytest.mark.parametrize("sample_id", IDS["code"])
def test_code_references_pass_and_bodies_that_do_nothing_fail(
    dataset: Dataset, sample_id: str, tmp_path: Path
):
    sample = sample_of(dataset, sample_id)
    reference = sample.reference
    assert sample.context == reference["code_prompt"]
    assert f"`{reference['entry_point']}`" in sample.surfaces["KO"]
    ending = f"\n{reference['test']}\nunittest.main()\n"
    solved = run_isolated(
        reference["code_prompt"] + reference["canonical_solution"] + ending, tmp_path
    )
    assert solved.returncode == 0, solved.stderr
    ran = re.search(r"Ran (\d+) tests", solved.stderr)
    assert ran and int(ran[1]) >= 4
    for body in ("pass", "return next(iter(locals().values()))"):
        wrong = run_isolated(reference["code_prompt"] + f"    {body}\n" + ending, tmp_path)
        assert wrong.returncode == 1 and "FAILED" in wrong.stderr, wrong.stderr


@pytest.mark.parametrize("sample_id", IDS["finance"])
def test_finance_references_return_the_ground_truth(
    dataset: Dataset, sample_id: str, tmp_path: Path
):
    reference = sample_of(dataset, sample_id).reference
    done = run_isolated(reference["python_solution"] + "\nprint(repr(solution()))\n", tmp_path)
    assert done.returncode == 0, done.stderr
    value, truth = done.stdout.strip(), reference["ground_truth"]
    if isinstance(truth, bool):
        assert value == repr(truth)
    else:
        assert float(value) == pytest.approx(truth, rel=0.002)


def test_one_finance_answer_is_a_bool(dataset: Dataset):
    truths = [s.reference["ground_truth"] for s in dataset.samples if s.task == "finance"]
    assert sum(isinstance(truth, bool) for truth in truths) == 1
