"""Notebook and command-line parameters, checked by declared type before anything starts.

papermill's `-p` guesses types: digits become a number (2026_12_01 too) and `false` stays
text. So a parameter that must be text refuses a number, and a switch takes true and false.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from colab_utils.errors import ParameterError
from colab_utils.injected import refuse_unknown


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SetupParameters(_Parameters):
    """What set-up is told; an empty `model` stands for none in particular."""

    experiment: str = Field(min_length=1)
    model: str = ""
    cache: str = Field(min_length=1)


class RunParameters(_Parameters):
    """What smoke and full run are told.

    `runs` and `cache` are folders; `engine_python` is an interpreter, empty for the one that
    set-up made; `chunk_size` counts requests, None for the default (smoke 5, full run 32); `mirror`
    is a folder that finished chunks are copied to and restored from, empty for none; `replay`
    counts the requests that a full run answers again at its end under another batching, 0 for none.
    """

    experiment: str = Field(min_length=1)
    model: str = Field(min_length=1)
    runs: str = Field(min_length=1)
    cache: str = Field(min_length=1)
    engine_python: str = ""
    chunk_size: int | None = Field(default=None, ge=1)
    require_smoke: bool = True
    mirror: str = ""
    replay: int = Field(default=32, ge=0)

    @field_validator("require_smoke", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return switch(value)


class ScoringParameters(_Parameters):
    """What scoring is told; `evaluator_python` empty means the kernel's own interpreter.

    `run_dir` is a run directory; `only` names one task, condition, sample or request, empty for
    all. `workers` counts answers judged at once, 0 for the default.
    """

    run_dir: str = Field(min_length=1)
    evaluator_python: str = ""
    allow_weak_sandbox: bool = False
    allow_incomplete: bool = False
    only: str = ""
    workers: int = Field(default=0, ge=0)

    @field_validator("allow_weak_sandbox", "allow_incomplete", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return switch(value)


class ReportParameters(_Parameters):
    """What the report is told: the run directories that it covers."""

    run_dirs: list[str] = Field(min_length=1)


class PickerParameters(_Parameters):
    """What the picker is told.

    `action` names what is done without a button, in order and separated by commas: smoke,
    full_run, score, report; empty to choose by buttons. The others are those of `RunParameters`
    and `ScoringParameters`.
    """

    experiment: str = Field(min_length=1)
    model: str = Field(min_length=1)
    action: str = ""
    runs: str = Field(min_length=1)
    cache: str = Field(min_length=1)
    engine_python: str = ""
    evaluator_python: str = ""
    mirror: str = ""
    require_smoke: bool = True
    allow_weak_sandbox: bool = False
    replay: int = Field(default=32, ge=0)

    @field_validator("require_smoke", "allow_weak_sandbox", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return switch(value)


class BatchParameters(_Parameters):
    """What a batch is told: what its notebooks are, and the list of `models`.

    `chunk_size` is the full runs', None for the default. `free_cache` removes a model's weights
    from `cache` once its answers are complete and scored.
    """

    experiment: str = Field(min_length=1)
    models: list[str]
    runs: str = Field(min_length=1)
    cache: str = Field(min_length=1)
    engine_python: str = ""
    chunk_size: int | None = Field(default=None, ge=1)
    mirror: str = ""
    replay: int = Field(default=32, ge=0)
    evaluator_python: str = ""
    allow_weak_sandbox: bool = False
    workers: int = Field(default=0, ge=0)
    free_cache: bool = False

    @field_validator("allow_weak_sandbox", "free_cache", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return switch(value)

    @field_validator("models")
    @classmethod
    def _distinct(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("names no model")
        for name in value:
            if not name or value.count(name) > 1:
                raise ValueError(f"names {name!r} twice" if name else "names an empty model")
        return value


Parameters = TypeVar("Parameters", bound=_Parameters)


def switch(value: Any) -> Any:
    """True or false from the texts that shells and papermill pass on; others unchanged."""
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    return value


def checked(kind: type[Parameters], values: dict[str, Any]) -> Parameters:
    """Parameters of `kind`; raises `ParameterError` that names the wrong one and its type.

    In a notebook that papermill runs, also for a parameter that the notebook does not have.
    """
    refuse_unknown()
    texts = {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
    try:
        return kind.model_validate(texts)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "?"
        found = first["input"]
        mend = ""
        if first["type"] == "string_type" and isinstance(found, int | float):
            mend = "it was read as a number: pass it with papermill's -r (raw text)"
        problem = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
        raise ParameterError(
            f"{problem}, found {found!r:.60}", where=f"parameter {name}", mend=mend
        ) from error
