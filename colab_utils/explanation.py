"""One answer from prompt to verdicts, for a person who asks why it was judged so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colab_utils import records
from colab_utils.answers import dataset_requests, load_answers
from colab_utils.errors import ParameterError
from colab_utils.evaluators import unit_tests
from colab_utils.prompts import user_turn
from colab_utils.samples import Dataset, Request


def explain(run_dir: Path, request_id: str, *, dataset: Dataset) -> str:
    """The prompt's user turn, the answer, what was taken from it, what ran, and both verdicts.

    The verdict is that of the newest scoring that judged this request. Raises `ParameterError`
    for a request that the run does not have, `ScoringError` like `load_answers`.
    """
    requests: dict[str, Request] = {r.request_id: r for r in dataset_requests(run_dir, dataset)}
    request = requests.get(request_id)
    if request is None:
        raise ParameterError(
            f"{request_id!r} is no request of this run",
            where="request_id",
            mend=f"give for instance {next(iter(requests))!r}",
        )
    responses, _ = load_answers(run_dir, dataset, True)
    response = next((r for r in responses if r.request_id == request_id), None)
    parts = [_part(f"{request_id}: the prompt (user turn)", user_turn(request))]
    if response is None:
        return "".join([*parts, _part("answer", "not answered yet")])
    ended = f"{response.finish_reason}, {response.output_tokens} tokens"
    parts.append(_part(f"answer ({ended})", response.error or response.text))
    verdict = _newest_verdict(run_dir, request_id)
    if verdict is None:
        return "".join([*parts, _part("verdict", "not scored yet")])
    found = (verdict.get("extra") or {}).get("found", "nothing")
    extracted = verdict["extracted"]
    parts.append(_part(f"extracted ({found})", extracted or "nothing"))
    if extracted:
        parts.append(_part("what ran", _what_ran(request, extracted)))
    said = f"{verdict['outcome']}: {verdict['detail']}"
    both = f"passed: {verdict['passed']}; by upstream's own extraction: "
    parts.append(_part("verdict", f"{said}\n{both}{verdict['passed_upstream']}"))
    extra = {k: v for k, v in (verdict.get("extra") or {}).items() if k != "found"}
    parts.append(_part("columns", records.dumps(extra)))
    return "".join(parts)


def _what_ran(request: Request, extracted: str) -> str:
    reference = request.sample.reference
    if request.sample.task == "code":
        return unit_tests.whole_program(extracted, reference)
    if request.sample.task == "sql":
        return f"{extracted}\n\n-- compared with\n{reference['gold_sql']}"
    return f"{extracted}\n\nsolution()  # gold: {reference['ground_truth']}"


def _newest_verdict(run_dir: Path, request_id: str) -> dict[str, Any] | None:
    newest: tuple[float, dict[str, Any]] | None = None
    for path in (run_dir / "scoring").glob("*/verdicts*.jsonl"):
        data = records.read_bytes(path)
        whole = data[: data.rfind(b"\n") + 1]
        for _, line in records.parse_lines(whole, where=str(path)):
            stamp = path.stat().st_mtime
            if line.get("request_id") == request_id and (newest is None or stamp > newest[0]):
                newest = (stamp, line)
    return newest[1] if newest else None


def _part(title: str, text: str) -> str:
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8").rstrip("\n")
    return f"== {title}\n{shown}\n\n"
