"""Data set file -> samples -> requests, validated against the data set manifest."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from colab_utils import records
from colab_utils.errors import DataError
from colab_utils.manifests import CONDITIONS, Condition, DatasetManifest, Task


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _CodeReference(_Strict):
    code_prompt: str = Field(min_length=1)
    entry_point: str = Field(min_length=1)
    test: str = Field(min_length=1)
    canonical_solution: str = Field(min_length=1)


class _SqlReference(_Strict):
    db_id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    gold_sql: str = Field(min_length=1)


class _FinanceReference(_Strict):
    ground_truth: bool | int | float
    python_solution: str = Field(min_length=1)


class _Line(_Strict):
    sample_id: str = Field(min_length=1, pattern=r"^[^\s\x00-\x1f]+$")
    benchmark: str = Field(min_length=1)
    surfaces: dict[Condition, str]
    context: str
    meta: dict[str, Any]


class _CodeLine(_Line):
    task: Literal["code"]
    reference: _CodeReference


class _SqlLine(_Line):
    task: Literal["sql"]
    reference: _SqlReference


class _FinanceLine(_Line):
    task: Literal["finance"]
    reference: _FinanceReference


_LINE: TypeAdapter[_CodeLine | _SqlLine | _FinanceLine] = TypeAdapter(
    Annotated[_CodeLine | _SqlLine | _FinanceLine, Field(discriminator="task")]
)


@dataclass(frozen=True)
class Sample:
    """One problem: five surfaces of one meaning, the context they share, and its reference."""

    sample_id: str
    task: Task
    benchmark: str
    surfaces: dict[Condition, str]
    context: str
    reference: dict[str, Any]
    meta: dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One sample under one condition; `request_id` is `sample_id/condition`."""

    request_id: str
    sample: Sample
    condition: Condition


@dataclass(frozen=True)
class Dataset:
    """A data set file that agrees with its manifest."""

    manifest: DatasetManifest
    samples: tuple[Sample, ...]

    def requests(self) -> tuple[Request, ...]:
        """All requests, sample-major: a sample's five conditions are neighbours."""
        return requests_of(self.samples)

    def smoke_requests(self) -> tuple[Request, ...]:
        """The 15 requests of the smoke gate: three samples, one a task, five conditions."""
        by_id = {sample.sample_id: sample for sample in self.samples}
        return requests_of(tuple(by_id[name] for name in self.manifest.smoke_samples))

    def database_path(self, db_id: str) -> Path:
        """Path of a database, laid out as BIRD has it: `folder/db_id/db_id.sqlite`."""
        if self.manifest.databases is None:
            raise DataError("names no databases", where=f"data set {self.manifest.name}")
        folder = (self.manifest.folder / self.manifest.databases.folder).resolve()
        return folder / db_id / f"{db_id}.sqlite"


def requests_of(samples: tuple[Sample, ...]) -> tuple[Request, ...]:
    """Requests of `samples`, in order, five a sample."""
    return tuple(
        Request(f"{sample.sample_id}/{condition}", sample, condition)
        for sample in samples
        for condition in CONDITIONS
    )


def load_dataset(manifest: DatasetManifest) -> Dataset:
    """Read the data set file of `manifest` and check all that the manifest pins.

    Raises `DataError` or `RecordError`, naming the file, the line and the field, when the
    file's hash or counts differ, a line is malformed, a sample id is doubled, a surface is
    missing or empty, or a database is missing, changed or not SQLite.
    """
    path = manifest.file_path
    data = records.read_bytes(path)
    samples = []
    first_line: dict[str, int] = {}
    for number, record in records.parse_lines(data, where=str(path)):
        sample = _sample(record, where=f"{path}, line {number}")
        if sample.sample_id in first_line:
            raise DataError(
                f"sample_id {sample.sample_id!r} already stands on line "
                f"{first_line[sample.sample_id]}",
                where=f"{path}, line {number}",
            )
        first_line[sample.sample_id] = number
        samples.append(sample)
    counts = dict(Counter(sample.benchmark for sample in samples))
    if counts != manifest.samples:
        raise DataError(
            f"holds {counts} samples, the manifest says {manifest.samples}", where=str(path)
        )
    digest = records.sha256_bytes(data)
    if digest != manifest.sha256:
        raise DataError(
            f"has sha256 {digest}, the manifest {manifest.name} pins {manifest.sha256}",
            where=str(path),
            mend="restore the pinned file, or pin the new one if the change is meant",
        )
    dataset = Dataset(manifest, tuple(samples))
    _check_smoke_samples(dataset)
    _check_databases(dataset)
    return dataset


def _sample(record: dict[str, Any], *, where: str) -> Sample:
    try:
        line = _LINE.validate_python(record)
    except ValidationError as error:
        first = error.errors()[0]
        parts = [str(part) for part in first["loc"] if part not in ("code", "sql", "finance")]
        field = ".".join(parts) or "task"
        problem = "is missing" if first["type"] == "missing" else first["msg"]
        raise DataError(problem, where=f"{where}, field {field}") from error
    for condition in CONDITIONS:
        if condition not in line.surfaces:
            raise DataError("is missing", where=f"{where}, field surfaces.{condition}")
        if not line.surfaces[condition].strip():
            raise DataError("is empty", where=f"{where}, field surfaces.{condition}")
    return Sample(
        sample_id=line.sample_id,
        task=line.task,
        benchmark=line.benchmark,
        surfaces={condition: line.surfaces[condition] for condition in CONDITIONS},
        context=line.context,
        reference=line.reference.model_dump(),
        meta=line.meta,
    )


def _check_smoke_samples(dataset: Dataset) -> None:
    tasks = {sample.sample_id: sample.task for sample in dataset.samples}
    chosen = [tasks.get(name) for name in dataset.manifest.smoke_samples]
    if len(set(chosen)) != 3 or None in chosen:
        raise DataError(
            "must name three samples of the file, one a task",
            where=f"data set manifest {dataset.manifest.name}, field smoke_samples",
        )


def _check_databases(dataset: Dataset) -> None:
    needed = sorted({s.reference["db_id"] for s in dataset.samples if s.task == "sql"})
    if not needed:
        return
    pinned = dataset.manifest.databases.sha256 if dataset.manifest.databases else {}
    for db_id in needed:
        path = dataset.database_path(db_id)
        if db_id not in pinned:
            raise DataError(
                f"pins no sha256 for the database {db_id!r}",
                where=f"data set manifest {dataset.manifest.name}, field databases.sha256",
            )
        try:
            digest = records.sha256_file(path)
        except OSError as error:
            raise DataError(
                f"cannot be read ({error.strerror})",
                where=str(path),
                mend="lay the databases out as FOLDER/db_id/db_id.sqlite",
            ) from error
        if digest != pinned[db_id]:
            raise DataError(f"has sha256 {digest}, the manifest pins another", where=str(path))
        _check_sqlite(path)


def _check_sqlite(path: Path) -> None:
    # immutable: a journal beside a pinned database must not change what is read
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        connection.execute("SELECT name FROM sqlite_master").fetchall()
    except sqlite3.DatabaseError as error:
        raise DataError(f"is not a SQLite database ({error})", where=str(path)) from error
    finally:
        connection.close()
