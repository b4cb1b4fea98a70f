"""The reference engine: Hugging Face transformers behind the same calls as vLLM's.

It answers whole batches, left-padded, one after another, so that a paper can set vLLM beside the
library that models are published with; and it runs on cards that vLLM no longer knows, in
float16 or float32. Nothing of it is fast. Only the engine interpreter imports transformers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from colab_utils.engine import Answer
from colab_utils.manifests import ExperimentManifest, ModelManifest

BATCH = 32


def import_transformers() -> None:
    """Import what answers need, which takes many seconds."""
    import torch  # noqa: F401
    import transformers  # noqa: F401


@dataclass(frozen=True)
class _Waiting:
    request_id: str
    token_ids: list[int]
    max_tokens: int


class TransformersEngine:
    """One loaded model, as a context manager, with the calls of `engine.Engine`.

    `step` answers the next `BATCH` requests at once: greedy, with attention by SDPA, on the GPU
    where there is one. An answer ends where vLLM's would: with a stop token of the manifest or the
    tokenizer's own end, which belongs to its token ids, or at max_tokens.
    """

    def __init__(
        self,
        folder: Path,
        model: ModelManifest,
        experiment: ExperimentManifest,
        *,
        tokenizer: Any,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._folder = folder
        self._model = model
        self._experiment = experiment
        self._tokenizer = tokenizer
        self._stop_token_ids = list(stop_token_ids)
        self._waiting: deque[_Waiting] = deque()
        self._network: Any = None
        self._device = "cpu"

    def __enter__(self) -> TransformersEngine:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(self._experiment.decoding.seed)
        network = AutoModelForCausalLM.from_pretrained(
            str(self._folder),
            dtype=getattr(torch, self._experiment.precision),
            attn_implementation="sdpa",
            trust_remote_code=self._model.trust_remote_code,
            local_files_only=True,
        )
        self._network = network.to(self._device).eval()
        ends = sorted({*self._stop_token_ids, *self._own_end()})
        # Else the repository's sampling defaults leak into a greedy run.
        self._network.generation_config = GenerationConfig(
            do_sample=False, num_beams=1, use_cache=True,
            repetition_penalty=self._model.repetition_penalty,
            eos_token_id=ends, pad_token_id=ends[0],
        )  # fmt: skip
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._network = None

    @property
    def in_flight(self) -> int:
        """Requests added and not yet finished."""
        return len(self._waiting)

    def describe(self) -> dict[str, Any]:
        """Facts of the loaded engine that join the run fingerprint."""
        return {
            "attention_backend": "sdpa",
            "mode": "eager",
            "max_num_batched_tokens": None,
            "batch": BATCH,
        }

    def kv_room_tokens(self) -> int | None:
        """None: memory for the KV cache is taken as answers grow."""
        return None

    def sequences_at_once(self, prompts: Sequence[Any], *, answer_tokens: int) -> int:
        """The batch, whatever the requests."""
        return BATCH

    def add(
        self, request_id: str, token_ids: Sequence[int], *, max_tokens: int | None = None
    ) -> None:
        """Queue one request, `max_tokens` in place of the experiment's if it is given."""
        if any(waiting.request_id == request_id for waiting in self._waiting):
            raise ValueError(f"request {request_id!r} is already in flight")
        most = self._experiment.decoding.max_tokens
        limit = most if max_tokens is None else min(max_tokens, most)
        self._waiting.append(_Waiting(request_id, list(token_ids), limit))

    def step(self) -> list[Answer]:
        """Answer the next batch of the queue; its answers in the order in which they were added."""
        import torch

        batch = [self._waiting[n] for n in range(min(BATCH, len(self._waiting)))]
        width = max(len(waiting.token_ids) for waiting in batch)
        fill = self._network.generation_config.pad_token_id
        padded = [[fill] * (width - len(w.token_ids)) + w.token_ids for w in batch]
        mask = [[0] * (width - len(w.token_ids)) + [1] * len(w.token_ids) for w in batch]
        with torch.inference_mode():
            output = self._network.generate(
                input_ids=torch.tensor(padded, device=self._device),
                attention_mask=torch.tensor(mask, device=self._device),
                max_new_tokens=max(waiting.max_tokens for waiting in batch),
            )
        rows = output[:, width:].tolist()
        for _ in batch:
            self._waiting.popleft()
        return [self._answer(waiting, row) for waiting, row in zip(batch, rows, strict=True)]

    def reset_prefix_cache(self) -> None:
        """Nothing to do: no batch leaves anything to the next."""

    def _own_end(self) -> list[int]:
        end = self._tokenizer.eos_token_id
        return [] if end is None else [int(end)]

    def _answer(self, waiting: _Waiting, row: list[int]) -> Answer:
        ends = self._network.generation_config.eos_token_id
        room = row[: waiting.max_tokens]
        length = next((n for n, token in enumerate(room, start=1) if token in ends), None)
        tokens = room if length is None else room[:length]
        own = length is not None and tokens[-1] in self._own_end()
        return Answer(
            request_id=waiting.request_id,
            text=self._tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            ),
            token_ids=tokens,
            finish_reason="length" if length is None else "stop",
            stop_reason=None if length is None or own else tokens[-1],
            cached_tokens=0,
        )
