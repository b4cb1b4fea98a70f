"""Run directories -> one SQLite database that a reader can query without this project.

A rebuild replaces the database whole; the run directory stays the only source.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from colab_utils import records
from colab_utils.errors import RecordError, ReportError, RunDirectoryError
from colab_utils.flips import flip_rows
from colab_utils.responses import Response, parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import Dataset
from colab_utils.schema import SCHEMA, VIEWS
from colab_utils.verdicts import Scoring, Verdict, load_scorings

_LARGEST = 2**63 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff\uffa0-\uffdc]")


@dataclass(frozen=True)
class _Run:
    run_id: str
    folder: Path
    record: dict[str, Any]
    responses: list[Response]
    responses_sha256: str
    scorings: list[Scoring]
    chosen: str | None


def build_database(
    run_dirs: Path | str | Sequence[Path | str],
    target: Path | str | None = None,
    *,
    dataset: Dataset | None = None,
    scoring_fingerprint: str | None = None,
) -> Path:
    """Write the database of one or several finished runs and return its path.

    `target` is the file to write; for one run it defaults to `results.sqlite` in the run
    directory. `dataset` adds surfaces, contexts and benchmarks. Every scoring of the same
    answers is kept; the views follow the chosen one: the scoring whose fingerprint starts
    with `scoring_fingerprint`, or else each run's newest completed one.

    Text that SQLite cannot bind (lone surrogates) is stored as its JSON literal, and the row's
    column `escaped` names the columns where that was done; `json.loads` restores them.

    Raises `RunDirectoryError` for a run that is not finished or whose answers changed since,
    `RecordError` for a torn or foreign file, `ReportError` for runs that cannot share one
    database or a scoring that is not there.
    """
    folders = as_folders(run_dirs)
    if target is None:
        if len(folders) > 1:
            raise ReportError("is needed for several run directories", where="target")
        target = folders[0] / "results.sqlite"
    runs = [_read_run(folder, scoring_fingerprint) for folder in folders]
    _check_together(runs, dataset)
    database = Database(memory=True)
    database.conn.executescript(SCHEMA)
    with database.conn:
        _insert_questions(database, runs, dataset)
        for run in runs:
            _insert_run(database, run)
    database.conn.executescript(VIEWS)
    path = Path(target)
    # in memory, then written like every other file: whole or absent
    records.write_atomic(path, database.conn.serialize())
    database.conn.close()
    return path


def as_folders(run_dirs: Path | str | Sequence[Path | str]) -> list[Path]:
    """One run directory or several, as a list; raises `ReportError` when there is none."""
    if isinstance(run_dirs, str | Path):
        return [Path(run_dirs)]
    folders = [Path(folder) for folder in run_dirs]
    if not folders:
        raise ReportError("names no run directory", where="run_dirs")
    return folders


def hangul_share(text: str) -> tuple[int, int]:
    """(letters, Hangul letters) of a text, counted after NFC so that both spellings agree."""
    letters = [c for c in unicodedata.normalize("NFC", text) if c.isalpha()]
    return len(letters), sum(1 for c in letters if _HANGUL.match(c))


def _read_run(folder: Path, scoring_fingerprint: str | None) -> _Run:
    directory = RunDirectory(folder)
    record = directory.read_run()
    if record is None:
        raise RunDirectoryError("holds no run", where=str(folder), mend="name a run directory")
    if not record.get("completed") or not directory.responses.exists():
        raise RunDirectoryError(
            "is not finished", where=str(folder), mend="resume it, then come back"
        )
    data = records.read_bytes(directory.responses)
    digest = records.sha256_bytes(data)
    if digest != record["completed"]["responses_sha256"]:
        raise RunDirectoryError(
            "is not the file that the run ended with",
            where=str(directory.responses),
            mend="remove it and resume the run, which makes it again from the chunks",
        )
    responses = parse_responses(data, where=str(directory.responses))
    if len({response.request_id for response in responses}) != len(responses):
        raise RecordError("answers a request twice", where=str(directory.responses))
    run_id = f"{record.get('model')}@{str(record['run_fingerprint'])[:12]}"
    scorings = load_scorings(folder)
    chosen = _choose(scorings, digest, scoring_fingerprint, folder)
    return _Run(run_id, folder, record, responses, digest, scorings, chosen)


def _choose(
    scorings: Sequence[Scoring], responses_sha256: str, wanted: str | None, folder: Path
) -> str | None:
    """Fingerprint of the scoring that the views follow; None where nothing was scored."""
    usable = [s for s in scorings if s.completed and s.responses_sha256 == responses_sha256]
    if wanted is None:
        newest = max(usable, key=lambda s: (s.completed_at, s.evaluator_fingerprint), default=None)
        return newest.evaluator_fingerprint if newest else None
    found = [s.evaluator_fingerprint for s in usable if s.evaluator_fingerprint.startswith(wanted)]
    if len(found) != 1:
        known = ", ".join(s.evaluator_fingerprint[:12] for s in usable) or "none"
        raise ReportError(
            f"{len(found)} completed scorings of these answers start with {wanted!r}",
            where=str(folder / "scoring"),
            mend=f"choose among: {known}",
        )
    return found[0]


def _check_together(runs: Sequence[_Run], dataset: Dataset | None) -> None:
    seen: dict[str, Path] = {}
    digests = {}
    for run in runs:
        if run.run_id in seen:
            raise ReportError(f"holds the same run as {seen[run.run_id]}", where=str(run.folder))
        seen[run.run_id] = run.folder
        pinned = run.record.get("manifests", {}).get("dataset") or {}
        digests[run.folder] = pinned.get("sha256")
    expected = dataset.manifest.sha256 if dataset else digests[runs[0].folder]
    for folder, digest in digests.items():
        if digest != expected:
            raise ReportError(
                f"answers a data set with sha256 {digest}, not {expected}", where=str(folder)
            )


def _insert_questions(database: Database, runs: Sequence[_Run], dataset: Dataset | None) -> None:
    answered = {r.request_id: r for run in runs for r in run.responses}
    samples: dict[str, dict[str, Any]] = {}
    surfaces: dict[str, str | None] = {}
    for response in answered.values():
        samples[response.sample_id] = {
            "sample_id": response.sample_id, "task": response.task, "benchmark": None,
            "context": None, "meta": None,
        }  # fmt: skip
    for sample in dataset.samples if dataset else ():
        if sample.sample_id not in samples:
            continue
        samples[sample.sample_id].update(
            task=sample.task, benchmark=sample.benchmark, context=sample.context,
            meta=records.dumps(sample.meta),
        )  # fmt: skip
        for condition, surface in sample.surfaces.items():
            surfaces[f"{sample.sample_id}/{condition}"] = surface
    _insert(database, "samples", samples.values())
    _insert(
        database,
        "requests",
        (
            {"request_id": r.request_id, "sample_id": r.sample_id, "condition": r.condition,
             "surface": surfaces.get(r.request_id)}
            for r in answered.values()
        ),
    )  # fmt: skip


def _insert_run(database: Database, run: _Run) -> None:
    record = run.record
    manifests = record.get("manifests", {})
    model = manifests.get("model") or {}
    settings = record["run"]
    row = {
        "run_id": run.run_id,
        "folder": run.folder.resolve().name,
        "kind": record["kind"],
        "experiment": record.get("experiment"),
        "dataset": record.get("dataset"),
        "dataset_sha256": (manifests.get("dataset") or {}).get("sha256"),
        "model": record.get("model"),
        "repo": model.get("repo"),
        "revision": model.get("revision"),
        "locked": model.get("locked"),
        "decoding_fingerprint": record["decoding_fingerprint"],
        "run_fingerprint": record["run_fingerprint"],
        "responses_sha256": run.responses_sha256,
        "batch_invariant": settings.get("batch_invariant"),
        "gpu": settings.get("gpu"),
        "conditions": len({response.condition for response in run.responses}),
        "run_json": records.dumps(record),
    }
    _insert(database, "runs", [row])
    _insert(
        database,
        "responses",
        (_response_row(run.run_id, position, r) for position, r in enumerate(run.responses)),
    )
    for scoring in run.scorings:
        _insert_scoring(database, run, scoring)
    folder = run.folder / "scoring" / run.chosen[:12] if run.chosen else None
    rows = flip_rows(run.folder, folder)
    _insert(database, "replays", ({"run_id": run.run_id, **row} for row in rows))


def _response_row(run_id: str, position: int, response: Response) -> dict[str, Any]:
    letters, hangul = hangul_share(response.text)
    row = response.model_dump(exclude={"sample_id", "task", "condition"})
    row["output_token_ids"] = json.dumps(response.output_token_ids)
    if row["stop_reason"] is not None:
        row["stop_reason"] = str(row["stop_reason"])
    return {
        "run_id": run_id,
        "position": position,
        **row,
        "characters": len(response.text),
        "letters": letters,
        "hangul_letters": hangul,
    }


def _insert_scoring(database: Database, run: _Run, scoring: Scoring) -> None:
    same_answers = scoring.responses_sha256 == run.responses_sha256
    key = {"run_id": run.run_id, "evaluator_fingerprint": scoring.evaluator_fingerprint}
    row = {
        **key,
        "chosen": scoring.evaluator_fingerprint == run.chosen,
        "same_answers": same_answers,
        "completed": scoring.completed_at.isoformat() if scoring.completed_at else None,
        "sandbox_level": scoring.sandbox.get("level"),
        "sandbox": records.dumps(scoring.sandbox),
        "evaluator": records.dumps(scoring.evaluator),
        "responses_sha256": scoring.responses_sha256,
    }
    _insert(database, "scorings", [row])
    if not same_answers:
        return
    answered = {response.request_id for response in run.responses}
    for verdict in scoring.verdicts:
        if verdict.request_id not in answered:
            raise RecordError(
                f"judges {verdict.request_id!r}, which the run did not answer",
                where=f"{run.folder}, scoring {scoring.evaluator_fingerprint[:12]}",
            )
    _insert(database, "verdicts", ({**key, **_verdict_row(v)} for v in scoring.verdicts))
    excluded = set(scoring.excluded)
    present = sorted({r.sample_id for r in run.responses if r.sample_id in excluded})
    _insert(database, "excluded", ({**key, "sample_id": sample_id} for sample_id in present))


def _verdict_row(verdict: Verdict) -> dict[str, Any]:
    row = verdict.model_dump()
    evaluator = row.pop("evaluator")
    row["evaluator_name"], row["evaluator_version"] = evaluator["name"], evaluator["version"]
    row["extra"] = records.dumps(row["extra"]) if row.get("extra") else None
    return row


def _insert(database: Database, table: str, rows: Iterable[dict[str, Any]]) -> None:
    """Insert plain Python values, escaping what cannot be bound and naming where."""
    escapes = any(column.name == "escaped" for column in database.table(table).columns)
    database.table(table).insert_all(_plain(table, rows, escapes))


def _plain(table: str, rows: Iterable[dict[str, Any]], escapes: bool) -> Iterator[dict[str, Any]]:
    for row in rows:
        broken = [k for k, v in row.items() if isinstance(v, str) and _SURROGATE.search(v)]
        if broken and not escapes:
            raise RecordError(
                f"holds a lone surrogate: {row[broken[0]]!r}", where=f"{table}.{broken[0]}"
            )
        for name, value in row.items():
            if isinstance(value, int) and abs(value) > _LARGEST:
                raise RecordError(f"{value} is too large for SQLite", where=f"{table}.{name}")
        if escapes:
            row = row | {name: records.dumps(row[name]) for name in broken}
            row["escaped"] = ",".join(broken) or None
        yield row
