"""What makes two runs the same run: settings as plain JSON, their digest, their difference."""

from __future__ import annotations

from typing import Any

from colab_utils import records
from colab_utils.errors import FingerprintMismatch
from colab_utils.manifests import ExperimentManifest, ModelManifest
from colab_utils.prompts import PROMPT_RULES

_MISSING = "(none)"


def decoding_settings(
    model: ModelManifest, experiment: ExperimentManifest, *, digests: dict[str, str]
) -> dict[str, Any]:
    """All that decides an answer and holds for every data set; the smoke gate compares it.

    `digests` are the SHA-256 of the model folder's files: weights, tokenizer, template and code.
    """
    pinned = model.model_dump(mode="json")
    return {
        "engine": experiment.engine,
        "model": {
            **{key: pinned[key] for key in ("repo", "revision", "max_model_len")},
            "precision": experiment.precision,
            "trust_remote_code": model.trust_remote_code,
            "files": digests,
        },
        "prompts": {
            "rules": PROMPT_RULES,
            **{
                key: pinned[key]
                for key in (
                    "chat_template",
                    "chat_template_kwargs",
                    "system_preamble",
                    "extra_turns",
                    "stop_tokens",
                )
            },
        },
        "decoding": {
            **experiment.decoding.model_dump(mode="json"),
            "repetition_penalty": model.repetition_penalty,
        },
    }


def fingerprint(settings: dict[str, Any]) -> str:
    """Hex SHA-256 of the settings' canonical JSON."""
    return records.sha256_json(settings)


def first_difference(old: Any, new: Any, path: str = "") -> str | None:
    """The first setting in which two settings differ, as `a.b: 1 became 2`; None if equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            inner = f"{path}.{key}" if path else str(key)
            found = first_difference(old.get(key, _MISSING), new.get(key, _MISSING), inner)
            if found:
                return found
        return None
    if old == new and type(old) is type(new):
        return None
    return f"{path}: {_short(old)} became {_short(new)}"


def refuse_difference(old: dict[str, Any], new: dict[str, Any], *, where: str) -> None:
    """Raise `FingerprintMismatch` that names the setting that changed."""
    difference = first_difference(old, new)
    if difference is not None:
        raise FingerprintMismatch(
            f"holds answers made under another setting ({difference})",
            where=where,
            mend="put the setting back, or choose another run directory",
        )


def _short(value: Any) -> str:
    text = value if value == _MISSING else records.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
