"""The smoke gate: three samples, one a task, five conditions each. It is not a score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colab_utils.errors import RecordError, SmokeNotPassed
from colab_utils.manifests import ModelManifest
from colab_utils.responses import Response, parse_responses
from colab_utils.run_directory import RunDirectory

SMOKE_REQUESTS = 15


@dataclass(frozen=True)
class SmokeVerdict:
    """Whether the gate is passed, and in one clause each why not."""

    problems: tuple[str, ...]
    cut: int

    @property
    def passed(self) -> bool:
        """True when nothing stands against a full run."""
        return not self.problems


def judge(responses: Sequence[Response], model: ModelManifest) -> SmokeVerdict:
    """Judge the 15 answers: none missing, rejected or empty, at most `smoke.max_cut` cut."""
    problems = []
    if len(responses) != SMOKE_REQUESTS:
        problems.append(f"{len(responses)} answers instead of {SMOKE_REQUESTS}")
    for response in responses:
        if response.finish_reason == "rejected":
            problems.append(f"{response.request_id} was rejected ({response.error})")
        elif not response.text.strip():
            problems.append(f"{response.request_id} has an empty answer")
    cut = sum(response.finish_reason == "length" for response in responses)
    if cut > model.smoke.max_cut:
        problems.append(
            f"{cut} answers were cut at max_tokens, smoke.max_cut of {model.name} "
            f"allows {model.smoke.max_cut}"
        )
    return SmokeVerdict(tuple(problems), cut)


def require_smoke(smoke: RunDirectory, model: ModelManifest, decoding_fingerprint: str) -> None:
    """Raise `SmokeNotPassed` unless `smoke` holds a passed gate under this decoding."""
    where = str(smoke.path)
    run = smoke.read_run()
    if run is None or not smoke.is_complete():
        raise SmokeNotPassed(
            f"the smoke run of {model.name} is not complete", where=where, mend="run smoke first"
        )
    if run["decoding_fingerprint"] != decoding_fingerprint:
        raise SmokeNotPassed(
            "the smoke run was made under another decoding",
            where=where,
            mend="remove that folder and run smoke again",
        )
    try:
        responses = parse_responses(smoke.responses.read_bytes(), where=str(smoke.responses))
    except RecordError as error:
        raise SmokeNotPassed(error.problem, where=where, mend="run smoke again") from error
    verdict = judge(responses, model)
    if not verdict.passed:
        raise SmokeNotPassed(
            "the smoke gate was not passed: " + "; ".join(verdict.problems),
            where=where,
            mend="mend the cause and run smoke again, or say require_smoke=False",
        )
