"""The verdict line and the record of one scoring, as readers see them.

A scoring is a folder `scoring/<first 12 hex of its evaluator fingerprint>/` with
`verdicts.jsonl` and `scoring.json`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from colab_utils import records
from colab_utils.errors import RecordError
from colab_utils.evaluators.judgement import Outcome

OUTCOMES: tuple[str, ...] = get_args(Outcome)


class Evaluator(BaseModel):
    """Name and version of the rule that gave a verdict."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: str
    version: str


class Verdict(BaseModel):
    """One line of `verdicts.jsonl`: what the evaluator says of one response.

    `passed` follows our extraction, `passed_upstream` the benchmark's own; `extracted` is the
    program, query or value that was judged. `seconds` is what judging took.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    request_id: str
    passed: bool
    passed_upstream: bool
    outcome: Outcome
    detail: str | None = None
    extracted: str | None = None
    evaluator: Evaluator
    seconds: float | None = Field(default=None, ge=0)
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Verdict:
        if self.passed != (self.outcome == "passed"):
            raise ValueError("passed must be true exactly when the outcome is passed")
        return self


class Scoring(BaseModel):
    """One scoring of a run's answers: how it was made, and its verdicts.

    `incomplete` names requests without a verdict, `excluded` samples whose reference fails.
    `completed` is None while verdicts are still being written.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    format: Literal[1]
    evaluator_fingerprint: str = Field(pattern=r"^[0-9a-f]{12,64}$")
    evaluator: dict[str, Any]
    sandbox: dict[str, Any]
    responses_sha256: str
    verdicts_sha256: str | None = None
    dataset_sha256: str
    incomplete: list[str] = []
    excluded: list[str] = []
    completed: datetime | None = Field(default=None, strict=False)
    verdicts: tuple[Verdict, ...] = ()

    @property
    def completed_at(self) -> datetime | None:
        """When scoring ended, with a time zone (UTC where none was written)."""
        if self.completed is None or self.completed.tzinfo:
            return self.completed
        return self.completed.replace(tzinfo=UTC)


def load_scorings(run_dir: Path) -> list[Scoring]:
    """Every scoring of a run directory that has a `scoring.json`, ordered by fingerprint.

    Raises `RecordError` naming file, line and field for what is torn, foreign or doubled.
    """
    found = []
    for path in sorted((run_dir / "scoring").glob("*/scoring.json")):
        scoring = _validated(Scoring, records.read_json(path), where=str(path))
        if not scoring.evaluator_fingerprint.startswith(path.parent.name):
            raise RecordError(
                f"has the evaluator fingerprint {scoring.evaluator_fingerprint}, which is not "
                "its folder's",
                where=str(path),
            )
        found.append(scoring.model_copy(update={"verdicts": _load_verdicts(path.parent)}))
    return found


def _load_verdicts(folder: Path) -> tuple[Verdict, ...]:
    path = folder / "verdicts.jsonl"
    data = records.read_bytes(path)
    if data and not data.endswith(b"\n"):
        raise RecordError("ends in the middle of a line", where=str(path))
    lines: dict[str, int] = {}
    verdicts = []
    for number, record in records.parse_lines(data, where=str(path)):
        verdict = _validated(Verdict, record, where=f"{path}, line {number}")
        if verdict.request_id in lines:
            raise RecordError(
                f"judges {verdict.request_id!r} again, after line {lines[verdict.request_id]}",
                where=f"{path}, line {number}",
            )
        lines[verdict.request_id] = number
        verdicts.append(verdict)
    return tuple(verdicts)


Record = TypeVar("Record", bound=BaseModel)


def _validated(model: type[Record], content: Any, *, where: str) -> Record:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(whole)"
        raise RecordError(first["msg"], where=f"{where}, field {field}") from error
