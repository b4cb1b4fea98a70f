"""Load one BF16 model into vLLM, feed it token ids, and hand back finished answers.

Only the engine interpreter imports vllm, and only inside `Engine.__enter__`. The engine
runs in the calling process: one model a process, nothing is orphaned when it ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from colab_utils.engine_modes import Mode
from colab_utils.fit import sequences_in_a_step
from colab_utils.manifests import Decoding, ModelManifest
from colab_utils.prompts import Prompt


class Operating(BaseModel):
    """Operating settings: they decide speed and safety, not answers.

    `gpu_memory_utilization` is a share of the GPU's memory; `cpu_kv_cache_gib` the KV cache
    of the CPU backend in GiB; `max_num_batched_tokens` and `max_num_seqs` bound one step.
    `window` is how many chunks' worth of requests the engine holds where answers do not depend on
    batching, None for the program's choice from the KV cache's room; elsewhere chunks run one
    after another.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    chunk_size: int = Field(default=32, ge=1)
    heartbeat_seconds: float = Field(default=20, gt=0)
    gpu_memory_utilization: float = Field(default=0.85, gt=0, lt=1)
    cpu_kv_cache_gib: int = Field(default=2, ge=1)
    window: int | None = Field(default=None, ge=1)
    max_num_seqs: int = Field(default=256, ge=1)
    max_num_batched_tokens: int = Field(default=16384, ge=64)


def operating_for(model: ModelManifest, gpu: dict[str, Any] | None, chunk_size: int) -> Operating:
    """Operating settings for a model on a probed GPU, or on the CPU where that is None."""
    if gpu is None:
        return Operating(chunk_size=chunk_size, max_num_batched_tokens=2048)
    return Operating(
        chunk_size=chunk_size,
        max_num_batched_tokens=model.max_num_batched_tokens,
        max_num_seqs=sequences_in_a_step(model, gpu["memory_bytes"]),
    )


@dataclass(frozen=True)
class Answer:
    """What the engine returned for one request; `cached_tokens` came from the prefix cache."""

    request_id: str
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None
    cached_tokens: int


