"""Does a model fit a GPU? Computed from its manifest, before anything is downloaded.

Weights take 2 bytes a parameter in BF16 and float16, 4 in float32; a token's KV cache takes
2 (K and V) x layers x KV heads x head size times as much. What remains of
`gpu_memory_utilization` x memory after weights and overhead is the KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from colab_utils.errors import FitError
from colab_utils.manifests import ExperimentManifest, ModelManifest

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# Activations and CUDA graphs; an assumption until it is measured on the card in question.
OVERHEAD_BYTES = int(1.5 * 2**30)
# BF16, and recent vLLM releases at all, need this compute capability.
LEAST_CAPABILITY = 8.0
# Of one request while it runs, its share of a context that five requests have in common: a
# measure to size batches by, not a bound.
TYPICAL_TOKENS = 384
# More sequences in a step than this make no step of these models cheaper; fewer leave a card idle.
MOST_SEQUENCES, LEAST_SEQUENCES = 512, 32
INSTEAD = (
    "choose an L4 or a newer GPU, or an experiment with engine: transformers and precision: "
    "float16 (or float32), which is another decoding and slow"
)
# Memory in MiB as the driver reports it, and compute capability.
CARDS = {
    "T4": (15360, 7.5),
    "L4": (23034, 8.9),
    "A100 40 GB": (40960, 8.0),
    "A100 80 GB": (81920, 8.0),
    "H200": (143771, 9.0),
}


@dataclass(frozen=True)
class Fit:
    """Memory in bytes; `sequences` of full `max_model_len` that fit at once.

    `longest` is the longest single sequence, in tokens, that the KV cache could hold.
    """

    weights_bytes: int
    kv_bytes_per_token: int
    kv_room_bytes: int
    sequences: int
    longest: int

    @property
    def fits(self) -> bool:
        """Whether at least one sequence of `max_model_len` fits."""
        return self.sequences >= 1


def gpu_fit(
    model: ModelManifest,
    memory_bytes: int,
    *,
    gpu_memory_utilization: float = 0.85,
    precision: str = "bfloat16",
) -> Fit:
    """Fit of one model on a GPU of `memory_bytes`."""
    shape, size = model.architecture, _BYTES[precision]
    weights = shape.parameters * size
    per_token = 2 * shape.layers * shape.kv_heads * shape.head_size * size
    room = max(0, int(memory_bytes * gpu_memory_utilization) - weights - OVERHEAD_BYTES)
    return Fit(
        weights_bytes=weights,
        kv_bytes_per_token=per_token,
        kv_room_bytes=room,
        sequences=room // (per_token * model.max_model_len),
        longest=room // per_token,
    )


def sequences_in_a_step(
    model: ModelManifest, memory_bytes: int, *, gpu_memory_utilization: float = 0.85
) -> int:
    """How many sequences to let run at once on a GPU, for vLLM's `max_num_seqs`: a power of two.

    As many as the KV cache holds of typical requests. Room for the logits and the CUDA graphs of
    more would be taken from that very cache.
    """
    fit = gpu_fit(model, memory_bytes, gpu_memory_utilization=gpu_memory_utilization)
    wanted = max(1, fit.longest // TYPICAL_TOKENS)
    return max(LEAST_SEQUENCES, min(MOST_SEQUENCES, 1 << (wanted - 1).bit_length()))


def verdicts_by_card(model: ModelManifest, *, gpu_memory_utilization: float = 0.85) -> str:
    """Whether a model runs on the cards that Colab and labs have, in one line."""
    cards = "; ".join(
        f"{name}: {_verdict(model, mebibytes, capability, gpu_memory_utilization)}"
        for name, (mebibytes, capability) in CARDS.items()
    )
    return f"sequences of {model.max_model_len} tokens at once on {cards}"


def _verdict(model: ModelManifest, mebibytes: int, capability: float, utilization: float) -> str:
    if capability < LEAST_CAPABILITY:
        return "none, no BF16"
    fit = gpu_fit(model, mebibytes * 2**20, gpu_memory_utilization=utilization)
    if fit.fits:
        return str(fit.sequences)
    shorter = fit.longest // 256 * 256
    return f"none, fits with max_model_len {shorter}" if shorter >= 1024 else "does not fit"


def lacks_bf16(experiment: ExperimentManifest, capability: float) -> bool:
    """Whether a GPU of that compute capability can't run an experiment's engine and precision."""
    needs = experiment.engine == "vllm" or experiment.precision == "bfloat16"
    return needs and capability < LEAST_CAPABILITY


def require_bf16(experiment: ExperimentManifest, gpu: dict[str, object], *, where: str) -> None:
    """Raise `FitError` for a probed GPU that can't run an experiment's engine and precision."""
    if lacks_bf16(experiment, float(str(gpu["compute_capability"]))):
        raise FitError(
            f"{gpu['name']} has no BF16 and no recent vLLM (compute capability "
            f"{gpu['compute_capability']})",
            where=where,
            mend=INSTEAD,
        )


def require_fit(
    model: ModelManifest,
    experiment: ExperimentManifest,
    gpu: dict[str, object],
    utilization: float,
) -> Fit:
    """Fit on a probed GPU; raises `FitError` with the next step when the model can't run there."""
    require_bf16(experiment, gpu, where=f"model {model.name}")
    fit = gpu_fit(
        model,
        int(str(gpu["memory_bytes"])),
        gpu_memory_utilization=utilization,
        precision=experiment.precision,
    )
    if not fit.fits:
        raise FitError(
            f"needs {fit.weights_bytes / 1e9:.1f} GB for weights, and the rest of {gpu['name']} "
            f"holds {fit.longest} tokens, fewer than max_model_len {model.max_model_len}",
            where=f"model {model.name}",
            mend="choose a larger GPU"
            if fit.longest < 1024
            else f"set max_model_len to {fit.longest // 256 * 256} or choose a larger GPU",
        )
    return fit
