"""The response line: what came back for one request, and how such lines are checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from colab_utils import records
from colab_utils.errors import RecordError
from colab_utils.manifests import Condition, Task


class Response(BaseModel):
    """One line of a chunk or of `responses.jsonl`; one a request, always.

    `finish_reason` is `stop`, `length` (cut at max_tokens) or `rejected` (never given to the
    engine, `error` says why). `stop_reason` is the id of the stop token, null for EOS.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    request_id: str
    sample_id: str
    task: Task
    condition: Condition
    text: str
    output_token_ids: list[int]
    finish_reason: Literal["stop", "length", "rejected"]
    stop_reason: int | str | None
    error: str | None
    prompt_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    prompt_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _consistent(self) -> Response:
        if self.output_tokens != len(self.output_token_ids):
            raise ValueError("output_tokens is not the number of output_token_ids")
        if (self.finish_reason == "rejected") != (self.error is not None):
            raise ValueError("error is given exactly when finish_reason is rejected")
        return self

    def line(self) -> bytes:
        """The JSONL bytes of this response."""
        return records.encode_line(self.model_dump())


def parse_responses(data: bytes, *, where: str) -> list[Response]:
    """Responses of whole JSONL bytes, in order; raises `RecordError` naming line and field."""
    if data and not data.endswith(b"\n"):
        raise RecordError("ends in the middle of a line", where=where)
    return [
        response_of(record, where=f"{where}, line {number}")
        for number, record in records.parse_lines(data, where=where)
    ]


def response_of(record: dict[str, Any], *, where: str) -> Response:
    """Validate one record; raises `RecordError` naming the field."""
    try:
        return Response.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(whole line)"
        raise RecordError(
            f"is not a response: {first['msg']}", where=f"{where}, field {field}"
        ) from error


def read_responses(path: Path, request_ids: Sequence[str]) -> list[Response]:
    """Read `responses.jsonl` and check that it answers `request_ids`, one each, in order."""
    responses = parse_responses(records.read_bytes(path), where=str(path))
    check_request_ids([response.request_id for response in responses], request_ids, str(path))
    return responses


def check_request_ids(found: Sequence[str], expected: Sequence[str], where: str) -> None:
    """Raise `RecordError` naming the first line whose request is not the expected one."""
    if len(found) != len(expected):
        raise RecordError(f"holds {len(found)} lines, {len(expected)} are expected", where=where)
    for number, (have, want) in enumerate(zip(found, expected, strict=True), start=1):
        if have != want:
            raise RecordError(
                f"answers {have!r} where {want!r} is expected", where=f"{where}, line {number}"
            )
