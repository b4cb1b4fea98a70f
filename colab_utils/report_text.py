"""The words of the report: the header's facts, the summary's sentences, and number formats."""

from __future__ import annotations

import re
from typing import Any

from colab_utils import records
from colab_utils.analysis import ALL_TASKS, ContrastResult, RunAnalysis
from colab_utils.paired import detectable_difference

PLANNED_DISCORDANT = 0.15
"""Discordant share that the study was planned with; power is stated for it."""

_REASONS = {
    "rejected": "a request was rejected",
    "missing": "a response is missing",
    "no_verdict": "a verdict is missing",
    "reference_error": "the reference solution fails",
}
_NOTHING = "\u2013"
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str, longest: int | None = None) -> str:
    """Text that any file format and font can carry: control characters, direction overrides
    and lone surrogates become U+FFFD; beyond `longest` characters it is cut with an ellipsis."""
    clean = _UNPRINTABLE.sub("\ufffd", text)
    if longest is not None and len(clean) > longest:
        clean = clean[: longest - 1] + "\u2026"
    return clean


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal; a dash where there is none."""
    return _NOTHING if share is None else f"{100 * share:.1f} %"


def points(share: float | None) -> str:
    """A share as signed points with one decimal and a true minus sign; zero has no sign."""
    if share is None:
        return _NOTHING
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\u2212")


def signed(low: float | None, high: float | None) -> str:
    """Confidence limits in points, as `-1.0 to +2.0`."""
    return _NOTHING if low is None or high is None else f"{points(low)} to {points(high)}"


def limits(low: float | None, high: float | None) -> str:
    """Confidence limits of a share, as percentages."""
    return _NOTHING if low is None or high is None else f"{percent(low)} to {percent(high)}"


def plain(number: float | None) -> str:
    """A number without trailing zeros; a dash where there is none."""
    return _NOTHING if number is None else f"{number:g}"


def p_value(p: float | None) -> str:
    """A p value with three decimals; never shown as zero."""
    if p is None:
        return _NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def left_out(analysis: RunAnalysis) -> str:
    """How many samples leave the comparisons, by reason; empty when none does."""
    return "; ".join(
        f"{len(analysis.left_out[reason])} because {words}"
        for reason, words in _REASONS.items()
        if reason in analysis.left_out
    )


def summary(analysis: RunAnalysis, models: int) -> list[str]:
    """Three to five plain sentences that claim no more than the numbers do."""
    return [
        sentence
        for sentence in (
            _who(analysis),
            _accuracy(analysis),
            _contrasts(analysis, models),
            _power(analysis),
            _extraction(analysis),
        )
        if sentence
    ]


def _who(analysis: RunAnalysis) -> str:
    reasons = left_out(analysis)
    sentence = (
        f"{analysis.model} answered {analysis.samples} samples under "
        f"{len(analysis.conditions)} condition{'s' * (len(analysis.conditions) != 1)}; "
        f"{analysis.complete} of them are complete and enter the comparisons"
    )
    return f"{sentence} (left out: {reasons})." if reasons else f"{sentence}."


def _accuracy(analysis: RunAnalysis) -> str:
    cells = [
        (a.passed.share, a.condition)
        for a in analysis.accuracy
        if a.task == ALL_TASKS and a.passed.share is not None
    ]
    if not cells:
        return "No sample is complete, so no accuracy can be given."
    low, high = min(cells), max(cells)
    if len(cells) == 1:
        return f"Accuracy over all tasks is {percent(high[0])} under {high[1]}."
    if low[0] == high[0]:
        return f"Accuracy over all tasks is {percent(high[0])} under every condition."
    return (
        f"Accuracy over all tasks lies between {percent(low[0])} ({low[1]}) and "
        f"{percent(high[0])} ({high[1]})."
    )


def _contrasts(analysis: RunAnalysis, models: int) -> str:
    family = [c for c in analysis.contrasts if c.in_family and c.p_holm is not None]
    if not family:
        return ""
    found = [c for c in family if c.p_holm is not None and c.p_holm <= analysis.alpha]
    scope = "all models' primary contrasts" if models > 1 else "the primary contrasts"
    after = f"after Holm's correction over {scope}"
    if not found:
        return (
            f"None of the {len(family)} primary contrasts differs from zero at "
            f"alpha = {analysis.alpha:g} {after}; that is no evidence that there is no difference."
        )
    named = "; ".join(_named(c) for c in found)
    rest = len(family) - len(found)
    others = "; for the rest the data leave it open" if rest else ""
    return (
        f"{len(found)} of {len(family)} primary contrasts differ from zero {after}: "
        f"{named}{others}."
    )


def _named(contrast: ContrastResult) -> str:
    result = contrast.passed
    return (
        f"{contrast.name} by {points(result.difference)} points "
        f"({signed(result.ci_low, result.ci_high)}, adjusted p {p_value(contrast.p_holm)})"
    )


def _power(analysis: RunAnalysis) -> str:
    if not analysis.complete or not analysis.contrasts:
        return ""
    smallest = detectable_difference(analysis.complete, PLANNED_DISCORDANT, alpha=analysis.alpha)
    given = (
        f"With {analysis.complete} complete samples, if {100 * PLANNED_DISCORDANT:g} % of them "
        "are discordant, a single uncorrected test finds"
    )
    if smallest is None:
        return f"{given} no possible difference with 80 % power: this run is too small to show one."
    return (
        f"{given} a true difference of {smallest:.1f} points with 80 % power; a smaller one can "
        "be there unseen."
    )


def _extraction(analysis: RunAnalysis) -> str:
    rows = [o for o in analysis.outcomes if o.task == ALL_TASKS]
    by_condition = [f"{o.condition} {o.differ}" for o in rows if o.differ]
    judged = sum(o.judged for o in rows)
    if not judged:
        return ""
    if not by_condition:
        return f"Upstream's extraction gives the same verdict for all {judged} responses judged."
    return (
        f"Upstream's own extraction gives another verdict for {sum(o.differ for o in rows)} of "
        f"{judged} judged responses ({', '.join(by_condition)}): where conditions differ in "
        "this, part of a difference may be extraction, not ability."
    )


def header(analysis: RunAnalysis) -> list[tuple[str, str]]:
    """(label, value) pairs that say what was run, on what, and how it was judged."""
    record, scoring = analysis.record, analysis.scoring
    manifests = record.get("manifests", {})
    model = manifests.get("model") or {}
    dataset = manifests.get("dataset") or {}
    settings = record["run"]
    rejected = sum(o.counts["rejected"] for o in analysis.outcomes if o.task == ALL_TASKS)
    cut = sum(o.cut_by_length for o in analysis.outcomes if o.task == ALL_TASKS)
    responses = sum(o.responses for o in analysis.outcomes if o.task == ALL_TASKS)
    return [
        ("Model", f"{_word(model.get('repo'))} ({_word(record.get('model'))})"),
        ("Revision", _revision(model)),
        ("Licence of the model", _word(model.get("licence"))),
        ("Data set", f"{_word(record.get('dataset'))}, SHA-256 {_word(dataset.get('sha256'))}"),
        ("Licence of the data set", _word(dataset.get("licence"))),
        ("Experiment", f"{_word(record.get('experiment'))}, kind {record['kind']}"),
        ("Engine", _versions(settings)),
        ("Hardware", _hardware(record)),
        ("Answers", f"{responses} responses, {rejected} rejected, {cut} cut by length"),
        ("Batch invariance", _invariance(settings)),
        ("Replay", replay(analysis)),
        ("Decoding fingerprint", record["decoding_fingerprint"]),
        ("Run fingerprint", record["run_fingerprint"]),
        ("Evaluator fingerprint", scoring["evaluator_fingerprint"]),
        ("Scored", _word(scoring["completed"])),
        ("Sandbox", _sandbox(scoring)),
        ("Excluded samples", ", ".join(analysis.excluded) or "none"),
        ("Left out of comparisons", left_out(analysis) or "none"),
        ("Warnings of the run", "; ".join(map(str, record.get("warnings") or ())) or "none"),
        ("Smoke gate", "required" if record.get("require_smoke", True) else "overridden"),
    ]


def replay(analysis: RunAnalysis) -> str:
    """What another batching changed, in one sentence: the noise beside every difference."""
    found = analysis.replay
    if found is None:
        return "none was made: how much another batching changes is not known"
    verdicts = "the changed answers were not judged by this scoring"
    if found.verdicts_changed is not None:
        rate = percent(found.verdicts_changed / found.requests)
        verdicts = f"{found.verdicts_changed} verdicts changed (flip rate {rate})"
    return (
        f"{found.requests} requests answered again under another batching: "
        f"{found.answers_changed} answers changed, {verdicts}"
    )


def _word(value: Any) -> str:
    return "not recorded" if value is None else str(value)


def _revision(model: dict[str, Any]) -> str:
    if model.get("locked"):
        return f"{_word(model.get('revision'))}, locked: files pinned by digest"
    unverified = ", ".join(model.get("unverified") or ())
    return f"{_word(model.get('revision'))}, NOT locked" + (
        f"; not verified: {unverified}" if unverified else ""
    )


def _versions(settings: dict[str, Any]) -> str:
    versions = settings.get("versions") or {}
    named = [f"{name} {_word(version)}" for name, version in versions.items()]
    return ", ".join(named) or _word(None)


def _hardware(record: dict[str, Any]) -> str:
    machines = dict.fromkeys(str(s.get("machine")) for s in record.get("segments") or ())
    device = record["run"].get("gpu") or "no GPU"
    segments = len(record.get("segments") or ())
    return f"{device}; {'; '.join(machines) or _word(None)}; {segments} segment(s)"


def _invariance(settings: dict[str, Any]) -> str:
    if settings.get("batch_invariant"):
        return "yes: an answer does not depend on which requests ran beside it"
    return (
        "no: another batching can change some answers; chunks ran one after another from an "
        "empty prefix cache, so a resumed run repeats an undisturbed one"
    )


def _sandbox(scoring: dict[str, Any]) -> str:
    details = records.loads(scoring["sandbox"].encode("utf-8"), where="scorings.sandbox")
    what = details.get("what")
    return _word(scoring["sandbox_level"]) + (f": {what}" if what else "")
