"""The answers of a run directory, checked against its record and its data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colab_utils import checkpoints, records
from colab_utils.errors import ScoringError
from colab_utils.responses import Response, parse_responses
from colab_utils.run_directory import RunDirectory
from colab_utils.samples import Dataset


def dataset_requests(run_dir: Path, dataset: Dataset) -> Sequence[Any]:
    """The requests that a run of this kind has."""
    run = RunDirectory(run_dir).read_run()
    smoke = run is not None and run["kind"] == "smoke"
    return dataset.smoke_requests() if smoke else dataset.requests()


def load_answers(
    run_dir: Path, dataset: Dataset, allow_incomplete: bool
) -> tuple[list[Response], str]:
    """Responses in request order and their digest; those of finished chunks while a run goes on.

    Raises `ScoringError` for no run, another data set, missing or foreign answers.
    """
    directory = RunDirectory(run_dir)
    run = directory.read_run()
    if run is None:
        raise ScoringError("holds no run", where=str(run_dir), mend="name a run directory")
    if run["run"]["dataset_sha256"] != dataset.manifest.sha256:
        raise ScoringError(
            f"answers another data set than {dataset.manifest.name} as it is now",
            where=str(run_dir),
            mend="restore the data set that the run pinned",
        )
    if directory.responses.exists():
        data = records.read_bytes(directory.responses)
    elif allow_incomplete:
        ids = [request.request_id for request in dataset_requests(run_dir, dataset)]
        finished = checkpoints.verify(directory.chunks, ids).finished
        data = b"".join(finished[chunk].read_bytes() for chunk in sorted(finished))
    else:
        raise ScoringError(
            "is not complete, so some answers are missing",
            where=str(run_dir),
            mend="let the run end, or score what is there (allow_incomplete)",
        )
    digest = records.sha256_bytes(data)
    completed = run.get("completed") or {}
    if directory.responses.exists() and completed.get("responses_sha256") != digest:
        raise ScoringError(
            "is not what the run wrote (another sha256 than run.json says)",
            where=str(directory.responses),
            mend="restore the file; a start of the run makes it again from its chunks",
        )
    responses = parse_responses(data, where=str(directory.responses))
    known = {request.request_id for request in dataset_requests(run_dir, dataset)}
    for response in responses:
        if response.request_id not in known:
            raise ScoringError(
                f"answers {response.request_id!r}, which the data set does not have",
                where=str(directory.responses),
            )
    if not responses:
        raise ScoringError("holds no answers", where=str(run_dir))
    return responses, digest
