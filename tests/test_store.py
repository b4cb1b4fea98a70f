"""Run directory -> SQLite: tables, views, odd text, and refusals."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from run_directories import DATASET_SHA256, EVALUATOR, SWITCHED, row, write_run, write_scoring

from colab_utils import records
from colab_utils.errors import RecordError, ReportError, RunDirectoryError
from colab_utils.manifests import CONDITIONS, DatasetManifest
from colab_utils.samples import Dataset, Sample
from colab_utils.store import build_database, hangul_share

SAMPLES = {
    "code/1": ("code", row("pwppn")),
    "code/2": ("code", row("ppwet")),
    "sql/1": ("sql", row("wwwwu")),
    "sql/2": ("sql", row("prppp")),
    "sql/3": ("sql", row("fffff")),
    "fin/1": ("finance", row("pp-pp")),
    "fin/2": ("finance", row("ppp p")),
}


def query(path: Path, sql: str, *parameters: Any) -> list[dict[str, Any]]:
    """Read as a stranger would: the standard library only, read-only."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(found) for found in connection.execute(sql, parameters)]
    finally:
        connection.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", SAMPLES)


def test_every_row_arrives_and_every_key_holds(run_dir: Path) -> None:
    path = build_database(run_dir)
    assert path == run_dir / "results.sqlite"
    counts = {
        table: query(path, f"SELECT count(*) AS n FROM {table}")[0]["n"]
        for table in ("runs", "samples", "requests", "responses", "scorings", "verdicts")
    }
    assert counts == {
        "runs": 1, "samples": 7, "requests": 34, "responses": 34, "scorings": 1, "verdicts": 33,
    }  # fmt: skip
    assert query(path, "PRAGMA foreign_key_check") == []
    assert query(path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_values_are_plain_sqlite_types(run_dir: Path) -> None:
    path = build_database(run_dir)
    types = query(
        path,
        "SELECT DISTINCT typeof(output_tokens) AS tokens, typeof(output_token_ids) AS ids, "
        "typeof(text) AS text FROM responses",
    )
    assert types == [{"tokens": "integer", "ids": "text", "text": "text"}]
    verdict = query(path, "SELECT * FROM verdicts WHERE request_id = 'code/1/EN'")[0]
    assert (verdict["passed"], verdict["passed_upstream"], verdict["seconds"]) == (1, 1, 0.25)
    ids = query(path, "SELECT output_token_ids AS ids FROM responses LIMIT 1")[0]["ids"]
    assert json.loads(ids) == [1, 2, 3]


def test_paired_has_one_row_a_sample_and_the_reason_it_is_left_out(run_dir: Path) -> None:
    rows = query(build_database(run_dir), "SELECT * FROM paired ORDER BY sample_id")
    found = {
        r["sample_id"]: (r["EN"], r["KO"], r["MIX1"], r["MIX2"], r["MIX3"], r["left_out"])
        for r in rows
    }
    assert found == {
        "code/1": (1, 0, 1, 1, 0, None),
        "code/2": (1, 1, 0, 0, 0, None),
        "sql/1": (0, 0, 0, 0, 0, None),
        "sql/2": (1, 0, 1, 1, 1, "rejected"),
        "sql/3": (0, 0, 0, 0, 0, "reference_error"),
        "fin/1": (1, 1, None, 1, 1, "no_verdict"),
        "fin/2": (1, 1, 1, None, 1, "missing"),
    }
    assert [r["complete"] for r in rows] == [int(r["left_out"] is None) for r in rows]


def test_accuracy_counts_complete_samples_only(run_dir: Path) -> None:
    rows = query(build_database(run_dir), "SELECT * FROM accuracy_by_condition")
    found = {(r["task"], r["condition"]): (r["n"], r["passed"], r["accuracy"]) for r in rows}
    assert found == {
        ("code", "EN"): (2, 2, 1.0), ("code", "KO"): (2, 1, 0.5), ("code", "MIX1"): (2, 1, 0.5),
        ("code", "MIX2"): (2, 1, 0.5), ("code", "MIX3"): (2, 0, 0.0),
        **{("sql", c): (1, 0, 0.0) for c in ("EN", "KO", "MIX1", "MIX2", "MIX3")},
    }  # fmt: skip


def test_outcomes_count_every_response_once(run_dir: Path) -> None:
    rows = query(build_database(run_dir), "SELECT * FROM outcomes_by_condition")
    found = {(r["task"], r["condition"]): r for r in rows}
    assert found["sql", "KO"]["rejected"] == 1
    assert found["sql", "KO"]["no_answer"] == 0, "a rejected request has no outcome beside it"
    assert found["sql", "MIX3"]["unsafe"] == 1
    assert found["code", "MIX3"]["timeout"] == 1 and found["code", "MIX3"]["no_answer"] == 1
    assert found["finance", "MIX1"]["no_verdict"] == 1
    parts = ("passed", "wrong_answer", "error", "timeout", "no_answer", "wrong_extraction",
             "unsafe", "reference_error", "rejected", "no_verdict")  # fmt: skip
    assert all(sum(r[part] for part in parts) == r["responses"] for r in rows)
    assert sum(r["responses"] for r in rows) == 34


def test_views_of_rows_to_look_at(tmp_path: Path) -> None:
    cells = row("pwpwp") | {
        "EN": {"outcome": "passed", "passed_upstream": False, "detail": "odd fence"},
        "KO": {"outcome": "wrong_answer", "finish_reason": "length"},
        "MIX1": {"outcome": "rejected", "error": "2,000 tokens do not fit"},
    }
    path = build_database(write_run(tmp_path / "run", {"s": ("code", cells)}))
    assert [r["request_id"] for r in query(path, "SELECT * FROM differences_passed_upstream")] == [
        "s/EN"
    ]
    cut = query(path, "SELECT condition, outcome FROM cut_by_length")
    assert cut == [{"condition": "KO", "outcome": "wrong_answer"}]
    rejected = query(path, "SELECT condition, error FROM rejected")
    assert rejected == [{"condition": "MIX1", "error": "2,000 tokens do not fit"}]


def test_a_sample_whose_reference_fails_is_left_out_even_where_it_passed(tmp_path: Path) -> None:
    samples = {"good": ("code", row("ppppp")), "bad": ("code", row("ppppp"))}
    folder = write_run(tmp_path / "run", samples, scored=False)
    write_scoring(folder, samples, excluded=["bad", "not in this run"])
    path = build_database(folder)
    assert query(path, "SELECT sample_id, left_out FROM paired ORDER BY 1") == [
        {"sample_id": "bad", "left_out": "reference_error"},
        {"sample_id": "good", "left_out": None},
    ]
    assert query(path, "SELECT DISTINCT n FROM accuracy_by_condition") == [{"n": 1}]


ODD = {
    "NUL": "before\x00after",
    "line ends": "a\r\nb\rc\nd\u2028e\x85f\x0cg",
    "NFD": "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "emoji": "👩‍👩‍👧‍👦 🇰🇷",
    "quotes": 'it\'s "x"; DROP TABLE runs; -- <script>',
    "long": "가" * 100_000,
    "literal escape": "\\ud800 stays six characters",
    "empty": "",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_text_survives_byte_for_byte(tmp_path: Path, name: str) -> None:
    text = ODD[name]
    cells = row("ppppp") | {
        "KO": {"outcome": "passed", "text": text, "extracted": text, "detail": text}
    }
    path = build_database(write_run(tmp_path / "run", {"s": ("code", cells)}))
    found = query(
        path, "SELECT text, extracted, detail, escaped FROM judged WHERE condition = 'KO'"
    )
    assert found == [{"text": text, "extracted": text, "detail": text, "escaped": None}]
    characters = query(path, "SELECT characters FROM responses WHERE request_id = 's/KO'")
    assert characters == [{"characters": len(text)}]


def test_lone_surrogates_are_escaped_and_said(tmp_path: Path) -> None:
    text = 'half \ud83d of "a pair"\x00\n'
    cells = row("ppppp") | {"KO": {"outcome": "passed", "text": text, "extracted": text}}
    path = build_database(write_run(tmp_path / "run", {"s": ("code", cells)}))
    response = query(path, "SELECT text, escaped FROM responses WHERE request_id = 's/KO'")[0]
    assert response["escaped"] == "text"
    assert json.loads(response["text"]) == text
    verdict = query(path, "SELECT extracted, escaped FROM verdicts WHERE request_id = 's/KO'")[0]
    assert verdict["escaped"] == "extracted"
    assert json.loads(verdict["extracted"]) == text
    assert query(path, "SELECT escaped FROM judged WHERE request_id = 's/KO'") == [
        {"escaped": "text,extracted"}
    ]
    others = query(path, "SELECT count(*) AS n FROM responses WHERE escaped IS NULL")
    assert others == [{"n": 4}]


@pytest.mark.parametrize(
    ("text", "letters", "hangul"),
    [
        ("답 is 3", 3, 1),
        ("한글", 2, 2),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af", 2, 2),
        ("ㅋㅋ ok", 4, 2),
        ("漢字 かな", 4, 0),
        ("123 +-*/", 0, 0),
    ],
)
def test_hangul_is_counted_among_letters(text: str, letters: int, hangul: int) -> None:
    assert hangul_share(text) == (letters, hangul)


def test_all_scorings_are_kept_and_the_newest_completed_one_is_shown(tmp_path: Path) -> None:
    samples = {"s": ("code", row("ppppp"))}
    folder = write_run(tmp_path / "run", samples)
    naive, later, open_one, foreign = "a" * 64, "b" * 64, "c" * 64, "d" * 64
    worse = {"s": ("code", row("wwwww"))}
    write_scoring(folder, worse, fingerprint=naive, completed="2026-12-01T11:59:59")
    write_scoring(folder, worse, fingerprint=later, completed="2026-12-01T13:00:00+01:00")
    write_scoring(folder, worse, fingerprint=open_one, completed=None)
    write_scoring(folder, worse, fingerprint=foreign, completed="2027-01-01T00:00:00Z",
                  responses_sha256="0" * 64)  # fmt: skip

    def shown(**chosen: Any) -> tuple[str, int]:
        path = build_database(folder, **chosen)
        kept = query(path, "SELECT evaluator_fingerprint AS fp, count(*) AS n FROM verdicts "
                           "GROUP BY fp ORDER BY fp")  # fmt: skip
        assert kept == [{"fp": fp, "n": 5} for fp in (naive, later, open_one, EVALUATOR)]
        found = query(path, "SELECT DISTINCT evaluator_fingerprint AS fp, n, passed "
                            "FROM accuracy_by_condition JOIN scorings USING (run_id) "
                            "WHERE chosen")  # fmt: skip
        return found[0]["fp"], found[0]["passed"]

    # no zone is read as UTC; 13:00+01:00 is 12:00Z, and that tie is broken by fingerprint
    assert shown() == (EVALUATOR, 1)
    assert shown(scoring_fingerprint="bbb") == (later, 0)
    for wanted in ("ccc", "ddd", "f"):
        with pytest.raises(ReportError, match=f"{wanted!r}.*choose among: a+, b+, e+\\."):
            build_database(folder, scoring_fingerprint=wanted)


def test_a_run_without_scoring_still_becomes_a_database(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", {"s": ("code", row("ppppp"))}, scored=False)
    path = build_database(folder)
    assert query(path, "SELECT left_out FROM paired") == [{"left_out": "no_verdict"}]
    assert query(path, "SELECT * FROM accuracy_by_condition") == []


def test_several_runs_share_samples_and_requests(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, SAMPLES, model={"name": name}) for name in ("one", "two")]
    path = build_database(folders, tmp_path / "both.sqlite")
    assert query(path, "SELECT count(*) AS n FROM requests") == [{"n": 34}]
    assert query(path, "SELECT count(*) AS n FROM responses") == [{"n": 68}]
    assert query(path, "SELECT model, count(*) AS n FROM paired GROUP BY model") == [
        {"model": "one", "n": 7},
        {"model": "two", "n": 7},
    ]
    assert query(path, "PRAGMA foreign_key_check") == []
    with pytest.raises(ReportError, match="target"):
        build_database(folders)
    with pytest.raises(ReportError, match="the same run"):
        build_database([folders[0], folders[0]], tmp_path / "both.sqlite")


def test_runs_of_two_data_sets_are_not_put_together(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", SAMPLES)
    other = write_run(tmp_path / "other", SAMPLES, model={"name": "other"})
    run = json.loads((other / "run.json").read_bytes())
    run["manifests"]["dataset"]["sha256"] = "f" * 64
    (other / "run.json").write_text(json.dumps(run))
    with pytest.raises(ReportError, match="ffff"):
        build_database([one, other], tmp_path / "both.sqlite")


def test_refuses_what_is_not_a_finished_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no run"):
        build_database(tmp_path)
    with pytest.raises(ReportError, match="names no run directory"):
        build_database([])
    folder = write_run(tmp_path / "open", SAMPLES, completed=None)
    with pytest.raises(RunDirectoryError, match="not finished"):
        build_database(folder)
    folder = write_run(tmp_path / "changed", SAMPLES)
    with open(folder / "responses.jsonl", "ab") as stream:
        stream.write(b"\n")
    with pytest.raises(RunDirectoryError, match="not the file that the run ended with"):
        build_database(folder)


def _torn(data: bytes) -> bytes:
    return data[:-9]


def _doubled(data: bytes) -> bytes:
    return data + data.split(b"\n")[0] + b"\n"


def _contradicting(data: bytes) -> bytes:
    return data.replace(b'"passed":true', b'"passed":false', 1)


def _unknown(data: bytes) -> bytes:
    return data.replace(b'"wrong_answer"', b'"nearly"', 1)


def _foreign(data: bytes) -> bytes:
    return data.replace(b'"code/1/EN"', b'"code/9/EN"', 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_torn, "verdicts.jsonl"),
        (_doubled, "line 34: judges 'code/1/EN' again, after line 1"),
        (_contradicting, "line 1.*passed"),
        (_unknown, "line 2, field outcome"),
        (_foreign, "'code/9/EN', which the run did not answer"),
    ],
)
def test_refuses_damaged_verdicts_naming_the_line(run_dir: Path, damage: Any, message: str) -> None:
    path = run_dir / "scoring" / EVALUATOR[:12] / "verdicts.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecordError, match=message):
        build_database(run_dir)


def test_a_failed_build_leaves_the_old_database_as_it_was(run_dir: Path) -> None:
    path = build_database(run_dir)
    before = path.read_bytes()
    verdicts = run_dir / "scoring" / EVALUATOR[:12] / "verdicts.jsonl"
    verdicts.write_bytes(b"{}\n")
    with pytest.raises(RecordError):
        build_database(run_dir)
    assert path.read_bytes() == before
    assert sorted(p.name for p in run_dir.iterdir()) == [
        "responses.jsonl", "results.sqlite", "run.json", "scoring",
    ]  # fmt: skip


def test_rebuilding_replaces_the_file_under_an_open_reader(run_dir: Path) -> None:
    path = build_database(run_dir)
    reader = sqlite3.connect(path)
    assert reader.execute("SELECT count(*) FROM verdicts").fetchone() == (33,)
    inode = os.stat(path)[stat.ST_INO]
    write_scoring(run_dir, SAMPLES, fingerprint="b" * 64)
    build_database(run_dir)
    assert os.stat(path)[stat.ST_INO] != inode
    assert reader.execute("SELECT count(*) FROM verdicts").fetchone() == (33,)
    assert query(path, "SELECT count(*) AS n FROM verdicts") == [{"n": 66}]
    reader.close()


def test_the_same_run_gives_the_same_bytes(run_dir: Path) -> None:
    first = records.sha256_file(build_database(run_dir))
    assert records.sha256_file(build_database(run_dir)) == first


def test_an_integer_beyond_sqlite_is_refused_in_one_sentence(tmp_path: Path) -> None:
    cells = row("ppppp") | {"KO": {"outcome": "passed", "output_token_ids": [10**30]}}
    path = build_database(write_run(tmp_path / "run", {"s": ("code", cells)}))
    ids = query(path, "SELECT output_token_ids AS ids FROM responses WHERE request_id = 's/KO'")
    assert json.loads(ids[0]["ids"]) == [10**30]
    folder = write_run(tmp_path / "wide", {"s": ("code", row("ppppp"))})
    data = (folder / "responses.jsonl").read_bytes()
    data = data.replace(b'"prompt_tokens":10', b'"prompt_tokens":1' + b"0" * 30, 1)
    (folder / "responses.jsonl").write_bytes(data)
    run = json.loads((folder / "run.json").read_bytes())
    run["completed"]["responses_sha256"] = records.sha256_bytes(data)
    (folder / "run.json").write_text(json.dumps(run))
    with pytest.raises(RecordError, match=r"responses\.prompt_tokens"):
        build_database(folder)


def dataset(sha256: str = DATASET_SHA256) -> Dataset:
    manifest = DatasetManifest.model_validate(
        {
            "name": "problems", "file": "problems.jsonl", "sha256": sha256,
            "samples": {"BigCodeBench": 1, "BIRD": 1}, "conditions": list(CONDITIONS),
            "components": {"C12": "the question", "C3": "the constraint"},
            "switched": SWITCHED, "base": "KO", "smoke_samples": ["code/1", "x", "y"],
            "licence": "CC BY 4.0", "provenance": "made up",
        }
    )  # fmt: skip
    surfaces = {condition: f"{condition} 문장" for condition in CONDITIONS}
    return Dataset(
        manifest,
        (
            Sample("code/1", "code", "BigCodeBench", surfaces, "stub \ud800", {}, {"level": "딱"}),
            Sample("not run", "sql", "BIRD", surfaces, "", {}, {}),
        ),
    )


def test_a_data_set_adds_surfaces_contexts_and_benchmarks(run_dir: Path) -> None:
    path = build_database(run_dir, dataset=dataset())
    sample = query(path, "SELECT * FROM samples WHERE sample_id = 'code/1'")[0]
    assert sample["benchmark"] == "BigCodeBench"
    assert sample["escaped"] == "context" and json.loads(sample["context"]) == "stub \ud800"
    assert json.loads(sample["meta"]) == {"level": "딱"}
    surface = query(path, "SELECT surface FROM requests WHERE request_id = 'code/1/MIX2'")
    assert surface == [{"surface": "MIX2 문장"}]
    assert query(path, "SELECT count(*) AS n FROM samples") == [{"n": 7}]
    assert query(path, "SELECT benchmark FROM paired WHERE sample_id = 'sql/1'") == [
        {"benchmark": None}
    ]


def test_another_data_set_is_refused(run_dir: Path) -> None:
    with pytest.raises(ReportError, match="not " + "f" * 64):
        build_database(run_dir, dataset=dataset("f" * 64))


def test_other_rules_are_counted_beside_passed(tmp_path: Path) -> None:
    def sql(strict: bool) -> dict:
        return {"outcome": "passed", "extra": {"strict": strict}}

    near = {"outcome": "wrong_answer", "extra": {
        "within_1_percent": True, "equal_rounded": False, "percent_x100": False,
    }}  # fmt: skip
    samples = {
        "sql/1": ("sql", row("ppppp") | {"EN": sql(True), "KO": sql(False)}),
        "fin/1": ("finance", row("wwwww") | {"KO": near}),
        "code/1": ("code", row("ppppp")),
    }
    path = build_database(write_run(tmp_path / "run", samples))
    found = {
        (r["task"], r["condition"]): (r["passed"], r["strict"], r["within_1_percent"])
        for r in query(path, "SELECT * FROM sensitivity_by_condition")
    }
    assert found["sql", "EN"] == (1, 1, None) and found["sql", "KO"] == (1, 0, None)
    assert found["finance", "KO"] == (0, None, 1) and found["finance", "EN"] == (0, None, None)
    assert {task for task, _ in found} == {"sql", "finance"}