def set_engine_environment(
    device: str, operating: Operating, mode: Mode, *, batch_invariant: bool, compile_cache: Path
) -> None:
    """Set the variables that vLLM reads at import; call it before `import vllm`.

    `batch_invariant` asks vLLM for sums that do not depend on how requests are batched.
    Compiled graphs are kept in `compile_cache`, so that a second start is quicker.
    """
    os.environ.update(
        {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
    )
    if device == "cpu":
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(operating.cpu_kv_cache_gib)
        os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    else:
        # FlashInfer's sampler compiles with nvcc at run time, which Colab's image may not match.
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        os.environ["VLLM_BATCH_INVARIANT"] = str(int(batch_invariant))
        os.environ.setdefault("VLLM_CACHE_ROOT", str(compile_cache))
        os.environ.update(mode.environment())


def import_engine() -> None:
    """Import vllm, which takes many seconds; call `set_engine_environment` before."""
    import vllm  # noqa: F401


class AnsweringEngine(Protocol):
    """What the run loop asks of an engine, whichever it is."""

    @property
    def in_flight(self) -> int:
        """Requests added and not yet finished."""

    def add(
        self, request_id: str, token_ids: Sequence[int], *, max_tokens: int | None = None
    ) -> None:
        """Queue one request."""

    def step(self) -> list[Answer]:
        """Go on a little; the answers that finished."""

    def reset_prefix_cache(self) -> None:
        """Forget what earlier requests left."""

    def sequences_at_once(self, prompts: Sequence[Prompt], *, answer_tokens: int) -> int:
        """How many such requests run at once."""


class Engine:
    """One loaded model, as a context manager: it owns the model from load to release.

    Requests are added with `add` and their answers come back from `step`, in the order in
    which they finish.
    """

    def __init__(
        self,
        folder: Path,
        model: ModelManifest,
        decoding: Decoding,
        operating: Operating,
        *,
        mode: Mode,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._folder = folder
        self._model = model
        self._decoding = decoding
        self._operating = operating
        self._mode = mode
        self._stop_token_ids = list(stop_token_ids)
        self._engine: Any = None
        self._params: Any = None
        self._open: set[str] = set()

    def __enter__(self) -> Engine:
        from vllm import EngineArgs, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(self._folder),
                tokenizer=str(self._folder),
                trust_remote_code=self._model.trust_remote_code,
                dtype="bfloat16",
                seed=self._decoding.seed,
                max_model_len=self._model.max_model_len,
                gpu_memory_utilization=self._operating.gpu_memory_utilization,
                max_num_seqs=self._operating.max_num_seqs,
                max_num_batched_tokens=self._operating.max_num_batched_tokens,
                enable_prefix_caching=True,
                **self._mode.engine_arguments(),
                # Nobody reads them, and they cost time at each step.
                disable_log_stats=True,
                # Else the repository's sampling defaults leak into a greedy run.
                generation_config="vllm",
            )
        )
        self._params = SamplingParams(
            temperature=self._decoding.temperature,
            n=self._decoding.n,
            seed=self._decoding.seed,
            max_tokens=self._decoding.max_tokens,
            repetition_penalty=self._model.repetition_penalty,
            stop_token_ids=self._stop_token_ids,
            skip_special_tokens=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine = None

    @property
    def in_flight(self) -> int:
        """Requests added and not yet finished."""
        return len(self._open)

    def describe(self) -> dict[str, Any]:
        """Facts of the loaded engine that join the run fingerprint."""
        config = self._engine.vllm_config
        return {
            "attention_backend": _attention_backend(config),
            "mode": self._mode.name,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        }

    def kv_room_tokens(self) -> int:
        """Tokens that the KV cache holds, as vLLM itself laid it out."""
        cache = self._engine.vllm_config.cache_config
        return int(cache.num_gpu_blocks) * int(cache.block_size)

    def sequences_at_once(self, prompts: Sequence[Prompt], *, answer_tokens: int) -> int:
        """How many such requests run at once, with answers of so many tokens.

        Bounded by the KV cache's room and by max_num_seqs. What neighbours share at their
        beginning is held once, by the prefix cache.
        """
        given = [prompt.token_ids for prompt in prompts if prompt.rejected is None]
        own = sum(map(len, given)) - sum(
            _shared_beginning(left, right) for left, right in pairwise(given)
        )
        each = max(1, own / max(len(given), 1) + answer_tokens)
        return max(1, min(self._operating.max_num_seqs, int(self.kv_room_tokens() / each)))

    def add(
        self, request_id: str, token_ids: Sequence[int], *, max_tokens: int | None = None
    ) -> None:
        """Queue one request, `max_tokens` in place of the experiment's if it is given.

        vLLM would accept a doubled id, so it is refused here.
        """
        if request_id in self._open:
            raise ValueError(f"request {request_id!r} is already in flight")
        self._open.add(request_id)
        params = self._params.clone()
        if max_tokens is not None:
            params.max_tokens = min(max_tokens, params.max_tokens)
        self._engine.add_request(request_id, {"prompt_token_ids": list(token_ids)}, params)

    def step(self) -> list[Answer]:
        """One step of the engine; the answers that finished in it."""
        answers = []
        for output in self._engine.step():
            if not output.finished:
                continue
            self._open.discard(output.request_id)
            completion = output.outputs[0]
            answers.append(
                Answer(
                    request_id=output.request_id,
                    text=completion.text,
                    token_ids=[int(token) for token in completion.token_ids],
                    finish_reason=str(completion.finish_reason),
                    stop_reason=completion.stop_reason,
                    cached_tokens=output.num_cached_tokens or 0,
                )
            )
        return answers

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache, so that what follows does not depend on what came before."""
        self._engine.reset_prefix_cache()


def _shared_beginning(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(left), len(right)))


def _attention_backend(config: Any) -> str:
    """Name of the attention backend in force, from the layers themselves."""
    layers = config.compilation_config.static_forward_context.values()
    backends = {
        layer.get_attn_backend().get_name()
        for layer in layers
        if hasattr(layer, "get_attn_backend")
    }
    return ", ".join(sorted(backends)) or "unknown"
