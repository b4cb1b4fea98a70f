"""Request -> chat messages -> token ids.

A prompt is the context that a sample's five conditions share, then a fixed instruction
that says in which form to answer, then the surface, last: so the prefix cache computes a
schema once for five conditions, and conditions differ in the surface alone. The instruction
is the same English text under every condition; surfaces are never rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colab_utils import records
from colab_utils.errors import WeightsError
from colab_utils.manifests import ModelManifest, Task
from colab_utils.samples import Request, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Part of the decoding fingerprint: raise it with any change to the words below.
PROMPT_RULES = "1"

Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """A rendered request: token ids, or the reason why it is rejected."""

    request: Request
    token_ids: tuple[int, ...]
    rejected: str | None

    @property
    def sha256(self) -> str:
        """Digest of the token ids, which are all that the engine is given."""
        return records.sha256_json(list(self.token_ids))


def _code(sample: Sample, surface: str) -> str:
    return (
        f"Code to start from:\n\n```python\n{sample.context.rstrip()}\n```\n\n"
        "Reply with the complete Python code in one ```python block.\n\n"
        f"{surface}"
    )


def _sql(sample: Sample, surface: str) -> str:
    return (
        f"SQLite schema:\n\n```sql\n{sample.context.strip()}\n```\n\n"
        "Reply with one SQLite SELECT query in one ```sql block.\n\n"
        f"{surface}"
    )


def _finance(sample: Sample, surface: str) -> str:
    context = f"{sample.context.strip()}\n\n" if sample.context.strip() else ""
    return (
        f"{context}Reply with one ```python block that defines a function solution() "
        "without parameters, which returns the answer as a number or a bool.\n\n"
        f"{surface}"
    )


_BUILDERS: dict[Task, Callable[[Sample, str], str]] = {
    "code": _code,
    "sql": _sql,
    "finance": _finance,
}


def messages(request: Request, model: ModelManifest) -> list[Message]:
    """Chat messages of one request: the model's extra turns, its preamble, the user's turn."""
    turns = [{"role": turn.role, "content": turn.content} for turn in model.extra_turns]
    if model.system_preamble is not None:
        turns.append({"role": "system", "content": model.system_preamble})
    return [*turns, {"role": "user", "content": user_turn(request)}]


def user_turn(request: Request) -> str:
    """What the user says in one request: the shared context first, the question last."""
    surface = request.sample.surfaces[request.condition]
    return _BUILDERS[request.sample.task](request.sample, surface)


def render_all(
    requests: Sequence[Request],
    model: ModelManifest,
    tokenizer: PreTrainedTokenizerBase,
    *,
    chat_template: str | None,
    max_tokens: int,
) -> tuple[Prompt, ...]:
    """Render every request once, in order; what cannot run is marked `rejected`, never cut.

    A prompt is rejected when it is empty, holds a lone surrogate, or when its tokens and
    `max_tokens` together exceed the model's `max_model_len`: the engine would silently give
    such an answer less room than the others. `chat_template` overrides the tokenizer's own.
    Raises `WeightsError` when the tokenizer has no template or the template doubles BOS.
    """
    if chat_template is None and not tokenizer.chat_template:
        raise WeightsError(
            "the tokenizer has no chat template",
            where=f"model {model.name}",
            mend="name a template file in the manifest's chat_template",
        )
    adds_bos = _adds_bos(tokenizer)
    return tuple(
        _render(request, model, tokenizer, chat_template, max_tokens, adds_bos)
        for request in requests
    )


def stop_token_ids(model: ModelManifest, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the manifest's stop tokens, as the tokenizer knows them.

    Stops are matched by id: a special token is dropped from the text, so a stop string
    may never match. Raises `WeightsError` when a token is unknown to the tokenizer or has
    another id than the manifest says.
    """
    ids = []
    for stop in model.stop_tokens:
        found = tokenizer.convert_tokens_to_ids(stop.token)
        if not isinstance(found, int) or found == tokenizer.unk_token_id:
            raise WeightsError(
                f"stop token {stop.token!r} is not in the vocabulary",
                where=f"model {model.name}, field stop_tokens",
            )
        if stop.id is not None and stop.id != found:
            raise WeightsError(
                f"stop token {stop.token!r} has id {found}, the manifest says {stop.id}",
                where=f"model {model.name}, field stop_tokens",
            )
        ids.append(found)
    return ids


def load_tokenizer(folder: Path, model: ModelManifest) -> PreTrainedTokenizerBase:
    """The model's tokenizer, from local files only."""
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        str(folder), trust_remote_code=model.trust_remote_code, local_files_only=True
    )
    return tokenizer


def _render(
    request: Request,
    model: ModelManifest,
    tokenizer: PreTrainedTokenizerBase,
    chat_template: str | None,
    max_tokens: int,
    adds_bos: bool,
) -> Prompt:
    turns = messages(request, model)
    for turn in turns:
        surrogate = next((c for c in turn["content"] if "\ud800" <= c <= "\udfff"), None)
        if surrogate is not None:
            reason = f"the prompt holds the lone surrogate U+{ord(surrogate):04X}"
            return Prompt(request, (), reason)
    ids = tokenizer.apply_chat_template(
        turns,
        chat_template=chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **dict(model.chat_template_kwargs),
    )
    bos = tokenizer.bos_token_id
    if adds_bos and (ids[:1] != [bos] or ids[1:2] == [bos]):
        raise WeightsError(
            f"the chat template does not begin with exactly one BOS (ids begin {ids[:3]})",
            where=f"model {model.name}, field chat_template",
        )
    rejected: str | None = None
    if not ids:
        rejected = "the prompt has no tokens"
    elif len(ids) + max_tokens > model.max_model_len:
        rejected = (
            f"{len(ids)} prompt tokens and {max_tokens} answer tokens exceed "
            f"max_model_len {model.max_model_len}"
        )
    return Prompt(request, tuple(ids), rejected)


def _adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("x")["input_ids"][:1] == [bos]
